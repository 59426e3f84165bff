"""A folder of manifests, watched: the shell around `folder.py`. Lists, reads and waits, and decides nothing. Hints of
the kernel only make it look sooner; it looks every few seconds in any case, since a network file system and a folder
that was replaced give no hints."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from functools import partial
from pathlib import Path
from typing import Never

import structlog
import watchfiles

from ambientd.aside import in_the_end, open_file
from ambientd.resources.events import Emit, Event, Synced
from ambientd.resources.kinds import KINDS
from ambientd.resources.ref import ClusterId
from ambientd.sources.folder import FolderState, Listing, Lost, Patience, Signature, Unreadable
from ambientd.sources.manifest_file import SUFFIXES, FileContent, read_manifests

log = structlog.get_logger(__name__)

_FolderId = tuple[int, int] | None

_LIMIT_BYTES = 64 << 20
"""Of one file: more is a mistake, and would be in memory several times."""
_DEPTH_LIMIT = 100
"""Folders within each other: a mesh has a few, and each is a call within a call."""


async def watch_folder(
    folder: Path, cluster: ClusterId, emit: Emit, *, patience: Patience | None = None, poll_s: float = 2.0
) -> Never:
    """Emits what the manifests under a folder say, for ever: one batch per change, times by the monotonic clock. All
    kinds are reported as synced once everything that was there at the start has been taken; a folder that is not there
    is reported, and not synced. Listing a thousand files takes a few milliseconds, in a thread."""

    def tell_of_silence() -> None:
        log.error("the folder does not answer, what was read of it stays in force", folder=str(folder))

    state = FolderState(cluster, patience)
    changed = asyncio.Event()
    is_synced = False
    watched: _FolderId = None
    hints: asyncio.Task[Never] | None = None
    try:
        while True:
            changed.clear()
            events, found = await in_the_end(partial(_look, folder, cluster, state), tell_of_silence)
            if not is_synced and state.is_settled:
                events += [Synced(cluster, kind) for kind in KINDS]
                is_synced = True
            if events:
                emit(events)
            if found != watched:
                # Another folder has this name now, and the kernel still tells of the old one.
                await _end(hints)
                hints = asyncio.create_task(_hint(folder, changed, poll_s)) if found else None
                watched = found
                continue
            wait_s = state.wait_s(time.monotonic())
            try:
                async with asyncio.timeout(poll_s if wait_s is None else min(poll_s, wait_s)):
                    await changed.wait()
            except TimeoutError:
                pass
    finally:
        await _end(hints)


async def _end(task: asyncio.Task[Never] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


async def _hint(folder: Path, changed: asyncio.Event, retry_s: float) -> Never:
    """Sets the event whenever the kernel tells of a change below the folder, as long as it can."""
    while True:
        try:
            # Hidden names are watched too: a mounted ConfigMap changes by renaming `..data`.
            async for _ in watchfiles.awatch(folder, watch_filter=None, debounce=100, step=20):
                changed.set()
        except (OSError, RuntimeError) as error:
            log.warning("a folder cannot be watched, and is polled", folder=str(folder), reason=str(error))
        await asyncio.sleep(retry_s)


def _look(folder: Path, cluster: ClusterId, state: FolderState) -> tuple[list[Event], _FolderId]:
    """One look at the folder: what follows from it, and which folder it was. Runs in a thread; only one at a time has
    the state."""
    listing, found = list_folder(folder)
    if isinstance(listing, Listing) and not listing.files and state.folder not in (None, found):
        # Where a volume was unmounted, or not mounted yet after it was replaced, there is an empty folder.
        listing, found = Lost("another folder has its name, and there is no manifest in it"), None
    if found is not None:
        state.folder = found
    due = state.observe(listing, time.monotonic())
    contents: dict[str, FileContent | Unreadable] = {}
    if isinstance(listing, Listing):
        for path in due:
            content = _read(folder, path, cluster, listing.files[path])
            if content is not None:
                contents[path] = content
    return state.take(contents, time.monotonic()), found


def _read(folder: Path, path: str, cluster: ClusterId, listed: Signature) -> FileContent | Unreadable | None:
    """None when the file is no longer the one that was listed."""
    try:
        with open_file(folder / path, _LIMIT_BYTES) as file:
            content = file.read()
            if not _is_same(os.fstat(file.fileno()), listed):
                return None
        # A rename over the file while it was read left us with the old one.
        if not _is_same(os.stat(folder / path), listed):
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        return Unreadable(_reason(error))
    return read_manifests(path, content, cluster)


def list_folder(folder: Path) -> tuple[Listing | Lost, _FolderId]:
    """The manifest files below a folder, and which folder it is. Hidden names are passed over, as a mounted ConfigMap
    keeps its versions under them; links are followed, but not in a circle."""
    files: dict[str, Signature] = {}
    unreadable: dict[str, str] = {}
    try:
        status = os.stat(folder)
        found = status.st_dev, status.st_ino
        _walk(str(folder), "", (found,), files, unreadable)
    except OSError as error:
        return Lost(_reason(error)), None
    return Listing(files, unreadable), found


def _walk(
    folder: str,
    prefix: str,
    above: tuple[tuple[int, int], ...],
    files: dict[str, Signature],
    unreadable: dict[str, str],
) -> None:
    with os.scandir(folder) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        if entry.name.startswith("."):
            continue
        path = prefix + entry.name
        try:
            path.encode()
        except UnicodeEncodeError:
            unreadable[os.fsencode(path).decode("utf-8", "backslashreplace")] = "its name is not UTF-8"
            continue
        try:
            status = entry.stat()
            if stat.S_ISDIR(status.st_mode):
                inode = status.st_dev, status.st_ino
                if len(above) > _DEPTH_LIMIT:
                    unreadable[path] = f"folders may be nested at most {_DEPTH_LIMIT} deep"
                elif inode not in above:
                    _walk(entry.path, path + "/", (*above, inode), files, unreadable)
            elif stat.S_ISREG(status.st_mode) and entry.name.endswith(SUFFIXES):
                files[path] = _signature(status)
        except FileNotFoundError as error:
            # A link that leads nowhere is there; anything else went away just now.
            if entry.is_symlink() and entry.name.endswith(SUFFIXES) and os.path.islink(entry.path):
                unreadable[path] = _reason(error)
        except OSError as error:
            unreadable[path] = _reason(error)


def _signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _is_same(status: os.stat_result, listed: Signature) -> bool:
    # Without the inode: some layered file systems number an open file otherwise than its name.
    return _signature(status)[1:] == listed[1:]


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
