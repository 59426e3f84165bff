"""Who may see the debug pages (operations.md 12.2)."""

from __future__ import annotations

from collections.abc import Iterable
from unittest.mock import Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from msgspec import structs

from ambientd.ca.caller import Caller, CannotTell, Unauthenticated
from ambientd.debug import access, http
from tests.unit.debug_server import State, zt


@pytest.fixture
def state() -> State:
    return State()


async def from_peer(state: State, path: str, peer: str, gate: access.Gate | None = None) -> web.StreamResponse:
    """The answer to a request whose connection comes from this address."""
    transport = Mock()
    transport.get_extra_info = lambda name, default=None: (peer, 4711) if name == "peername" else default
    app = http.make_app(state, has_metrics=True, gate=gate)
    app.freeze()
    request = make_mocked_request("GET", path, headers={"X-Forwarded-For": "127.0.0.1"}, app=app, transport=transport)
    return await app._handle(request)


async def test_debug_pages_are_refused_to_others_than_loopback_whatever_they_claim(state: State) -> None:
    answer = await from_peer(state, "/debug/ambientz", "10.0.0.9")
    assert isinstance(answer, web.Response)
    assert (answer.status, answer.body) == (401, None)
    assert (await from_peer(state, "/%64ebug/ambientz", "10.0.0.9")).status == 401
    assert (await from_peer(state, "/debug", "10.0.0.9")).status == 200


def gate_for(namespace: str) -> access.Gate:
    """Everybody from elsewhere is of this namespace; of none where it is empty, of an unknown one where it is `?`."""

    async def authenticate(headers: Iterable[tuple[str, str]]) -> Caller:
        assert ("x-forwarded-for", "127.0.0.1") in tuple(headers)
        if namespace == "?":
            raise CannotTell("no answer")
        if not namespace:
            raise Unauthenticated("no token")
        return Caller(namespace, "somebody", "cluster.local")

    return access.Gate(authenticate, lambda: "istio-system")


@pytest.mark.parametrize(
    ("namespace", "page", "status"),
    [
        ("", "ambientz", 401),
        ("?", "ambientz", 503),
        ("shop", "ambientz", 403),
        ("shop", "config_dump", 400),
        ("istio-system", "ambientz", 200),
        ("monitoring", "ambientz", 200),
    ],
)
async def test_a_caller_from_elsewhere_sees_what_its_namespace_may(
    state: State, namespace: str, page: str, status: int
) -> None:
    state.settings = structs.replace(state.settings, debug_namespaces=("monitoring",))
    assert (await from_peer(state, f"/debug/{page}", "10.0.0.9", gate_for(namespace))).status == status
    state.settings = structs.replace(state.settings, authorize_debug=False)
    seen = (await from_peer(state, f"/debug/{page}", "10.0.0.9", gate_for(namespace))).status
    assert seen == (200 if status == 403 else status)


async def test_clients_of_other_namespaces_do_not_exist_for_a_caller_from_elsewhere(state: State) -> None:
    state.clients = [zt(1, "shop"), zt(2, "istio-system")]
    for namespace, proxy, status in (
        ("shop", state.clients[0], 200),
        ("shop", state.clients[1], 404),
        ("istio-system", state.clients[0], 200),
    ):
        path = f"/debug/config_dump?proxyID={proxy.connection_id}"
        assert (await from_peer(state, path, "10.0.0.9", gate_for(namespace))).status == status


async def test_metrics_are_open_unless_they_are_for_loopback_only(state: State) -> None:
    assert (await from_peer(state, "/metrics", "10.0.0.9")).status == 200
    state.settings = structs.replace(state.settings, metrics_loopback_only=True)
    assert (await from_peer(state, "/metrics", "10.0.0.9")).status == 403
    assert (await from_peer(state, "/metrics", "127.0.0.1")).status == 200


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_has_several_addresses(peer: str) -> None:
    assert access.is_loopback(peer)


@pytest.mark.parametrize("peer", ["10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "", "localhost", None])
def test_nothing_else_is_loopback(peer: str | None) -> None:
    assert not access.is_loopback(peer)
