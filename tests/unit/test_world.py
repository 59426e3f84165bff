"""The index as a whole: what it tells beside the bytes, what a change touches, and what it does not depend on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ambientd.index.declarations import Derived
from ambientd.index.pod_workloads import POD_WORKLOADS
from ambientd.index.rendered import RenderedAddress, version_of
from ambientd.index.rules import Rules
from ambientd.index.waypoints import InboundBinding, parse_inbound_binding, parse_weight
from ambientd.index.world import ADDRESS_OUTPUTS, POLICY_OUTPUTS, World
from ambientd.resources.events import Put
from tests.unit.worlds import delete, events, ref, service, workload, world

NAMESPACES = """
kind: Namespace
metadata: {name: istio-system, labels: {topology.istio.io/network: net-a}}
---
kind: Namespace
metadata: {name: shop, labels: {istio.io/use-waypoint: wp}}
"""
GATEWAYS = """
kind: Gateway
metadata: {namespace: shop, name: wp, labels: {istio.io/waypoint-for: all}}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
status: {addresses: [{type: Hostname, value: wp.shop.svc.cluster.local}]}
---
kind: Gateway
metadata: {namespace: infra, name: far, labels: {topology.istio.io/network: net-a}}
spec: {gatewayClassName: istio-remote, listeners: [{name: mesh, port: 15009, protocol: HBONE}]}
status: {addresses: [{type: IPAddress, value: 203.0.113.80}]}
"""
SERVICES = """
kind: Service
metadata: {namespace: shop, name: cart}
spec: {clusterIPs: [10.8.0.1, "fd00:8::1"], selector: {app: cart}, ports: [{name: http, port: 80, targetPort: web}]}
---
kind: Service
metadata: {namespace: shop, name: manual}
spec: {clusterIP: None, ports: [{name: http, port: 81}]}
---
kind: EndpointSlice
metadata: {namespace: shop, name: manual-1, labels: {kubernetes.io/service-name: manual}}
addressType: IPv4
endpoints:
- {addresses: [10.1.0.7], targetRef: {kind: Pod, namespace: shop, name: cart-0, uid: u-0}}
- {addresses: [10.1.0.8], targetRef: {kind: Pod, namespace: shop, name: cart-1, uid: u-1}}
ports: [{name: http, port: 81, protocol: TCP}]
"""
POLICIES = """
kind: AuthorizationPolicy
metadata: {namespace: shop, name: allow-cart}
spec: {selector: {matchLabels: {app: cart}}, rules: [{}]}
---
kind: PeerAuthentication
metadata: {namespace: istio-system, name: default}
spec: {mtls: {mode: STRICT}}
"""
NODE = """
kind: Node
metadata: {name: node-1, labels: {topology.kubernetes.io/region: eu, topology.kubernetes.io/zone: eu-b}}
"""


def pod(number: int, *, labels: str = "app: cart", ready: bool = True) -> str:
    return f"""
kind: Pod
metadata: {{namespace: shop, name: cart-{number}, uid: u-{number}, labels: {{{labels}}}}}
spec:
  serviceAccountName: cart
  nodeName: node-1
  containers: [{{name: main, ports: [{{name: web, containerPort: 8080}}]}}]
status:
  phase: Running
  podIP: 10.1.0.{7 + number}
  conditions: [{{type: Ready, status: "{ready}"}}]
