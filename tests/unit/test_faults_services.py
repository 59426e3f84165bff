"""Faults that control planes of this kind have had with services and endpoints (15 to 27)."""

from __future__ import annotations

import re

import pytest

from ambientd_api import workload_pb2 as api
from tests.unit.mesh_of_one import NOTHING, Mesh, Sent, pod_uid, service_name
from tests.unit.worlds import CLUSTER

NAMESPACE = "kind: Namespace\nmetadata: {name: shop}\n"


def service(name: str = "cart", spec: str = "", port: str = "{name: http, port: 80, targetPort: 8080}") -> str:
    return f"""
kind: Service
metadata: {{namespace: shop, name: {name}}}
spec: {{ports: [{port}], {spec}}}
"""


def pod(name: str, ip: str, *, app: str = "cart", ready: bool = True, ports: str = "", meta: str = "") -> str:
    ips = ", ".join(f'{{ip: "{each}"}}' for each in ip.split(","))
    return f"""
kind: Pod
metadata: {{namespace: shop, name: {name}, uid: uid-of-{name}, labels: {{app: {app}}}, {meta}}}
spec: {{nodeName: n1, serviceAccountName: {app}, containers: [{{name: main, ports: [{ports}]}}]}}
status:
  phase: Running
  podIP: "{ip.split(",")[0]}"
  podIPs: [{ips}]
  conditions: [{{type: Ready, status: "{ready}"}}]
"""


def slice_(name: str, *ips: str, port: str = "{name: http, port: 8088, protocol: TCP}", more: str = "") -> str:
    endpoints = ", ".join(f"{{addresses: [{ip}]}}" for ip in ips)
    return f"""
kind: EndpointSlice
metadata: {{namespace: shop, name: {name}, labels: {{kubernetes.io/service-name: cart}}}}
addressType: IPv4
endpoints: [{endpoints}{more}]
ports: [{port}]
"""


def endpoint_uid(slice_name: str, ip: str) -> str:
    return f"{CLUSTER}/discovery.k8s.io/EndpointSlice/shop/{slice_name}/{ip}"


CART = service_name("cart")


@pytest.mark.fault(15)
@pytest.mark.parametrize(
    ("of_service", "of_slice"), [("name: http, ", "name: ''"), ("", "name: http"), ("name: http, ", "name: web")]
)
def test_a_port_that_does_not_match_by_name_is_not_used_and_reported(of_service: str, of_slice: str) -> None:
    """Fault 15: a hand-made slice was ignored without a word when its port had another name than the service's."""
    port = f"{{{of_service}port: 80, targetPort: 8080}}"
    mesh = Mesh(
        NAMESPACE, service(port=port), slice_("a", "192.0.2.1", port=f"{{{of_slice}, port: 8088, protocol: TCP}}")
    )
    held = mesh.ztunnel.holds.workloads[endpoint_uid("a", "192.0.2.1")]
    assert not held.services[CART].ports
    (fault,) = mesh.problems("EndpointSlice", "a")
    assert "ports[0].name" in fault
    assert "must be the name of a port of Service" in fault


@pytest.mark.fault(15)
@pytest.mark.parametrize(
    ("of_service", "of_slice"), [("name: http, ", "name: http"), ("", "name: ''"), ("", 'name: ""')]
)
def test_equal_port_names_join_the_empty_one_too(of_service: str, of_slice: str) -> None:
    """Fault 15, the other side: an unnamed port is joined to the single unnamed port of the service."""
    port = f"{{{of_service}port: 80, targetPort: 8080}}"
    mesh = Mesh(
        NAMESPACE, service(port=port), slice_("a", "192.0.2.1", port=f"{{{of_slice}, port: 8088, protocol: TCP}}")
    )
    (joined,) = mesh.ztunnel.holds.workloads[endpoint_uid("a", "192.0.2.1")].services[CART].ports
    assert (joined.service_port, joined.target_port) == (80, 8088)
    assert mesh.problems("EndpointSlice", "a") == ()


