"""The HTTP pages: their forms, and that a large one is sent in pieces (operations.md 12). Who may see them is in
`test_debug_access`."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer
from msgspec import structs

from ambientd.debug import http, listen, pages
from ambientd.debug.readable import plain, quirky_address, raw_address
from ambientd.index.conditions import Condition
from ambientd.index.world import Problem
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.resources.ref import Ref
from ambientd.settings import Address as ListenAddress
from ambientd.settings import Settings
from ambientd.xds.connections import TypeStatus
from ambientd.xds.server import CannotListen
from ambientd_api.workload_pb2 import Address, Workload
from tests.unit.debug_server import CART, CART_SERVICE, TILL, State, commit, rendered, workload, zt


@pytest.fixture
def state() -> State:
    return State()


Client = TestClient[web.Request, web.Application]


@pytest.fixture
async def client(state: State) -> AsyncIterator[Client]:
    async with TestClient(TestServer(http.make_app(state, has_ready=True, has_metrics=True))) as client:
        yield client


async def test_ready_is_503_until_the_server_is(client: Client, state: State) -> None:
    assert (await client.get("/ready")).status == 503
    state.ready = True
    answer = await client.get("/ready")
    assert (answer.status, await answer.text()) == (200, "")


async def test_version_and_metrics_answer_at_every_time(client: Client) -> None:
    assert await (await client.get("/version")).text() == "1.2.3-abc-Clean"
    answer = await client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "pilot_services 0\n" in await answer.text()


async def test_metrics_count_what_is_served_now(client: Client, state: State) -> None:
    state.with_the_shop()
    lines = (await (await client.get("/metrics")).text()).splitlines()
    assert {"pilot_services 1", "ambientd_workloads 1", "ambientd_policies 1"} <= set(lines)
    commit(state.feed, {"shop/cart.shop": None}, {})
    assert "pilot_services 0" in (await (await client.get("/metrics")).text()).splitlines()


async def test_ambientz_has_addresses_as_base64_of_their_text(client: Client, state: State) -> None:
    state.with_the_shop()
    answer = await client.get("/debug/ambientz")
    assert answer.headers["Content-Type"] == "application/json"
    text = await answer.text()
    assert not text.endswith("\n")
    assert json.loads(text) == {
        "workloads": [
            {
                "uid": "Kubernetes//Pod/shop/cart-0",
                "name": "cart-0",
                "namespace": "shop",
                "addresses": [base64.b64encode(b"10.0.0.1").decode()],
                "tunnelProtocol": "HBONE",
            }
        ],
        "services": [
            {
                "name": "cart",
                "namespace": "shop",
                "hostname": "cart.shop",
                "addresses": [{"address": base64.b64encode(b"10.96.0.1").decode()}],
            }
        ],
        "policies": [{"name": "till", "namespace": "shop", "scope": "WORKLOAD_SELECTOR", "action": "DENY"}],
    }


async def test_an_empty_state_is_a_whole_answer(client: Client) -> None:
    assert await (await client.get("/debug/ambientz")).text() == '{"workloads":[],"services":[],"policies":[]}'
    assert await (await client.get("/debug/syncz")).text() == "[]"
    assert await (await client.get("/debug/problems")).text() == "[]"
    assert await (await client.get("/debug/connections")).text() == '{"totalClients":0}'


@pytest.mark.parametrize("page", ["ambientz", "syncz", "problems", "adsz", "connections", "list"])
async def test_pretty_is_the_same_json_indented_by_four(client: Client, state: State, page: str) -> None:
    state.with_the_shop()
    state.clients = [zt(1, address=TypeStatus("n1", "n1", 1.0, "", tuple))]
    state.found = [Problem(Ref("Kubernetes", "Pod", "shop", "cart-0"), ("one", "two"), True)]
    plain_text = await (await client.get(f"/debug/{page}")).text()
    pretty = await (await client.get(f"/debug/{page}?pretty")).text()
    assert pretty == json.dumps(json.loads(plain_text), indent=4)


async def test_any_method_is_accepted_and_unknown_paths_are_not(client: Client) -> None:
    assert (await client.post("/debug/list")).status == 200
    assert (await client.get("/debug/nothing")).status == 404
    assert (await client.get("/other")).status == 404


async def test_the_list_names_the_pages_but_not_itself(client: Client) -> None:
    names = await (await client.get("/debug/list")).json()
    expected = ["adsz", "ambientz", "ca", "conditions", "config_dump", "connections", "describe", "problems", "syncz"]
    assert names == [*expected, "watches"]
    for name in names:
        assert (await client.get(f"/debug/{name}")).status in (200, 400)
    index = await (await client.get("/debug")).text()
    assert "<title>Pilot Debug Console</title>" in index
    assert all(f'href="/debug/{name}"' in index for name in names)


async def test_debug_pages_can_be_switched_off(state: State) -> None:
    state.settings = structs.replace(state.settings, debug_on_http=False)
    async with TestClient(TestServer(http.make_app(state, has_ready=True))) as client:
        assert (await client.get("/debug/list")).status == 404
        assert (await client.get("/debug")).status == 404
        assert (await client.get("/ready")).status == 503


async def test_repeated_slashes_lead_to_the_clean_path(client: Client) -> None:
    # As bytes, since a client would take what follows two slashes for a host.
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(b"GET //version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head = (await reader.read()).decode()
    writer.close()
    assert head.startswith("HTTP/1.1 307 ")
    assert "\r\nLocation: /version\r\n" in head
    answer = await client.get("/debug//syncz?namespace=a", allow_redirects=False)
    assert answer.headers["Location"] == "/debug/syncz?namespace=a"


async def test_conditions_are_as_an_object_would_have_them(client: Client, state: State) -> None:
    state.deserved[Ref("east", "AuthorizationPolicy", "shop", "till")] = (
        Condition("ZtunnelAccepted", "True", "Accepted", "served", observed_generation=3),
    )
    state.deserved[Ref("east", "AuthorizationPolicy", "shop", "cart")] = (
        Condition("WaypointAccepted", "False", "TargetNotFound", "no such Service"),
    )
    page = await (await client.get("/debug/conditions")).json()
    assert [each["name"] for each in page] == ["cart", "till"]
    assert page[1] == {
        "object": "AuthorizationPolicy shop/till",
        "cluster": "east",
        "kind": "AuthorizationPolicy",
        "namespace": "shop",
        "name": "till",
        "conditions": [
            {
                "type": "ZtunnelAccepted",
                "status": "True",
                "reason": "Accepted",
                "message": "served",
                "observedGeneration": "3",
            }
        ],
    }
    assert "observedGeneration" not in page[0]["conditions"][0]


async def test_describe_wants_a_kind_and_a_name_and_says_so(client: Client) -> None:
    for query, text in (("kind=Pod", "the query must have a kind and a name"), ("kind=Pot&name=a", "'Pot' is no kind")):
        response = await client.get(f"/debug/describe?{query}")
        assert response.status == 400
        assert (await response.text()).startswith(text)
    page = await (await client.get("/debug/describe?kind=pods&namespace=shop&name=a")).json()
    assert (page["object"], page["is_read"], page["summary"]) == ("Pod shop/a", False, "there is no such object")


async def test_problems_name_object_and_what_is_wrong(client: Client, state: State) -> None:
    state.found = [
        Problem(Ref("Kubernetes", "Pod", "shop", "cart-0"), ("status.podIPs must be an IP address",), False),
        Problem(Ref("Kubernetes", "File", "", "bad.yaml"), ("line 2: broken",), True),
    ]
    assert await (await client.get("/debug/problems")).json() == [
        {
            "object": "File bad.yaml",
            "cluster": "Kubernetes",
            "kind": "File",
            "namespace": "",
            "name": "bad.yaml",
            "is_served": True,
            "faults": ["line 2: broken"],
        },
        {
            "object": "Pod shop/cart-0",
            "cluster": "Kubernetes",
            "kind": "Pod",
            "namespace": "shop",
            "name": "cart-0",
            "is_served": False,
            "faults": ["status.podIPs must be an IP address"],
        },
    ]


async def test_syncz_tells_nonces_and_the_last_error_and_filters_by_namespace(client: Client, state: State) -> None:
    state.clients = [
        zt(1, address=TypeStatus("n2", "n1", 0.5, "bad", tuple), authorization=TypeStatus("", "", None, "", tuple)),
        zt(2, namespace="shop"),
    ]
    assert await (await client.get("/debug/syncz?namespace=istio-system")).json() == [
        {
            "cluster_id": "Kubernetes",
            "proxy": "zt-1.istio-system",
            "proxy_type": "ztunnel",
            "resources": {
                AUTHORIZATION: {"sentTime": "0001-01-01T00:00:00Z"},
                ADDRESS: {
                    "sent": "n2",
                    "acked": "n1",
                    "sentTime": "1970-01-01T00:00:00.500000Z",
                    "lastError": "bad",
                },
            },
        }
    ]


async def test_connections_are_listed_and_adsz_has_the_details(client: Client, state: State) -> None:
    state.clients = [zt(1, address=TypeStatus("", "", None, "", lambda: ["/10.0.0.1"]))]
    brief = {
        "connectionId": "zt-1.istio-system-1",
        "connectedAt": "1970-01-01T00:00:00.500000Z",
        "address": "10.0.0.9:4711",
    }
    assert await (await client.get("/debug/connections")).json() == {"totalClients": 1, "clients": [brief]}
    details = {"metadata": {"NAMESPACE": "istio-system"}, "watches": {ADDRESS: ["/10.0.0.1"]}}
    assert await (await client.get("/debug/adsz")).json() == {"totalClients": 1, "clients": [{**brief, **details}]}


@pytest.mark.parametrize(
    ("peer", "text"),
    [("ipv4:10.0.0.1:80", "10.0.0.1:80"), ("ipv6:%5B::1%5D:80", "[::1]:80"), ("unix:/run/x", "unix:/run/x")],
)
def test_peers_are_shown_as_addresses(peer: str, text: str) -> None:
    assert pages.peer_address(peer) == text


async def test_config_dump_needs_a_client_and_says_so_in_istioctl_s_words(client: Client) -> None:
    answer = await client.get("/debug/config_dump")
    assert (answer.status, await answer.text()) == (400, "You must provide a proxyID in the query string\n")
    answer = await client.get("/debug/config_dump?proxyID=zt")
    text = "Proxy not connected to this Pilot instance. It may be connected to another instance.\n"
    assert (answer.status, await answer.text()) == (404, text)


async def test_config_dump_gives_what_a_client_holds_of_the_types_that_it_watches(client: Client, state: State) -> None:
    state.with_the_shop()
    status = TypeStatus("n1", "n1", 1.0, "", tuple)
    state.clients = [zt(1, address=status), zt(2, address=status, authorization=status)]

    async def dump(query: str) -> list[dict[str, Any]]:
        configs: list[dict[str, Any]] = (await (await client.get(f"/debug/config_dump?{query}")).json())["configs"]
        return configs

    workload = {"@type": ADDRESS, **plain(CART, raw_address)}
    service = {"@type": ADDRESS, **plain(CART_SERVICE, raw_address)}
    policy = {"@type": AUTHORIZATION, **plain(TILL)}
    assert workload["workload"]["addresses"] == ["CgAAAQ=="]
    assert await dump("proxyID=zt-1") == [workload, service]
    assert await dump("proxyID=zt-1&types=WDS,wads") == [workload, service]
    assert await dump("proxyID=zt-2&types=WADS,cds,wds") == [policy, workload, service]
    assert await dump(f"proxyID=zt-2&types={AUTHORIZATION}") == [policy]
    state.held = {"shop/cart.shop"}
    assert await dump("proxyID=zt-1") == [service]


def test_a_large_dump_is_many_small_pieces_in_the_order_of_names() -> None:
    state = State()
    names = [f"Kubernetes//Pod/shop/p-{number:05}" for number in range(5_000)]
    entries = {
        name: rendered(Address(workload=Workload(uid=name, name="p", namespace="shop")), name) for name in names[::-1]
    }
    commit(state.feed, dict(entries), {})
    pieces = list(pages.ambientz(state.feed, pretty=False))
    assert max(len(piece) for piece in pieces) < 200
    assert len(pieces) > 5_000
    assert [workload["uid"] for workload in json.loads(b"".join(pieces))["workloads"]] == names


def test_many_clients_are_many_small_pieces() -> None:
    clients = [zt(number) for number in range(5_000)]
    for pretty in (False, True):
        pieces = list(pages.connections(clients, with_details=True, pretty=pretty))
        assert max(map(len, pieces)) < 2_000
        told = json.loads(b"".join(pieces))
        assert (told["totalClients"], len(told["clients"])) == (5_000, 5_000)


def test_a_dump_tells_of_one_moment() -> None:
    state = State().with_the_shop()
    dump: Iterator[bytes] = pages.ambientz(state.feed, pretty=False)
    started = next(dump)
    commit(state.feed, {"shop/cart.shop": None}, {"shop/till": None})
    held = json.loads(started + b"".join(dump))
    assert (len(held["services"]), len(held["policies"])) == (1, 1)


def test_readable_values_follow_proto_json() -> None:
    message = workload(
        uid="u",
        addresses=[b"\x0a\0\0\1", b"\0" * 15 + b"\1"],
        services={"b/b": {}, "a/a": {"ports": [{"service_port": 80}]}},
        capacity={"value": 0},
        workload_type=2,
        waypoint={"address": {"address": b"\x0a\0\0\2", "length": 0}},
    )
    assert plain(message) == {
        "workload": {
            "uid": "u",
            "addresses": ["10.0.0.1", "::1"],
            "services": {"a/a": {"ports": [{"servicePort": 80}]}, "b/b": {}},
            "capacity": 0,
            "workloadType": "POD",
            "waypoint": {"address": {"address": "10.0.0.2", "length": 0}},
        }
    }
    assert plain(message, quirky_address)["workload"]["addresses"][0] == "MTAuMC4wLjE="


async def test_a_port_in_use_is_one_line_that_names_the_flag(state: State) -> None:
    first = await listen.listen(http.make_app(state), ListenAddress("127.0.0.1", 0), "--http-addr")
    try:
        with pytest.raises(CannotListen) as caught:
            await listen.listen(http.make_app(state), ListenAddress("127.0.0.1", first.port), "--http-addr")
        assert str(caught.value) == (
            f"--http-addr: 127.0.0.1:{first.port} is in use; stop the program that has it, or give another address"
        )
    finally:
        await first.close()


async def test_the_ports_open_before_anything_is_ready_and_share_one_where_asked(state: State) -> None:
    free = ListenAddress("127.0.0.1", 0)
    for monitoring in (free, None):
        state.settings = Settings(http_addr=free, monitoring_addr=monitoring)
        servers = http.HttpServers(state)
        await servers.start()
        try:
            assert servers.http is not None
            metrics_port = servers.monitoring.port if servers.monitoring else servers.http.port
            async with ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{servers.http.port}/ready") as answer:
                    assert answer.status == 503
                async with session.get(f"http://127.0.0.1:{metrics_port}/metrics") as answer:
                    assert answer.status == 200
        finally:
            await servers.stop()


async def test_a_connection_that_says_nothing_is_closed(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "READ_TIMEOUT_S", 0.01)
    port = await listen.listen(http.make_app(state, has_ready=True), ListenAddress("127.0.0.1", 0), "--http-addr")
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        assert await reader.read() == b""
        writer.close()
    finally:
        await port.close()
