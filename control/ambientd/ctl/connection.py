"""The connection of a simulated ztunnel: one delta stream, and another one when it ends, with a ztunnel's own patience
(xds.md 17, item 6). Must not know what is done with what arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Never

import grpc
import grpc.aio
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse
from msgspec import Struct

from ambientd.ctl.ztunnel import Applied, SimulatedZtunnel

METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

_OPTIONS = (
    ("grpc.max_receive_message_length", 200 << 20),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # One process may simulate many clients, each with a connection of its own.
    ("grpc.use_local_subchannel_pool", 1),
)


class Connected(Struct, frozen=True):
    """The first response of a stream has come."""

    target: str


class Received(Struct, frozen=True):
    """A response was applied and answered."""

    type_url: str
    applied: Applied
    frame_bytes: int


class Disconnected(Struct, frozen=True):
    """A stream is over; the next one begins after `wait_s` seconds."""

    reason: str
    wait_s: float


Happened = Connected | Received | Disconnected


class Backoff:
    """How long a ztunnel waits until it connects again; seconds."""

    FIRST_S = 0.01
    MOST_S = 15.0
    _EXPECTED = frozenset({grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED})

    def __init__(self) -> None:
        self._last_s = self.FIRST_S

    def ended(self, code: grpc.StatusCode, details: str, *, had_headers: bool) -> float:
        """The wait after a stream that ended with this status."""
        if code is grpc.StatusCode.OK:
            return 0.0
        is_going_away = code is grpc.StatusCode.UNAVAILABLE and (
            "transport is closing" in details or "received prior goaway" in details
        )
        if had_headers and (code in self._EXPECTED or is_going_away):
            self._last_s = self.FIRST_S
        else:
            self._last_s = min(self.MOST_S, self._last_s * 2)
        return self._last_s


async def watch(
    target: str,
    ztunnel: SimulatedZtunnel,
    tell: Callable[[Happened], None],
    *,
    metadata: Sequence[tuple[str, str]] = (),
    credentials: grpc.ChannelCredentials | None = None,
) -> Never:
    """Keeps `ztunnel` up to date from `target` (`HOST:PORT`), for ever; plaintext without credentials. `tell` hears
    what happens, as it happens."""
    backoff = Backoff()
    while True:
        code, details, had_headers = await _stream_once(
            target, ztunnel, tell, metadata=metadata, credentials=credentials
        )
        wait_s = backoff.ended(code, details, had_headers=had_headers)
        tell(Disconnected(f"{code.name}: {details}" if details else code.name, wait_s))
        await asyncio.sleep(wait_s)


async def _stream_once(
    target: str,
    ztunnel: SimulatedZtunnel,
    tell: Callable[[Happened], None],
    *,
    metadata: Sequence[tuple[str, str]],
    credentials: grpc.ChannelCredentials | None,
) -> tuple[grpc.StatusCode, str, bool]:
    """One stream, from its connection to its end: the status, its text, and whether anything had come before."""
    answers: asyncio.Queue[DeltaDiscoveryRequest] = asyncio.Queue()
    had_headers = False

    async def requests() -> AsyncIterator[DeltaDiscoveryRequest]:
        for request in ztunnel.first_requests():
            yield request
        while True:
            yield await answers.get()

    async with _channel(target, credentials) as channel:
        method = channel.stream_stream(
            METHOD,
            request_serializer=DeltaDiscoveryRequest.SerializeToString,
            response_deserializer=_with_size,
        )
        call = method(requests(), metadata=tuple(metadata))
        try:
            async for response, frame_bytes in call:
                if not had_headers:
                    had_headers = True
                    tell(Connected(target))
                applied = ztunnel.apply(response)
                answers.put_nowait(applied.answer)
                tell(Received(response.type_url, applied, frame_bytes))
            return await call.code(), await call.details() or "", had_headers
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or "", had_headers
        finally:
            call.cancel()


def _channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    return grpc.aio.secure_channel(target, credentials, options=_OPTIONS)


def _with_size(raw: bytes) -> tuple[DeltaDiscoveryResponse, int]:
    return DeltaDiscoveryResponse.FromString(raw), len(raw)
