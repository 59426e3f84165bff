"""Servers and callers in a namespace: a line comes back with the name of whoever answered. Must not know what is
between the two."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Self

from tests.dataplane.namespaces import Namespace

ANSWER_WITHIN_S = 10.0
_PAUSE_S = 0.01


class Connection:
    """A TCP connection that stays open. Raises OSError when it is not answered, or is cut."""

    def __init__(self, inside: Namespace, address: str, port: int, within_s: float = ANSWER_WITHIN_S) -> None:
        # A socket stays where it was opened, so nobody waits in there.
        self._socket = inside.call(socket.socket)
        try:
            self._socket.settimeout(within_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.connect((address, port))
        except BaseException:
            self._socket.close()
            raise
        self._lines = self._socket.makefile("rb")

    def ask(self, line: str = "hello") -> str:
        """The name of whoever answers. Raises ConnectionError when the connection ends instead."""
        self._socket.sendall(line.encode() + b"\n")
        name, _, echo = self._lines.readline().decode().rstrip("\n").partition(" ")
        if echo != line:
            raise ConnectionResetError("the connection was closed without an answer")
        return name

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def call(inside: Namespace, address: str, port: int, within_s: float = ANSWER_WITHIN_S) -> str:
    """The name of whoever answers one call on a connection of its own. Raises OSError when nobody does."""
    with Connection(inside, address, port, within_s) as connection:
        return connection.ask()


class Servers:
    """All servers of a rig, in one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="servers", daemon=True)
        self._thread.start()
        self._running: dict[str, list[asyncio.Task[None]]] = {}

    def serve(self, inside: Namespace, name: str, port: int) -> None:
        """Answers on this port of all addresses in there as `name`, until it is stopped."""
        listening = inside.call(lambda: socket.create_server(("", port), backlog=128))

        async def start() -> None:
            self._running.setdefault(name, []).append(asyncio.create_task(_serve(listening, name)))

        self._do(start())

    def stop(self, name: str) -> None:
        """Ends the servers of a name and the connections that they have."""

        async def end() -> None:
            tasks = self._running.pop(name)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

        self._do(end())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_WITHIN_S)

    def close(self) -> None:
        for name in tuple(self._running):
            self.stop(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_WITHIN_S)
        self._loop.close()


async def _serve(listening: socket.socket, name: str) -> None:
    prefix = name.encode() + b" "
    connections: set[asyncio.StreamWriter] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        try:
            while line := await reader.readline():
                writer.write(prefix + line)
                await writer.drain()
        except OSError:
            pass
        finally:
            connections.discard(writer)
            writer.close()

    server = await asyncio.start_server(answer, sock=listening)
    try:
        await asyncio.Event().wait()
    finally:
        server.close()
        for writer in connections:
            writer.transport.abort()


class Traffic:
    """Steady traffic on the side, until it is stopped: one long connection that asks again and again, and new
    connections one after another."""

    def __init__(self, inside: Namespace, address: str, port: int, within_s: float = ANSWER_WITHIN_S) -> None:
        """`within_s`: what is not answered by then is a failure."""
        self.answered = 0
        self.calls = 0
        self.failures: list[str] = []
        """What went wrong and when, in seconds since the start."""
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._within_s = within_s
        self._started_s = time.monotonic()
        self._threads = [
            threading.Thread(target=self._run, args=(work, inside, address, port), daemon=True)
            for work in (self._ask_on_one, self._call)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[Namespace, str, int], None], inside: Namespace, address: str, port: int) -> None:
        while self._goes_on.is_set():
            try:
                work(inside, address, port)
            except OSError as error:
                self.failures.append(f"{work.__name__} {time.monotonic() - self._started_s:.3f} s: {error!r}")
                time.sleep(_PAUSE_S)

    def _ask_on_one(self, inside: Namespace, address: str, port: int) -> None:
        with Connection(inside, address, port, self._within_s) as connection:
            while self._goes_on.is_set():
                connection.ask()
                self.answered += 1
                time.sleep(_PAUSE_S)

    def _call(self, inside: Namespace, address: str, port: int) -> None:
        call(inside, address, port, self._within_s)
        self.calls += 1
        time.sleep(_PAUSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._goes_on.clear()
        for thread in self._threads:
            thread.join(2 * self._within_s)
