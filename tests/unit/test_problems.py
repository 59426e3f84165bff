"""What the index reports of objects that can be read and are wrong all the same."""

from __future__ import annotations

from collections import Counter

import pytest

from ambientd.index.declarations import derive
from ambientd.index.graph import Graph
from ambientd.index.inputs import PODS
from ambientd.index.rules import Rules
from ambientd.index.world import DECLARATIONS, World
from tests.unit.worlds import delete, events, ref, world

ENTRY = """
kind: ServiceEntry
metadata: {namespace: shop, name: %s, creationTimestamp: "2026-01-0%dT00:00:00Z", labels: {%s}}
spec: {hosts: [%s], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], addresses: [%s]}
"""
GATEWAY = """
kind: Gateway
metadata: {namespace: shop, name: wp}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
status: {addresses: [{type: Hostname, value: wp.shop.svc.cluster.local}]}
"""
SERVICE = """
kind: Service
metadata: {namespace: shop, name: cart, labels: {%s}, annotations: {%s}}
spec: {clusterIP: 10.8.0.1, ports: [{name: http, port: 80}]}
"""
SLICE = """
kind: EndpointSlice
metadata: {namespace: shop, name: cart-1, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
endpoints: [{addresses: [%s]}]
ports: [{name: "%s", port: 8080, protocol: TCP}]
"""


def told(made: World) -> dict[str, tuple[tuple[str, ...], bool]]:
    problems = made.problems()
    assert made.problem_counts() == Counter(problem.object.kind for problem in problems)
    return {str(problem.object): (problem.faults, problem.is_served) for problem in problems}


@pytest.mark.parametrize("text", ["010.0.0.5", "192.168.0.5/24", ""])
def test_a_pod_with_a_bad_address_is_not_served_and_is_reported(text: str) -> None:
    made = world(
        f"""
kind: Pod
metadata: {{namespace: shop, name: cart-0}}
spec: {{serviceAccountName: cart}}
status: {{phase: Running, podIPs: [{{ip: 10.0.0.5}}, {{ip: "{text}"}}]}}
"""
    )
    assert not made.addresses()
    assert told(made) == {
        "Pod shop/cart-0": ((f"status.podIPs must be an IP address, got {text!r}; the pod is not served",), False)
    }


def test_a_finished_pod_is_not_reported_whatever_its_address() -> None:
    made = world(
        "kind: Pod\nmetadata: {namespace: shop, name: job-0}\nspec: {}\nstatus: {phase: Succeeded, podIP: 010.0.0.5}"
    )
    assert made.problems() == []


def test_a_service_entry_with_a_bad_address_yields_no_host() -> None:
    made = world(ENTRY % ("pay", 1, "", "a.test, b.test", "198.18.0.1, 10.0.0.300"))
    assert not made.addresses()
    text = "spec.addresses must be an IP address or a CIDR, got '10.0.0.300'; no host of the ServiceEntry is served"
    assert told(made) == {"ServiceEntry shop/pay": ((text,), False)}


def test_the_loser_of_a_hostname_names_the_winner_until_it_wins() -> None:
    made = world(ENTRY % ("old", 1, "", "a.test", "198.18.0.1"), ENTRY % ("new", 2, "", "a.test", "198.18.0.2"))
    text = (
        "spec.hosts[0] must be unique in its namespace, got 'a.test'; "
        "this host is served from the older ServiceEntry shop/old"
    )
    assert told(made) == {"ServiceEntry shop/new": ((text,), False)}
    delete(made, "ServiceEntry", "shop", "old")
    assert made.problems() == []


def test_an_entry_that_loses_to_a_service_says_so() -> None:
    made = world(SERVICE % ("", ""), ENTRY % ("pay", 1, "", "cart.shop.svc.cluster.local", "198.18.0.1"))
    text = (
        "spec.hosts[0] must be unique in its namespace, got 'cart.shop.svc.cluster.local'; "
        "this host is served from the Service of that name"
    )
    assert told(made) == {"ServiceEntry shop/pay": ((text,), False)}


def test_one_host_in_two_namespaces_is_served_twice_and_the_younger_says_which_one_others_use() -> None:
    other = (ENTRY % ("pay", 2, "", "a.test", "198.18.0.2")).replace("namespace: shop", "namespace: till")
    made = world(ENTRY % ("pay", 1, "", "a.test", "198.18.0.1"), other)
    text = (
        "spec.hosts[0] should be unique in the mesh, got 'a.test'; clients of other namespaces use the one of "
        "namespace shop"
    )
    assert told(made) == {"ServiceEntry till/pay": ((text,), True)}


