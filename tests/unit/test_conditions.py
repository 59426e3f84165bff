"""Status conditions as values: beside the golden cases, what their messages say, and when they go (waypoints.md 11;
policies.md 10)."""

from __future__ import annotations

import pytest

from ambientd.index.conditions import SERVICE_CONDITIONS, Condition
from ambientd.index.policy_conditions import POLICY_CONDITIONS
from ambientd.index.rules import Rules
from ambientd.index.world import CONDITIONS, World
from tests.unit.worlds import delete, events, ref, world

BOUND = "istio.io/WaypointBound"
WAYPOINT = """
kind: Gateway
metadata: {namespace: shop, name: wp}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
status: {addresses: [{type: Hostname, value: wp.shop.svc.cluster.local}]}
"""
SERVICE = """
kind: Service
metadata: {namespace: shop, name: cart, labels: {istio.io/use-waypoint: wp%s}, annotations: {%s}}
spec: {clusterIP: 10.8.0.1, ports: [{name: http, port: 80}]}
"""
ENTRY = """
kind: ServiceEntry
metadata: {namespace: shop, name: %s, creationTimestamp: "2026-01-0%dT00:00:00Z"}
spec: {hosts: [%s], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}]}
"""
POLICY = """
kind: AuthorizationPolicy
metadata: {namespace: shop, name: till, generation: 4, annotations: {%s}}
spec: {targetRefs: [%s], rules: [{}]}
"""
MESH = """
kind: ConfigMap
metadata: {namespace: istio-system, name: istio}
data: {mesh: "%s"}
"""


def the_one(made: World, kind: str, name: str) -> Condition:
    (condition,) = made.conditions()[ref(kind, "shop", name)]
    return condition


def types(made: World, kind: str, name: str) -> list[str]:
    return [each.type for each in made.conditions_of(ref(kind, "shop", name))]


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ("", "bound to waypoint shop/wp"),
        (
            ", istio.io/ingress-use-waypoint: 'true'",
            "bound to waypoint shop/wp; traffic from ingress gateways passes it too",
        ),
        (
            ", istio.io/ingress-use-waypoint: 'false'",
            "bound to waypoint shop/wp; traffic from ingress gateways does not pass it: "
            "set the label istio.io/ingress-use-waypoint=true",
        ),
    ],
)
def test_the_message_tells_of_ingress_where_somebody_asked(labels: str, says: str) -> None:
    made = world(WAYPOINT, SERVICE % (labels, ""))
    assert the_one(made, "Service", "cart") == Condition(BOUND, "True", "WaypointAccepted", says)


@pytest.mark.parametrize(
    ("canary", "weight", "reason"),
    [("wp", "5", "CanarySameAsPrimary"), ("other", "x", "CanaryInvalidWeight"), ("other", "5", "WaypointIsNotReady")],
)
def test_a_canary_that_is_not_used_is_told_in_the_message(canary: str, weight: str, reason: str) -> None:
    labels = f", istio.io/use-waypoint-canary: {canary}"
    made = world(WAYPOINT, SERVICE % (labels, f"istio.io/use-waypoint-canary-weight: '{weight}'"))
    condition = the_one(made, "Service", "cart")
    assert (condition.status, condition.reason) == ("True", "WaypointAccepted")
    assert f"no canary ({reason}): waypoint shop/{canary} " in condition.message


def test_conditions_go_with_the_record() -> None:
    made = world(WAYPOINT, SERVICE % ("", ""))
    assert types(made, "Service", "cart") == [BOUND]
    made.apply(events((SERVICE % ("", "")).replace("clusterIP: 10.8.0.1", "type: ExternalName, externalName: a.test")))
    assert made.conditions() == {}
    made.apply(events(SERVICE % ("", "")))
    delete(made, "Service", "shop", "cart")
    assert made.conditions() == {}


def test_an_entry_without_a_surviving_host_has_no_conditions() -> None:
    made = world(ENTRY % ("late", 2, "'*.a.test'"))
    assert types(made, "ServiceEntry", "late") == ["istio.io/WaypointMissing"]
    made.apply(events(ENTRY % ("early", 1, "'*.a.test'")))
    assert types(made, "ServiceEntry", "late") == []
    assert types(made, "ServiceEntry", "early") == ["istio.io/WaypointMissing"]
    made.apply(events(MESH % "serviceEntryVisibility: {defaultVisibility: NONE}"))
    assert made.conditions() == {}


