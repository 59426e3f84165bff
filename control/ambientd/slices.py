"""Long work on the event loop, in slices: nothing holds the loop for long (design, Stalls)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SLICE_S = 0.002
"""How long a piece of work may hold the loop before it lets others run, seconds. Well below the 20 ms that nobody may
have to wait: several pieces take turns, and one unit of work (a table that grows, a message that is joined) may take a
few milliseconds."""

Step = Callable[[Callable[[], bool]], bool]
"""Something that works until it is done (True) or until it is told that it is enough (False)."""


def new_slice() -> Callable[[], bool]:
    """Whether the slice that begins now is over."""
    clock = time.perf_counter
    end_s = clock() + SLICE_S
    return lambda: clock() >= end_s


async def in_slices(step: Step) -> None:
    """Works to the end, with everybody else in between."""
    while True:
        if step(new_slice()):
            return
        await asyncio.sleep(0)