@pytest.mark.fault(16)
def test_what_one_service_accepts_does_not_leak_into_another_of_the_same_preset() -> None:
    """Fault 16: a shared preset was changed in place, and every service of that preset sent traffic to pods that are
    not ready."""
    closest = "trafficDistribution: PreferSameZone, clusterIP: None"
    mesh = Mesh(NAMESPACE, service("a", closest))
    before = mesh.service("a").SerializeToString(deterministic=True)
    mesh.apply(service("b", f"{closest}, publishNotReadyAddresses: true"))
    assert mesh.service("b").load_balancing.health_policy == api.LoadBalancing.ALLOW_ALL
    # What was sent is a message of the client's own; changing it changes nobody else's.
    mesh.service("b").load_balancing.routing_preference.append(api.LoadBalancing.NODE)
    mesh.apply(service("c", closest))
    for name in ("a", "c"):
        assert mesh.service(name).load_balancing.health_policy == api.LoadBalancing.ONLY_HEALTHY
    assert mesh.service("a").SerializeToString(deterministic=True) == before
    preferences = [list(mesh.service(name).load_balancing.routing_preference) for name in ("a", "c")]
    assert preferences[0] == preferences[1]


@pytest.mark.fault(18)
def test_scaling_a_headless_service_sends_exactly_what_changed() -> None:
    """Fault 18: a change of a headless service's endpoints sent nothing, or everything."""
    others = "---".join(pod(f"other-{number}", f"10.0.9.{number}", app="other") for number in range(20))
    mesh = Mesh(NAMESPACE, service(spec="clusterIP: None, selector: {app: cart}"), others)
    names = [f"cart-{number}" for number in range(4)]
    for number, name in enumerate(names[:3]):
        assert mesh.apply(pod(name, f"10.0.0.{number}")) == Sent({pod_uid(name)})
    assert mesh.apply(pod("cart-3", "10.0.0.3")) == Sent({pod_uid("cart-3")})
    assert mesh.delete("Pod", "shop", *names) == Sent(set(), {pod_uid(name) for name in names})
    again = "---".join(pod(name, f"10.0.0.{number}") for number, name in enumerate(names[:3]))
    assert mesh.apply(again) == Sent({pod_uid(name) for name in names[:3]})


@pytest.mark.fault(19)
def test_a_service_is_the_union_of_its_slices() -> None:
    """Fault 19: only the first slice's ports counted, endpoints that are not ready were missed, and second addresses
    lost."""
    ports = "{name: http, port: 80}, {name: admin, port: 90}"
    mesh = Mesh(
        NAMESPACE,
        service(spec="clusterIP: None", port=ports),
        slice_("a", "192.0.2.1", more=", {addresses: [192.0.2.3], conditions: {ready: false}}"),
        slice_("b", "192.0.2.2", port="{name: admin, port: 9090, protocol: TCP}"),
        pod("cart-0", "10.0.0.1,fd00::1"),
    )
    held = mesh.ztunnel.holds.workloads
    served = {
        uid.rpartition("/")[2]: ([port.service_port for port in workload.services[CART].ports], workload.status)
        for uid, workload in held.items()
        if CART in workload.services
    }
    assert served == {
        "192.0.2.1": ([80], api.HEALTHY),
        "192.0.2.3": ([80], api.UNHEALTHY),
        "192.0.2.2": ([90], api.HEALTHY),
    }
    assert [len(raw) for raw in mesh.pod("cart-0").addresses] == [4, 16]


@pytest.mark.fault(19)
def test_a_pod_that_terminates_stays_as_unhealthy_until_it_is_gone() -> None:
    """Fault 19: terminating endpoints were taken for ready ones, or dropped while they still ran."""
    mesh = Mesh(NAMESPACE, service(spec="selector: {app: cart}"), pod("cart-0", "10.0.0.1"))
    mesh.apply(pod("cart-0", "10.0.0.1", meta="deletionTimestamp: 2026-01-01T00:00:00Z"))
    assert mesh.pod("cart-0").status == api.UNHEALTHY
    assert CART in mesh.pod("cart-0").services


