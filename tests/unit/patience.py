"""Waits for what comes of itself. No test stands here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

PATIENCE_S = 20.0


async def until(claim: Callable[[], bool]) -> None:
    """Returns once it holds; raises TimeoutError when it does not in time."""
    async with asyncio.timeout(PATIENCE_S):
        while not claim():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Runs beside what is inside, and is ended with it."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE_S)
