"""Whose request to the API server goes next: so many per second, so many at a time, the most urgent first. Must not
know what is asked."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import IntEnum


class Urgency(IntEnum):
    """A lower one goes first: somebody waits for the answer about a caller; what we serve depends on what we see, and
    never on what we write."""

    CALLER = 0
    WATCH = 1
    READ = 2
    WRITE = 3


class Turns:
    """A bucket of tokens and a bound on requests under way, with one queue before both."""

    def __init__(self, per_s: float, burst: int, at_once: int, now_s: Callable[[], float] = time.monotonic) -> None:
        """`per_s`: requests per second in the long run; `burst`: after a quiet time; `at_once`: under way."""
        self._per_s = per_s
        self._burst = float(burst)
        self._now_s = now_s
        self._tokens = float(burst)
        self._counted_s = now_s()
        self._free = at_once
        self._order = itertools.count()
        self._waiting: list[tuple[Urgency, int, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, urgency: Urgency) -> AsyncIterator[None]:
        """Waits for its turn; the request is under way until the block is left."""
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (urgency, next(self._order), asked))
        self._serve()
        try:
            await asked
        except asyncio.CancelledError:
            if asked.done() and not asked.cancelled():
                # Its turn came in the moment in which it gave up.
                self._release()
            raise
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        self._free += 1
        self._serve()

    def _serve(self) -> None:
        now_s = self._now_s()
        self._tokens = min(self._burst, self._tokens + (now_s - self._counted_s) * self._per_s)
        self._counted_s = now_s
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting and self._free and self._tokens >= 1:
            _, _, asked = heapq.heappop(self._waiting)
            if not asked.done():
                self._tokens -= 1
                self._free -= 1
                asked.set_result(None)
        if self._waiting and self._free:
            wait_s = (1 - self._tokens) / self._per_s
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._serve)
