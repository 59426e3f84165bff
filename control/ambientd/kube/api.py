"""Requests to the API server, the one client of the process: bounded connections, a turn for each request, credentials
that are renewed, time limits, our own errors. Must not know what the answers mean, and must not try again by itself:
whoever asks knows how urgent it is."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import aiohttp
from msgspec import Struct

from ambientd.kube.access import Origin
from ambientd.kube.credentials import Credentials, Secured
from ambientd.kube.errors import ApiError, Distrusted, Unreachable
from ambientd.kube.turns import Turns, Urgency
from ambientd.kube.wire import error_of

Read = Callable[[float], Awaitable[bytes]]
"""The next bytes of a stream, empty at its end; waits so many seconds. Raises Unreachable."""

_AT_ONCE = 32
"""Requests under way; a watch counts until it was accepted."""
_MOST_CONNECTIONS = 64
"""Watches and requests together, with room for each: a request never waits for the end of a watch."""
_CONNECT_S = 10.0
_SILENCE_S = 30.0
"""How long an answer may make no progress."""
_ANSWER_S = 120.0
"""How long a whole answer may take; the server itself gives up after 60 s."""
_BUFFER_BYTES = 256 * 1024


class _Ask(Struct, frozen=True):
    """One request, without our credentials."""

    method: str
    path: str
    parameters: Mapping[str, str] | None
    limits: aiohttp.ClientTimeout
    body: bytes | None = None
    """JSON."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Api:
    """One API server. Used as an asynchronous context manager."""

    def __init__(
        self, credentials: Credentials, *, per_s: float = 80.0, burst: int = 160, user_agent: str = "ambientd"
    ) -> None:
        """`per_s`, `burst`: requests per second in the long run and after a quiet time (operations.md 1.2)."""
        self.credentials = credentials
        self._turns = Turns(per_s, burst, _AT_ONCE)
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            limit=_MOST_CONNECTIONS, socket_factory=_make_socket, keepalive_timeout=60.0, ttl_dns_cache=30
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            # Compressing costs both sides more time than a network inside a cluster takes for the bytes.
            headers={"User-Agent": self._user_agent, "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_BUFFER_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, parameters: Mapping[str, str] | None = None, *, urgency: Urgency) -> bytes:
        """The body of a successful answer. Raises ApiError."""
        return await self.send("GET", path, parameters, urgency=urgency)

    async def send(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        *,
        urgency: Urgency,
        body: bytes | None = None,
    ) -> bytes:
        """The body of a successful answer to any request, whose own is JSON. Raises ApiError."""
        limits = aiohttp.ClientTimeout(total=_ANSWER_S, connect=_CONNECT_S, sock_read=_SILENCE_S)
        ask = _Ask(method, path, parameters, limits, body)
        async with self._turns.turn(urgency):
            response = await self._open(ask)
            try:
                return await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise Unreachable(f"{ask}: the answer broke off: {_words(error)}") from error
            finally:
                response.release()

    @asynccontextmanager
    async def stream(self, path: str, parameters: Mapping[str, str]) -> AsyncIterator[Read]:
        """An answer that goes on, read piece by piece. Raises ApiError; once it goes on, only Unreachable."""
        limits = aiohttp.ClientTimeout(total=None, connect=_CONNECT_S, sock_read=None)
        ask = _Ask("GET", path, parameters, limits)
        async with self._turns.turn(Urgency.WATCH):
            try:
                # A server that accepts and then says nothing must not hold the turn for ever.
                async with asyncio.timeout(_SILENCE_S):
                    response = await self._open(ask)
            except TimeoutError:
                raise Unreachable(f"{ask}: no answer for {_SILENCE_S:g} s; is the API server well?") from None
        try:

            async def read(wait_s: float) -> bytes:
                try:
                    async with asyncio.timeout(wait_s):
                        return await response.content.readany()
                except TimeoutError:
                    raise Unreachable(f"{ask}: nothing came for {wait_s:g} s, so the connection is cut") from None
                except (aiohttp.ClientError, OSError) as error:
                    raise Unreachable(f"{ask}: the answer broke off: {_words(error)}") from error

            yield read
        finally:
            # Closed and not read to the end: a watch has none.
            response.close()

    async def _open(self, ask: _Ask) -> aiohttp.ClientResponse:
        """A successful response, not read yet; asked for a second time with other credentials, if the first were
        refused. Whoever gets it closes it."""
        secured = await self.credentials.current()
        response = await self._request(secured, ask)
        try:
            if response.status == 401:
                renewed = await self.credentials.renew(secured)
                if renewed is not secured:
                    response.release()
                    response = await self._request(renewed, ask)
            if 200 <= response.status < 300:
                return response
            raw = await response.content.read(64 * 1024)
            error = error_of(str(ask), raw, response.status, response.headers.get("Retry-After", ""))
        except (aiohttp.ClientError, TimeoutError, OSError) as broken:
            response.close()
            raise _unanswered(secured, self.credentials.origin, ask, broken) from broken
        except BaseException:
            response.close()
            raise
        response.release()
        raise error

    async def _request(self, secured: Secured, ask: _Ask) -> aiohttp.ClientResponse:
        assert self._session is not None
        access = secured.access
        headers = {"Accept": "application/json"}
        if ask.body is not None:
            headers["Content-Type"] = "application/json"
        if access.authorization:
            headers["Authorization"] = access.authorization
        try:
            return await self._session.request(
                ask.method,
                access.server + ask.path,
                params=ask.parameters,
                headers=headers,
                data=ask.body,
                timeout=ask.limits,
                allow_redirects=False,
                ssl=secured.context if secured.context is not None else True,
                server_hostname=access.server_name or None,
                proxy=access.proxy or None,
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _unanswered(secured, self.credentials.origin, ask, error) from error


def _unanswered(secured: Secured, origin: Origin, ask: _Ask, error: Exception) -> ApiError:
    server = secured.access.server
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return Distrusted(
            f"{server}: its certificate is refused: {_words(error)}; check certificate-authority and server in {origin}"
        )
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientHttpProxyError | aiohttp.InvalidURL):
        return Unreachable(
            f"{server} cannot be reached: {_words(error)}; check the address in {origin}, the network and the server"
        )
    return Unreachable(f"{ask}: no answer: {_words(error)}; check that {server} is an API server, and is well")


def _words(error: BaseException) -> str:
    """The reason in an error of a library, on one line."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message or str(error)
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error is not error:
        return _words(error.os_error)
    if isinstance(error, TimeoutError) and not str(error):
        return "it took too long"
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError):
        return "the connection was cut"
    if isinstance(error, OSError) and error.strerror:
        # asyncio puts the address in the place of the reason.
        return (os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror).lower()
    return " ".join(str(error).split()) or type(error).__name__


def _make_socket(
    address: tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[object, ...]],
) -> socket.socket:
    """A socket whose kernel notices within half a minute that the other machine is gone without a word."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000)):
        option = getattr(socket, name, None)
        if option is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
