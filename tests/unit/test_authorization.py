"""AuthorizationPolicies: the tables, the golden conversions, what is reported, what a change recomputes, and that
nothing is ever allowed that the documentation of the policy would not allow."""

from __future__ import annotations

from typing import Any

import pytest

from ambientd.index import authorization
from ambientd.index.authorization_conversion import PolicyVerdict, Verdict
from ambientd.index.rules import Rules
from tests.cases.loader import comparable
from tests.unit.policy_graph import MESH_CONFIG, ROOT, PolicyGraph, policy, rows, rules_of

SELECTOR = {"matchLabels": {"app": "till"}}
TABLE = rows("policies/authorization.json")
LISTS = rows("policies/lists.json")
CONVERSIONS = rows("golden/policies/policies-conversion.json")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["id"])
def test_a_policy_becomes_what_the_table_says(row: dict[str, Any]) -> None:
    graph = PolicyGraph(rules_of(row.get("environment", {})))
    graph.apply(row["objects"])
    served = [comparable(message) for message in graph.authorizations().values()]
    assert served == ([] if row["authorization"] is None else [comparable(row["authorization"])])
    assert _condition(graph.verdict(row["objects"][0])) == row["condition"]


def _condition(verdict: PolicyVerdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "status": str(verdict.is_accepted),
        "reason": verdict.reason,
        "verdict": verdict.verdict.value,
        "attributes": list(verdict.attributes),
    }


@pytest.mark.parametrize("row", LISTS, ids=lambda row: row["id"])
def test_a_workload_lists_what_the_table_says(row: dict[str, Any]) -> None:
    graph = PolicyGraph(rules_of(row.get("environment", {})))
    graph.apply(row["objects"])
    for number, workload in enumerate(row["workloads"]):
        graph.add_workload(str(number), workload["namespace"], workload["labels"])
        assert graph.lists(str(number)) == workload["lists"]


def test_random_policies_become_what_a_real_control_plane_made_of_them() -> None:
    graph = PolicyGraph()
    for row in CONVERSIONS:
        row["object"] = {"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", **row["object"]}
    graph.apply(row["object"] for row in CONVERSIONS)
    served = graph.authorizations()
    for row in CONVERSIONS:
        metadata = row["object"]["metadata"]
        message = served.pop(f"{metadata['namespace']}/{metadata['name']}", None)
        assert comparable(message) == comparable(row["resource"]), metadata["name"]
        verdict = graph.verdict(row["object"])
        condition = None if verdict is None else [str(verdict.is_accepted), verdict.reason]
        assert condition == row["condition"], metadata["name"]
    assert served == {}


# The verdict.


def test_the_message_names_what_is_not_enforced() -> None:
    attributes = [{"to": [{"operation": {"paths": ["/"], "methods": ["GET"]}}], "when": [{"key": "connection.sni"}]}]
    graph = PolicyGraph()
    denying = policy("deny", action="DENY", rules=attributes)
    allowing = policy("allow", rules=attributes)
    graph.apply([denying, allowing])
    names = "not enforceable at layer 4: connection.sni, methods, paths."
    attach = "Attach the policy to a waypoint with targetRefs."
    deny, allow = graph.verdict(denying), graph.verdict(allowing)
    assert deny is not None
    assert deny.message == f"{names} No rule of this DENY policy can match without them, so it has no effect. {attach}"
    assert allow is not None
    assert allow.message == (
        f"{names} ALLOW rules that use these attributes are left out, so fewer connections are allowed than written."
        f" {attach}"
    )


def test_the_verdict_carries_the_generation_that_was_judged() -> None:
    graph = PolicyGraph()
    judged = policy("a", rules=[{}])
    graph.apply([{**judged, "metadata": {**judged["metadata"], "generation": 7}}])
    verdict = graph.verdict(judged)
    assert verdict == PolicyVerdict(Verdict.ACCEPTED, (), "policy is served to ztunnel", 7)


# What is reported.


