"""Faults that control planes of this kind have had with workloads: identity, reuse of addresses, life of pods (1 to
13)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from ambientd.index.rules import Rules
from ambientd.pump import Pump
from ambientd.push.feed import Feed
from ambientd.resources.events import Delete, Synced
from ambientd.resources.kinds import KINDS
from ambientd_api import workload_pb2 as api
from tests.unit.mesh_of_one import NOTHING, Mesh, Sent, Ztunnel, pod_uid
from tests.unit.worlds import CLUSTER, events, ref

SHOP = """
kind: Namespace
metadata: {name: shop}
---
kind: Service
metadata: {namespace: shop, name: cart}
spec: {clusterIPs: [10.8.0.1], selector: {app: cart}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
kind: Service
metadata: {namespace: shop, name: till}
spec: {clusterIPs: [10.8.0.2], selector: {app: till}, ports: [{name: http, port: 80, targetPort: 8080}]}
"""


def pod(
    name: str,
    *,
    ip: str = "10.0.0.5",
    account: str = "default",
    app: str = "cart",
    phase: str = "Running",
    ready: bool = True,
    is_on_host_network: bool = False,
    extra: str = "",
) -> str:
    return f"""
kind: Pod
metadata:
  namespace: shop
  name: {name}
  uid: uid-of-{name}
  labels: {{app: {app}}}
  annotations: {{ambient.istio.io/redirection: enabled}}
  {extra}
spec: {{nodeName: n1, serviceAccountName: {account}, hostNetwork: {str(is_on_host_network).lower()}}}
status: {{phase: {phase}, podIP: {ip}, conditions: [{{type: Ready, status: "{ready}"}}]}}
"""


OLD, NEW = pod("old", account="old"), pod("new", account="new")


def holders(client: Ztunnel, ip: str) -> dict[str, str]:
    """Who has an address as this client sees it: uid and account."""
    raw = bytes(map(int, ip.split(".")))
    return {uid: held.service_account for uid, held in client.holds.workloads.items() if raw in held.addresses}


@pytest.mark.fault(1)
@pytest.mark.parametrize("order", ["deleted first", "deleted after", "in one commit", "delete lost", "finished first"])
def test_an_address_never_keeps_the_identity_of_a_pod_that_is_gone(order: str) -> None:
    """Fault 1: the next pod with an address got traffic under the identity of the last one."""
    mesh = Mesh(SHOP, OLD)
    node = mesh.join(is_on_demand=True)
    node.ask("/10.0.0.5")
    assert holders(node, "10.0.0.5") == {pod_uid("old"): "old"}
    match order:
        case "deleted first":
            mesh.delete("Pod", "shop", "old")
            mesh.apply(NEW)
        case "deleted after":
            mesh.apply(NEW)
            assert holders(mesh.ztunnel, "10.0.0.5") == {pod_uid("old"): "old", pod_uid("new"): "new"}
            mesh.delete("Pod", "shop", "old")
        case "in one commit":
            sent = mesh.commit([*events(NEW), Delete(ref("Pod", "shop", "old"))])
            assert sent == Sent({pod_uid("new")}, {pod_uid("old")})
        case "delete lost":
            sent = mesh.relist("Pod", NEW)
            assert sent == Sent({pod_uid("new")}, {pod_uid("old")})
        case "finished first":
            assert mesh.apply(OLD.replace("Running", "Succeeded")) == Sent(set(), {pod_uid("old")})
            mesh.apply(NEW)
            assert mesh.delete("Pod", "shop", "old") == NOTHING
    for client in mesh.ztunnels:
        assert holders(client, "10.0.0.5") == {pod_uid("new"): "new"}


@pytest.mark.fault(1)
def test_all_live_pods_of_an_address_are_found_by_it() -> None:
    """Fault 1: while two pods claim one address, a lookup gives both and not an arbitrary one."""
    mesh = Mesh(SHOP, OLD, NEW)
    node = mesh.join(is_on_demand=True)
    node.ask("/10.0.0.5")
    assert holders(node, "10.0.0.5") == {pod_uid("old"): "old", pod_uid("new"): "new"}


@pytest.mark.fault(3)
def test_a_pod_that_is_not_ready_is_a_source_at_once_and_no_backend() -> None:
    """Fault 3: a pod whose readiness depends on its own calls never became ready, as only ready ones were published."""
    mesh = Mesh(SHOP)
    assert mesh.apply(pod("cart-0", ready=False)) == Sent({pod_uid("cart-0")})
    held = mesh.pod("cart-0")
    assert held.status == api.UNHEALTHY
    assert list(held.services) == ["shop/cart.shop.svc.cluster.local"]
    mesh.apply(pod("cart-0"))
    assert mesh.pod("cart-0").status == api.HEALTHY


@pytest.mark.fault(4)
def test_a_pod_whose_init_containers_run_is_published_as_unhealthy() -> None:
    """Fault 4: pods that are pending and have an address already could not talk."""
    mesh = Mesh(SHOP, pod("cart-0", phase="Pending", ready=False))
    assert mesh.pod("cart-0").status == api.UNHEALTHY


@pytest.mark.fault(6)
def test_pods_of_the_host_network_do_not_overwrite_each_other() -> None:
    """Fault 6: pods that share the node's address were sent twice, mixed up, or not at all."""
    mesh = Mesh(SHOP)
    node = mesh.join(is_on_demand=True)
    for number in range(5):
        mesh.apply(pod(f"host-{number}", app="cart" if number % 2 else "till", is_on_host_network=True))
    node.ask("/10.0.0.5")
    for client in (node, mesh.ztunnel):
        held = client.holds.workloads
        assert sorted(held) == [pod_uid(f"host-{number}") for number in range(5)]
        assert {each.network_mode for each in held.values()} == {api.HOST_NETWORK}
        services = [next(iter(held[pod_uid(f"host-{number}")].services)) for number in range(5)]
        assert [name.split(".")[0] for name in services] == [
            f"shop/{app}" for app in ("till", "cart", "till", "cart", "till")
        ]


@pytest.mark.fault(7)
def test_a_pod_that_is_not_captured_is_not_spoken_to_in_hbone() -> None:
    """Fault 7: pods of the host network were taken for members of the mesh. Whether a pod is captured is written on it
    by the node agent, which leaves those out; their namespace's label makes no difference here."""
    namespace = SHOP.replace("{name: shop}", "{name: shop, labels: {istio.io/dataplane-mode: ambient}}")
    text = pod("cart-0", is_on_host_network=True).replace("ambient.istio.io/redirection: enabled", "")
    mesh = Mesh(namespace, text, pod("cart-1", ip="10.0.0.6"))
    assert mesh.pod("cart-0").tunnel_protocol == api.NONE
    assert mesh.pod("cart-1").tunnel_protocol == api.HBONE


def entry(spec: str) -> str:
    return f"kind: WorkloadEntry\nmetadata: {{namespace: shop, name: vm, labels: {{}}}}\nspec: {{{spec}}}\n"


VM = f"{CLUSTER}/networking.istio.io/WorkloadEntry/shop/vm"
TO_VM = """
kind: ServiceEntry
metadata: {namespace: shop, name: db}
spec:
  hosts: [db.test]
  addresses: [10.9.0.1]
  resolution: STATIC
  ports: [{name: sql, number: 5432, protocol: TCP}]
  workloadSelector: {labels: {app: db}}
"""


@pytest.mark.fault(9)
def test_every_change_of_a_workload_entry_is_sent() -> None:
    """Fault 9: changes of a WorkloadEntry's spec were not noticed."""
    mesh = Mesh(SHOP, TO_VM, entry("address: 10.1.0.1"))
    assert not mesh.ztunnel.holds.workloads[VM].services
    assert mesh.apply(entry("address: 10.1.0.1, labels: {app: db}")) == Sent({VM})
    assert mesh.ztunnel.holds.workloads[VM].services["shop/db.test"].ports[0].target_port == 5432
    assert mesh.apply(entry("address: 10.1.0.1, labels: {app: db}, ports: {sql: 7000}")) == Sent({VM})
    assert mesh.ztunnel.holds.workloads[VM].services["shop/db.test"].ports[0].target_port == 7000


@pytest.mark.fault(9)
@pytest.mark.parametrize("address", ["", "address: ''", "address: vm.example.org", "address: unix:///var/run/vm"])
def test_a_workload_entry_without_an_address_harms_nobody(address: str) -> None:
    """Fault 9: an entry without an address crashed the server, or was never taken up when it got one."""
    mesh = Mesh(SHOP, TO_VM, pod("cart-0"), entry(address))
    assert pod_uid("cart-0") in mesh.ztunnel.holds.workloads
    assert not any(held.addresses for uid, held in mesh.ztunnel.holds.workloads.items() if uid == VM)
    mesh.apply(entry("address: 10.1.0.1"))
    assert mesh.ztunnel.holds.workloads[VM].addresses == [bytes((10, 1, 0, 1))]
    mesh.delete("WorkloadEntry", "shop", "vm")
    assert VM not in mesh.ztunnel.holds.workloads


def churn_of_host_network_pods(mesh: Mesh, number: int) -> None:
    names = [f"host-{number}-{replica}" for replica in range(5)]
    mesh.apply("---".join(pod(name, is_on_host_network=True) for name in names))
    mesh.delete("Pod", "shop", *names)


def churn_of_failed_pods(mesh: Mesh, number: int) -> None:
    mesh.apply(pod(f"cart-{number}", ip=f"10.0.1.{number}"))
    mesh.apply(pod(f"cart-{number}", ip=f"10.0.1.{number}", phase="Failed"))
    mesh.apply(pod(f"bad-{number}", ip="10.0.1.300"))
    mesh.delete("Pod", "shop", f"cart-{number}", f"bad-{number}")


def churn_of_workload_entries(mesh: Mesh, number: int) -> None:
    mesh.apply(TO_VM)
    for ip in (number, number + 1, number + 2):
        mesh.apply(entry(f"address: 10.1.0.{ip}, labels: {{app: db}}, network: net-{ip}"))
    mesh.delete("WorkloadEntry", "shop", "vm")


def churn_of_service_entries(mesh: Mesh, number: int) -> None:
    endpoints = f"endpoints: [{{address: 10.2.0.{number}}}]"
    inline = TO_VM.replace("workloadSelector: {labels: {app: db}}", endpoints)
    mesh.apply(inline.replace("db.test", f"db-{number}.test") + "---" + pod("db-0", app="db"))
    mesh.apply(TO_VM.replace("db.test", f"db-{number}.test"))
    mesh.delete("ServiceEntry", "shop", "db")
    mesh.delete("Pod", "shop", "db-0")


@pytest.mark.fault(10)
@pytest.mark.parametrize(
    "churn",
    [churn_of_host_network_pods, churn_of_failed_pods, churn_of_workload_entries, churn_of_service_entries],
)
def test_nothing_is_left_of_what_came_and_went(churn: Callable[[Mesh, int], None]) -> None:
    """Fault 10: indices kept entries of what was gone, and memory grew."""
    mesh = Mesh()
    mesh.join(is_on_demand=True).ask("/10.0.0.5")
    mesh.apply(SHOP)
    churn(mesh, 1)
    sizes = mesh.world.graph.sizes()
    for number in range(100):
        churn(mesh, number)
    assert mesh.world.graph.sizes() == sizes
    mesh.empty()
    directory = mesh.feed.directory
    assert directory is not None
    assert not any(vars(directory).values())
    # Of what is gone, a view remembers the last commit's alone: every client has read what came before.
    assert all(entry.rendered is None and entry.seq == mesh.feed.head for entry in mesh.feed.addresses.entries())


@pytest.mark.fault(12)
def test_what_is_labelled_for_another_revision_counts_when_it_is_relabelled() -> None:
    """Fault 12: a server acted on objects that were meant for another one. Every kind that has the label is
    filtered."""
    text = """
kind: AuthorizationPolicy
metadata: {namespace: shop, name: deny, labels: {istio.io/rev: REV}}
spec: {}
---
kind: PeerAuthentication
metadata: {namespace: shop, name: strict, labels: {istio.io/rev: REV}}
spec: {mtls: {mode: STRICT}}
---
kind: ServiceEntry
metadata: {namespace: shop, name: ext, labels: {istio.io/rev: REV}}
spec: {hosts: [ext.test], addresses: [10.9.0.1], resolution: STATIC, ports: [{name: tls, number: 443}]}
---
kind: WorkloadEntry
metadata: {namespace: shop, name: vm, labels: {istio.io/rev: REV}}
spec: {address: 10.1.0.1}
"""
    mesh = Mesh(SHOP, pod("cart-0"), rules=Rules(revision="ours"))
    assert mesh.apply(text.replace("REV", "other")) == NOTHING
    added = mesh.apply(text.replace("REV", "ours"))
    assert added.changed == {
        "shop/deny",
        "istio-system/istio_converted_static_strict",
        "shop/ext.test",
        VM,
        pod_uid("cart-0"),
    }
    back = mesh.apply(text.replace("REV", "other"))
    assert back.removed == added.changed - {pod_uid("cart-0")}
    assert back.changed == {pod_uid("cart-0")}
    assert not mesh.pod("cart-0").authorization_policies


class Nobody:
    def committed(self, seq: int, changed: int, took_s: float, events: int) -> None: ...


@pytest.mark.fault(13)
async def test_nothing_is_committed_before_every_kind_was_listed() -> None:
    """Fault 13: a client of a fresh replica got part of the mesh, and nothing more. Ours is not answered before the
    first commit, which waits until every kind was listed."""
    mesh = Mesh()
    numbers = itertools.count()
    feed = Feed(lambda: f"n{next(numbers)}")
    pump = Pump(mesh.world, feed, cluster=CLUSTER, announce=lambda nodes: None, watcher=Nobody())
    running = asyncio.create_task(pump.run())
    try:
        pump.emit([*events(SHOP), *(Synced(CLUSTER, kind) for kind in KINDS if kind != "Pod")])
        for _ in range(100):
            await asyncio.sleep(0)
        assert (pump.is_ready, pump.missing(), feed.head) == (False, ["Pod"], 0)
        pump.emit([*events(pod("cart-0")), Synced(CLUSTER, "Pod")])
        await asyncio.wait_for(pump.ready(), 30)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert set(Ztunnel(feed).holds.workloads) == {pod_uid("cart-0")}
