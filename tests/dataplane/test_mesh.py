"""Two unmodified ztunnels on two nodes, with pods, real redirection and traffic: their certificates are from us, and
what our policies say is what happens to connections."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

import pytest
import yaml

from tests.dataplane.held import certificates, reaches, until_renewed
from tests.dataplane.mesh import NAMESPACE, Mesh, authority
from tests.dataplane.rig import PORT, Pod
from tests.dataplane.traffic import Traffic
from tests.wire.process import eventually, eventually_equal

pytestmark = [pytest.mark.peer, pytest.mark.slow]


@pytest.fixture
def pods(mesh: Mesh) -> tuple[Pod, Pod, Pod]:
    """Two captured pods on two nodes that reach each other, and one that is not captured."""
    cart = mesh.add_pod("node-a", "cart", "10.1.0.1")
    till = mesh.add_pod("node-b", "till", "10.1.0.2")
    outside = mesh.add_pod("node-b", "outside", "10.1.0.3", enrolled=False)
    eventually(lambda: reaches(cart, till) and reaches(outside, till), "the first calls")
    return cart, till, outside


def test_calls_between_nodes_are_authenticated_with_our_certificates(mesh: Mesh, pods: tuple[Pod, Pod, Pod]) -> None:
    cart, till, _ = pods
    for pod in (cart, till):
        assert certificates(pod.node) == {pod.identity: "Available"}, "what runs on its node, and nothing else"
        for line in (f'src.identity="{cart.identity}"', f'dst.identity="{till.identity}"'):
            assert line in pod.node.log()
    assert f"dst.addr={till.address}:15008 dst.hbone_addr={till.address}:{PORT}" in cart.node.log()


def test_a_node_gets_no_certificate_for_a_pod_of_another_node(mesh: Mesh, pods: tuple[Pod, Pod, Pod]) -> None:
    """A third node whose ztunnel believes, or pretends, that it is the second one: it asks for what runs there."""
    cart, till, _ = pods
    pretending = mesh.rig.nodes["node-c"]
    mesh.start(pretending, NODE_NAME=till.node.name)

    def refusals() -> set[tuple[str, str]]:
        return {
            (each["node"], each["text"]) for each in mesh.debug("ca")["refusals"] if till.identity in each["identity"]
        }

    expected = {("node-c", "no pod of that account is on the caller's node")}
    eventually_equal(lambda: (refusals(), expected), "the refusal")
    assert certificates(pretending)[till.identity] != "Available"
    assert certificates(till.node)[till.identity] == "Available"
    assert reaches(cart, till), "nobody else is touched"


STRICT = """
kind: PeerAuthentication
metadata: {name: default}
spec: {mtls: {mode: STRICT}}
"""
PERMISSIVE_PORT = """
kind: PeerAuthentication
metadata: {name: till}
spec: {selector: {matchLabels: {app: till}}, mtls: {mode: STRICT}, portLevelMtls: {8080: {mode: PERMISSIVE}}}
"""
ALLOW_CART = """
kind: AuthorizationPolicy
metadata: {name: only-cart}
spec:
  selector: {matchLabels: {app: till}}
  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/cart]}}]}]
