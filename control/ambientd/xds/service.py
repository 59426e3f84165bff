"""The gRPC service of the delta protocol: a loop over commands, and no rule of the protocol (protocol.py has those).
Raw bytes go in and out. One task writes to a stream; one reads from it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import grpc
import grpc.aio
import structlog
from msgspec import Struct

from ambientd.ca.caller import Caller, CannotTell, Unauthenticated
from ambientd.push.feed import Feed
from ambientd.push.rounds import Job, Part
from ambientd.push.views import BelowFloor
from ambientd.slices import in_slices
from ambientd.xds.authentication import mismatch
from ambientd.xds.connections import Connection, Registry
from ambientd.xds.node import Node
from ambientd.xds.protocol import (
    COME_BACK,
    Advanced,
    Code,
    Command,
    Done,
    End,
    Event,
    HalfClosed,
    Note,
    Overtaken,
    Requested,
    Send,
    Stream,
    Wake,
    Woke,
    Work,
    Written,
)
from ambientd.xds.requests import Malformed, Request, parse

log = structlog.get_logger("ads")

SERVICE = "envoy.service.discovery.v3.AggregatedDiscoveryService"

_LARGE_BYTES = 1 << 20
_END_S = 1.0
"""How long the end of a stream waits for a client that does not read, seconds."""

Context = grpc.aio.ServicerContext[Any, Any]


class Observer(Protocol):
    """Who counts what happens on streams; the metrics are behind it."""

    def connected(self, node: Node) -> None: ...

    def disconnected(self, node: Node) -> None: ...

    def requested(self, request: Request) -> None: ...

    def pushed(self, part: Part, send_s: float) -> None: ...

    def converged(self, after_s: float) -> None: ...

    def noted(self, note: Note) -> None: ...

    def failed(self) -> None: ...

    def unexpected(self) -> None:
        """A client calls itself a ztunnel, and its account is not among those of ztunnels."""
        ...


class Guard(Struct, frozen=True):
    """What a listener demands of whoever opens a stream."""

    authenticate: Callable[[Context], Awaitable[Caller]] | None = None
    """Raises Unauthenticated and CannotTell; None: anybody is served."""
    checks_identity: bool = True
    """The node must be that of the caller (xds.md 3.4)."""
    ztunnel_accounts: frozenset[tuple[str, str]] = frozenset()
    """Namespace and account of ztunnels; others that call themselves so are served and told of. Empty: unknown."""


OPEN = Guard()
"""Anybody is served."""


class Budget:
    """Bytes of large messages that may be on their way at one time. One message always may, whatever its size."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._freed = asyncio.Condition()

    async def take(self, size_bytes: int) -> None:
        async with self._freed:
            await self._freed.wait_for(
                lambda: self._used_bytes == 0 or self._used_bytes + size_bytes <= self._limit_bytes
            )
            self._used_bytes += size_bytes

    async def give(self, size_bytes: int) -> None:
        async with self._freed:
            self._used_bytes -= size_bytes
            self._freed.notify_all()


