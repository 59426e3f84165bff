"""Requests that wait for a pod that is just appearing on a node (ca.md 5.5): woken by the events that bring it, limited
for each caller, so that no caller's waiting holds up another. Must not decide anything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ambientd.index.pods import Placement

WAIT_S = 2.0
"""A pod is seen here within milliseconds of its node's proxy seeing it; longer than this it is no race any more."""
LIMIT_PER_CALLER = 64
"""A ztunnel fetches eight certificates at a time."""


class TooMany(Exception):
    """As many requests of this caller wait as may."""


class Waiters:
    """Who waits for what."""

    def __init__(self, limit_per_caller: int = LIMIT_PER_CALLER) -> None:
        self._limit = limit_per_caller
        self._by_placement: dict[Placement, set[asyncio.Future[None]]] = {}
        self._count_by_caller: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(self._count_by_caller.values())

    def appeared(self, placements: Iterable[Placement]) -> None:
        """Wakes those who wait for one of these, which `PodIndex.apply` has given."""
        if not self._by_placement:
            return
        for placement in placements:
            for waiter in self._by_placement.get(placement, ()):
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self, placement: Placement, caller: str, for_s: float) -> None:
        """Returns when the placement has appeared, or after so many seconds. Raises TooMany."""
        count = self._count_by_caller.get(caller, 0)
        if count >= self._limit:
            raise TooMany
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count_by_caller[caller] = count + 1
        waiters = self._by_placement.setdefault(placement, set())
        waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=for_s)
        finally:
            waiters.discard(waiter)
            if not waiters:
                self._by_placement.pop(placement, None)
            self._count_by_caller[caller] -= 1
            if not self._count_by_caller[caller]:
                del self._count_by_caller[caller]
