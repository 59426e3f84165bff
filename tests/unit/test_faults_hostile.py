"""Faults that control planes of this kind have had with two address families, hostile input and accounting (106 to
112)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ambientd.resources.events import Invalid, Put
from ambientd.resources.kinds import KINDS
from ambientd.resources.manifest import decode_manifest
from ambientd.xds.connections import Connection, Registry
from ambientd.xds.protocol import Requested, Stream
from ambientd_api import workload_pb2 as api
from tests.unit.conversation import node_message, subscribe
from tests.unit.mesh_of_one import NOTHING, Mesh, Sent, pod_uid, service_name
from tests.unit.worlds import CLUSTER, _with_version

NAMESPACE = "kind: Namespace\nmetadata: {name: shop}\n"


def pod(name: str, *ips: str) -> str:
    listed = ", ".join(f'{{ip: "{ip}"}}' for ip in ips)
    return f"""
kind: Pod
metadata: {{namespace: shop, name: {name}, labels: {{app: cart}}}}
status: {{phase: Running, podIP: "{ips[0]}", podIPs: [{listed}], conditions: [{{type: Ready, status: "True"}}]}}
"""


def service(families: str, *ips: str) -> str:
    return f"""
kind: Service
metadata: {{namespace: shop, name: cart}}
spec:
  clusterIP: "{ips[0]}"
  clusterIPs: [{", ".join(f'"{ip}"' for ip in ips)}]
  ipFamilies: [{families}]
  selector: {{app: cart}}
  ports: [{{name: http, port: 80}}]
"""


def slice_(family: str, *ips: str) -> str:
    endpoints = ", ".join(f'{{addresses: ["{ip}"]}}' for ip in ips)
    return f"""
kind: EndpointSlice
metadata: {{namespace: shop, name: cart-1, labels: {{kubernetes.io/service-name: cart}}}}
addressType: {family}
endpoints: [{endpoints}]
ports: [{{name: http, port: 8080, protocol: TCP}}]
"""


def endpoints(mesh: Mesh) -> list[str]:
    prefix = f"{CLUSTER}/discovery.k8s.io/EndpointSlice/shop/cart-1/"
    return sorted(uid.removeprefix(prefix) for uid in mesh.ztunnel.holds.workloads if uid.startswith(prefix))


@pytest.mark.fault(106)
@pytest.mark.parametrize(
    ("families", "ips", "wanted"),
    [
        ("IPv6", ["fd00:8::1"], api.IPV6_ONLY),
        ("IPv4", ["10.8.0.1"], api.IPV4_ONLY),
        ("IPv6, IPv4", ["fd00:8::1", "10.8.0.1"], api.DUAL),
        ("", ["10.8.0.1"], api.AUTOMATIC),
    ],
)
def test_all_addresses_are_carried_and_the_family_is_explicit(
    families: str, ips: list[str], wanted: api.IPFamilies.ValueType
) -> None:
    """Fault 106: only the first address of a pod or service was carried, and services whose first family is IPv6
    failed."""
    mesh = Mesh(NAMESPACE, service(families, *ips), pod("cart-0", "fd00::1", "10.0.0.1"))
    node = mesh.join(is_on_demand=True)
    assert [len(raw) for raw in mesh.pod("cart-0").addresses] == [16, 4]
    held = mesh.service("cart")
    assert held.ip_families == wanted
    assert [len(item.address) for item in held.addresses] == [16 if ":" in ip else 4 for ip in ips]
    for key in ("/fd00::1", "/10.0.0.1"):
        node.holds.workloads.clear()
        node.ask(key)
        assert list(node.holds.workloads) == [pod_uid("cart-0")]


@pytest.mark.fault(108)
def test_addresses_of_another_family_than_the_slices_are_left_out_and_reported() -> None:
    """Fault 108: the slice of an IPv6 service carried IPv4 addresses, and they were taken."""
    mesh = Mesh(NAMESPACE, service("IPv6", "fd00:8::1"), slice_("IPv6", "fd00::1", "10.0.0.1", "::ffff:10.0.0.2"))
    assert endpoints(mesh) == ["::ffff:10.0.0.2", "fd00::1"]
    (told,) = mesh.problems("EndpointSlice", "cart-1")
    assert "endpoints[1].addresses must be of the slice's addressType, IPv6, got '10.0.0.1'" in told
    mesh.apply(slice_("IPv4", "fd00::1", "10.0.0.1"))
    assert endpoints(mesh) == ["10.0.0.1"]


BAD = ("010.0.0.5", "10.0.0.5/24", "10.0.0.256", " 10.0.0.5", "10.0.5", "0x0a.0.0.5", "1.2.3.4.5", "fd00::g")


@pytest.mark.fault(109)
@pytest.mark.parametrize("ip", BAD)
def test_what_is_no_address_is_not_guessed_at(ip: str) -> None:
    """Fault 109: objects from older clusters hold addresses with leading zeros or host bits. A pod with one is not
    served; an endpoint is left out alone; an entry is not served; each is reported, and others are not concerned."""
    entry = f"""