class Service:
    """`AggregatedDiscoveryService` for ztunnels."""

    def __init__(
        self,
        feed: Feed,
        registry: Registry,
        observer: Observer,
        *,
        is_ready: Callable[[], bool],
        cluster_aliases: Mapping[str, str],
        serves_ztunnels: bool = True,
        budget_bytes: int = 256 << 20,
        write_deadline_s: float = 30.0,
    ) -> None:
        self._feed = feed
        self._registry = registry
        self._observer = observer
        self._is_ready = is_ready
        self._aliases = cluster_aliases
        self._serves_ztunnels = serves_ztunnels
        self._budget = Budget(budget_bytes)
        self._write_deadline_s = write_deadline_s
        self._numbers = itertools.count(1)

    def handlers(self, guard: Guard = OPEN) -> grpc.GenericRpcHandler[Any, Any]:
        """For one listener."""

        async def delta(_: object, context: Context) -> None:
            await self._delta(guard, context)

        async def state_of_the_world(_: object, context: Context) -> None:
            await self._state_of_the_world(guard, context)

        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "DeltaAggregatedResources": grpc.stream_stream_rpc_method_handler(delta),
                "StreamAggregatedResources": grpc.stream_stream_rpc_method_handler(state_of_the_world),
            },
        )

    async def _caller(self, guard: Guard, context: Context) -> Caller | None:
        """Who opens a stream, before anything of it is read; ends the stream of whoever is nobody (xds.md 3.2, 3.5)."""
        if guard.authenticate is None:
            return None
        try:
            return await guard.authenticate(context)
        except Unauthenticated as error:
            log.error("authentication failed", peer=context.peer(), reason=error.reason)
            code, message = grpc.StatusCode.UNAUTHENTICATED, "authentication failure"
        except CannotTell as error:
            log.error("a caller could not be authenticated", peer=context.peer(), reason=error.reason)
            code, message = grpc.StatusCode.UNAVAILABLE, "authentication is not possible now"
        await context.abort(code, message)

    async def _state_of_the_world(self, guard: Guard, context: Context) -> None:
        """Workload types make no sense without removals, and no other type is served yet (xds.md 9)."""
        await self._caller(guard, context)
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            "this server serves the workload API over DeltaAggregatedResources only",
        )

    async def _delta(self, guard: Guard, context: Context) -> None:
        if not self._is_ready():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "server is not ready to serve discovery information")
        caller = await self._caller(guard, context)
        ident = next(self._numbers)
        stream = Stream(
            ident,
            self._feed,
            cluster_aliases=self._aliases,
            serves_ztunnels=self._serves_ztunnels,
            mismatch=lambda node: mismatch(caller, node) if guard.checks_identity else None,
        )
        connection = Connection(ident, stream, context.peer(), caller)
        self._registry.add(connection)
        reader = asyncio.create_task(_read(connection, context), name=f"read {ident}")
        try:
            await self._serve(connection, guard, context)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except _Unread:
            log.warning("a client does not read", connection=connection.name, peer=connection.peer)
        except grpc.aio.InternalError as error:
            # So the library says that a client went away while something was written to it, which is no error of ours.
            log.info("a stream broke", connection=connection.name, peer=connection.peer, detail=str(error))
        except Exception:
            self._observer.failed()
            log.exception("a stream ends by an error of ours", connection=connection.name, peer=connection.peer)
            raise
        finally:
            reader.cancel()
            stream.close()
            self._registry.remove(connection)
            if stream.node is not None and connection.is_counted:
                self._observer.disconnected(stream.node)
                log.info("client disconnected", connection=connection.name, peer=connection.peer)

    async def _serve(self, connection: Connection, guard: Guard, context: Context) -> None:
        while True:
            await connection.poke.wait()
            connection.poke.clear()
            if connection.is_ending:
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"the server is shutting down: {COME_BACK}")
            if connection.requests:
                raw = connection.requests.popleft()
                await self._take(connection, guard, await self._parsed(raw, context), context)
                self._look_whether_converged(connection)
                connection.let_in()
                connection.poke.set()  # there may be more to look at
                continue
            while connection.woke:
                await self._do(connection, Woke(connection.woke.popleft()), context)
            announced_s = self._registry.announced_s
            if await self._do(connection, Advanced(), context) and connection.converging_from_s is None:
                connection.converging_from_s = announced_s
            self._look_whether_converged(connection)
            connection.let_in()
            if connection.is_half_closed and not connection.requests:
                await self._do(connection, HalfClosed(), context)
                return

    def _look_whether_converged(self, connection: Connection) -> None:
        if connection.converging_from_s is not None and connection.stream.is_at_rest:
            self._observer.converged(time.perf_counter() - connection.converging_from_s)
            connection.converging_from_s = None

    async def _parsed(self, raw: bytes, context: Context) -> Request:
        parsing = Job(parse(raw))
        try:
            await in_slices(parsing.step)
        except Malformed as error:
            await context.abort(grpc.StatusCode.INTERNAL, f"grpc: failed to unmarshal the received message: {error}")
        return parsing.result

    async def _take(self, connection: Connection, guard: Guard, request: Request, context: Context) -> None:
        self._observer.requested(request)
        await self._do(connection, Requested(request), context)
        node = connection.stream.node
        if node is not None and not connection.is_counted:
            connection.is_counted = True
            self._observer.connected(node)
            log.info("client connected", connection=connection.name, type=node.type, peer=connection.peer)
            self._look_at(connection, guard, node)

    def _look_at(self, connection: Connection, guard: Guard, node: Node) -> None:
        """Tells of a ztunnel whose account is none of a ztunnel."""
        caller = connection.caller
        if caller is None or node.type != "ztunnel" or not guard.ztunnel_accounts:
            return
        if (caller.namespace, caller.account) not in guard.ztunnel_accounts:
            self._observer.unexpected()
            log.warning(
                "a client of an unexpected account calls itself a ztunnel and is served",
                connection=connection.name,
                account=str(caller),
                expected=sorted("/".join(account) for account in guard.ztunnel_accounts),
                peer=connection.peer,
            )

    async def _do(self, connection: Connection, event: Event, context: Context) -> bool:
        """Hands an event to the stream and does what it says, and so on until it has nothing to do. Whether something
        was sent."""
        has_sent = False
        commands: deque[Command] = deque(connection.stream.handle(event))
        while commands:
            command = commands.popleft()
            match command:
                case Work():
                    commands.extend(connection.stream.handle(await _worked(command)))
                case Send():
                    await self._send(connection, command, context)
                    has_sent = True
                    commands.extend(connection.stream.handle(Written()))
                case Wake():
                    asyncio.get_running_loop().call_later(command.after_s, _wake, connection, command.nonce)
                case Note():
                    self._observer.noted(command)
                    # An acknowledgement that comes late is the normal thing under load (xds.md 19.13).
                    tell = log.debug if command.what == "expired nonce" else log.warning
                    tell(command.what, connection=connection.name, type=command.type_url, detail=command.detail)
                case End():
                    await context.abort(_STATUS[command.code], command.message)
        return has_sent

    async def _send(self, connection: Connection, send: Send, context: Context) -> None:
        size_bytes = len(send.part.response)
        started_s = time.perf_counter()
        if send.is_first and size_bytes >= _LARGE_BYTES:
            await self._send_large(connection, send.part, context)
        else:
            await _write(context, send.part)
        connection.sent_at_s[send.part.type_url] = time.time()
        self._observer.pushed(send.part, time.perf_counter() - started_s)

    async def _send_large(self, connection: Connection, part: Part, context: Context) -> None:
        if not connection.sent_at_s:
            # Headers go by themselves: in one batch with the message, they would keep a status from being sent.
            await context.send_initial_metadata(())
        size_bytes = len(part.response)
        await self._budget.take(size_bytes)
        try:
            async with asyncio.timeout(self._write_deadline_s):
                await _write(context, part)
            return
        except TimeoutError:
            pass
        finally:
            await self._budget.give(size_bytes)
        end = context.abort(
            grpc.StatusCode.UNAVAILABLE,
            f"the first answer was not taken within {self._write_deadline_s:g} s; connect again",
        )
        try:
            async with asyncio.timeout(_END_S):
                await end
        except TimeoutError:
            raise _Unread from None


class _Unread(Exception):
    """The status of a stream stands behind a message that the client may never read."""


def _write(context: Context, part: Part) -> Awaitable[None]:
    return context.write(part.response)


async def _worked(work: Work) -> Event:
    try:
        await in_slices(work.job.step)
    except BelowFloor:
        return Overtaken()
    return Done()


async def _read(connection: Connection, context: Context) -> None:
    """Takes requests from the wire, one ahead of the writing task, so that a flood waits in the client."""
    while True:
        raw = await context.read()
        if not isinstance(raw, bytes):  # the mark that the client has half-closed
            connection.is_half_closed = True
            connection.poke.set()
            return
        await connection.has_room.wait()
        connection.has_room.clear()
        connection.requests.append(raw)
        connection.poke.set()


def _wake(connection: Connection, nonce: str) -> None:
    connection.woke.append(nonce)
    connection.poke.set()


_STATUS = {
    Code.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    Code.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    Code.UNKNOWN: grpc.StatusCode.UNKNOWN,
    Code.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}
