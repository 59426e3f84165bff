"""The simulated ztunnel does what a ztunnel does (xds.md 17): what it holds, what it answers, when it comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource
from google.protobuf.any_pb2 import Any as AnyMessage

from ambientd.ctl.connection import METHOD, Backoff, Connected, Disconnected, Happened, Received, watch
from ambientd.ctl.ztunnel import ADDRESS, AUTHORIZATION, SimulatedZtunnel
from ambientd_api.security_pb2 import Authorization
from ambientd_api.workload_pb2 import Address, Service, Workload

POD = "Kubernetes//Pod/shop/cart-0"


def workload(uid: str = POD, **fields: Any) -> Address:
    return Address(workload=Workload(uid=uid, name="cart-0", namespace="shop", **fields))


def service(hostname: str = "cart.shop.svc.cluster.local", **fields: Any) -> Address:
    return Address(service=Service(name="cart", namespace="shop", hostname=hostname, **fields))


def policy(name: str = "till") -> Authorization:
    return Authorization(name=name, namespace="shop")


def resource(name: str, message: Address | Authorization | bytes, version: str = "v1") -> Resource:
    raw = message if isinstance(message, bytes) else message.SerializeToString()
    return Resource(name=name, version=version, resource=AnyMessage(value=raw))


def response(
    *resources: Resource, type_url: str = ADDRESS, nonce: str = "n1", removed: tuple[str, ...] = ()
) -> DeltaDiscoveryResponse:
    return DeltaDiscoveryResponse(type_url=type_url, nonce=nonce, resources=resources, removed_resources=removed)


def test_it_asks_for_addresses_and_then_for_policies_by_wildcard() -> None:
    first, second = SimulatedZtunnel("zt-1", "istio-system", node_name="node-a", ip="10.0.0.1").first_requests()
    assert (first.type_url, second.type_url) == (ADDRESS, AUTHORIZATION)
    assert first.node.id == "ztunnel~10.0.0.1~zt-1.istio-system~istio-system.svc.cluster.local"
    assert first.node.metadata["NODE_NAME"] == "node-a"
    assert not [*first.resource_names_subscribe, *first.initial_resource_versions]


def test_an_acknowledgement_says_the_nonce_and_nothing_else() -> None:
    applied = SimulatedZtunnel().apply(response(resource(POD, workload())))
    assert applied.answer == DeltaDiscoveryRequest(type_url=ADDRESS, response_nonce="n1")


def test_it_is_ready_when_both_types_were_acknowledged_even_empty() -> None:
    ztunnel = SimulatedZtunnel()
    ztunnel.apply(response())
    assert not ztunnel.is_ready
    ztunnel.apply(response(type_url=AUTHORIZATION))
    assert ztunnel.is_ready


def test_a_rejected_first_response_does_not_make_it_ready() -> None:
    ztunnel = SimulatedZtunnel()
    ztunnel.apply(response(type_url=AUTHORIZATION))
    ztunnel.apply(response(resource(POD, b"\xff")))
    assert not ztunnel.is_ready
    ztunnel.apply(response())
    assert ztunnel.is_ready


def test_updates_come_before_removals() -> None:
    ztunnel = SimulatedZtunnel()
    ztunnel.apply(response(resource(POD, workload()), removed=(POD,)))
    assert ztunnel.workloads == {}
    assert ztunnel.versions[ADDRESS] == {}


def test_a_removal_reaches_workloads_services_and_policies_and_unknown_names_are_harmless() -> None:
    ztunnel = SimulatedZtunnel()
    name = "shop/cart.shop.svc.cluster.local"
    ztunnel.apply(response(resource(POD, workload()), resource(name, service())))
    ztunnel.apply(response(resource("shop/till", policy()), type_url=AUTHORIZATION))
    gone = ztunnel.apply(response(removed=(POD, name, "shop/never-seen")))
    assert [(change.kind, change.after) for change in gone.changes] == [("workload", None), ("service", None)]
    ztunnel.apply(response(removed=("shop/till", "shop/other"), type_url=AUTHORIZATION))
    assert (ztunnel.workloads, ztunnel.services, ztunnel.policies) == ({}, {}, {})


def test_the_good_resources_of_a_rejected_response_are_in_force_and_only_they_are_claimed() -> None:
    ztunnel = SimulatedZtunnel()
    bad = workload("Kubernetes//Pod/shop/legacy-0", tunnel_protocol=2)
    applied = ztunnel.apply(response(resource(POD, workload()), resource("Kubernetes//Pod/shop/legacy-0", bad)))
    assert applied.answer.response_nonce == "n1"
    assert applied.answer.error_detail.code == 0
    assert applied.answer.error_detail.message == (
        "Kubernetes//Pod/shop/legacy-0: failed to parse enum: unsupported tunnel protocol: legacy istio mtls"
    )
    assert list(ztunnel.workloads) == [POD]
    assert dict(ztunnel.first_requests()[0].initial_resource_versions) == {POD: "v1"}


def test_all_rejections_of_a_response_are_told() -> None:
    applied = SimulatedZtunnel().apply(response(resource("a", Address()), resource("b", workload(addresses=[b"abc"]))))
    assert applied.answer.error_detail.message == (
        "a: an address must be a workload or a service; b: byte address must be 4 or 16 bytes, got 3"
    )


REFUSED = {
    "no content": Address(),
    "legacy tunnel": workload(tunnel_protocol=2),
    "short address": workload(addresses=[b"\x0a\0\0"]),
    "gateway without destination": workload(waypoint={"hbone_mtls_port": 15008}),
    "gateway with a short address": workload(network_gateway={"address": {"address": b"\x01"}}),
    "service without a namespace": workload(services={"cart": {}}),
    "unknown status": workload(status=77),
    "unknown protocol of a port": workload(services={"a/b": {"ports": [{"app_protocol": 99}]}}),
    "service with a short address": service(addresses=[{"address": b"\x01"}]),
    "service with an unspecified scope": service(load_balancing={"routing_preference": [0]}),
    "canary without destination": service(weighted_waypoints=[{"weight": 10}]),
}


@pytest.mark.parametrize("address", REFUSED.values(), ids=REFUSED.keys())
def test_what_a_ztunnel_refuses_is_refused(address: Address) -> None:
    ztunnel = SimulatedZtunnel()
    applied = ztunnel.apply(response(resource("name", address)))
    assert applied.answer.error_detail.message.startswith("name: ")
    assert (ztunnel.workloads, ztunnel.services, ztunnel.versions[ADDRESS]) == ({}, {}, {})


def test_an_unknown_visibility_falls_back_and_an_unknown_action_is_refused() -> None:
    ztunnel = SimulatedZtunnel()
    assert not ztunnel.apply(response(resource("s", service(visibility=9)))).answer.HasField("error_detail")
    bad = Authorization(name="till", namespace="shop", action=5)  # type: ignore[arg-type]
    assert ztunnel.apply(response(resource("p", bad), type_url=AUTHORIZATION)).answer.HasField("error_detail")


def test_a_resource_without_a_body_is_refused() -> None:
    applied = SimulatedZtunnel().apply(response(Resource(name="empty")))
    assert applied.answer.error_detail.message == "empty: missing resource"


def test_an_unknown_type_is_acknowledged() -> None:
    applied = SimulatedZtunnel().apply(response(resource("x", b"\xff"), type_url="type.googleapis.com/other"))
    assert not applied.answer.HasField("error_detail")


def test_changes_tell_what_was_before_and_equal_content_is_no_change() -> None:
    ztunnel = SimulatedZtunnel()
    ztunnel.apply(response(resource(POD, workload())))
    again = ztunnel.apply(response(resource(POD, workload(), "v2")))
    assert (again.changes, again.unchanged) == ((), 1)
    (change,) = ztunnel.apply(response(resource(POD, workload(node="b"), "v3"))).changes
    assert (change.kind, change.name) == ("workload", POD)
    assert (change.before, change.after) == (workload().workload, workload(node="b").workload)


def test_an_on_demand_client_subscribes_to_nothing_yet_and_claims_what_it_asked() -> None:
    ztunnel = SimulatedZtunnel(is_on_demand=True)
    assert list(ztunnel.ask("/10.0.0.9").resource_names_subscribe) == ["/10.0.0.9"]
    first, second = ztunnel.first_requests()
    assert list(first.resource_names_subscribe) == list(first.resource_names_unsubscribe) == ["*"]
    assert dict(first.initial_resource_versions) == {"/10.0.0.9": ""}
    assert not second.resource_names_subscribe
    ztunnel.apply(response(type_url=AUTHORIZATION))
    assert ztunnel.is_ready


def test_connections_that_fail_double_the_wait_up_to_fifteen_seconds() -> None:
    backoff = Backoff()
    waits = [backoff.ended(grpc.StatusCode.UNAVAILABLE, "refused", had_headers=False) for _ in range(12)]
    assert waits[:3] == [0.02, 0.04, 0.08]
    assert waits[-1] == 15.0


EXPECTED_ENDS = [
    (grpc.StatusCode.UNKNOWN, ""),
    (grpc.StatusCode.CANCELLED, ""),
    (grpc.StatusCode.DEADLINE_EXCEEDED, ""),
    (grpc.StatusCode.UNAVAILABLE, "transport is closing"),
    (grpc.StatusCode.UNAVAILABLE, "received prior goaway: code NO_ERROR"),
]


@pytest.mark.parametrize(("code", "details"), EXPECTED_ENDS)
def test_an_expected_end_starts_the_waits_over(code: grpc.StatusCode, details: str) -> None:
    backoff = Backoff()
    backoff.ended(grpc.StatusCode.UNAVAILABLE, "refused", had_headers=False)
    assert backoff.ended(code, details, had_headers=True) == 0.01
    assert backoff.ended(grpc.StatusCode.INTERNAL, "", had_headers=True) == 0.02


def test_a_stream_that_ends_well_is_followed_by_another_at_once() -> None:
    assert Backoff().ended(grpc.StatusCode.OK, "", had_headers=True) == 0.0


async def test_it_comes_back_with_what_it_holds() -> None:
    streams: list[list[DeltaDiscoveryRequest]] = []

    async def serve(requests: AsyncIterator[DeltaDiscoveryRequest], _: Any) -> AsyncIterator[DeltaDiscoveryResponse]:
        seen: list[DeltaDiscoveryRequest] = []
        streams.append(seen)
        yield response(resource(POD, workload()))
        yield response(resource("shop/till", policy()), type_url=AUTHORIZATION, nonce="n2")
        async for request in requests:
            seen.append(request)
            if request.response_nonce == "n2":
                return

    handler = grpc.stream_stream_rpc_method_handler(
        serve, DeltaDiscoveryRequest.FromString, DeltaDiscoveryResponse.SerializeToString
    )
    _, service_name, method = METHOD.split("/")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service_name, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    ztunnel = SimulatedZtunnel()
    happened: list[Happened] = []
    is_back = asyncio.Event()

    def tell(what: Happened) -> None:
        happened.append(what)
        if sum(isinstance(item, Disconnected) for item in happened) == 2:
            is_back.set()

    task = asyncio.create_task(watch(f"127.0.0.1:{port}", ztunnel, tell))
    await is_back.wait()
    task.cancel()
    await server.stop(None)

    kinds = [type(item) for item in happened[:5]]
    assert kinds == [Connected, Received, Received, Disconnected, Connected]
    assert [request.response_nonce for request in streams[0]] == ["", "", "n1", "n2"]
    assert [dict(request.initial_resource_versions) for request in streams[1][:2]] == [{POD: "v1"}, {"shop/till": "v1"}]
