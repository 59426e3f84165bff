"""The HTTP pages on 8080 and 15014 (operations.md 2, 3.3, 3.4, 12): who may see what, and how long work is sent without
holding the loop. Must not know what stands on a page."""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections.abc import Collection

import structlog
from aiohttp import web

from ambientd.debug import pages
from ambientd.debug.access import Gate, Handler, guard, hides, is_loopback, peer_of
from ambientd.debug.descriptions import plain_description
from ambientd.debug.listen import Listener, listen
from ambientd.debug.series import CONTENT_TYPE
from ambientd.debug.state import DebugState
from ambientd.explain.describe import NoSuchKind
from ambientd.push.feed import Feed
from ambientd.push.views import Seq, live
from ambientd.slices import new_slice
from ambientd.xds.server import CannotListen

log = structlog.get_logger("default")

_CHUNK_BYTES = 64 * 1024
_NO_PROXY_ID = "You must provide a proxyID in the query string\n"
_NOT_CONNECTED = "Proxy not connected to this Pilot instance. It may be connected to another instance.\n"
"""Both are compared literally by istioctl."""

_PAGES = {
    "adsz": "connected clients with their metadata and subscriptions",
    "ambientz": "everything that is served: workloads, services, policies",
    "ca": "the certificate authority: what is in use, until when, and who was refused why",
    "config_dump": "what one client holds (proxyID, types)",
    "conditions": "status conditions that objects deserve",
    "connections": "connected clients",
    "describe": "what became of one object, and why (kind, namespace, name)",
    "list": "names of these pages",
    "problems": "objects and files with something wrong in them",
    "syncz": "whether clients hold what they were sent",
    "watches": "how current what was read from the API server is, per kind",
}


class HttpServers:
    """The HTTP ports of one server."""

    def __init__(self, state: DebugState, gate: Gate | None = None) -> None:
        """`gate`: how callers from elsewhere prove who they are; None: they cannot."""
        self._state = state
        self._gate = gate
        self.http: Listener | None = None
        self.monitoring: Listener | None = None
        """None when its pages are on the HTTP port."""

    async def start(self) -> None:
        """Opens the ports; what is not there yet is answered as such. Raises CannotListen."""
        settings, state = self._state.settings, self._state
        is_shared = settings.monitoring_addr is None
        try:
            app = make_app(state, has_ready=True, has_metrics=is_shared, gate=self._gate)
            self.http = await listen(app, settings.http_addr, "--http-addr", grace_s=settings.shutdown_s)
            if settings.monitoring_addr is not None:
                app = make_app(state, has_metrics=True, gate=self._gate)
                self.monitoring = await listen(
                    app, settings.monitoring_addr, "--monitoring-addr", grace_s=settings.shutdown_s
                )
        except CannotListen:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Lets requests end, within the time for shutting down."""
        await asyncio.gather(*(port.close() for port in (self.http, self.monitoring) if port is not None))
        self.http = self.monitoring = None


def make_app(
    state: DebugState, *, has_ready: bool = False, has_metrics: bool = False, gate: Gate | None = None
) -> web.Application:
    """The pages of one port: `/debug` everywhere unless the settings say no, `/ready` on the HTTP port, `/metrics` and
    `/version` on the monitoring port (operations.md 2.1)."""
    app = web.Application(middlewares=[_clean_path, guard(state.settings, gate)], client_max_size=64 * 1024)

    def add(path: str, handler: Handler) -> None:
        # Any method is accepted.
        app.router.add_route("*", path, handler)

    if has_ready:
        add("/ready", _ready(state))
    if has_metrics:
        add("/metrics", _metrics(state))
        add("/version", _text(str(state.metrics.version)))
    if state.settings.debug_on_http:
        add("/debug", _index)
        for name, handler in _handlers(state).items():
            add(f"/debug/{name}", handler)
    return app


@web.middleware
async def _clean_path(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Repeated slashes lead to the cleaned path (operations.md 12.1): istioctl asks for `//version`."""
    path = request.rel_url.raw_path
    if "//" in path:
        target = re.sub("//+", "/", path)
        query = request.rel_url.raw_query_string
        return web.Response(status=307, headers={"Location": f"{target}?{query}" if query else target})
    return await handler(request)


def _ready(state: DebugState) -> Handler:
    async def ready(_: web.Request) -> web.Response:
        if state.is_ready():
            return web.Response()
        log.warning("not ready", probe="discovery")
        return web.Response(status=503)

    return ready


def _text(text: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text)

    return answer


def _metrics(state: DebugState) -> Handler:
    inventory = _Inventory()

    async def answer(request: web.Request) -> web.Response:
        if state.settings.metrics_loopback_only and not is_loopback(peer_of(request)):
            return web.Response(status=403)
        workloads, services = await inventory.count(state.feed)
        problems = state.world.problem_counts()
        state.metrics.judged(
            unbound=state.world.unbound(),
            verdicts=state.world.verdicts(),
            invalid_policies=problems,
        )
        state.metrics.watched(state.watches())
        state.refresh()
        body = state.metrics.text(
            workloads=workloads,
            services=services,
            policies=state.feed.policies.served,
            problems=sum(problems.values()),
        )
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    return answer


