"""Who may see the debug pages (operations.md 12.2): callers on this machine all of them, others what their namespace
may see, by their token. The ports have no other authentication, so what a request claims is proved or ignored."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import Struct

from ambientd.ca.caller import Caller, CannotTell, Unauthenticated
from ambientd.settings import Settings

log = structlog.get_logger("default")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

PREFIXES = ("Bearer ", "Istio ")
"""What a value of `Authorization` that counts begins with."""

_ONLY = web.RequestKey("only namespace", str)
_FOR_EVERYBODY = frozenset({"/debug/config_dump"})
"""Pages that show no more than a namespace's own to a caller from it."""


class Gate(Struct, frozen=True):
    """What is asked about callers from elsewhere."""

    authenticate: Callable[[Iterable[tuple[str, str]]], Awaitable[Caller]]
    """The caller of a request with these headers, their names in lower case. Raises Unauthenticated and
    CannotTell."""
    root_namespace: Callable[[], str]
    """Whose accounts see everything; of the mesh configuration in force."""


def guard(settings: Settings, gate: Gate | None) -> Middleware:
    """The middleware. `gate`: None: nobody from elsewhere can prove who it is."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith("/debug/") or is_loopback(peer_of(request)):
            return await handler(request)
        if gate is None:
            return _refused(request, 401, "not from loopback")
        headers = ((name.lower(), value) for name, value in request.headers.items())
        try:
            caller = await gate.authenticate(headers)
        except Unauthenticated as error:
            return _refused(request, 401, error.reason)
        except CannotTell as error:
            return _refused(request, 503, error.reason)
        root = gate.root_namespace()
        sees_all = caller.namespace == root or caller.namespace in settings.debug_namespaces
        if settings.authorize_debug and not sees_all and request.path not in _FOR_EVERYBODY:
            return _refused(request, 403, f"{caller} is of another namespace than {root}")
        if caller.namespace != root:
            request[_ONLY] = caller.namespace
        return await handler(request)

    return guarded


def hides(request: web.Request, namespace: str) -> bool:
    """Whether clients of a namespace do not exist for whoever asks."""
    only = request.get(_ONLY)
    return only is not None and only != namespace


def is_loopback(peer: str | None) -> bool:
    """Whether a peer's address is this machine; port forwarding and `ambientd request` come from there."""
    try:
        address = ipaddress.ip_address((peer or "").partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def peer_of(request: web.Request) -> str | None:
    """The address of the connection itself; never what a header claims."""
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) else None


def _refused(request: web.Request, status: int, reason: str) -> web.Response:
    log.error("debug page refused", path=request.path, peer=peer_of(request), reason=reason)
    return web.Response(status=status)