@pytest.mark.fault(21)
def test_scaling_to_nothing_and_back_gives_the_same_each_time() -> None:
    """Fault 21: what a service knew of its pods' accounts depended on whether it had been empty before."""
    mesh = Mesh(NAMESPACE, service(spec="clusterIP: 10.8.0.1, selector: {app: cart}"))
    empty = dict(mesh.ztunnel.holds.versions["type.googleapis.com/istio.workload.Address"])
    seen = []
    for _ in range(3):
        mesh.apply(pod("cart-0", "10.0.0.1"))
        seen.append(dict(mesh.ztunnel.holds.versions["type.googleapis.com/istio.workload.Address"]))
        mesh.delete("Pod", "shop", "cart-0")
        assert mesh.ztunnel.holds.versions["type.googleapis.com/istio.workload.Address"] == empty
    assert seen[0] == seen[1] == seen[2]
    mesh.apply(pod("cart-0", "10.0.0.1"))
    assert mesh.pod("cart-0").service_account == "cart"


@pytest.mark.fault(22)
def test_ports_of_an_entry_are_found_by_name_on_pods_and_in_the_map_of_a_workload_entry() -> None:
    """Fault 22: the ports of ServiceEntries were not matched by name with those of containers and of
    WorkloadEntries."""
    entry = """
kind: ServiceEntry
metadata: {namespace: shop, name: db}
spec:
  hosts: [db.test]
  resolution: STATIC
  ports: [{name: grpc, number: 443, targetPort: 1443}, {name: raw, number: 444}]
  workloadSelector: {labels: {app: cart}}
"""
    vm = """
kind: WorkloadEntry
metadata: {namespace: shop, name: vm}
spec: {address: 10.1.0.1, labels: {app: cart}, ports: {grpc: 7000}}
"""
    mesh = Mesh(
        NAMESPACE,
        entry,
        vm,
        pod("named", "10.0.0.1", ports="{name: grpc, containerPort: 50051}"),
        pod("unnamed", "10.0.0.2", ports="{containerPort: 50051}"),
    )
    held = mesh.ztunnel.holds.workloads
    vm_uid = f"{CLUSTER}/networking.istio.io/WorkloadEntry/shop/vm"
    targets = {
        uid.rpartition("/")[2]: {
            port.service_port: port.target_port for port in held[uid].services["shop/db.test"].ports
        }
        for uid in (pod_uid("named"), pod_uid("unnamed"), vm_uid)
    }
    assert targets == {"named": {443: 50051, 444: 444}, "unnamed": {443: 1443, 444: 444}, "vm": {443: 7000, 444: 444}}


@pytest.mark.fault(24)
def test_a_client_that_does_not_read_holds_up_nobody_and_piles_up_nothing() -> None:
    """Fault 24: one subscriber that did not take its updates stopped them for all. Here a stream holds a cursor and
    no queue: others go on, and the slow one gets the last state of each name in one round. The counter that would
    flat-line is a metric (test_metrics); the age of watches belongs to the source that watches an API server."""
    mesh = Mesh(NAMESPACE)
    slow = mesh.join()
    slow.is_asleep = True
    for number in range(200):
        assert mesh.apply(pod("cart-0", f"10.0.0.{number}")) == Sent({pod_uid("cart-0")})
    assert len(slow._commands) <= 2
    before = len(slow.messages)
    slow.is_asleep = False
    slow.read()
    assert len(slow.messages) - before <= 2
    assert slow.holds.workloads == mesh.ztunnel.holds.workloads


