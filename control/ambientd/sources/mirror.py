"""One kind of one API server, as it was when last heard of: which objects, in which versions. Says what a list or a
line of a watch means as events. Pure: no I/O and no clock. Must not keep the objects themselves; the index has them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from ambientd.kube.errors import Ahead, ApiError, Gone
from ambientd.kube.wire import decode_bookmark, decode_line, error_of
from ambientd.resources.decode import decode, decode_head
from ambientd.resources.events import Delete, Event, Invalid, Put
from ambientd.resources.faults import Undecodable
from ambientd.resources.ref import ClusterId, Ref


class Why(StrEnum):
    """Why everything is listed (again)."""

    START = "start"
    EXPIRED = "410"
    AHEAD = "too large resource version"
    WENT_BACK = "version went back"
    APPEARED = "appeared"
    RECONNECT = "reconnect"
    """The connection broke off, and nobody knows what became of the server meanwhile."""
    CONSISTENCY = "consistency"


class Relist(Exception):
    """The watch cannot go on from where it was."""

    def __init__(self, why: Why, detail: str) -> None:
        super().__init__(f"{why.value}: {detail}")
        self.why = why


class _Seen(Struct, frozen=True):
    """One event of a watch."""

    ref: Ref
    version: str
    after: str
    """Up to which version everything had been seen before it."""

    def __str__(self) -> str:
        return f"{self.ref} at {self.version}"


class Mirror:
    """What is held of one kind. `version`: everything up to it was seen; empty: nothing was listed yet."""

    def __init__(self, cluster: ClusterId, kind: str) -> None:
        self.cluster = cluster
        self.kind = kind
        self.version = ""
        self.nameless = 0
        """Objects that came without a name, and so could not even be reported."""
        self.bookmarks = 0
        self._held: dict[Ref, str] = {}
        self._is_trusted = True
        self._last: _Seen | None = None
        """The last event of a watch, if there was one since the last list."""
        self._expected: _Seen | None = None
        """What a watch must repeat before it tells anything new."""

    def __len__(self) -> int:
        return len(self._held)

    def names(self) -> set[Ref]:
        """Of what is held; a copy."""
        return set(self._held)

    def distrust(self) -> None:
        """The server's history is not the one that we saw: an equal version may stand for another content."""
        self._is_trusted = False

    @property
    def is_expecting(self) -> bool:
        """The watch has not yet repeated what was seen last."""
        return self._expected is not None

    def overlap(self) -> str:
        """From which version to watch so that the first thing told is the last one that was seen: an etcd that was
        restored from a backup cannot tell it, and would otherwise go on without a word about what it lost. Empty:
        nothing was seen since the last list that could be repeated."""
        self._expected = self._last
        return self._last.after if self._last is not None else ""

    def went_back(self, detail: str) -> Relist:
        """The server's history is not the one that we saw."""
        self.distrust()
        return Relist(Why.WENT_BACK, detail)

    def begin(self, version: str) -> Listing:
        """A list of this version is about to come, perhaps page by page."""
        if is_older(version, self.version):
            self.distrust()
        return Listing(self, version)

    def replace(self, listing: Listing) -> list[Event]:
        """The list is complete: what it changes. Objects of the version that is held are not mentioned."""
        gone = sorted(listing.missing)
        for ref in gone:
            del self._held[ref]
        # In place, so that the names stay the ones that the index has too.
        self._held.update(listing.changed)
        self.version = listing.version
        self._is_trusted, self._last, self._expected = True, None, None
        return [*listing.events, *(Delete(ref, listing.version, listing.seen_s) for ref in gone)]

    def clear(self, seen_s: float) -> list[Event]:
        """The kind is no longer there, and that is certain."""
        gone = sorted(self._held)
        self._held, self.version = {}, ""
        self._is_trusted, self._last, self._expected = True, None, None
        return [Delete(ref, "", seen_s) for ref in gone]

    def is_known(self, ref: Ref, version: str) -> bool:
        return self._is_trusted and bool(version) and self._held.get(ref) == version

    def follow(self, line: bytes, seen_s: float) -> Event | None:
        """What one line of a watch means; None: nothing changes. Raises Relist, and ApiError for an error that the
        server reports in the line and for a line that is none; then nothing changed."""
        told = decode_line(line)
        match told.type:
            case "ADDED" | "MODIFIED":
                return self._put(bytes(told.object), seen_s)
            case "DELETED":
                return self._delete(bytes(told.object), seen_s)
            case "BOOKMARK":
                version = decode_bookmark(told.object)
                if self._expected is not None:
                    raise self.went_back(f"the watch is at {version} and did not repeat {self._expected}")
                self.bookmarks += 1
                self._advance(version)
            case "ERROR":
                error = error_of(f"the watch of {self.kind}", told.object)
                raise self.relist_for(error) or error
        return None

    def relist_for(self, error: ApiError) -> Relist | None:
        """What an error of a watch means for what is held; None: the watch can go on from there, later."""
        if isinstance(error, Gone):
            return Relist(Why.EXPIRED, str(error))
        if isinstance(error, Ahead):
            self.distrust()
            return Relist(Why.AHEAD, str(error))
        return None

    def _advance(self, version: str) -> None:
        if is_older(version, self.version):
            raise self.went_back(f"the watch tells of {version} after {self.version}")
        self.version = version

    def _is_repeated(self, ref: Ref, version: str) -> bool:
        """Whether an event is the one that was expected. Raises Relist when another one was."""
        expected, self._expected = self._expected, None
        if expected is None:
            return False
        if (expected.ref, expected.version) != (ref, version):
            raise self.went_back(f"the watch tells of {ref} at {version} and did not repeat {expected}")
        return True

    def _put(self, raw: bytes, seen_s: float) -> Event | None:
        head = self._head(raw)
        if head is None:
            return None
        ref, version = head
        before = self.version
        self._advance(version)
        self._last = _Seen(ref, version, before)
        if self.is_known(ref, version):
            return None
        event = read_object(raw, ref, version, seen_s)
        self._held[event.ref] = version
        return event

    def _delete(self, raw: bytes, seen_s: float) -> Event | None:
        head = self._head(raw)
        if head is None:
            return None
        ref, version = head
        self._last = _Seen(ref, version, self.version)
        # The version of a deletion is that of the deletion; some servers tell the object's last one, and that is no
        # step back.
        if not is_older(version, self.version):
            self.version = version
        return Delete(ref, version, seen_s) if self._held.pop(ref, None) is not None else None

    def _head(self, raw: bytes) -> tuple[Ref, str] | None:
        """Whose event it is, and which; None where nothing follows from it. Raises Relist."""
        try:
            ref, version = decode_head(raw, self.kind, self.cluster)
        except Undecodable:
            self.nameless += 1
            return None
        version = version or self.version
        return None if self._is_repeated(ref, version) else (ref, version)


