"""A folder of manifests as a source, without the folder: what was listed and read comes in, with the time, and events
come out. Decides when a change is complete and when something is gone. Must not touch a file or a clock.

A changed file counts once it, and all others that change with it, have stood still for `settle_s`: so one batch holds
what belongs together, and an object that moves to another file is never deleted. A file that is missing or empty may be
in the middle of being written: its objects stay for a while. A file that cannot be read or understood, and a folder
that is lost, delete nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from msgspec import Struct, field, structs

from ambientd.resources.events import Delete, Event, Invalid, Put
from ambientd.resources.faults import Fault
from ambientd.resources.ref import ClusterId, Ref
from ambientd.sources.manifest_file import KEPT, FileContent, Found

Signature = tuple[int, int, int, int]
"""Inode, times of modification and of change in nanoseconds, size: equal while the content is."""


class Listing(Struct, frozen=True):
    """What was found in the folder at one time, by path relative to it."""

    files: Mapping[str, Signature]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Files and sub-folders that are there, or may be, and why they cannot be looked at."""


class Lost(Struct, frozen=True):
    """The folder itself cannot be listed."""

    reason: str


class Unreadable(Struct, frozen=True):
    """A file that is listed and cannot be read."""

    reason: str


class Patience(Struct, frozen=True):
    """How long to wait before something is believed, in seconds."""

    settle_s: float = 0.2
    """A change is complete when nothing changed for so long; editors write in several steps, well within it."""
    missing_s: float = 1.0
    """A file is gone when it is missing for so long; some editors delete and create."""
    empty_s: float = 2.0
    """A file without a document has lost its objects when it stays so for so long; some tools truncate and then
    write."""
    change_s: float = 2.0
    """A change counts after so long even though others go on; else a file that is always written to would hold up the
    others."""
    busy_s: float = 30.0
    """A file that does not stand still is taken as it is after so long; some tools write slowly, but none for ever."""


class _File:
    """What is known of one file."""

    def __init__(self) -> None:
        self.latest: Signature | None = None
        self.changed_s = 0.0
        """When `latest` was first listed."""
        self.waiting_s: float | None = None
        """Since when there is a change that was not taken; None: there is none."""
        self.not_before_s = 0.0
        """When a content that was empty, or changed while it was read, is looked at again."""
        self.missing_s: float | None = None
        """Since when it is missing."""
        self.trouble = ""
        """Why it cannot be read."""
        self.objects: tuple[Found, ...] = ()
        """What is in force."""
        self.faults: tuple[Fault, ...] = ()
        """What is wrong with the content that was taken last."""


