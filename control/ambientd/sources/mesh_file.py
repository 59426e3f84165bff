"""The file with the mesh configuration, watched (operations.md 6.1, 6.5): used instead of the ConfigMap where it
exists at the start. A file that goes away or cannot be read leaves the last good configuration in force."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Never

from ambientd.resources.core import MESH_FILE, ConfigMap
from ambientd.resources.events import Emit, Invalid, Put
from ambientd.resources.faults import Fault, Undecodable
from ambientd.resources.mesh_decode import EFFECT, decode_mesh


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
        return read_mesh(path.read_bytes())
    except OSError as error:
        reason = error.strerror or str(error)
        return Invalid(MESH_FILE, (Fault("", f"must be a file that can be read ({path})", reason, EFFECT),))


async def watch_mesh_file(path: Path, emit: Emit, *, poll_s: float = 1.0) -> Never:
    """Emits what the file says now, and again whenever it has changed and then stood still for `poll_s` seconds, since
    some editors write in several steps. For ever."""
    emitted = look(path)
    emit([emitted])
    signature = _signature(path)
    while True:
        await asyncio.sleep(poll_s)
        seen = _signature(path)
        if seen != signature:
            signature = seen
            continue
        found = await asyncio.to_thread(look, path)
        if found != emitted:
            emitted = found
            emit([found])


def _signature(path: Path) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