kind: ServiceEntry
metadata: {{namespace: shop, name: db}}
spec: {{hosts: [db.test], addresses: ["{ip}"], resolution: STATIC, ports: [{{name: sql, number: 5432}}]}}
"""
    mesh = Mesh(NAMESPACE, service("IPv4", "10.8.0.1"), pod("good", "10.0.0.1"))
    assert mesh.apply(pod("bad", ip)) == NOTHING
    assert "the pod is not served" in mesh.problems("Pod", "bad")[0]
    mesh.apply(slice_("IPv4", "10.0.0.7", ip))
    assert endpoints(mesh) == ["10.0.0.7"]
    assert "this endpoint is left out" in mesh.problems("EndpointSlice", "cart-1")[0]
    if "/" not in ip:
        assert mesh.apply(entry) == NOTHING
        assert "spec.addresses" in mesh.problems("ServiceEntry", "db")[0]
    assert mesh.problems("Pod", "good") == ()


@pytest.mark.fault(109)
def test_host_bits_of_a_range_are_cleared_and_a_mapped_address_stays_one_of_sixteen_bytes() -> None:
    """Fault 109: what the rules do give a meaning to."""
    entry = """
kind: ServiceEntry
metadata: {namespace: shop, name: db}
spec:
  hosts: [db.test]
  addresses: ["192.168.0.5/24", "::ffff:10.0.0.4"]
  resolution: STATIC
  ports: [{name: sql, number: 5432}]
