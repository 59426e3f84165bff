"""A proxy before a real API server that fails as networks and servers do, when a test says so. It ends TLS with the
server's own certificate, so that it can cut an answer in the middle of an event. One request per connection. Must not
know what a client should make of a fault."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

import aiohttp
from msgspec import Struct

from tests.kube.apiserver import ADMIN_TOKEN, ApiServer

_HOP_BY_HOP = {"connection", "content-length", "transfer-encoding", "content-encoding", "keep-alive"}


class Seen(Struct, frozen=True):
    """A request that reached the proxy."""

    method: str
    path: str
    query: dict[str, str]

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch", "") in ("true", "1")

    @property
    def is_list(self) -> bool:
        """A GET of a collection that is no watch, as far as a path tells: its last part is a plural."""
        return self.method == "GET" and not self.is_watch and self.path.endswith("s")


class Answer(Struct, frozen=True):
    """The request does not reach the server: it gets this code, with a Status object as the API server's own, or with
    another body."""

    code: int
    reason: str = ""
    retry_after_s: int | None = None
    body: bytes | None = None


class Delay(Struct, frozen=True):
    """Every piece of the answer, its head included, comes this much later."""

    seconds: float


class Stall(Struct, frozen=True):
    """Silence after so many whole events (lines) of the body, with the connection kept; after 0, not even the head
    comes."""

    after_events: int = 0


class Cut(Struct, frozen=True):
    """The connection is reset after so many whole events (lines) and half of the next one; with `after_events` None,
    before anything is answered."""

    after_events: int | None = 0


class Truncate(Struct, frozen=True):
    """As Cut, but the body ends as if it were whole."""

    after_events: int = 0


class Hangup(Struct, frozen=True):
    """The body ends in good order after so many whole events, as when a server ends a watch."""

    after_events: int = 0


Fault = Answer | Delay | Stall | Cut | Truncate | Hangup


def any_request(seen: Seen) -> bool:
    return True


class Injected:
    """A fault that was ordered. `hit` is set, and `hits` counts, when a request meets it."""

    def __init__(self, fault: Fault, where: Callable[[Seen], bool], times: int | None) -> None:
        self.fault = fault
        self.where = where
        self.hits = 0
        self.hit = asyncio.Event()
        self._left = times

    @property
    def is_spent(self) -> bool:
        return self._left == 0

    def take(self) -> Fault:
        self.hits += 1
        self.hit.set()
        if self._left is not None:
            self._left -= 1
        return self.fault

    def cancel(self) -> None:
        """No later request meets it."""
        self._left = 0


class ChaosProxy:
    """To be entered with `async with`, in the loop that uses it. A fault that is injected strikes requests that come
    after it; `go_silent`, `cut_all` and `refuse` strike what is there."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self.requests: list[Seen] = []
        """Every request that came, in order: a test counts lists and watches here."""
        self._came = asyncio.Condition()
        self._injected: list[Injected] = []
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._listener: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def kubeconfig(self, *, token: str = ADMIN_TOKEN) -> Path:
        return self._server.kubeconfig(server=self.url, token=token)

    async def __aenter__(self) -> Self:
        files = self._server.files
        self._serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._serving.load_cert_chain(files.serving_certificate, files.serving_key)
        self._upstream = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(files.ca)), limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()
        await self._upstream.close()

    def inject(self, fault: Fault, *, where: Callable[[Seen], bool] = any_request, times: int | None = 1) -> Injected:
        """Orders a fault for the next so many requests that match; for all of them with None, until cancelled. A
        request meets the first one that matches and is not spent."""
        injected = Injected(fault, where, times)
        self._injected.append(injected)
        return injected

    async def seen(self, where: Callable[[Seen], bool], times: int = 1) -> None:
        """Returns when so many requests that match have come, those before the call included."""
        async with self._came:
            await self._came.wait_for(lambda: sum(map(where, self.requests)) >= times)

    def go_silent(self) -> None:
        """Half-open: connections stay, new ones come about, and nobody ever says or hears a word on them."""
        self._speaks.clear()

    def speak(self) -> None:
        """After `go_silent`: goes on where it was, with what came meanwhile."""
        self._speaks.set()

    async def cut_all(self) -> None:
        """Resets every connection that there is."""
        for task, writer in list(self._connections.items()):
            writer.transport.abort()
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def refuse(self) -> None:
        """Resets every connection, and refuses new ones."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self.cut_all()

    async def accept(self) -> None:
        """After `refuse`: listens again, at the same port."""
        # Without TLS, which is begun per connection, so that a silent proxy does not even shake hands.
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Called before the first byte is read: what is read before TLS begins would be lost to it.
        assert isinstance(writer.transport, asyncio.Transport)
        writer.transport.pause_reading()
        task = asyncio.create_task(self._hold(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, aiohttp.ClientError):
            # The client left, we were told to cut it off, or the server failed: the client sees a reset.
            writer.transport.abort()
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._speaks.wait()
        await writer.start_tls(self._serving)
        seen, target, headers = await _read_head(reader)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        async with self._came:
            self.requests.append(seen)
            self._came.notify_all()
        fault = self._fault_for(seen)
        await self._speaks.wait()
        answering = asyncio.create_task(self._answer(seen, target, headers, body, fault, writer))
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    def _fault_for(self, seen: Seen) -> Fault | None:
        for injected in self._injected:
            if not injected.is_spent and injected.where(seen):
                return injected.take()
        return None

    async def _answer(
        self,
        seen: Seen,
        target: str,
        headers: dict[str, str],
        body: bytes,
        fault: Fault | None,
        writer: asyncio.StreamWriter,
    ) -> None:
        match fault:
            case Answer():
                writer.write(_whole_answer(fault))
                await _finish(writer)
                return
            case Cut(after_events=None):
                writer.transport.abort()
                return
            case Stall(after_events=0):
                await asyncio.Event().wait()
        forwarded = {name: value for name, value in headers.items() if name not in _HOP_BY_HOP | {"host"}}
        async with self._upstream.request(
            seen.method, self._server.url + target, headers=forwarded, data=body or None, allow_redirects=False
        ) as answer:
            delay_s = fault.seconds if isinstance(fault, Delay) else 0.0
            await self._write(writer, _head(answer.status, answer.reason or "", dict(answer.headers)), delay_s)
            async for piece in _faulty(answer.content.iter_any(), fault, writer):
                await self._write(writer, b"%x\r\n%b\r\n" % (len(piece), piece), delay_s)
            await self._write(writer, b"0\r\n\r\n", 0.0)
            await _finish(writer)

    async def _write(self, writer: asyncio.StreamWriter, data: bytes, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._speaks.wait()
        writer.write(data)
        await writer.drain()


async def _faulty(
    pieces: AsyncIterator[bytes], fault: Fault | None, writer: asyncio.StreamWriter
) -> AsyncIterator[bytes]:
    """The body as far as the fault lets it pass."""
    match fault:
        case Hangup(after_events=0):
            return
        case Stall(after_events=int(limit)) | Cut(after_events=int(limit)):
            pass
        case Truncate(after_events=limit) | Hangup(after_events=limit):
            pass
        case _:
            async for piece in pieces:
                yield piece
            return
    passed = 0
    async for line in _lines(pieces):
        if passed == limit:
            if isinstance(fault, (Cut, Truncate)):
                yield line[: max(len(line) // 2, 1)]
            break
        yield line
        passed += 1
        if passed == limit and isinstance(fault, (Stall, Hangup)):
            break
    match fault:
        case Stall():
            await asyncio.Event().wait()
        case Cut():
            await writer.drain()
            raise ConnectionResetError("cut by the test")


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line + b"\n"
    if rest:
        yield rest


async def _read_head(reader: asyncio.StreamReader) -> tuple[Seen, str, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    # The body must be plain, to be cut where an event is.
    headers.pop("accept-encoding", None)
    parts = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    return Seen(method=method, path=parts.path, query=query), target, headers


def _head(code: int, reason: str, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {code} {reason}"]
    lines += [f"{name}: {value}" for name, value in headers.items() if name.lower() not in _HOP_BY_HOP]
    lines += ["Transfer-Encoding: chunked", "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _whole_answer(answer: Answer) -> bytes:
    body = answer.body
    if body is None:
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "reason": answer.reason,
            "message": "answered by the test's proxy",
            "code": answer.code,
        }
        body = json.dumps(status).encode()
    retry = "" if answer.retry_after_s is None else f"Retry-After: {answer.retry_after_s}\r\n"
    head = (
        f"HTTP/1.1 {answer.code} \r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"{retry}Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body


async def _finish(writer: asyncio.StreamWriter) -> None:
    await writer.drain()
    writer.close()
    await writer.wait_closed()
