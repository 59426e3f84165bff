"""Faults that control planes of this kind have had with AuthorizationPolicies and PeerAuthentications (39 to 51).
What is allowed is said by the model's evaluator, on what the client holds."""

from __future__ import annotations

import pytest
from google.protobuf.json_format import MessageToDict

from ambientd.index.rules import Rules
from ambientd_api import security_pb2 as api
from tests.model.verdict import Connection, allows
from tests.unit.mesh_of_one import NOTHING, Mesh, Sent, pod_uid

SHOP = """
kind: Namespace
metadata: {name: shop}
---
kind: Namespace
metadata: {name: bank}
"""
CLIENT = "spiffe://cluster.local/ns/shop/sa/client"
STRICT = "istio-system/istio_converted_static_strict"


def pod(name: str = "cart-0", namespace: str = "shop", *, app: str = "cart", labels: str = "") -> str:
    return f"""
kind: Pod
metadata: {{namespace: {namespace}, name: {name}, uid: u-{name}, labels: {{app: {app}, {labels}}}}}
spec: {{serviceAccountName: {app}, containers: [{{name: main, ports: [{{containerPort: 80}}]}}]}}
status: {{phase: Running, podIP: 10.0.0.1, conditions: [{{type: Ready, status: "True"}}]}}
"""


def peer(spec: str, name: str = "default", namespace: str = "shop") -> str:
    return f"kind: PeerAuthentication\nmetadata: {{namespace: {namespace}, name: {name}}}\nspec: {{{spec}}}\n"


def policy(spec: str, name: str = "p", meta: str = "") -> str:
    return f"kind: AuthorizationPolicy\nmetadata: {{namespace: shop, name: {name}, {meta}}}\nspec: {{{spec}}}\n"


def is_allowed(mesh: Mesh, port: int, identity: str | None = CLIENT, pod_name: str = "cart-0") -> bool:
    """Whether the client lets a connection to the pod through; None as identity: in plain text."""
    held = mesh.ztunnel.holds
    workload = MessageToDict(held.workloads[pod_uid(pod_name)], preserving_proto_field_name=True)
    policies = {name: MessageToDict(item, preserving_proto_field_name=True) for name, item in held.policies.items()}
    return allows(workload, policies, Connection("10.0.0.9", "10.0.0.1", port, identity))


def open_in_plain_text(mesh: Mesh, *ports: int) -> list[int]:
    assert all(is_allowed(mesh, port) for port in ports), "a peer with an identity is let through everywhere"
    return [port for port in ports if is_allowed(mesh, port, None)]


@pytest.mark.fault(39)
def test_a_permissive_port_is_open_although_the_mesh_is_strict() -> None:
    """Fault 39: a workload's policy with nothing but a permissive port did not override a strict mesh, and calls of
    webhooks were refused."""
    strict = peer("mtls: {mode: STRICT}", namespace="istio-system")
    mesh = Mesh(SHOP, pod(), strict)
    assert open_in_plain_text(mesh, 80, 9443) == []
    mesh.apply(peer("selector: {matchLabels: {app: cart}}, portLevelMtls: {9443: {mode: PERMISSIVE}}", "webhook"))
    assert open_in_plain_text(mesh, 80, 9443) == [9443]
    mesh.delete("PeerAuthentication", "shop", "webhook")
    assert open_in_plain_text(mesh, 80, 9443) == []


@pytest.mark.fault(40)
def test_several_strict_ports_are_each_strict() -> None:
    """Fault 40: several strict ports became one condition that no connection meets, so nothing was enforced."""
    ports = "portLevelMtls: {80: {mode: STRICT}, 90: {mode: STRICT}}"
    mesh = Mesh(SHOP, pod(), peer(f"selector: {{matchLabels: {{app: cart}}}}, mtls: {{mode: PERMISSIVE}}, {ports}"))
    assert open_in_plain_text(mesh, 80, 90, 100) == [100]


@pytest.mark.fault(42)
def test_a_port_of_a_policy_is_the_containers_and_nothing_guesses_the_services() -> None:
    """Fault 42: people wrote the service's port, and only the container's counts. It is sent as written, so what is
    enforced is what the policy says; the warning that no workload listens there is for an analyzer, which does not
    exist yet, since a container may listen where it declares nothing."""
    service = """
kind: Service
metadata: {namespace: shop, name: cart}
spec: {clusterIP: 10.8.0.1, selector: {app: cart}, ports: [{port: 8000, targetPort: 80}]}
"""
    rule = "rules: [{to: [{operation: {ports: ['%s']}}]}]"
    mesh = Mesh(SHOP, service, pod(), policy(rule % 8000))
    assert (is_allowed(mesh, 80), is_allowed(mesh, 8000)) == (False, True)
    mesh.apply(policy(rule % 80))
    assert (is_allowed(mesh, 80), is_allowed(mesh, 8000)) == (True, False)