class _Inventory:
    """How many workloads and services are served, counted once per commit."""

    def __init__(self) -> None:
        self._at: Seq = -1
        self._counts = 0, 0

    async def count(self, feed: Feed) -> tuple[int, int]:
        at = feed.head
        if at != self._at:
            workloads = services = 0
            enough = new_slice()
            for _, rendered in live(feed.addresses.entries()):
                if rendered.is_workload:
                    workloads += 1
                else:
                    services += 1
                if enough():
                    await asyncio.sleep(0)
                    enough = new_slice()
            self._at, self._counts = at, (workloads, services)
        return self._counts


def _handlers(state: DebugState) -> dict[str, Handler]:
    async def ambientz(request: web.Request) -> web.StreamResponse:
        return await _send(request, pages.ambientz(state.feed, pretty=_is_pretty(request)))

    async def problems(request: web.Request) -> web.StreamResponse:
        return await _send(request, pages.problems(state.world.problems(), pretty=_is_pretty(request)))

    async def conditions(request: web.Request) -> web.StreamResponse:
        return await _send(request, pages.conditions(state.world.conditions(), pretty=_is_pretty(request)))

    async def watches(request: web.Request) -> web.StreamResponse:
        return await _send(request, pages.watches(state.watches(), time.monotonic(), pretty=_is_pretty(request)))

    async def syncz(request: web.Request) -> web.StreamResponse:
        namespace = request.query.get("namespace", "")
        clients = state.registry.connections()
        return await _send(request, pages.syncz(clients, namespace, pretty=_is_pretty(request)))

    def connections(*, with_details: bool) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            clients = state.registry.connections()
            pieces = pages.connections(clients, with_details=with_details, pretty=_is_pretty(request))
            return await _send(request, pieces)

        return answer

    async def config_dump(request: web.Request) -> web.StreamResponse:
        proxy_id = request.query.get("proxyID", "")
        if not proxy_id:
            return web.Response(status=400, text=_NO_PROXY_ID)
        client = pages.find_client(state, proxy_id)
        if client is None or hides(request, client.node.namespace):
            return web.Response(status=404, text=_NOT_CONNECTED)
        held: dict[str, Collection[str] | None] = {
            url: state.registry.held_names(client.connection_id, url) for url in client.types
        }
        types = request.query.get("types", "")
        return await _send(request, pages.config_dump(state.feed, client, types, held, pretty=_is_pretty(request)))

    async def describe(request: web.Request) -> web.StreamResponse:
        kind, name = request.query.get("kind", ""), request.query.get("name", "")
        if not kind or not name:
            return web.Response(status=400, text="the query must have a kind and a name\n")
        try:
            found = state.describe(kind, request.query.get("namespace", ""), name)
        except NoSuchKind as error:
            return web.Response(status=400, text=f"{error}\n")
        return await _send(request, iter([pages.to_json(plain_description(found), pretty=_is_pretty(request))]))

    async def names(request: web.Request) -> web.StreamResponse:
        listed = sorted(name for name in _PAGES if name != "list")
        return await _send(request, iter([pages.to_json(listed, pretty=_is_pretty(request))]))

    async def ca(request: web.Request) -> web.StreamResponse:
        return await _send(request, iter([pages.to_json(state.authority(), pretty=_is_pretty(request))]))

    return {
        "adsz": connections(with_details=True),
        "ambientz": ambientz,
        "ca": ca,
        "conditions": conditions,
        "config_dump": config_dump,
        "connections": connections(with_details=False),
        "describe": describe,
        "list": names,
        "problems": problems,
        "syncz": syncz,
        "watches": watches,
    }


async def _index(_: web.Request) -> web.Response:
    rows = "".join(
        f'<tr><td><a href="/debug/{name}">/debug/{name}</a></td><td>{html.escape(description)}</td></tr>'
        for name, description in sorted(_PAGES.items())
    )
    title = "Pilot Debug Console"
    text = f"<!DOCTYPE html><html><head><title>{title}</title></head><body><h1>{title}</h1><table>{rows}</table></body>"
    return web.Response(text=text + "</html>", content_type="text/html")


def _is_pretty(request: web.Request) -> bool:
    return "pretty" in request.query


async def _send(request: web.Request, pieces: pages.Pieces) -> web.StreamResponse:
    """Sends JSON as it is made. Others get the loop after each slice, and when the reader is slow."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    chunk = bytearray()
    enough = new_slice()
    for piece in pieces:
        chunk += piece
        if len(chunk) >= _CHUNK_BYTES:
            await response.write(bytes(chunk))
            chunk.clear()
        if enough():
            await asyncio.sleep(0)
            enough = new_slice()
    if chunk:
        await response.write(bytes(chunk))
    await response.write_eof()
    return response
