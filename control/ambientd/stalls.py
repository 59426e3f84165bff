"""How long the event loop was held in one piece, and by what: a task that sleeps and looks how late it wakes, and the
collector's own account. Must not do anything about it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any, Never

_EVERY_S = 0.05
_WORTH_TELLING_S = 0.005


async def watch_stalls(tell: Callable[[float, str], None]) -> Never:
    """Calls `tell(seconds, cause)` for every stall of more than 5 ms: cause `gc` when the collector held the loop,
    `work` otherwise. For ever."""
    started_s = 0.0

    def collected(phase: str, _: dict[str, Any]) -> None:
        nonlocal started_s
        if phase == "start":
            started_s = time.perf_counter()
        elif started_s:
            took_s = time.perf_counter() - started_s
            if took_s > _WORTH_TELLING_S:
                tell(took_s, "gc")

    gc.callbacks.append(collected)
    try:
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(_EVERY_S)
            late_s = time.perf_counter() - before_s - _EVERY_S
            if late_s > _WORTH_TELLING_S:
                tell(late_s, "work")
    finally:
        gc.callbacks.remove(collected)
