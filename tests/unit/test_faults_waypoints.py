"""Faults that control planes of this kind have had with waypoints (52 to 55). The pushes to waypoints themselves
(57, 58) come with their configuration."""

from __future__ import annotations

import pytest

from tests.unit.mesh_of_one import Mesh, Sent, pod_uid, service_name
from tests.unit.worlds import CLUSTER

USE = "labels: {istio.io/use-waypoint: wp}"
NAMESPACE = "kind: Namespace\nmetadata: {name: shop}\n"
SHOP = f"""
kind: Service
metadata: {{namespace: shop, name: cart, {USE}}}
spec: {{clusterIP: 10.8.0.1, selector: {{app: cart}}, ports: [{{port: 80}}]}}
---
kind: ServiceEntry
metadata: {{namespace: shop, name: db, {USE}}}
spec: {{hosts: [db.test], addresses: [10.9.0.1], resolution: STATIC, ports: [{{name: sql, number: 5432}}]}}
---
kind: WorkloadEntry
metadata: {{namespace: shop, name: vm, {USE}}}
spec: {{address: 10.1.0.1}}
---
kind: Pod
metadata: {{namespace: shop, name: cart-0, labels: {{app: cart, istio.io/use-waypoint: wp}}}}
status: {{phase: Running, podIP: 10.0.0.1}}
"""
VM = f"{CLUSTER}/networking.istio.io/WorkloadEntry/shop/vm"
BOUND = {service_name("cart"), "shop/db.test", VM, pod_uid("cart-0")}
"""What asks for the waypoint."""
WITH_CONDITIONS = (("Service", "cart"), ("ServiceEntry", "db"), ("WorkloadEntry", "vm"))


def gateway(status: str = "", *, traffic: str = "all") -> str:
    return f"""
kind: Gateway
metadata: {{namespace: shop, name: wp, labels: {{istio.io/waypoint-for: {traffic}}}}}
spec: {{gatewayClassName: istio-waypoint, listeners: [{{name: mesh, port: 15008, protocol: HBONE}}]}}
status: {{{status}}}
"""


ADDRESS = "addresses: [{type: Hostname, value: wp.shop.svc.cluster.local}]"
READY = gateway(ADDRESS)


def bound(mesh: Mesh) -> set[str]:
    """Who is sent with a waypoint."""
    held = mesh.ztunnel.holds
    everything = {**held.workloads, **held.services}
    return {name for name, item in everything.items() if item.HasField("waypoint")}


def reasons(mesh: Mesh) -> set[tuple[str, str]]:
    """Status and reason of the condition of everything that can be bound and has conditions."""
    conditions = [mesh.conditions(kind, name)["istio.io/WaypointBound"] for kind, name in WITH_CONDITIONS]
    return {(condition.status, condition.reason) for condition in conditions}


@pytest.mark.fault(52)
def test_whoever_has_no_waypoint_although_it_asks_for_one_is_told_why() -> None:
    """Fault 52: with the waypoint missing or not ready, traffic went straight to the pods, and nobody was told. Each
    object is told why in its condition and among the problems, whose number is a metric (test_metrics)."""
    mesh = Mesh(NAMESPACE, SHOP)
    assert bound(mesh) == set()
    assert reasons(mesh) == {("False", "WaypointIsNotReady")}
    mesh.apply(gateway())
    assert reasons(mesh) == {("False", "WaypointIsNotReady")}
    for kind, name in WITH_CONDITIONS:
        (told,) = mesh.problems(kind, name)
        assert "traffic does not pass a waypoint" in told
    mesh.apply(READY)
    assert bound(mesh) == BOUND
    assert {status for status, _ in reasons(mesh)} == {"True"}
    assert [mesh.problems(kind, name) for kind, name in WITH_CONDITIONS] == [()] * 3


@pytest.mark.fault(52)
def test_a_namespace_that_asks_for_a_missing_waypoint_is_told_of_at_its_objects() -> None:
    """Fault 52: the label of a Namespace concerns each object in it, so each is told, with the place of the label."""
    mesh = Mesh(NAMESPACE.replace("{name: shop}", f"{{name: shop, {USE}}}"), SHOP.replace(USE, "labels: {}"))
    (told,) = mesh.problems("Service", "cart")
    assert "of Namespace shop" in told
    mesh.apply(READY)
    assert bound(mesh) >= BOUND - {VM}


@pytest.mark.fault(54)
def test_when_a_waypoint_goes_everything_that_was_bound_to_it_is_sent_again() -> None:
    """Fault 54: traffic still went to a waypoint that had been deleted."""
    mesh = Mesh(NAMESPACE, READY, SHOP)
    assert mesh.delete("Gateway", "shop", "wp") == Sent(BOUND)
    assert bound(mesh) == set()
    assert mesh.apply(READY) == Sent(BOUND)
    assert mesh.relist("Gateway") == Sent(BOUND)
    assert mesh.apply(READY) == Sent(BOUND)
    assert mesh.apply(gateway()) == Sent(BOUND), "without an address it is as good as gone"
    mesh.empty()


@pytest.mark.fault(55)
def test_a_waypoint_is_used_from_when_it_has_an_address_and_not_before() -> None:
    """Fault 55: traffic was disrupted while a waypoint was being made, and WorkloadEntries had no condition."""
    mesh = Mesh(NAMESPACE, SHOP)
    for status in (
        "",
        "conditions: [{type: Accepted, status: 'True', reason: a, lastTransitionTime: x}]",
        "addresses: []",
    ):
        assert mesh.apply(gateway(status)) == Sent()
        assert bound(mesh) == set()
    assert mesh.apply(READY) == Sent(BOUND)
    assert all(mesh.conditions(kind, name)["istio.io/WaypointBound"].status == "True" for kind, name in WITH_CONDITIONS)


@pytest.mark.fault(55)
@pytest.mark.parametrize(("traffic", "wanted"), [("service", 2), ("workload", 2), ("none", 0)])
def test_a_waypoint_binds_what_it_is_for_and_tells_the_others(traffic: str, wanted: int) -> None:
    """Fault 55: who is not bound because of the kind of traffic has a condition with that reason."""
    mesh = Mesh(NAMESPACE, SHOP, gateway(ADDRESS, traffic=traffic))
    assert len(bound(mesh)) == wanted
    assert ("False", "UnsupportedTrafficType") in reasons(mesh)