def test_an_entry_without_an_address_does_not_pass_its_waypoint() -> None:
    made = world(GATEWAY, ENTRY % ("pay", 1, "istio.io/use-waypoint: wp", "a.test", ""))
    text = (
        "spec.hosts[0] must have an address for its traffic to pass the waypoint shop/wp, got 'a.test'; "
        "its traffic does not pass the waypoint; set spec.addresses, or let addresses be allocated"
    )
    assert told(made) == {"ServiceEntry shop/pay": ((text,), True)}


@pytest.mark.parametrize(("of_slice", "shown"), [("", "''"), ("web", "'web'")])
def test_a_slice_port_that_no_service_port_has_is_reported(of_slice: str, shown: str) -> None:
    made = world(SERVICE % ("", ""), SLICE % ("192.0.2.1", of_slice))
    text = (
        "ports[0].name must be the name of a port of Service cart.shop.svc.cluster.local, which has 'http', "
        f"got {shown}; this port of the endpoints is not used"
    )
    assert told(made) == {"EndpointSlice shop/cart-1": ((text,), True)}


def test_an_endpoint_with_a_bad_address_is_left_out_alone() -> None:
    made = world(
        SERVICE % ("", ""), (SLICE % ("192.0.2.1", "http")).replace("}]\nports", "}, {addresses: [x]}]\nports")
    )
    assert [name for name in made.addresses() if "EndpointSlice" in name] == [
        "Kubernetes/discovery.k8s.io/EndpointSlice/shop/cart-1/192.0.2.1"
    ]
    text = "endpoints[1].addresses must be an IP address, got 'x'; this endpoint is left out"
    assert told(made) == {"EndpointSlice shop/cart-1": ((text,), True)}


def test_a_service_with_a_bad_cluster_ip_is_dropped_alone() -> None:
    made = world(SERVICE % ("", ""), (SERVICE % ("", "")).replace("cart", "till").replace("10.8.0.1", "10.8.0.300"))
    assert list(made.addresses()) == ["shop/cart.shop.svc.cluster.local"]
    text = "spec.clusterIPs must be an IP address, got '10.8.0.300'; the Service is not served"
    assert told(made) == {"Service shop/till": ((text,), False)}


def test_a_waypoint_that_is_asked_for_and_not_there_is_reported_until_it_is() -> None:
    made = world(SERVICE % ("istio.io/use-waypoint: wp", ""))
    text = (
        "metadata.labels[istio.io/use-waypoint] must name a Gateway that has an address in its status, got 'shop/wp'; "
        "traffic does not pass a waypoint"
    )
    assert told(made) == {"Service shop/cart": ((text,), True)}
    made.apply(events(GATEWAY))
    assert made.problems() == []


def test_a_traffic_distribution_that_means_nothing_is_reported() -> None:
    made = world(SERVICE % ("", "networking.istio.io/traffic-distribution: Nearby"))
    text = (
        "metadata.annotations[networking.istio.io/traffic-distribution] must be PreferClose, PreferSameZone or "
        "PreferSameNode, got 'Nearby'; traffic has no preference"
    )
    assert told(made) == {"Service shop/cart": ((text,), True)}


def test_a_derivation_that_fails_is_told_at_its_object() -> None:
    made = World(Rules())

    def fail(*_: object) -> None:
        raise ValueError("planted")

    # A graph of its own, with a derivation that always raises, in place of one that does so for reasons unknown today.
    made.graph = Graph((*DECLARATIONS, derive("planted pods", PODS, fail)))
    made.apply(events("kind: Pod\nmetadata: {namespace: shop, name: cart-0}\nspec: {}\nstatus: {phase: Running}"))
    object_ = ref("Pod", "shop", "cart-0")
    text = f"planted pods of {object_} could not be derived (ValueError: planted); the former state stays in force"
    assert told(made) == {"Pod shop/cart-0": ((text,), True)}


def test_problems_come_in_the_order_of_their_objects() -> None:
    made = world(ENTRY % ("b", 1, "", "a.test", "x"), ENTRY % ("a", 1, "", "b.test", "y"), SERVICE % ("", ""))
    assert [str(problem.object) for problem in made.problems()] == ["ServiceEntry shop/a", "ServiceEntry shop/b"]
