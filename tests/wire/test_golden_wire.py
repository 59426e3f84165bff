"""The golden cases through the whole server: events into the pump, responses of a real gRPC stream into a simulated
ztunnel. After each step the client holds what the case expects, and was sent what changed and nothing else."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

import grpc.aio
import pytest
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse

from ambientd.ctl.connection import METHOD
from ambientd.ctl.ztunnel import ADDRESS
from ambientd.debug.http import HttpServers
from tests.cases.loader import Case, Cluster, differences, expected_pushed, load, marked_cases, wrong_conditions
from tests.cases.test_golden import deserved, events_of
from tests.wire.running import Client, Running

PATIENCE_S = 60
"""After this a case hangs and fails."""


@pytest.mark.parametrize("case_id", marked_cases("product"))
async def test_a_client_holds_and_is_sent_what_the_case_expects(case_id: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await _play(load(case_id))


async def _play(case: Case) -> None:
    cluster = Cluster(case)
    server = Running(case.environment)
    rules = server.app.settings.rules()
    first = events_of(cluster.begun, rules)
    steps = list(enumerate(case.steps, start=1))
    if case.exists_at_start:
        first += events_of([*cluster.play(case.steps[0]), *cluster.written(case.steps[0])], rules)
    async with server.running(first), Client.connected(server.app.grpc.port) as client:
        for number, step in steps:
            if number > 1 or not case.exists_at_start:
                client.pushed()
                await server.emit(events_of([*cluster.play(step), *cluster.written(step)], rules))
            await client.come_to_rest()
            found = differences(client.held(), step.expect)
            found += wrong_conditions(deserved(server.app.world), case, number, cluster)
            assert not found, f"step {number}:\n" + "\n".join(found)
            pushed, wanted = client.pushed(), expected_pushed(step)
            assert wanted is None or pushed == wanted, f"step {number}"


async def test_the_page_of_conditions_shows_what_the_case_expects() -> None:
    case = load("waypoints-p13")
    cluster = Cluster(case)
    server = Running(case.environment)
    http = HttpServers(server.app)
    await http.start()
    assert http.http is not None
    url = f"http://127.0.0.1:{http.http.port}/debug/conditions"
    try:
        rules = server.app.settings.rules()
        async with server.running(events_of([*cluster.begun, *cluster.play(case.steps[0])], rules)):
            page = json.loads(await asyncio.to_thread(lambda: urllib.request.urlopen(url).read()))
    finally:
        await http.stop()
    shown = {f"{each['kind']}/{each['namespace']}/{each['name']}": each["conditions"] for each in page}
    assert list(shown) == ["AuthorizationPolicy/shop/ap", "Service/shop/bound", "ServiceEntry/shop/ext"]
    assert wrong_conditions(shown, case, 1, cluster) == []


async def test_a_lookup_finds_what_the_case_expects() -> None:
    case = load("workloads-lookup")
    cluster = Cluster(case)
    server = Running(case.environment)
    rules = server.app.settings.rules()
    lookups = case.steps[0].fields["lookups"]
    assert len(lookups) > 10
    async with asyncio.timeout(PATIENCE_S), server.running(events_of(cluster.begun, rules)):
        await server.emit(events_of([*cluster.play(case.steps[0])], rules))
        found = [await _look_up(server.app.grpc.port, lookup["names"]) for lookup in lookups]
    for lookup, (resources, removed) in zip(lookups, found, strict=True):
        assert resources == lookup["resources"], lookup["names"]
        # A name that was found by an alias is also listed as removed, which is what the client waits for.
        hits = {name for name in lookup["names"] if name not in resources and lookup["resources"]}
        assert set(removed) - hits == set(lookup["removed"]) - hits, lookup["names"]


async def _look_up(port: int, names: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The first answer to an on-demand request for these names: what is sent, with its aliases, and what is removed."""
    node = Node(id="ztunnel~10.0.0.1~ztunnel.istio-system~istio-system.svc.cluster.local")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stream: Any = channel.stream_stream
        call = stream(
            METHOD,
            request_serializer=DeltaDiscoveryRequest.SerializeToString,
            response_deserializer=DeltaDiscoveryResponse.FromString,
        )()
        await call.write(DeltaDiscoveryRequest(node=node, type_url=ADDRESS, resource_names_subscribe=names))
        response = await call.read()
        call.cancel()
    assert isinstance(response, DeltaDiscoveryResponse)
    return {each.name: list(each.aliases) for each in response.resources}, list(response.removed_resources)
