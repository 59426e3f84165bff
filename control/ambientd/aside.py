"""Work that blocks, as reading a file on a volume that may not answer. It is done in daemon threads, so that neither
the loop nor the end of the process waits for what never ends."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_TELL_S = 60.0


class Stuck(Exception):
    """Work that has not ended in time, and still may; one line for the operator."""


class Aside:
    """Does one piece of work at a time. What is stuck is not begun again, or a volume that hangs would cost a thread at
    each try."""

    def __init__(self, what: str, remedy: str) -> None:
        """`what` is done, and what an operator can do when it takes longer: "reading x", "see whether y"."""
        self._what = what
        self._remedy = remedy
        self._last: asyncio.Future[Any] | None = None

    async def run(self, work: Callable[[], T], limit_s: float) -> T:
        """Its result. Raises Stuck when it, or what was given before it, takes longer than the limit, and whatever it
        raises. The result of work that was stuck is lost."""
        try:
            async with asyncio.timeout(limit_s):
                while self._last is not None and not self._last.done():
                    await asyncio.wait([self._last])
                done = in_thread(work)
                self._last = done
                await asyncio.wait([done])
        except TimeoutError:
            raise Stuck(f"{self._what} takes longer than {limit_s:g} s; {self._remedy}") from None
        return done.result()


async def in_the_end(work: Callable[[], T], tell: Callable[[], None]) -> T:
    """The result of work, however long it takes; `tell` is called every minute until then."""
    done = in_thread(work)
    while not (await asyncio.wait([done], timeout=_TELL_S))[0]:
        tell()
    return done.result()


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Begins work in a thread of its own."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    # Whoever waited may have given up, and an error that nobody fetches would be complained of.
    done.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())

    def settle(tell: Callable[[], None]) -> None:
        if not done.done():
            tell()

    def run() -> None:
        try:
            tell = partial(done.set_result, work())
        except BaseException as error:
            # Whatever it is, somebody waits for an answer.
            tell = partial(done.set_exception, error)
        try:
            loop.call_soon_threadsafe(settle, tell)
        except RuntimeError:
            # The loop has ended, and nobody waits any more.
            pass

    threading.Thread(target=run, name="aside", daemon=True).start()
    return done


def read_file(path: Path) -> bytes:
    """The content of a regular file. Raises OSError, at once for what would block or never end: a pipe, a device."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "a pipe or a device")
        return file.read()
