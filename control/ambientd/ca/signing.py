"""The client of the signing process: starts it, hands it an authority, asks it to sign, and starts it again when it has
ended. Must not keep a key: whoever stores it gives it again when it is needed again."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Never, TypeVar

import msgspec
import structlog

from ambientd.ca.authority import Authority, Lifetimes, Public, Unusable
from ambientd.ca.orders import (
    LENGTH_BYTES,
    Answer,
    Create,
    Failed,
    Made,
    Order,
    Rejected,
    Renew,
    Sign,
    Signed,
    SignError,
    Use,
    Used,
    frame,
    read_answer,
)
from ambientd.resources.faults import Fault

log = structlog.get_logger("pkica")

A = TypeVar("A", bound=Answer)

QUEUE_LIMIT = 1024
"""Orders that wait at one time: about a second of work, after which clients had better come again."""
_AT_ONCE = 2
"""Requests that the process is given at one time: one to work on, and the next. With more, certificates come back
several at a time, and everything else on this loop waits for all of them."""
CSR_LIMIT_BYTES = 64 << 10
"""An RSA key of 16,384 bits takes 5 kB; with the queue, this bounds what waits to 64 MiB."""
_ANSWER_S = 20.0
"""A full queue is worked off in a few seconds even with slow keys; a process that takes longer hangs."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class SigningFailed(Exception):
    """Nothing was signed. The text concerns the caller's own request, and may be told."""

    def __init__(self, error: SignError, text: str) -> None:
        super().__init__(text)
        self.error = error


class Busy(Exception):
    """Too many orders wait already; nothing was signed."""