"""
    mesh = Mesh(NAMESPACE, entry)
    first, second = mesh.host("db.test").addresses
    assert (first.address, first.length) == (bytes((192, 168, 0, 0)), 24)
    assert second.address == bytes(10) + b"\xff\xff" + bytes((10, 0, 0, 4))


@pytest.mark.fault(111)
def test_the_late_end_of_a_connection_does_not_erase_its_successor() -> None:
    """Fault 111: connections were kept by node, so that the end of an old one took the new one with it."""
    mesh = Mesh(NAMESPACE)
    registry = Registry()
    first, second = (Connection(ident, Stream(ident, mesh.feed), "ipv4:127.0.0.1:1") for ident in (901, 902))
    for connection in (first, second):
        registry.add(connection)
        connection.stream.handle(
            Requested(subscribe("type.googleapis.com/istio.workload.Address", node=node_message(node_name="n1")))
        )
    assert len(registry.connections()) == 2
    registry.remove(first)
    registry.remove(first)
    assert [info.connection_id for info in registry.connections()] == [second.name]
    registry.announce({"n1"})
    assert second.poke.is_set()
    registry.remove(second)
    assert len(registry) == 0


@pytest.mark.fault(111)
def test_cursors_are_by_stream_so_an_old_one_that_ends_late_forgets_nothing_of_the_new_one() -> None:
    """Fault 111: the same for what a stream still needs of the past."""
    mesh = Mesh(NAMESPACE, pod("cart-0", "10.0.0.1"))
    old = mesh.ztunnel
    new = mesh.join()
    new.is_asleep = True
    mesh.apply(pod("cart-1", "10.0.0.2"))
    old.disconnect()
    mesh.delete("Pod", "shop", "cart-0")
    mesh.apply(pod("cart-2", "10.0.0.3"))
    new.read()
    assert sorted(new.holds.workloads) == [pod_uid("cart-1"), pod_uid("cart-2")]
    assert new.ends == []


BYSTANDERS = """
kind: Namespace
metadata: {name: calm}
---
kind: Service
metadata: {namespace: calm, name: calm}
spec: {clusterIP: 10.8.9.1, selector: {app: calm}, ports: [{name: http, port: 80}]}
---
kind: Pod
metadata: {namespace: calm, name: calm-0, uid: u-calm, labels: {app: calm}}
status: {phase: Running, podIP: 10.0.9.1, conditions: [{type: Ready, status: "True"}]}
---
kind: AuthorizationPolicy
metadata: {namespace: calm, name: calm}
spec: {selector: {matchLabels: {app: calm}}, rules: [{to: [{operation: {ports: ["80"]}}]}]}
"""
EVERY_KIND = """
kind: Namespace
metadata: {name: shop, labels: {istio.io/use-waypoint: wp}, annotations: {a: b}}
---
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/region: eu}}
---
kind: Service
metadata: {namespace: shop, name: cart, labels: {istio.io/use-waypoint: wp}, annotations: {a: b}}
spec:
  clusterIP: 10.8.0.1
  clusterIPs: [10.8.0.1]
  ipFamilies: [IPv4]
  type: ClusterIP
  selector: {app: cart}
  ports: [{name: http, port: 80, targetPort: web, protocol: TCP, appProtocol: http}]
  trafficDistribution: PreferClose