"""


TEXTS = (NAMESPACES, GATEWAYS, SERVICES, POLICIES, NODE, pod(0), pod(1))


@pytest.fixture
def shop() -> World:
    return world(*TEXTS)


def pushed(made: World, text: str) -> set[str]:
    """Names of the resources that differ after the manifests."""
    before = held(made)
    made.apply(events(text))
    after = held(made)
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


def held(made: World) -> dict[str, bytes]:
    bodies = {name: item.body for name, item in made.addresses().items()}
    return bodies | {name: item.body for name, item in made.authorizations().items()}


def gathered(made: World, text: str) -> dict[str, int]:
    """How many values of each output the manifests change."""
    transaction = made.begin(events(text))
    transaction.step(lambda: False)
    outputs: tuple[Derived[Any, Any], ...] = (*ADDRESS_OUTPUTS, *POLICY_OUTPUTS)
    counts = {output.name: transaction.count(output) for output in outputs}
    transaction.commit()
    transaction.settle(lambda: False)
    return {name: count for name, count in counts.items() if count}


def test_a_rendered_workload_carries_what_pushing_needs(shop: World) -> None:
    item = shop.addresses()["Kubernetes//Pod/shop/cart-0"]
    assert item == RenderedAddress(
        name="Kubernetes//Pod/shop/cart-0",
        body=item.body,
        version=version_of(item.body),
        namespace="shop",
        aliases=("net-a/10.1.0.7",),
        policies=("shop/allow-cart", "istio-system/istio_converted_static_strict"),
        services=("shop/cart.shop.svc.cluster.local", "shop/manual.shop.svc.cluster.local"),
        node="node-1",
        is_workload=True,
        references=("shop/wp.shop.svc.cluster.local", "net-a/203.0.113.80"),
    )


def test_a_rendered_service_carries_what_pushing_needs(shop: World) -> None:
    item = shop.addresses()["shop/cart.shop.svc.cluster.local"]
    assert item == RenderedAddress(
        name="shop/cart.shop.svc.cluster.local",
        body=item.body,
        version=version_of(item.body),
        namespace="shop",
        aliases=("net-a/10.8.0.1", "net-a/fd00:8::1"),
        is_workload=False,
        is_canonical=True,
        references=("shop/wp.shop.svc.cluster.local",),
    )


def test_workloads_that_look_alike_share_their_lists(shop: World) -> None:
    delete(shop, "EndpointSlice", "shop", "manual-1")
    first, second = (shop.addresses()[f"Kubernetes//Pod/shop/cart-{number}"] for number in (0, 1))
    assert first.policies is second.policies
    assert first.services is second.services


def test_a_pod_reads_few_values(shop: World) -> None:
    assert len(shop.graph.reads(POD_WORKLOADS, ref("Pod", "shop", "cart-0"))) <= 8


def test_readiness_of_one_pod_touches_that_pod_alone(shop: World) -> None:
    assert pushed(shop, pod(0, ready=False)) == {"Kubernetes//Pod/shop/cart-0"}


def test_a_pod_that_leaves_a_slice_moves_no_other(shop: World) -> None:
    text = (
        SERVICES.split("---")[2].replace("- {addresses: [10.1.0.7]", "- {addresses: [10.1.0.9]").replace("u-0", "u-9")
    )
    assert pushed(shop, text) == {"Kubernetes//Pod/shop/cart-0"}
    assert "shop/manual.shop.svc.cluster.local" not in shop.addresses()["Kubernetes//Pod/shop/cart-0"].services


@pytest.mark.parametrize(
    "text",
    [
        NODE.replace("region: eu", "region: eu, kubernetes.io/hostname: node-1"),
        NAMESPACES.replace("istio.io/use-waypoint: wp", "istio.io/use-waypoint: wp, team: till"),
        GATEWAYS.replace("name: mesh", "name: other"),
        POLICIES.replace("mode: STRICT}", "mode: STRICT}, portLevelMtls: {8080: {mode: STRICT}}"),
        pod(1).replace("name: main", "name: renamed"),
    ],
)
def test_what_nobody_depends_on_reaches_nobody(shop: World, text: str) -> None:
    assert gathered(shop, text) == {}


def test_rules_of_a_policy_do_not_reach_the_workloads_that_list_it(shop: World) -> None:
    text = POLICIES.split("---")[0].replace("rules: [{}]", "rules: []")
    assert gathered(shop, text) == {"authorization policies as served": 1}


def test_a_service_of_a_new_selector_moves_the_pods_that_it_selects(shop: World) -> None:
    shop.apply(events(pod(2, labels="app: till")))
    text = "kind: Service\nmetadata: {namespace: shop, name: till}\nspec: {selector: {app: till}, ports: [{port: 80}]}"
    assert gathered(shop, text) == {"pod workloads": 1, "service addresses": 1}


def test_an_undiscovered_namespace_holds_nothing_and_comes_back_whole(shop: World) -> None:
    before = held(shop)
    selectors = """
kind: ConfigMap
metadata: {namespace: istio-system, name: istio}
data: {mesh: "discoverySelectors: [{matchLabels: {mesh: 'on'}}]"}
"""
    shop.apply(events(selectors))
    assert held(shop) == {}
    delete(shop, "ConfigMap", "istio-system", "istio")
    assert held(shop) == before


def test_not_ready_addresses_of_one_service_do_not_leak_into_another() -> None:
    text = """