def test_every_value_that_is_left_out_is_reported_with_what_follows() -> None:
    bad = {"from": [{"source": {"namespaces": ["lab"], "ipBlocks": ["10.0.0.300"]}}]}
    graph = PolicyGraph()
    allowing = policy("allow", rules=[bad, {"to": [{"operation": {"ports": ["80", "http"]}}]}])
    denying = policy("deny", action="DENY", rules=[bad])
    graph.apply([allowing, denying])
    path = "spec.rules[0].from[0].source.ipBlocks"
    assert graph.faults(allowing) == [
        f"{path}[0] must be an IP address or a CIDR, got '10.0.0.300'; this value is left out",
        f"{path} must have a value that can be used; this part matches nothing, so it allows nothing",
        "spec.rules[1].to[0].operation.ports[1] must be a port number up to 65535, got 'http'; this value is left out",
    ]
    assert graph.faults(denying) == [
        f"{path}[0] must be an IP address or a CIDR, got '10.0.0.300'; this value is left out",
        f"{path} must have a value that can be used; this constraint is dropped, so more is denied than written",
    ]


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (
            {"action": "DENY", "rules": [{"from": [{"source": {"notRequestPrincipals": ["*"]}}]}]},
            "spec.rules[0] must use only attributes that ztunnel knows at layer 4, got 'notRequestPrincipals';"
            " this rule denies nothing; attach the policy to a waypoint with targetRefs",
        ),
        (
            {"action": "DENY", "rules": [{"to": [{"operation": {"ports": ["80"], "methods": ["GET"]}}]}]},
            "spec.rules[0] must use only attributes that ztunnel knows at layer 4, got 'methods'; they are ignored, so"
            " more is denied than written; attach the policy to a waypoint with targetRefs",
        ),
        (
            {"rules": [{"when": [{"key": "source.serviceAccount", "values": ["lab/x"]}]}]},
            "spec.rules[0] must use only attributes that ztunnel knows at layer 4, got 'source.serviceAccount';"
            " this rule is left out, so less is allowed than written; attach the policy to a waypoint with targetRefs",
        ),
        (
            {"action": "AUDIT", "rules": [{}]},
            "spec.action must be ALLOW or DENY for a ztunnel to enforce it, got 'AUDIT'; ztunnels do not get the"
            " policy; attach the policy to a waypoint with targetRefs",
        ),
        (
            {"action": "DENY"},
            "spec.rules must not be empty with action DENY; the policy denies nothing",
        ),
        (
            {"action": "DENY", "rules": [{"from": [{}]}]},
            "spec.rules[0].from[0].source must have at least one field; this part matches nothing, so it denies"
            " nothing",
        ),
        (
            {"action": "DENY", "rules": [{"to": [{"operation": {"notPorts": ["http"]}}]}]},
            "spec.rules[0].to[0].operation.notPorts must have a value that can be used; this part matches nothing, so"
            " it denies nothing",
        ),
        (
            {"rules": [{"from": [{"source": {"principals": ["spiffe://corp.example/ns/a/sa/b"]}}]}]},
            "spec.rules[0].from[0].source.principals[0] must not begin with spiffe://, got"
            " 'spiffe://corp.example/ns/a/sa/b'; this value matches no peer",
        ),
        (
            {"selector": SELECTOR, "targetRefs": [{"kind": "Service", "name": "cart"}]},
            "spec.selector must not stand beside targets; the targets count, and ztunnels do not get the policy; make"
            " two policies of it",
        ),
    ],
)
def test_a_policy_that_says_more_than_is_enforced_is_reported(spec: dict[str, Any], fault: str) -> None:
    graph = PolicyGraph()
    reported = policy("a", **spec)
    graph.apply([reported])
    assert graph.faults(reported)[-1] == fault


def test_a_dry_run_that_cannot_be_read_is_enforced_and_reported() -> None:
    graph = PolicyGraph()
    reported = policy("a", annotations={"istio.io/dry-run": "yes"}, rules=[{}])
    graph.apply([reported])
    assert graph.faults(reported) == [
        "metadata.annotations[istio.io/dry-run] must be true or false, got 'yes'; the policy counts as not dry-run and"
        " is enforced"
    ]


def test_the_faults_of_one_object_are_bounded() -> None:
    graph = PolicyGraph()
    reported = policy("a", rules=[{"to": [{"operation": {"ports": ["x"] * 1000}}]}])
    graph.apply([reported])
    faults = graph.faults(reported)
    assert (len(faults), faults[-1]) == (33, "spec has 969 more faults; they are not listed")


# Which policies exist.


def test_a_policy_of_another_revision_or_of_an_undiscovered_namespace_does_not_exist() -> None:
    selectors = "discoverySelectors: [{matchLabels: {mesh: 'on'}}]\n"
    config = {**MESH_CONFIG, "data": {"mesh": MESH_CONFIG["data"]["mesh"] + selectors}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"mesh": "on"}}}
    ours = policy("ours", rules=[{}])
    theirs = {**policy("theirs"), "metadata": {"name": "theirs", "namespace": "shop", "labels": {"istio.io/rev": "x"}}}
    graph = PolicyGraph(mesh_config=config)
    graph.apply([ours, theirs, policy("far", "lab")])
    assert graph.served() == {}
    graph.apply([namespace])
    assert list(graph.served()) == ["shop/ours"]
    graph.apply([{**theirs, "metadata": {**theirs["metadata"], "labels": {"istio.io/rev": "stable"}}}])
    assert sorted(graph.served()) == ["shop/ours", "shop/theirs"]
    graph.apply([{**namespace, "metadata": {"name": "shop"}}])
    assert graph.served() == {}
    assert graph.verdict(ours) is None


