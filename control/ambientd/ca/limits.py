"""What each caller may have of a service that all share: calls at one time, and turns that come one after the other."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager


class TooMany(Exception):
    """As many calls are in flight as may be."""


class InFlight:
    """Calls that are worked on."""

    def __init__(self, limit_each: int, limit: float = math.inf) -> None:
        """`limit_each`: of one caller; `limit`: of all together."""
        self._limit_each = limit_each
        self._limit = limit
        self._counts: Counter[Hashable] = Counter()
        self._all = 0

    def __len__(self) -> int:
        return self._all

    @contextmanager
    def one(self, whose: Hashable) -> Iterator[None]:
        """Counts a call. Raises TooMany."""
        if self._all >= self._limit or self._counts[whose] >= self._limit_each:
            raise TooMany
        self._counts[whose] += 1
        self._all += 1
        try:
            yield
        finally:
            self._all -= 1
            self._counts[whose] -= 1
            if not self._counts[whose]:
                del self._counts[whose]


class Turns:
    """One at a time for each caller."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, asyncio.Lock] = {}
        self._users: Counter[Hashable] = Counter()

    @asynccontextmanager
    async def turn(self, whose: Hashable) -> AsyncIterator[None]:
        """Waits for those of the same caller that came before."""
        lock = self._locks.setdefault(whose, asyncio.Lock())
        self._users[whose] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[whose] -= 1
            if not self._users[whose]:
                del self._users[whose], self._locks[whose]
