"""Requests that wait for a pod that is just appearing on a node (ca.md 5.5): woken by the events that bring it, limited
for each caller, so that no caller's waiting holds up another. Must not decide anything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ambientd.ca.limits import InFlight
from ambientd.index.pods import Placement

WAIT_S = 2.0
"""A pod is seen here within milliseconds of its node's proxy seeing it; longer than this it is no race any more."""
LIMIT_PER_CALLER = 64
"""A ztunnel fetches eight certificates at a time."""


class Waiters:
    """Who waits for what."""

    def __init__(self, limit_per_caller: int = LIMIT_PER_CALLER) -> None:
        self._by_placement: dict[Placement, set[asyncio.Future[None]]] = {}
        self._of_callers = InFlight(limit_per_caller)

    def __len__(self) -> int:
        return len(self._of_callers)

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
        with self._of_callers.one(caller):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiters = self._by_placement.setdefault(placement, set())
            waiters.add(waiter)
            try:
                await asyncio.wait([waiter], timeout=for_s)
            finally:
                waiters.discard(waiter)
                if not waiters:
                    self._by_placement.pop(placement, None)