@pytest.mark.fault(25)
@pytest.mark.parametrize("how", ["update", "relist"])
def test_what_left_a_slice_while_nobody_watched_is_removed(how: str) -> None:
    """Fault 25: after an outage of the API server what was added to a slice came, and what had left it stayed. Also
    what was deleted meanwhile is known by difference with what is held."""
    mesh = Mesh(NAMESPACE, service(), slice_("a", "192.0.2.1", "192.0.2.2"), slice_("b", "192.0.2.9"))
    after = slice_("a", "192.0.2.2", "192.0.2.3")
    if how == "update":
        sent = mesh.apply(after)
        assert sent == Sent({endpoint_uid("a", "192.0.2.3")}, {endpoint_uid("a", "192.0.2.1")})
    else:
        sent = mesh.relist("EndpointSlice", after)
        gone = {endpoint_uid("a", "192.0.2.1"), endpoint_uid("b", "192.0.2.9")}
        assert sent == Sent({endpoint_uid("a", "192.0.2.3")}, gone)


@pytest.mark.fault(25)
def test_a_hundred_relists_leave_nothing_behind() -> None:
    """Fault 25: what a relist does not name goes from every index as well."""
    mesh = Mesh()
    for number in range(100):
        mesh.apply(NAMESPACE)
        mesh.relist("Service", service(spec="clusterIP: 10.8.0.1, selector: {app: cart}"))
        mesh.relist("EndpointSlice", slice_(f"s{number % 7}", f"192.0.2.{number}"))
        mesh.relist("Pod", pod(f"cart-{number}", f"10.0.0.{number}"))
        for kind in ("Pod", "EndpointSlice", "Service", "Namespace"):
            mesh.relist(kind)
        assert mesh.world.graph.sizes() == mesh.nothing


EVERYTHING = "---".join(
    (
        NAMESPACE,
        "kind: Node\nmetadata: {name: n1, labels: {topology.kubernetes.io/region: eu}}\n",
        service(spec="clusterIP: 10.8.0.1, selector: {app: cart}"),
        slice_("a", "192.0.2.1"),
        pod("cart-0", "10.0.0.1"),
        """
kind: ServiceEntry
metadata: {namespace: shop, name: db}
spec: {hosts: [db.test], addresses: [10.9.0.1], resolution: STATIC, ports: [{name: sql, number: 5432}]}
---
kind: WorkloadEntry
metadata: {namespace: shop, name: vm}
spec: {address: 10.1.0.1}
---
kind: AuthorizationPolicy
metadata: {namespace: shop, name: deny}
spec: {selector: {matchLabels: {app: cart}}}
---
kind: PeerAuthentication
metadata: {namespace: shop, name: strict}
spec: {mtls: {mode: STRICT}}
---
kind: Gateway
metadata: {namespace: shop, name: wp}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
status: {addresses: [{type: IPAddress, value: 10.8.0.9}]}
---
kind: GatewayClass
metadata: {name: istio-waypoint, labels: {istio.io/waypoint-for: all}}
spec: {controllerName: istio.io/mesh-controller}
""",
    )
)


@pytest.mark.fault(27)
@pytest.mark.parametrize(
    "noise",
    [
        'resourceVersion: "77"',
        "managedFields: [{manager: helm, operation: Update}]",
        "annotations: {kubectl.kubernetes.io/last-applied-configuration: '{}', meta.helm.sh/release-name: shop}",
        "ownerReferences: []",
        "finalizers: [example.org/keep]",
        'selfLink: "/x"',
    ],
)
def test_a_change_that_means_nothing_sends_nothing(noise: str) -> None:
    """Fault 27: a change of annotations, of managed fields or of the resource version alone was pushed to everybody."""
    mesh = Mesh(EVERYTHING)
    derived = mesh.world.graph.gathers()
    head = mesh.feed.head
    changed = re.sub(r"metadata: \{", f"metadata: {{{noise}, ", EVERYTHING)
    assert changed.count(noise) == EVERYTHING.count("metadata:")
    assert mesh.apply(changed) == NOTHING
    assert mesh.feed.head == head
    assert mesh.world.graph.gathers() == derived, "what is decoded holds nothing of this, so nothing is derived either"
