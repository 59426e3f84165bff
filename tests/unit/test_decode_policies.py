"""Policies are decoded field by field; nothing that is left out may allow more or deny less (policies.md 12)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ambientd.resources.decode import decode
from ambientd.resources.faults import Fault, Undecodable
from ambientd.resources.ref import Ref
from ambientd.resources.security import (
    AuthorizationPolicy,
    Condition,
    Operation,
    PeerAuthentication,
    PolicyTarget,
    Rule,
    Source,
)

NOT_ENFORCED = "the last good version stays in force; without one it is not enforced"
RULE_LOST = "the whole rule is left out"
VALUE_LOST = "this value is left out"


def policy(**spec: Any) -> tuple[AuthorizationPolicy, tuple[Fault, ...]]:
    raw = json.dumps({"metadata": {"name": "till", "namespace": "shop"}, "spec": spec}).encode()
    decoded, faults = decode(raw, "AuthorizationPolicy", "east")
    assert isinstance(decoded, AuthorizationPolicy)
    return decoded, faults


def authentication(**spec: Any) -> tuple[PeerAuthentication, tuple[Fault, ...]]:
    raw = json.dumps({"metadata": {"name": "till", "namespace": "shop"}, "spec": spec}).encode()
    decoded, faults = decode(raw, "PeerAuthentication", "east")
    assert isinstance(decoded, PeerAuthentication)
    return decoded, faults


def refused(**spec: Any) -> list[Fault]:
    with pytest.raises(Undecodable) as caught:
        policy(**spec)
    return list(caught.value.faults)


def test_a_whole_policy() -> None:
    decoded, faults = policy(
        action="DENY",
        selector={"matchLabels": {"b": "2", "a": "1"}},
        rules=[
            {
                "from": [{"source": {"principals": ["a"], "notIpBlocks": ["10.0.0.0/8"], "trustDomains": ["td"]}}],
                "to": [{"operation": {"ports": ["80"], "methods": ["GET"], "hosts": []}}],
                "when": [{"key": "source.ip", "values": ["10.0.0.1"], "notValues": []}],
            }
        ],
    )
    assert faults == ()
    assert decoded == AuthorizationPolicy(
        ref=Ref("east", "AuthorizationPolicy", "shop", "till"),
        labels=(),
        annotations=(),
        created="",
        generation=0,
        selector=(("a", "1"), ("b", "2")),
        targets=(),
        action="DENY",
        rules=(
            Rule(
                (Source(principals=("a",), not_ip_blocks=("10.0.0.0/8",), unsupported=("trustDomains",)),),
                (Operation(ports=("80",), unsupported=("methods",)),),
                (Condition("source.ip", ("10.0.0.1",)),),
            ),
        ),
    )


@pytest.mark.parametrize(
    "spec", [{}, {"action": None, "rules": None, "selector": None}, {"selector": {"matchLabels": {}}}]
)
def test_nothing_written_is_an_allow_of_nothing_for_the_namespace(spec: dict[str, Any]) -> None:
    decoded, faults = policy(**spec)
    assert (decoded.action, decoded.rules, decoded.selector, decoded.targets, faults) == ("ALLOW", (), (), (), ())


def test_null_elements_are_empty_ones_and_a_null_rule_is_left_out() -> None:
    decoded, faults = policy(
        rules=[
            None,
            {"from": [None, {}, {"source": None}], "to": [None, {"operation": None}], "when": [None]},
            {},
        ]
    )
    assert decoded.rules == (
        Rule((Source(), Source(), Source()), (Operation(), Operation()), (Condition(""),)),
        Rule(),
    )
    assert faults == (Fault("spec.rules[0]", "must be an object", "null", "this rule is left out"),)


def test_target_refs_come_before_the_single_target_ref() -> None:
    listed, single = {"kind": "Service", "name": "a"}, {"group": "g", "kind": "k", "name": "n", "namespace": "s"}
    assert policy(targetRefs=[listed, None], targetRef=single)[0].targets == (
        PolicyTarget("", "Service", "", "a"),
        PolicyTarget("", "", "", ""),
    )
    assert policy(targetRefs=[], targetRef=single)[0].targets == (PolicyTarget("g", "k", "s", "n"),)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"action": "PERMIT"}, Fault("spec.action", "must be one of ALLOW, DENY, AUDIT, CUSTOM", "'PERMIT'", "")),
        ({"action": ""}, Fault("spec.action", "must be one of ALLOW, DENY, AUDIT, CUSTOM", "''", "")),
        ({"action": ["DENY"]}, Fault("spec.action", "must be one of ALLOW, DENY, AUDIT, CUSTOM", "a list", "")),
        ({"selector": "app"}, Fault("spec.selector", "must be an object", "'app'", "")),
        (
            {"selector": {"matchLabels": {"app": None}}},
            Fault('spec.selector.matchLabels["app"]', "must be a string", "null", ""),
        ),
        ({"targetRefs": {}}, Fault("spec.targetRefs", "must be a list", "an object", "")),
        ({"targetRefs": [{"name": 1}]}, Fault("spec.targetRefs[0].name", "must be a string", "1", "")),
        ({"rules": {}}, Fault("spec.rules", "must be a list", "an object", "")),
    ],
)
def test_an_action_or_a_scope_that_is_not_understood_makes_the_policy_undecodable(
    spec: dict[str, Any], fault: Fault
) -> None:
    assert refused(**spec) == [Fault(fault.path, fault.rule, fault.got, NOT_ENFORCED)]


def rule_of(source: dict[str, Any]) -> dict[str, Any]:
    return {"from": [{"source": source}]}


S = "spec.rules[0].from[0].source"


@pytest.mark.parametrize(
    ("rule", "faults"),
    [
        ("text", [Fault("spec.rules[0]", "must be an object", "'text'", RULE_LOST)]),
        ({"from": {}}, [Fault("spec.rules[0].from", "must be a list", "an object", RULE_LOST)]),
        ({"from": ["a"]}, [Fault("spec.rules[0].from[0]", "must be an object", "'a'", RULE_LOST)]),
        ({"to": [{"operation": 1}]}, [Fault("spec.rules[0].to[0].operation", "must be an object", "1", RULE_LOST)]),
        ({"when": [{"key": 1}]}, [Fault("spec.rules[0].when[0].key", "must be a string", "1", RULE_LOST)]),
        (rule_of({"principals": "a"}), [Fault(f"{S}.principals", "must be a list", "'a'", RULE_LOST)]),
        (
            rule_of({"namespaces": ["x"], "notNamespaces": ["a", 1]}),
            [Fault(f"{S}.notNamespaces[1]", "must be a string", "1", RULE_LOST)],
        ),
        (
            rule_of({"namespaces": [1]}),
            [
                Fault(f"{S}.namespaces[0]", "must be a string", "1", VALUE_LOST),
                Fault(f"{S}.namespaces", "must hold a string", "a list", RULE_LOST),
            ],
        ),
    ],
)
def test_an_allow_rule_that_could_allow_more_is_left_out_and_a_deny_is_undecodable(
    rule: Any, faults: list[Fault]
) -> None:
    good = rule_of({"namespaces": ["good"]})
    allow, left_out = policy(rules=[rule, good])
    assert allow.rules == (Rule((Source(namespaces=("good",)),)),)
    assert list(left_out) == faults
    assert refused(action="DENY", rules=[rule, good]) == [
        Fault(faults[0].path, faults[0].rule, faults[0].got, NOT_ENFORCED)
    ]


def test_one_wrong_alternative_of_an_allow_is_left_out_alone() -> None:
    decoded, faults = policy(rules=[rule_of({"namespaces": ["a", 1, "b"]})])
    assert decoded.rules == (Rule((Source(namespaces=("a", "b")),)),)
    assert faults == (Fault(f"{S}.namespaces[1]", "must be a string", "1", VALUE_LOST),)


@pytest.mark.parametrize("action", ["ALLOW", "DENY"])
def test_a_number_among_ports_is_read_as_its_text_and_reported(action: str) -> None:
    operation = {"operation": {"ports": [80, "81"], "notPorts": [82]}}
    when = {"key": "destination.port", "values": [1], "notValues": [2]}
    decoded, faults = policy(action=action, rules=[{"to": [operation], "when": [when]}])
    assert decoded.rules == (
        Rule((), (Operation(("80", "81"), ("82",)),), (Condition("destination.port", ("1",), ("2",)),)),
    )
    assert [fault.got for fault in faults] == ["80", "82", "1", "2"]
    assert str(faults[0]) == (
        "spec.rules[0].to[0].operation.ports[0] must be a string, got 80; "
        'it is read as "80"; an API server would refuse it; write "80"'
    )


def test_an_unsupported_field_counts_as_present_even_with_a_wrong_type() -> None:
    decoded, _ = policy(rules=[{"to": [{"operation": {"paths": 1, "hosts": None, "methods": []}}]}])
    assert decoded.rules[0].operations[0].unsupported == ("paths",)


def test_modes_of_a_peer_authentication() -> None:
    decoded, faults = authentication(
        selector={"matchLabels": {"app": "a"}},
        mtls={"mode": "STRICT"},
        portLevelMtls={
            "8080": {"mode": "DISABLE"},
            "443": {},
            "0": {"mode": "STRICT"},
            "65536": {},
            "http": {},
            "080": {},
            "81": None,
        },
    )
    assert decoded == PeerAuthentication(
        Ref("east", "PeerAuthentication", "shop", "till"),
        (),
        "",
        (("app", "a"),),
        "STRICT",
        ((443, "UNSET"), (8080, "DISABLE")),
    )
    assert [(fault.path, fault.effect) for fault in faults] == [
        (f'spec.portLevelMtls["{key}"]', "this entry is left out") for key in ("0", "65536", "http", "080")
    ]


@pytest.mark.parametrize("spec", [{}, {"mtls": None}, {"mtls": {}}, {"mtls": {"mode": None}}])
def test_a_missing_mode_is_unset(spec: dict[str, Any]) -> None:
    assert authentication(**spec)[0].mode == "UNSET"


@pytest.mark.parametrize(
    "spec",
    [
        {"mtls": {"mode": "STRCIT"}},
        {"mtls": {"mode": 3}},
        {"mtls": "STRICT"},
        {"portLevelMtls": {"80": {"mode": "x"}}},
        {"portLevelMtls": []},
        {"selector": {"matchLabels": {"a": 1}}},
    ],
)
def test_a_mode_or_a_scope_that_is_not_understood_makes_it_undecodable(spec: dict[str, Any]) -> None:
    with pytest.raises(Undecodable, match="without one it is not enforced"):
        authentication(**spec)