class Listing:
    """A list that is coming in. The mirror does not change before it is complete."""

    def __init__(self, mirror: Mirror, version: str) -> None:
        self.version = version
        self.seen_s = 0.0
        # Emptied one by one as objects come: to compare 100,000 names at the end would hold the loop.
        self.missing: set[Ref] = mirror.names()
        self.changed: dict[Ref, str] = {}
        self.events: list[Event] = []
        self._mirror = mirror

    def take(self, items: Iterable[bytes], seen_s: float) -> None:
        """Some more objects. About 10 µs for one that is new, 5 µs for one that is held."""
        self.seen_s = seen_s
        mirror = self._mirror
        for raw in items:
            try:
                ref, version = decode_head(raw, mirror.kind, mirror.cluster)
            except Undecodable:
                mirror.nameless += 1
                continue
            self.missing.discard(ref)
            if mirror.is_known(ref, version):
                continue
            event = read_object(raw, ref, version, seen_s)
            self.changed[event.ref] = version
            self.events.append(event)


def read_object(raw: bytes, ref: Ref, version: str, seen_s: float) -> Put | Invalid:
    """An object that cannot be decoded is invalid, and nothing else suffers."""
    try:
        value, faults = decode(raw, ref.kind, ref.cluster)
    except Undecodable as error:
        return Invalid(ref, error.faults, version, seen_s)
    return Put(value, version, seen_s, faults)


def is_older(version: str, than: str) -> bool:
    """Versions are decimal numbers that grow; where they are not, they are opaque, and none is older. An empty one is
    older than none."""
    if not (version.isascii() and than.isascii() and version.isdigit() and than.isdigit()):
        return False
    return int(version) < int(than)
