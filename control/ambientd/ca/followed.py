"""Files that somebody else writes, read again once they have changed and then stood still, since a mount is swapped in
several steps. Must not judge what they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from ambientd.aside import Aside, Stuck

T = TypeVar("T")

READ_S = 10.0
"""How long they may take to be read."""
POLL_S = 0.3
"""Between looks; a change counts once it has stood still for so long."""


class FollowedFiles(Generic[T]):
    """Files that belong together, and need not be there."""

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """`what` they are, for an operator; `read` blocks."""
        self._paths = paths
        self._read = read
        self._aside = Aside(f"reading {what}", "see whether the volume answers")
        self._seen: list[tuple[int, int, int] | None] | None = None
        self._must_read = False
        """They have changed since they were read, or what was read then was lost."""

    async def read(self) -> T:
        """What they hold now; what comes from now on is a change. Raises Stuck, and whatever reading raises."""
        return await self._aside.run(self._read_now, READ_S)

    async def look(self) -> T | None:
        """What they hold, if they have changed and are as at the last look; None: there is nothing new. Raises Stuck,
        and whatever reading raises, once for each change."""
        try:
            return await self._aside.run(self._look, READ_S)
        except Stuck:
            self._must_read = True
            raise

    def _read_now(self) -> T:
        self._seen, self._must_read = self._signatures(), False
        return self._read()

    def _look(self) -> T | None:
        now = self._signatures()
        if now != self._seen:
            self._seen, self._must_read = now, True
            return None
        if not self._must_read:
            return None
        self._must_read = False
        return self._read()

    def _signatures(self) -> list[tuple[int, int, int] | None]:
        return [_signature(path) for path in self._paths]


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