def test_one_wildcard_among_several_hosts_is_enough() -> None:
    made = world(ENTRY % ("mixed", 1, "a.test, '*.b.test'"))
    condition = the_one(made, "ServiceEntry", "mixed")
    assert (condition.type, condition.reason) == ("istio.io/WaypointMissing", "NoWaypointForWildcardService")
    assert condition.message.endswith("*.b.test")


def test_the_visibility_is_told_as_soon_as_it_is_configured() -> None:
    made = world(ENTRY % ("plain", 1, "a.test"))
    assert made.conditions() == {}
    made.apply(events(MESH % "serviceEntryVisibility: {}"))
    assert the_one(made, "ServiceEntry", "plain").reason == "Public"


def test_a_suppressed_dry_run_policy_with_targets_has_both_conditions() -> None:
    targets = "{kind: Service, group: '', name: cart}"
    made = world(WAYPOINT, SERVICE % ("", ""), POLICY % ("istio.io/dry-run: 'true'", targets))
    waypoint, ztunnel = made.conditions()[ref("AuthorizationPolicy", "shop", "till")]
    assert (waypoint.type, waypoint.status, waypoint.reason) == ("WaypointAccepted", "True", "Accepted")
    assert (ztunnel.type, ztunnel.status, ztunnel.reason) == ("ZtunnelAccepted", "False", "UnsupportedValue")
    assert {waypoint.observed_generation, ztunnel.observed_generation} == {4}


def test_a_policy_whose_targets_are_all_bound_has_nothing_to_say() -> None:
    targets = "{kind: Service, group: '', name: cart}, {kind: Gateway, group: gateway.networking.k8s.io, name: wp}"
    made = world(WAYPOINT, SERVICE % ("", ""), POLICY % ("", targets))
    wanted = Condition("WaypointAccepted", "True", "Accepted", "", 4)
    assert the_one(made, "AuthorizationPolicy", "till") == wanted


def test_a_target_that_is_not_bound_tells_why() -> None:
    made = world(SERVICE % ("", ""), POLICY % ("", "{kind: Service, group: '', name: cart}"))
    condition = the_one(made, "AuthorizationPolicy", "till")
    assert condition.reason == "AncestorNotBound"
    assert condition.message.startswith("Service shop/cart is not bound to a waypoint: waypoint shop/wp is not ready")


def test_a_change_that_makes_no_difference_ends_before_the_policies() -> None:
    made = world(WAYPOINT, SERVICE % ("", ""), POLICY % ("", "{kind: Service, group: '', name: cart}"))
    transaction = made.begin(events((SERVICE % ("", "")).replace("port: 80", "port: 81")))
    transaction.step(lambda: False)
    assert [transaction.count(output) for output in CONDITIONS] == [0, 0, 0, 0]
    transaction.commit()
    assert POLICY_CONDITIONS in CONDITIONS
    assert SERVICE_CONDITIONS in CONDITIONS


def test_without_the_setting_there_are_none() -> None:
    made = world(WAYPOINT, SERVICE % ("", ""), ENTRY % ("e", 1, "'*.a.test'"), rules=Rules(writes_status=False))
    made.apply(events(POLICY % ("", "")))
    assert made.conditions() == {}


def test_objects_without_their_waypoint_are_counted_by_kind_and_reason() -> None:
    entry = "kind: WorkloadEntry\nmetadata: {namespace: shop, name: vm, labels: {istio.io/use-waypoint: wp}}\n"
    made = world(SERVICE % ("", ""), entry + "spec: {address: 192.0.2.1}")
    assert made.unbound() == {("Service", "WaypointIsNotReady"): 1, ("WorkloadEntry", "WaypointIsNotReady"): 1}
    made.apply(events(WAYPOINT))
    assert made.unbound() == {("WorkloadEntry", "UnsupportedTrafficType"): 1}


def test_policies_are_counted_by_verdict() -> None:
    spec = "spec: {action: %s, rules: [{to: [{operation: {methods: [GET]}}]}]}"
    policy = "kind: AuthorizationPolicy\nmetadata: {namespace: shop, name: %s}\n"
    made = world(policy % "a" + spec % "ALLOW", policy % "b" + spec % "DENY", policy % "c" + spec % "AUDIT")
    assert made.verdicts() == {"allow-omitted": 1, "deny-inert": 1, "action": 1}
