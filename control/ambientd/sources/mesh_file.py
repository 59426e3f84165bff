"""The file with the mesh configuration, watched (operations.md 6.1, 6.5): used instead of the ConfigMap where it
exists at the start. A file that goes away or cannot be read leaves the last good configuration in force."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Never

import structlog

from ambientd.aside import in_the_end, read_file
from ambientd.resources.core import MESH_FILE, ConfigMap
from ambientd.resources.events import Emit, Invalid, Put
from ambientd.resources.faults import Fault, Undecodable
from ambientd.resources.mesh_decode import EFFECT, decode_mesh

log = structlog.get_logger("model")


def read_mesh(content: bytes) -> Put | Invalid:
    """What the content of the file means. A file without a document is an empty configuration: all defaults."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        return Invalid(MESH_FILE, (Fault("", "must be UTF-8", f"a wrong byte at {error.start}", EFFECT),))
    try:
        mesh, faults = decode_mesh(text)
    except Undecodable as error:
        return Invalid(MESH_FILE, error.faults)
    return Put(ConfigMap(MESH_FILE, mesh), faults=faults)


def look(path: Path) -> Put | Invalid:
    """What the file says now."""
    try:
        return read_mesh(read_file(path))
    except OSError as error:
        reason = error.strerror or str(error)
        return Invalid(MESH_FILE, (Fault("", f"must be a file that can be read ({path})", reason, EFFECT),))


async def watch_mesh_file(path: Path, emit: Emit, *, poll_s: float = 1.0) -> Never:
    """Emits what the file says now, and again whenever it has changed and then stood still for `poll_s` seconds, since
    some editors write in several steps. For ever."""

    def tell_of_silence() -> None:
        log.error("the file of the mesh configuration does not answer, the last one stays in force", path=str(path))

    emitted = look(path)
    emit([emitted])
    signature = _signature(path)
    while True:
        await asyncio.sleep(poll_s)
        seen = await in_the_end(lambda: _signature(path), tell_of_silence)
        if seen != signature:
            signature = seen
            continue
        found = await in_the_end(lambda: look(path), tell_of_silence)
        if found != emitted:
            emitted = found
            emit([found])


def _signature(path: Path) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