def test_an_object_that_cannot_be_decoded_leaves_its_last_version_and_the_others_alone() -> None:
    graph = PolicyGraph()
    graph.apply([policy("a", action="DENY", rules=[{}])])
    before = graph.authorizations()
    graph.apply([policy("a", action="PERMIT"), policy("b", action="PERMIT"), policy("c")])
    assert graph.authorizations() == {**before, "shop/c": {"name": "c", "namespace": "shop", "scope": "NAMESPACE"}}


def test_the_root_namespace_decides_the_scope() -> None:
    graph = PolicyGraph()
    graph.apply([policy("a", ROOT), policy("b", "shop")])
    assert [graph.served()[name].scope for name in ("mesh-root/a", "shop/b")] == [0, 1]
    graph.apply([{**MESH_CONFIG, "data": {"mesh": "rootNamespace: shop"}}])
    assert [graph.served()[name].scope for name in ("mesh-root/a", "shop/b")] == [1, 0]


def test_a_file_cannot_take_the_place_of_a_policy_that_we_make() -> None:
    graph = PolicyGraph()
    names = ["istio_converted_static_strict", "converted_peer_authentication_w", "istio_allow_waypoint_shop_wp"]
    for name in names:
        graph.apply([policy(name, rules=[{}])])
        fault = f"metadata.name must not be a reserved name, got '{name}'; ztunnels do not get the policy"
        assert graph.faults(policy(name)) == [fault]
    assert graph.served() == {}


# What a change recomputes.


def test_a_change_of_rules_reaches_no_workload() -> None:
    graph = PolicyGraph()
    graph.add_workload("till", "shop", {"app": "till"})
    graph.apply([policy("a", selector=SELECTOR, rules=[{}])])
    version = graph.served()["shop/a"].version
    graph.gathered.clear()
    graph.apply([policy("a", selector=SELECTOR, rules=[])])
    assert graph.served()["shop/a"].version != version
    assert graph.gathered == []


def test_a_change_of_a_selector_reaches_only_workloads_with_its_first_label() -> None:
    graph = PolicyGraph()
    for name, namespace, app in (("till", "shop", "till"), ("other", "shop", "other"), ("far", "lab", "till")):
        graph.add_workload(name, namespace, {"app": app})
    graph.gathered.clear()
    graph.apply([policy("a", selector={"matchLabels": {"app": "till", "ver": "v1"}})])
    assert graph.gathered == ["shop app=till"]
    assert graph.lists("till") == []
    graph.apply([policy("a", selector=SELECTOR)])
    assert [graph.lists(name) for name in ("till", "other", "far")] == [["shop/a"], [], []]
    graph.apply([policy("a", selector={"matchLabels": {"app": "other"}})])
    assert [graph.lists(name) for name in ("till", "other", "far")] == [[], ["shop/a"], []]


def test_a_policy_that_is_no_longer_served_is_no_longer_listed() -> None:
    graph = PolicyGraph()
    graph.add_workload("till", "shop", {"app": "till"})
    specs: list[dict[str, Any]] = [
        {"selector": SELECTOR, "action": "AUDIT"},
        {"selector": SELECTOR, "targetRefs": [{"kind": "Service", "name": "cart"}]},
        {},
    ]
    for spec in specs:
        graph.apply([policy("a", selector=SELECTOR)])
        assert graph.lists("till") == ["shop/a"]
        graph.apply([policy("a", **spec)])
        assert graph.lists("till") == []


def test_nothing_is_left_when_all_objects_are_gone() -> None:
    graph = PolicyGraph()
    empty = graph.graph.sizes()
    manifests = [row["objects"][0] for row in TABLE] + [manifest for row in LISTS for manifest in row["objects"]]
    graph.add_workload("till", "shop", {"app": "till"})
    graph.apply(manifests)
    graph.delete(*manifests)
    graph.remove_workload("till")
    assert graph.graph.sizes() == empty


def test_dry_run_policies_are_served_and_listed_only_with_their_flag() -> None:
    dry = policy("dry", annotations={"istio.io/dry-run": "true"}, selector=SELECTOR)
    for flag in (False, True):
        graph = PolicyGraph(Rules(revision="stable", serve_dry_run_policies=flag))
        graph.add_workload("till", "shop", {"app": "till"})
        graph.apply([dry])
        assert [each.is_dry_run for each in graph.served().values()] == [True] * flag
        assert graph.lists("till") == ["shop/dry"] * flag


def test_every_served_policy_stands_under_its_ref() -> None:
    graph = PolicyGraph()
    graph.apply([policy("a"), policy("a", ROOT)])
    held = {str(ref): each.name for ref, each in graph.graph.items(authorization.POLICIES)}
    assert held == {"AuthorizationPolicy shop/a": "shop/a", "AuthorizationPolicy mesh-root/a": "mesh-root/a"}