class FolderState:
    """What a folder holds, and what was emitted of it. Used as `observe`, then `take`, again and again."""

    def __init__(self, cluster: ClusterId, patience: Patience | None = None) -> None:
        self._cluster = cluster
        self._patience = patience or Patience()
        self._files: dict[str, _File] = {}
        self._asked: list[str] = []
        """What `observe` named last."""
        self.folder: object = None
        """Which folder was listed last, for whoever lists it."""
        self._lost = ""
        self._unreadable: Mapping[str, str] = {}
        self._emitted: dict[Ref, Put | Invalid] = {}
        self._seen: object = None
        """What `_wanted` was last made of, apart from the contents of files."""

    @property
    def is_settled(self) -> bool:
        """Everything that was listed is taken; False while the folder is lost."""
        return not self._lost and all(file.waiting_s is None for file in self._files.values())

    def observe(self, listing: Listing | Lost, now_s: float) -> list[str]:
        """Notes a listing; the files to read now, in path order, for `take`."""
        if isinstance(listing, Lost):
            self._lost = listing.reason
            for file in self._files.values():
                file.missing_s = None
            self._asked = []
            return []
        self._lost = ""
        self._unreadable = listing.unreadable
        for path, signature in listing.files.items():
            self._see(self._files.setdefault(path, _File()), signature, now_s)
        for path, file in self._files.items():
            if path in listing.files:
                continue
            file.latest, file.waiting_s = None, None
            file.trouble = next((why for part, why in listing.unreadable.items() if _is_in(path, part)), "")
            if file.trouble:
                file.missing_s = None
            elif file.missing_s is None:
                file.missing_s = now_s
        self._asked = self._due(now_s)
        return self._asked

    def _see(self, file: _File, signature: Signature, now_s: float) -> None:
        file.missing_s = None
        if signature != file.latest:
            file.latest, file.changed_s, file.not_before_s = signature, now_s, 0.0
            if file.waiting_s is None:
                file.waiting_s = now_s

    def _due(self, now_s: float) -> list[str]:
        if now_s < self._together_s():
            return []
        return sorted(path for path, file in self._files.items() if now_s >= self._ready_s(file))

    def _together_s(self) -> float:
        """When the changes so far are a whole: all files stand still, or the first one has waited long enough."""
        waiting = [(file.changed_s, file.waiting_s) for file in self._files.values() if file.waiting_s is not None]
        if not waiting:
            return 0.0
        still_s = max(changed_s for changed_s, _ in waiting) + self._patience.settle_s
        return min(still_s, min(since_s for _, since_s in waiting) + self._patience.change_s)

    def _ready_s(self, file: _File) -> float:
        """When a file may be read; never where nothing is to be taken of it."""
        if file.waiting_s is None:
            return math.inf
        complete_s = max(file.changed_s + self._patience.settle_s, file.not_before_s)
        return min(complete_s, max(file.waiting_s + self._patience.busy_s, file.not_before_s))

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until something must be looked at again although nothing changes; None: nothing must. Above 0 after
        a look, so that no state of a folder has it looked at without a pause."""
        if self._lost:
            return None
        ready_s = [self._ready_s(file) for file in self._files.values() if file.waiting_s is not None]
        times = [max(self._together_s(), min(ready_s))] if ready_s else []
        times += [
            file.missing_s + self._patience.missing_s for file in self._files.values() if file.missing_s is not None
        ]
        return max(0.0, min(times) - now_s) if times else None

    def take(self, contents: Mapping[str, FileContent | Unreadable], now_s: float) -> list[Event]:
        """Takes what was read of the files that `observe` named; the events that follow, as one batch. A file that
        changed while it was read is not among the contents, and comes again once it stands still."""
        for path in self._asked:
            if path not in contents:
                self._files[path].not_before_s = now_s + self._patience.settle_s
        for path, content in contents.items():
            file = self._files[path]
            if isinstance(content, Unreadable):
                file.trouble, file.waiting_s = content.reason, None
            else:
                self._take_content(file, content, now_s)
        if not self._lost:
            for path in [path for path, file in self._files.items() if self._is_gone(file, now_s)]:
                del self._files[path]
        # Most looks find nothing new, and comparing all objects would cost more than the look.
        states = {path: (file.trouble, file.missing_s is None) for path, file in self._files.items()}
        seen = self._lost, self._unreadable, states
        if not contents and seen == self._seen:
            return []
        self._seen = seen
        return self._events(now_s)

    def _take_content(self, file: _File, content: FileContent, now_s: float) -> None:
        is_empty = content.is_whole and not content.objects and not content.faults
        if is_empty and file.objects and now_s < file.changed_s + self._patience.empty_s:
            file.not_before_s = file.changed_s + self._patience.empty_s
            return
        file.trouble, file.waiting_s, file.faults = "", None, content.faults
        # Of a file that is not whole nothing is taken as long as something good is there: no half of it may act.
        if content.is_whole or not file.objects:
            file.objects = content.objects

    def _is_gone(self, file: _File, now_s: float) -> bool:
        return file.missing_s is not None and now_s >= file.missing_s + self._patience.missing_s

    def _events(self, now_s: float) -> list[Event]:
        wanted = self._wanted()
        changed = sorted(ref for ref, event in wanted.items() if self._emitted.get(ref) != event)
        events: list[Event] = [structs.replace(wanted[ref], seen_s=now_s) for ref in changed]
        events += [Delete(ref, seen_s=now_s) for ref in sorted(self._emitted.keys() - wanted.keys())]
        self._emitted = wanted
        return events

    def _wanted(self) -> dict[Ref, Put | Invalid]:
        """Everything that is to be in force, by its name."""
        wanted: dict[Ref, Put | Invalid] = {}
        owners: dict[Ref, str] = {}
        # A missing file comes last, so that an object that moved belongs to the file in which it is now.
        for path, file in sorted(self._files.items(), key=lambda item: (item[1].missing_s is not None, item[0])):
            faults = [*self._troubles(file), *file.faults]
            for found in file.objects:
                ref = found.event.ref
                owner = owners.setdefault(ref, path)
                if ref not in wanted:
                    wanted[ref] = found.event
                elif file.missing_s is None:
                    faults.append(_duplicate(found, owner))
            if faults and file.missing_s is None:
                self._report(wanted, path, faults)
        for path, reason in self._unreadable.items():
            if path not in self._files:
                self._report(wanted, path, [Fault("", "must be readable", reason, KEPT)])
        if self._lost:
            self._report(wanted, ".", [Fault("", "must be a folder that can be listed", self._lost, "nothing changes")])
        return wanted

    def _troubles(self, file: _File) -> Iterable[Fault]:
        return [Fault("", "must be readable", file.trouble, KEPT)] if file.trouble else []

    def _report(self, wanted: dict[Ref, Put | Invalid], path: str, faults: list[Fault]) -> None:
        ref = Ref(self._cluster, "File", "", path)
        wanted[ref] = Invalid(ref, tuple(faults))


def _is_in(path: str, part: str) -> bool:
    return path == part or path.startswith(part + "/")


def _duplicate(found: Found, owner: str) -> Fault:
    rule = f"{found.event.ref} must be defined once, and {owner} defines it already"
    return Fault(f"line {found.line}", rule, "", "this one is left out")