status: {loadBalancer: {ingress: [{ip: ""}]}}
---
kind: EndpointSlice
metadata: {namespace: shop, name: cart-1, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
endpoints:
- {addresses: [10.0.0.7], conditions: {ready: true}, targetRef: {kind: Node, name: n1, namespace: shop, uid: u}}
ports: [{name: http, port: 80, protocol: TCP}]
---
kind: Pod
metadata:
  namespace: shop
  name: cart-0
  uid: u-0
  labels: {app: cart}
  annotations: {ambient.istio.io/redirection: enabled}
spec:
  nodeName: n1
  serviceAccountName: cart
  hostNetwork: false
  containers: [{name: main, ports: [{name: web, containerPort: 8080, protocol: TCP}]}]
status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}], conditions: [{type: Ready, status: "True"}]}
---
kind: ServiceEntry
metadata: {namespace: shop, name: db}
spec:
  hosts: [db.test]
  addresses: [10.9.0.1]
  resolution: STATIC
  location: MESH_EXTERNAL
  ports: [{name: sql, number: 5432, protocol: TCP, targetPort: 5433}]
  endpoints:
  - {address: 10.2.0.1, ports: {sql: 1}, labels: {a: b}, network: n, locality: r/z, weight: 1, serviceAccount: s}
  subjectAltNames: [spiffe://a]
status: {addresses: [{value: 240.240.0.1, host: db.test}]}
---
kind: WorkloadEntry
metadata: {namespace: shop, name: vm}
spec: {address: 10.1.0.1, ports: {sql: 1}, labels: {app: cart}, network: n, locality: r/z, weight: 1, serviceAccount: s}
---
kind: AuthorizationPolicy
metadata: {namespace: shop, name: p, annotations: {istio.io/dry-run: "false"}}
spec:
  action: ALLOW
  selector: {matchLabels: {app: cart}}
  rules:
  - from: [{source: {principals: [a], namespaces: [b], ipBlocks: [10.0.0.0/8], notPrincipals: [c]}}]
    to: [{operation: {ports: ["80"], hosts: [h], methods: [GET]}}]
    when: [{key: destination.port, values: ["80"]}]
---
kind: PeerAuthentication
metadata: {namespace: shop, name: strict}
spec: {selector: {matchLabels: {app: cart}}, mtls: {mode: STRICT}, portLevelMtls: {80: {mode: DISABLE}}}
---
kind: Gateway
metadata: {namespace: shop, name: wp, labels: {istio.io/waypoint-for: all}}
spec:
  gatewayClassName: istio-waypoint
  addresses: [{type: IPAddress, value: 10.8.0.9}]
  listeners: [{name: mesh, port: 15008, protocol: HBONE, allowedRoutes: {namespaces: {from: Selector, selector: {}}}}]
status: {addresses: [{type: IPAddress, value: 10.8.0.9}]}
---
kind: GatewayClass
metadata: {name: istio-waypoint, labels: {istio.io/waypoint-for: all}}
spec: {controllerName: istio.io/mesh-controller}
---
kind: ConfigMap
metadata: {namespace: istio-system, name: istio}
data: {mesh: "trustDomain: corp.example"}
"""
IDENTITY = (("apiVersion",), ("kind",), ("metadata",), ("metadata", "name"), ("metadata", "namespace"))
"""What says which object it is."""
MISSING = object()
JUNK: tuple[Any, ...] = (
    MISSING,
    None,
    "",
    0,
    -1,
    True,
    [],
    {},
    [None],
    [""],
    [{}],
    {"": ""},
    {"a": None},
    "\x00",
    "x" * 300,
)


def spoiled(value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The place of every part of a manifest, and the manifest with something else there."""
    for place in list(_places(value)):
        for junk in JUNK:
            changed = copy.deepcopy(value)
            holder = changed
            for step in place[:-1]:
                holder = holder[step]
            if junk is MISSING:
                del holder[place[-1]]
            else:
                holder[place[-1]] = junk
            yield place, changed


def _places(value: Any) -> Iterator[tuple[Any, ...]]:
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield (step,)
        yield from ((step, *rest) for rest in _places(inner))


WHOLE: dict[str, dict[str, Any]] = {
    document["kind"]: _with_version(document) for document in yaml.safe_load_all(EVERY_KIND)
}


@pytest.mark.fault(112)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_stands_in_one_field_of_one_object_concerns_that_object_alone(kind: str) -> None:
    """Fault 112: an empty text where an address was expected, or a part that was not there, took the server down. Every
    field of every kind is left out, emptied and given a wrong type, one at a time."""
    mesh = Mesh(BYSTANDERS, EVERY_KIND)
    names = {pod_uid("calm-0", "calm"), service_name("calm", "calm"), "calm/calm"}
    holds = mesh.ztunnel.holds
    for place, manifest in spoiled(WHOLE[kind]):
        if place in IDENTITY:
            continue
        event = decode_manifest(manifest, CLUSTER)
        sent = mesh.commit([event])
        concerned = (sent.changed | sent.removed) & names
        assert not concerned or kind == "ConfigMap", f"{place}: {manifest}"
        if isinstance(event, Invalid):
            assert event.faults, f"{place}: {manifest}"
            assert event.ref in {problem.object for problem in mesh.world.problems()}
        assert names <= holds.workloads.keys() | holds.services.keys() | holds.policies.keys()
    assert not mesh.world.graph.failures
    good = decode_manifest(WHOLE[kind], CLUSTER)
    assert isinstance(good, Put)
    mesh.commit([good])
    whole = Mesh(BYSTANDERS, EVERY_KIND).ztunnel.holds
    assert (holds.workloads, holds.services) == (whole.workloads, whole.services)
    assert holds.policies == whole.policies


@pytest.mark.fault(112)
def test_an_object_that_cannot_be_read_keeps_its_last_good_version() -> None:
    """Fault 112: one bad object is counted and listed, and changes nothing of what is served."""
    mesh = Mesh(BYSTANDERS, EVERY_KIND)
    assert mesh.apply(EVERY_KIND.replace("containerPort: 8080", "containerPort: []")) == Sent()
    assert [problem.object.kind for problem in mesh.world.problems() if problem.object.name == "cart-0"] == ["Pod"]