"""
ALLOW_NOBODY = """
kind: AuthorizationPolicy
metadata: {name: nobody}
spec: {selector: {matchLabels: {app: till}}}
"""
DENY_THIEF = """
kind: AuthorizationPolicy
metadata: {name: no-thief}
spec: {action: DENY, rules: [{from: [{source: {serviceAccounts: [thief]}}]}]}
"""
DENY_PORT = """
kind: AuthorizationPolicy
metadata: {name: no-8080}
spec: {action: DENY, rules: [{to: [{operation: {ports: ["8080"]}}]}]}
"""
DENY_OTHER_PORT = """
kind: AuthorizationPolicy
metadata: {name: no-9090}
spec: {action: DENY, rules: [{to: [{operation: {ports: ["9090"]}}]}]}
"""
DENY_OUTSIDE_BY_IP = """
kind: AuthorizationPolicy
metadata: {name: no-outside}
spec: {action: DENY, rules: [{from: [{source: {ipBlocks: [10.1.0.3/32]}}]}]}
"""

ALL = {"cart", "thief", "outside"}

# What is written, and who then reaches the till.
WRITTEN: tuple[tuple[tuple[str, ...], set[str]], ...] = (
    ((), ALL),
    ((STRICT,), {"cart", "thief"}),
    ((STRICT, PERMISSIVE_PORT), ALL),
    ((ALLOW_CART,), {"cart"}),
    ((ALLOW_NOBODY,), set()),
    ((DENY_THIEF,), {"cart", "outside"}),
    ((DENY_THIEF, STRICT), {"cart"}),
    ((ALLOW_CART, DENY_THIEF), {"cart"}),
    ((DENY_PORT,), set()),
    ((DENY_OTHER_PORT,), ALL),
    ((DENY_OUTSIDE_BY_IP,), {"cart", "thief"}),
)


def test_policies_deny_and_allow_as_written(mesh: Mesh, pods: tuple[Pod, Pod, Pod]) -> None:
    cart, till, outside = pods
    thief = mesh.add_pod("node-a", "thief", "10.1.0.4")
    for policies, expected in WRITTEN:
        mesh.apply("policies", [written(policy) for policy in policies])

        def both(expected: set[str] = expected) -> tuple[object, object]:
            return {caller.name for caller in (cart, thief, outside) if reaches(caller, till)}, expected

        eventually_equal(both, "\n".join(policies) or "without a policy")


def written(policy: str) -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load(policy)
    manifest["apiVersion"] = "security.istio.io/v1"
    manifest["metadata"]["namespace"] = NAMESPACE
    return manifest


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_of_the_control_plane_breaks_no_connection(
    mesh: Mesh, pods: tuple[Pod, Pod, Pod], how: signal.Signals
) -> None:
    cart, till, _ = pods
    with Traffic(cart.inside, till.address, PORT) as traffic:
        eventually(lambda: traffic.answered > 10 and traffic.calls > 10, "traffic")
        mesh.server.stop(how)
        answered, calls = traffic.answered, traffic.calls
        eventually(lambda: traffic.answered > answered + 50 and traffic.calls > calls + 50, "traffic without it")
        mesh.server.start()
        late = mesh.add_pod("node-a", "late", "10.1.0.5")
        eventually(lambda: reaches(late, till), "a pod that is new after it")
    assert traffic.failures == []


def test_ztunnels_come_back_as_fast_after_the_tenth_restart_as_after_the_first(mesh: Mesh) -> None:
    """They wait twice as long after each end that they do not take for an ordinary one, and never less again."""
    for number in range(10):
        mesh.restart()
        for name in ("node-a", "node-b"):
            eventually(partial(is_connected, mesh, name), f"{name} after restart {number}", within_s=5)


def is_connected(mesh: Mesh, node: str) -> bool:
    return f"ztunnel-{node}" in str(mesh.debug("connections"))


def test_a_rotation_of_the_root_breaks_no_connection(mesh: Mesh, pods: tuple[Pod, Pod, Pod]) -> None:
    """In the three steps of ca.md 12.4: everybody trusts both roots, the new one signs, the old one is forgotten."""
    cart, till, _ = pods
    old, new = mesh.authority, authority("second")
    with Traffic(cart.inside, till.address, PORT) as traffic:
        eventually(lambda: traffic.answered > 10 and traffic.calls > 10, "traffic")
        mesh.plug_in(old, trusting=[old, new])
        mesh.restart()
        until_renewed(cart.node, till.node)
        mesh.plug_in(new, trusting=[old, new])
        leaves = until_renewed(cart.node, till.node)
        assert {leaf.issuer for leaf in leaves} == {new.signer.certificate.subject}
        mesh.plug_in(new, trusting=[new])
        mesh.restart()
        until_renewed(cart.node, till.node)
        answered, calls = traffic.answered, traffic.calls
        eventually(lambda: traffic.answered > answered + 50 and traffic.calls > calls + 50, "traffic after it")
    assert traffic.failures == []
    assert mesh.trusted() == {new.root.certificate.serial_number}


def test_a_root_that_is_swapped_without_an_overlap_breaks_connections(mesh: Mesh, pods: tuple[Pod, Pod, Pod]) -> None:
    """The test before this one would see it."""
    cart, till, _ = pods
    new = authority("second")
    with Traffic(cart.inside, till.address, PORT) as traffic:
        mesh.plug_in(new, trusting=[new])
        mesh.restart()
        until_renewed(cart.node, till.node)
    assert traffic.failures
