"""When files that somebody else writes may be read again: once they have changed and then stood still, since a mount is
swapped in several steps. Must not read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

POLL_S = 0.3
"""Between looks; a change counts once it has stood still for so long."""


class Standstill:
    """Looks at files that need not be there."""

    def __init__(self, paths: Sequence[Path], *, has_changed: bool = False) -> None:
        """`has_changed`: they may have since somebody read them."""
        self._paths = paths
        self._has_changed = has_changed
        self._seen = self._look()

    def begin(self) -> None:
        """They are read next, so that only what comes from now on is a change."""
        self._seen = self._look()

    def has_come(self) -> bool:
        """Whether they have changed, and are as at the last look. True once for each change."""
        now = self._look()
        if now != self._seen:
            self._seen, self._has_changed = now, True
            return False
        has_come, self._has_changed = self._has_changed, False
        return has_come

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_signature(path) for path in self._paths]


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