kind: Service
metadata: {namespace: shop, name: a}
spec: {clusterIP: None, publishNotReadyAddresses: true, trafficDistribution: PreferSameZone, ports: [{port: 80}]}
---
kind: Service
metadata: {namespace: shop, name: b}
spec: {clusterIP: None, trafficDistribution: PreferSameZone, ports: [{port: 80}]}
"""
    made = world(text)
    first = service(made, "shop/a.shop.svc.cluster.local").load_balancing
    second = service(made, "shop/b.shop.svc.cluster.local").load_balancing
    assert first.routing_preference == second.routing_preference
    assert (first.health_policy, second.health_policy) == (1, 0)


def test_host_network_pods_of_one_address_are_all_served() -> None:
    pods = "\n---".join(
        pod(number).replace("spec:", "spec:\n  hostNetwork: true").replace("10.1.0.8", "10.1.0.7") for number in (0, 1)
    )
    made = world(pods)
    assert {item.aliases for item in made.addresses().values()} == {("/10.1.0.7",)}
    assert [workload(made, name).network_mode for name in made.addresses()] == [1, 1]


def test_a_new_pod_of_a_waypoint_changes_its_policy_and_no_workload() -> None:
    made = world(*TEXTS, rules=Rules(auto_allow_waypoints=True))
    instance = pod(3, labels="gateway.networking.k8s.io/gateway-name: wp").replace("serviceAccountName: cart", "%s")
    account = "serviceAccountName: "
    made.apply(events(instance % (account + "wp")))
    listed = made.addresses()["Kubernetes//Pod/shop/cart-0"].policies
    assert listed[-1] == "shop/istio_allow_waypoint_shop_wp"
    second = (instance % (account + "other")).replace("cart-3", "cart-4").replace("u-3", "u-4")
    assert gathered(made, second) == {"pod workloads": 1, "waypoint policies": 1}


def test_nothing_is_left_when_all_objects_are_gone(shop: World) -> None:
    empty = world().graph.sizes()
    objects = [event for text in TEXTS for event in events(text)]
    for event in objects:
        object_ = event.object.ref if isinstance(event, Put) else event.ref
        delete(shop, object_.kind, object_.namespace, object_.name)
    assert shop.graph.sizes() == empty


def documents() -> Iterator[str]:
    for text in TEXTS:
        yield from text.split("---")


@settings(deadline=None, max_examples=25)
@given(st.permutations(list(documents())))
def test_the_order_of_arrival_does_not_matter(texts: list[str]) -> None:
    made, expected = world(*texts), world(*TEXTS)
    assert made.addresses() == expected.addresses()
    assert made.authorizations() == expected.authorizations()
    assert made.problems() == expected.problems()


@pytest.mark.parametrize(
    ("text", "binding"),
    [
        ("PROXY", InboundBinding("PROXY", 0)),
        ("NONE/15088", InboundBinding("NONE", 15088)),
        ("PROXY/4294967295", InboundBinding("PROXY", 4294967295)),
        ("PROXY/4294967296", InboundBinding("PROXY", 0)),
        ("PROXY/" + "9" * 5000, InboundBinding("PROXY", 0)),
        ("PROXY/000080", InboundBinding("PROXY", 80)),
        ("PROXY/", InboundBinding("PROXY", 0)),
        ("PROXY/+80", InboundBinding("PROXY", 0)),
        ("PROXY/٨٠", InboundBinding("PROXY", 0)),
        ("proxy", None),
        ("PROXY/1/2", None),
        ("", None),
    ],
)
def test_an_inbound_binding_is_a_protocol_and_perhaps_a_port(text: str, binding: InboundBinding | None) -> None:
    assert parse_inbound_binding(text) == binding


@pytest.mark.parametrize(
    ("text", "weight"),
    [
        *(("0", 0), ("100", 100), ("+7", 7), ("-0", 0), ("007", 7), ("0" * 5000, 0)),
        *((text, None) for text in ("101", "-1", "", "+", " 7", "1_0", "٧", "5.0", "9" * 5000)),
    ],
)
def test_a_canary_weight_is_a_whole_percentage(text: str, weight: int | None) -> None:
    assert parse_weight(text) == weight