@pytest.mark.fault(43)
def test_a_selector_in_the_root_namespace_is_ignored_and_said_to_be() -> None:
    """Fault 43: a PeerAuthentication with a selector in the root namespace had no effect, without a word."""
    mesh = Mesh(SHOP, pod())
    selective = peer("selector: {matchLabels: {app: cart}}, mtls: {mode: STRICT}", "some", "istio-system")
    mesh.apply(selective)
    assert open_in_plain_text(mesh, 80) == [80]
    (told,) = mesh.problems("PeerAuthentication", "some", "istio-system")
    assert "spec.selector" in told


@pytest.mark.fault(45)
def test_every_edit_of_a_policy_is_one_change_and_its_end_a_removal() -> None:
    """Fault 45: an updated policy had no effect until it was made again, and after restarts everything was allowed."""
    mesh = Mesh(SHOP, pod(), policy("selector: {matchLabels: {app: cart}}, rules: [{}]"))
    for port in (80, 90, 100):
        rule = f"rules: [{{to: [{{operation: {{ports: ['{port}']}}}}]}}]"
        assert mesh.apply(policy(f"selector: {{matchLabels: {{app: cart}}}}, {rule}")) == Sent({"shop/p"})
        assert [each for each in (80, 90, 100) if is_allowed(mesh, each)] == [port]
    fresh = mesh.join()
    assert fresh.holds.policies == mesh.ztunnel.holds.policies
    assert mesh.delete("AuthorizationPolicy", "shop", "p") == Sent({pod_uid("cart-0")}, {"shop/p"})
    assert is_allowed(mesh, 80)


@pytest.mark.fault(46)
def test_a_denial_that_a_ztunnel_cannot_enforce_says_so() -> None:
    """Fault 46: a DENY of nothing but HTTP attributes is skipped by ztunnels, and its status claimed a broader
    denial."""
    spec = "action: DENY, rules: [{from: [{source: {notRequestPrincipals: ['*']}}]}]"
    mesh = Mesh(SHOP, pod(), policy(spec))
    assert is_allowed(mesh, 80)
    condition = mesh.conditions("AuthorizationPolicy", "p")["ZtunnelAccepted"]
    assert condition.reason == "UnsupportedValue"
    assert "no effect" in condition.message
    assert "waypoint" in condition.message


@pytest.mark.fault(48)
def test_the_bound_waypoint_is_let_through_where_that_is_asked_for() -> None:
    """Fault 48: rules of layer 4 broke when a waypoint was added, since the caller at the pod is then the waypoint.
    With the option, the waypoint that a pod's services are bound to is let through by a policy of ours."""
    text = """
kind: Gateway
metadata: {namespace: shop, name: wp}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
status: {addresses: [{type: Hostname, value: wp.shop.svc.cluster.local}]}
---
kind: Service
metadata: {namespace: shop, name: cart, labels: {istio.io/use-waypoint: wp}}
spec: {clusterIP: 10.8.0.1, selector: {app: cart}, ports: [{port: 80}]}
"""
    instance = pod("wp-0", app="wp", labels="gateway.networking.k8s.io/gateway-name: wp")
    rule = policy("rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]")
    waypoint = "spiffe://cluster.local/ns/shop/sa/wp"
    without = Mesh(SHOP, pod(), text, instance, rule)
    assert (is_allowed(without, 80, CLIENT), is_allowed(without, 80, waypoint)) == (True, False)
    mesh = Mesh(SHOP, pod(), text, instance, rule, rules=Rules(auto_allow_waypoints=True))
    assert (is_allowed(mesh, 80, CLIENT), is_allowed(mesh, 80, waypoint)) == (True, True)
    assert not is_allowed(mesh, 80, "spiffe://cluster.local/ns/shop/sa/other")


@pytest.mark.fault(49)
def test_an_account_is_a_string_and_not_a_pattern() -> None:
    """Fault 49: names of accounts were put into regular expressions as they are."""
    mesh = Mesh(SHOP, pod(), policy("rules: [{from: [{source: {principals: ['cluster.local/ns/shop/sa/a.b+c']}}]}]"))
    for account, is_right in (("a.b+c", True), ("aXb+c", False), ("a.bbc", False), ("a.b+cd", False)):
        assert is_allowed(mesh, 80, f"spiffe://cluster.local/ns/shop/sa/{account}") is is_right
    (match,) = (
        match for group in mesh.policy("p").groups for rule in group.rules for match in rule.matches if match.principals
    )
    assert [principal.exact for principal in match.principals] == ["cluster.local/ns/shop/sa/a.b+c"]


@pytest.mark.fault(51)
def test_a_dry_run_is_never_enforced() -> None:
    """Fault 51: a dry run was enforced. By default it is not sent, as older ztunnels would enforce it; with the
    option it carries its flag."""
    text = policy("action: DENY, rules: [{}]", meta="annotations: {istio.io/dry-run: 'true'}")
    mesh = Mesh(SHOP, pod())
    assert mesh.apply(text) == NOTHING
    assert is_allowed(mesh, 80)
    served = Mesh(SHOP, pod(), text, rules=Rules(serve_dry_run_policies=True))
    assert served.policy("p").dry_run
    assert served.policy("p").action == api.DENY
    assert is_allowed(served, 80)
    served.apply(text.replace("'true'", "'false'"))
    assert not is_allowed(served, 80)
