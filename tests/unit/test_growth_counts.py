"""What a change costs, counted in derivations, which do not depend on the machine: the same in a mesh ten times as
large. How long it takes is measured in tests/bench/growth.py."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest

from ambientd.index.rules import Rules
from ambientd.index.world import World
from ambientd.resources.decode import decode
from ambientd.resources.events import Delete, Event, Put
from ambientd.resources.ref import Ref
from tests.bench import mesh

SMALL, LARGE = 200, 2000
CLUSTER = "Kubernetes"
Counts = dict[str, int]


def put(manifest: dict[str, Any]) -> Put:
    value, faults = decode(json.dumps(manifest).encode(), manifest["kind"], CLUSTER)
    return Put(value, faults=faults)


@functools.cache
def built(pods: int) -> World:
    """A mesh of this size, shared by the tests: each puts back what it changed."""
    world = World(Rules(), is_strict=True)
    world.apply([Put(decode(raw, kind, CLUSTER)[0]) for kind, raw in mesh.objects(pods)])
    return world


def counted(pods: int, *batches: list[Event]) -> list[Counts]:
    """How often each collection is gathered for each batch."""
    world = built(pods)
    counts = []
    for batch in batches:
        before = world.graph.gathers()
        world.apply(batch)
        after = world.graph.gathers()
        counts.append({name: after[name] - count for name, count in before.items() if after[name] > count})
    return counts


def config_map(**fields: Any) -> Put:
    return put(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "istio", "namespace": "istio-system"},
            "data": {"mesh": json.dumps(fields)},
        }
    )


def gone(kind: str, namespace: str, name: str) -> Delete:
    return Delete(Ref(CLUSTER, kind, namespace, name))


def heartbeat() -> list[list[Event]]:
    noisy = mesh.node(0)
    noisy["status"] = {"conditions": [{"type": "Ready", "lastHeartbeatTime": "2026-01-01T00:00:01Z"}]}
    return [[put(noisy)], [put(mesh.node(0))]]


def relabelled(number: int) -> dict[str, Any]:
    pod = mesh.pod(number)
    pod["metadata"]["labels"]["app"] = "app-3"
    return pod


LOCAL: dict[str, Callable[[], list[list[Event]]]] = {
    "a pod's readiness": lambda: [[put(mesh.pod(7, ready=False))], [put(mesh.pod(7))]],
    "a pod that goes and comes": lambda: [
        [gone("Pod", "ns-0", mesh.pod(7)["metadata"]["name"])],
        [put(mesh.pod(7))],
    ],
    "a pod's labels": lambda: [[put(relabelled(7))], [put(mesh.pod(7))]],
    "a service's selector": lambda: [
        [put(mesh.service(0, 7, {"app": "app-7", "version": "v2"}))],
        [put(mesh.service(0, 7))],
    ],
    "a service that goes and comes": lambda: [[gone("Service", "ns-0", "app-7")], [put(mesh.service(0, 7))]],
    "a policy's rules": lambda: [
        [put(mesh.policy("ns-0", "one", {"app": "app-1"}, "9090"))],
        [put(mesh.policy("ns-0", "one", {"app": "app-1"}, "8080"))],
    ],
    "a policy's selector": lambda: [
        [put(mesh.policy("ns-0", "one", {"app": "app-2"}, "8080"))],
        [put(mesh.policy("ns-0", "one", {"app": "app-1"}, "8080"))],
    ],
    "a PeerAuthentication of one namespace": lambda: [
        [put(mesh.peer_authentication("ns-0", "STRICT"))],
        [gone("PeerAuthentication", "ns-0", "default")],
    ],
    "a namespace's label": lambda: [[put(mesh.namespace(0, team="a"))], [put(mesh.namespace(0))]],
    "a waypoint for a namespace": lambda: [
        [put(mesh.namespace(0, **{"istio.io/use-waypoint": "wp"}))],
        [put(mesh.gateway("ns-0", "wp"))],
        [gone("Gateway", "ns-0", "wp")],
        [put(mesh.namespace(0))],
    ],
    "a node's zone": lambda: [[put(mesh.node(0, "z9"))], [put(mesh.node(0))]],
    "a heartbeat of a node": heartbeat,
}


@pytest.mark.parametrize("change", LOCAL)
def test_a_local_change_costs_the_same_in_a_larger_mesh(change: str) -> None:
    small, large = (counted(pods, *LOCAL[change]()) for pods in (SMALL, LARGE))
    assert small == large
    assert built(SMALL).graph.failures == built(LARGE).graph.failures == {}


def test_a_change_of_one_pod_derives_that_pod_alone() -> None:
    for counts in counted(LARGE, *LOCAL["a pod's readiness"]()):
        assert set(counts.values()) == {1}, counts
        assert counts["pod workloads"] == 1


def test_a_services_selector_reaches_its_namespace_and_not_more() -> None:
    for counts in counted(LARGE, *LOCAL["a service's selector"]()):
        assert counts["pod workloads"] <= mesh.PODS_PER_NAMESPACE
        assert counts["selections"] <= mesh.SERVICES_PER_NAMESPACE
        assert counts["service addresses"] == 1


def test_the_rules_of_a_policy_reach_no_workload() -> None:
    for counts in counted(LARGE, *LOCAL["a policy's rules"]()):
        assert "pod workloads" not in counts
        assert "selections" not in counts


def test_a_label_that_nobody_selects_by_reaches_no_workload() -> None:
    for counts in counted(LARGE, *LOCAL["a namespace's label"]()):
        assert "pod workloads" not in counts


def test_a_nodes_zone_reaches_its_pods_and_not_more() -> None:
    for counts in counted(LARGE, *LOCAL["a node's zone"]()):
        assert counts["pod workloads"] == mesh.PODS_PER_NODE


def test_a_heartbeat_of_a_node_reaches_nobody() -> None:
    for counts in counted(LARGE, *heartbeat()):
        assert counts == {}


def test_a_peer_authentication_of_a_namespace_reaches_its_namespace_and_not_more() -> None:
    for counts in counted(LARGE, *LOCAL["a PeerAuthentication of one namespace"]()):
        assert counts["pod workloads"] <= mesh.PODS_PER_NAMESPACE


def test_a_field_of_the_mesh_configuration_that_nobody_reads_derives_nothing() -> None:
    counts = counted(
        LARGE,
        [config_map(trustDomain="cluster.local")],
        [config_map(trustDomain="cluster.local", accessLogFile="/dev/stdout")],
        [config_map(trustDomain="cluster.local", enableTracing=True)],
        [gone("ConfigMap", "istio-system", "istio")],
    )
    # Where the configuration itself is unchanged, at most that is found out.
    assert all(set(each) <= {"mesh"} for each in counts[1:3]), counts


def test_a_change_that_comes_back_within_a_batch_derives_nothing() -> None:
    batch: list[Event] = [put(mesh.pod(7, ready=False)), gone("Pod", "ns-0", "app-7"), put(mesh.pod(7))]
    assert counted(LARGE, batch) == [{}]


def test_a_mesh_wide_policy_reaches_every_pod_once() -> None:
    strict = mesh.peer_authentication("istio-system", "STRICT")
    for counts in counted(LARGE, [put(strict)], [gone("PeerAuthentication", "istio-system", "default")]):
        assert counts["pod workloads"] == LARGE
        assert counts["selections"] <= LARGE // mesh.PODS_PER_NAMESPACE * mesh.SERVICES_PER_NAMESPACE


def test_the_first_state_derives_nothing_twice() -> None:
    world = World(Rules(), is_strict=True)
    world.apply([Put(decode(raw, kind, CLUSTER)[0]) for kind, raw in mesh.objects(SMALL)])
    sizes = world.graph.sizes()
    twice = {name: count for name, count in world.graph.gathers().items() if count > max(SMALL, sizes[name])}
    assert twice == {}