class Signer:
    """One authority in one process of its own."""

    def __init__(
        self,
        load: Callable[[], Awaitable[Authority]],
        lifetimes: Lifetimes | None = None,
        *,
        changed: Callable[[Public], None] | None = None,
        queue_limit: int = QUEUE_LIMIT,
    ) -> None:
        """`load` fetches the authority, at the start and each time that the process has to be started again; it may
        call `create` of this object. `changed` hears of every authority that is put to use."""
        self._load = load
        self._lifetimes = Lifetimes() if lifetimes is None else lifetimes
        self._changed = changed
        self._queue_limit = queue_limit
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._behind = 0
        """Requests to sign that wait for their turn."""
        self._number = 0
        self.public: Public | None = None
        """What is in use; None: nothing yet. Stays while the process is started again."""
        self.is_ready = False
        """There is a process, and it holds an authority."""
        self.restarts = 0

    @property
    def queued(self) -> int:
        """Orders without an answer yet."""
        return len(self._waiting) + self._behind

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Starts the process and puts the authority to use. Raises Unusable, and whatever `load` raises."""
        await self._spawn()
        try:
            await self.use(await self._load())
        except BaseException:
            await self.close()
            raise

    async def run(self) -> Never:
        """Keeps a process that was started running, until cancelled; ends it then."""
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                if self._process is not None and self._reader is not None:
                    await asyncio.wait([self._reader])
                    code = await self._end()
                    log.error("the signing process ended and is started again", exit_code=code)
                    self.restarts += 1
                await asyncio.sleep(pause_s)
                try:
                    await self.start()
                    pause_s = _FIRST_PAUSE_S
                except Exception as error:
                    # Until it works again nothing is signed, and clients keep what they have.
                    log.error("the signing process has no authority; trying again", reason=_told(error))
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            await self.close()

    async def close(self) -> None:
        """Ends the process, and whatever waits for it. May be called twice."""
        await self._end()

    async def use(self, authority: Authority) -> tuple[Fault, ...]:
        """Signs with this from now on; if it is not sound, the former one stays. Gives what an operator should hear
        about it all the same. Raises Unusable, SigningFailed."""
        used = await self._ask(lambda number: Use(number, authority, self._lifetimes), Used)
        self.public = authority.public
        self.is_ready = True
        for notice in used.notices:
            log.warning("the certificate authority works, but not for everybody", source=authority.source, what=notice)
        if self._changed is not None:
            self._changed(self.public)
        return used.notices

    async def sign(self, csr: str, subject_ids: Sequence[str], requested_s: int, *, is_limited: bool = True) -> Signed:
        """A certificate about these subjects for the key of a request. `requested_s` of zero or less: the default
        lifetime. `is_limited=False` is for the server's own certificate (ca.md 7.6). Raises SigningFailed, Busy."""
        if len(csr) > CSR_LIMIT_BYTES:
            raise SigningFailed(SignError.CSR, f"csr must be at most {CSR_LIMIT_BYTES} bytes, got {len(csr)}")
        if not self.is_ready:
            raise SigningFailed(SignError.NOT_READY, "the certificate authority is not ready")
        if self.queued >= self._queue_limit:
            raise Busy(f"{self._queue_limit} requests wait to be signed")
        ids = tuple(subject_ids)
        self._behind += 1
        try:
            await self._turns.acquire()
        finally:
            self._behind -= 1
        # Whoever goes away leaves an order behind that is worked off all the same: the turn ends with its answer.
        signing = asyncio.create_task(
            self._ask(lambda number: Sign(number, csr, ids, requested_s, is_limited), Signed), name="signing"
        )
        signing.add_done_callback(self._turn_ended)
        return await asyncio.shield(signing)

    def _turn_ended(self, signing: asyncio.Task[Signed]) -> None:
        self._turns.release()
        if not signing.cancelled():
            signing.exception()  # it has been told to whoever waits; nobody may

    async def create(
        self,
        trust_domain: str,
        *,
        lifetime_s: int = 87_600 * 3600,
        key_bits: int = 2048,
        source: str,
        extra_roots: str = "",
    ) -> Authority:
        """A new self-signed authority, not put to use yet. Raises SigningFailed (ca.md 7.5)."""
        made = await self._ask(
            lambda number: Create(number, trust_domain, lifetime_s, key_bits, source, extra_roots), Made
        )
        return made.authority

    async def renew(
        self, authority: Authority, *, trust_domain: str, lifetime_s: int, extra_roots: str = ""
    ) -> Authority:
        """The same self-signed authority for longer, not put to use yet. Raises Unusable, SigningFailed."""
        made = await self._ask(lambda number: Renew(number, authority, trust_domain, lifetime_s, extra_roots), Made)
        return made.authority

    async def _ask(self, order: Callable[[int], Order], expected: type[A]) -> A:
        process, reader = self._process, self._reader
        # Once the reader has ended, so has the process: nobody would answer.
        if process is None or process.stdin is None or reader is None or reader.done():
            raise SigningFailed(SignError.NOT_READY, "the certificate authority is not ready")
        self._number += 1
        number = self._number
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            process.stdin.write(frame(order(number)))
            async with asyncio.timeout(_ANSWER_S):
                answer = await answered
        except TimeoutError:
            log.error("the signing process does not answer and is ended", after_s=_ANSWER_S)
            _kill(process)
            raise SigningFailed(SignError.UNKNOWN, "signing took too long") from None
        finally:
            self._waiting.pop(number, None)
        if isinstance(answer, Failed):
            raise SigningFailed(answer.error, answer.text)
        if isinstance(answer, Rejected):
            raise Unusable(answer.source, answer.faults)
        if not isinstance(answer, expected):
            raise SigningFailed(SignError.UNKNOWN, f"the signing process answered {type(answer).__name__}")
        return answer

    async def _spawn(self) -> None:
        await self._end()
        # The key goes over the pipe: arguments and environment of a process can be read by others.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "ambientd.ca.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
        assert self._process.stdout is not None
        self._reader = asyncio.create_task(self._read(self._process.stdout), name="answers of the signing process")

    async def _read(self, stream: asyncio.StreamReader) -> None:
        """Hands out answers until the process ends."""
        try:
            while True:
                size = int.from_bytes(await stream.readexactly(LENGTH_BYTES), "big")
                answer = read_answer(await stream.readexactly(size))
                waiting = self._waiting.get(answer.number)
                # Whoever asked may have gone away meanwhile.
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
            # Ended, or out of step with us, which nothing can mend: `run` starts another.
            return
        finally:
            self.is_ready = False
            for number, waiting in self._waiting.items():
                if not waiting.done():
                    waiting.set_result(Failed(number, SignError.UNKNOWN, "the signing process ended"))

    async def _end(self) -> int | None:
        """Ends the process, if there is one; its exit code."""
        process, reader = self._process, self._reader
        self._process = self._reader = None
        self.is_ready = False
        if process is None:
            return None
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(1.0):
                code = await process.wait()
        except TimeoutError:
            _kill(process)
            code = await process.wait()
        if reader is not None:
            reader.cancel()
            await asyncio.wait([reader])
        return code


def _kill(process: asyncio.subprocess.Process) -> None:
    try:
        process.kill()
    except ProcessLookupError:
        return


def _told(error: Exception) -> str:
    """An error of ours says what an operator needs; of another only the type is told, since its text may quote."""
    return str(error) if isinstance(error, Unusable | SigningFailed) else type(error).__name__
