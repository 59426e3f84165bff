"""A port that answers HTTP, within limits (operations.md 2.2). Must not know what it answers."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable

from aiohttp import web

from ambientd.settings import Address
from ambientd.xds.server import CannotListen

READ_TIMEOUT_S = 30.0
"""For the first request of a connection to arrive, seconds."""
IDLE_TIMEOUT_S = 90.0
"""Between two requests of a connection, seconds."""


class Listener:
    """An open port."""

    def __init__(self, server: asyncio.Server, runner: web.AppRunner) -> None:
        self._server = server
        self._runner = runner

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Takes no more connections, and lets requests end for as long as `listen` was told."""
        self._server.close()
        await self._runner.cleanup()


async def listen(app: web.Application, address: Address, flag: str, *, grace_s: float = 10.0) -> Listener:
    """Opens a port for `app`; `flag` (`--http-addr`) names the setting in an error. `grace_s`: how long requests may
    take to end when the port is closed, seconds. Raises CannotListen."""
    silent: set[object] = set()
    app.on_response_prepare.append(_has_talked(silent))
    runner = web.AppRunner(
        app, access_log=None, handle_signals=False, keepalive_timeout=IDLE_TIMEOUT_S, shutdown_timeout=grace_s
    )
    await runner.setup()
    assert runner.server is not None
    try:
        server = await _open(_patient(runner.server, silent), address)
    except OSError as error:
        await runner.cleanup()
        raise CannotListen(_refusal(flag, address, error)) from None
    return Listener(server, runner)


def _refusal(flag: str, address: Address, error: OSError) -> str:
    """One line for people: what, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return f"{flag}: {address} is in use; stop the program that has it, or give another address"
    # asyncio's own text repeats the address; the system's does not.
    reason = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else "its host is not known"
    return f"{flag}: cannot listen on {address}: {reason}; give another address"


async def _open(factory: Callable[[], asyncio.BaseProtocol], address: Address) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(factory, address.host or None, address.port)
    except OSError as error:
        if address.host or error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise
        # A machine without IPv6 has no `::` to listen on.
        return await loop.create_server(factory, "0.0.0.0", address.port)


def _patient(server: web.Server, silent: set[object]) -> Callable[[], asyncio.BaseProtocol]:
    """Connections that are closed when no request comes. The library bounds only the time between two requests."""

    def connect() -> asyncio.BaseProtocol:
        protocol = server()
        silent.add(protocol)

        def close_if_silent() -> None:
            if protocol in silent:
                silent.discard(protocol)
                protocol.force_close()

        asyncio.get_running_loop().call_later(READ_TIMEOUT_S, close_if_silent)
        return protocol

    return connect


def _has_talked(silent: set[object]) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    async def note(request: web.Request, _: web.StreamResponse) -> None:
        silent.discard(request.protocol)

    return note
