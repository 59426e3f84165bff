"""Work that blocks, as reading a file on a volume that may not answer. It is done in daemon threads, so that neither
the loop nor the end of the process waits for what never ends."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T")

LIMIT_BYTES = 16 << 20
"""Of files that hold certificates, keys, tokens and settings."""
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
    """The content of a regular file of a sensible size. Raises OSError."""
    with open_file(path, LIMIT_BYTES) as file:
        return file.read()


@contextmanager
def open_file(path: Path, limit_bytes: int) -> Iterator[BinaryIO]:
    """A regular file, to be read. Raises OSError, at once also for what would block or never end, a pipe or a device,
    and for a file that is larger."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "a pipe or a device")
        if status.st_size > limit_bytes:
            raise OSError(0, f"a file of {status.st_size} bytes, and at most {limit_bytes} are read")
        yield file
