"""What a ztunnel decides by a converted AuthorizationPolicy against what the documentation of AuthorizationPolicy says
of the written one: an ALLOW is never widened, the layer 4 part of a DENY is never narrowed, and no text stops a
conversion."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ambientd.index.authorization_conversion import PolicyKey, Verdict, convert
from ambientd.resources.events import Put
from ambientd.resources.manifest import decode_manifest
from ambientd.resources.security import AuthorizationPolicy, Condition, Operation, Rule, Source
from ambientd_api.security_pb2 import Authorization
from tests.cases.loader import golden
from tests.model.verdict import Connection, allows
from tests.unit.policy_graph import policy

Fields = Mapping[str, Any]

_STRINGS: Mapping[str, Sequence[str]] = {
    "principals": ["corp.example/ns/lab/sa/web", "corp.example/ns/shop/*", "*/sa/web", "*", "", "spiffe://x"],
    "namespaces": ["lab", "sh*", "*op", "*", "other"],
    "serviceAccounts": ["lab/web", "web", "shop/cart", "a/b/c"],
    "ipBlocks": ["10.1.0.5", "10.1.0.5/16", "fd00::/8", "0.0.0.0/0", "10.0.0.0/33", "nope", "::ffff:10.1.0.5"],
    "ports": ["80", "0443", "70000", "http"],
}
_KEYS = {
    "source.principal": "principals",
    "source.namespace": "namespaces",
    "source.ip": "ipBlocks",
    "destination.ip": "ipBlocks",
    "destination.port": "ports",
}
_UNSUPPORTED_KEYS = ("remote.ip", "source.serviceAccount", "request.headers[a]", "connection.sni", "")


def _field_of(name: str) -> str:
    """The positive field of a field that may be negated."""
    return name[3].lower() + name[4:] if re.match("not[A-Z]", name) else name


def _values(field: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(_STRINGS[field]), min_size=1, max_size=3)


def _element(supported: Sequence[str], unsupported: Sequence[str]) -> st.SearchStrategy[dict[str, list[str]]]:
    lists: dict[str, st.SearchStrategy[list[str]]] = {name: _values(_field_of(name)) for name in supported}
    lists |= {name: st.just(["x"]) for name in unsupported}
    # Three fields at most, or nothing would ever match.
    return st.lists(st.sampled_from(sorted(lists)), unique=True, max_size=3).flatmap(
        lambda names: st.fixed_dictionaries({name: lists[name] for name in names})
    )


_SOURCE = _element(
    [
        *("principals", "notPrincipals", "namespaces", "notNamespaces"),
        *("serviceAccounts", "notServiceAccounts", "ipBlocks", "notIpBlocks"),
    ],
    ["requestPrincipals", "notTrustDomains"],
)
_OPERATION = _element(["ports", "notPorts"], ["methods", "notPaths"])
_CONDITION = st.sampled_from([*_KEYS, *_UNSUPPORTED_KEYS]).flatmap(
    lambda key: st.fixed_dictionaries(
        {"key": st.just(key)},
        optional={"values": _values(_KEYS.get(key, "ports")), "notValues": _values(_KEYS.get(key, "ports"))},
    )
)
_RULE = st.fixed_dictionaries(
    {},
    optional={
        "from": st.lists(_SOURCE.map(lambda fields: {"source": fields}), min_size=1, max_size=2),
        "to": st.lists(_OPERATION.map(lambda fields: {"operation": fields}), min_size=1, max_size=2),
        "when": st.lists(_CONDITION, min_size=1, max_size=2),
    },
)
_CONNECTIONS = [
    Connection(source, "10.1.2.3", port, identity)
    for source in ("10.1.0.5", "192.0.2.1", "fd00::7")
    for port in (80, 443)
    for identity in (None, *(f"spiffe://corp.example/ns/{name}" for name in ("lab/sa/web", "shop/sa/cart", "x/sa/y")))
]


# What the documentation says, of a rule as written.


def _identity(connection: Connection) -> tuple[str, str, str]:
    """Principal, namespace and service account; all empty without an identity."""
    if connection.identity is None:
        return "", "", ""
    principal = connection.identity.removeprefix("spiffe://")
    _, _, namespace, _, account = principal.split("/")
    return principal, namespace, f"{namespace}/{account}"


def _is_met(field: str, value: str, connection: Connection, destination: bool = False) -> bool:
    principal, namespace, account = _identity(connection)
    match field:
        case "principals":
            return _text_is(value, principal)
        case "namespaces":
            return _text_is(value, namespace)
        case "serviceAccounts":
            return account != "" and (value if "/" in value else f"shop/{value}") == account
        case "ipBlocks":
            try:
                network = ipaddress.ip_network(value, strict=False)
            except ValueError:
                return False
            return ipaddress.ip_address(connection.destination_ip if destination else connection.source_ip) in network
        case _:
            return value.isdigit() and int(value) == connection.destination_port


def _text_is(value: str, text: str) -> bool:
    """Exact, prefix, suffix and presence; no form matches a peer without identity."""
    if not text:
        return False
    if value.startswith("*"):
        return text.endswith(value[1:])
    return text.startswith(value[:-1]) if value.endswith("*") else value == text


def _is_usable(field: str, value: str) -> bool:
    if field == "ports":
        return value.isdigit() and int(value) <= 65535
    if field == "ipBlocks":
        try:
            ipaddress.ip_network(value, strict=False)
        except ValueError:
            return False
    return True


def _element_holds(lists: Fields, connection: Connection, *, is_deny: bool, destination: bool = False) -> bool:
    """Whether an element holds. What layer 4 cannot see never holds in an ALLOW, and is passed over in a DENY, unless
    nothing else stands beside it, as is documented of ztunnels."""
    fields = [(name, _field_of(name), values) for name, values in lists.items()]
    seen = [each for each in fields if each[1] in _STRINGS]
    if is_deny:
        seen = [(name, field, [value for value in values if _is_usable(field, value)]) for name, field, values in seen]
        seen = [each for each in seen if each[2]]
    elif len(seen) < len(fields):
        return False
    return bool(seen) and all(
        any(_is_met(field, value, connection, destination) for value in values) is (name == field)
        for name, field, values in seen
    )


def _condition_holds(condition: Fields, connection: Connection, *, is_deny: bool) -> bool:
    field = _KEYS.get(condition["key"])
    if field is None:
        return False
    negated = "not" + field[0].upper() + field[1:]
    lists = {field: condition.get("values"), negated: condition.get("notValues")}
    written = {name: values for name, values in lists.items() if values}
    return _element_holds(written, connection, is_deny=is_deny, destination=condition["key"] == "destination.ip")


def _rule_holds(rule: Fields, connection: Connection, *, is_deny: bool) -> bool:
    return (
        ("from" not in rule or any(_element_holds(e["source"], connection, is_deny=is_deny) for e in rule["from"]))
        and ("to" not in rule or any(_element_holds(e["operation"], connection, is_deny=is_deny) for e in rule["to"]))
        and all(_condition_holds(condition, connection, is_deny=is_deny) for condition in rule.get("when", ()))
    )


def _converted(rules: Sequence[Fields], action: str) -> dict[str, Any]:
    put = decode_manifest(dict(policy("a", action=action, rules=list(rules))), "Kubernetes")
    assert isinstance(put, Put)
    decoded = put.object
    assert isinstance(decoded, AuthorizationPolicy)
    served = convert(_key(decoded.rules, action)).policy
    assert served is not None
    return golden(Authorization.FromString(served.body))


def _key(rules: Sequence[Rule], action: str) -> PolicyKey:
    return PolicyKey(
        namespace="shop",
        name="a",
        generation=1,
        is_in_root=False,
        has_selector=False,
        has_targets=False,
        action=action,
        dry_run="",
        serves_dry_run=False,
        rules=tuple(rules),
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(_RULE, max_size=3))
def test_an_allow_admits_no_connection_that_it_does_not_admit_as_written(rules: list[Fields]) -> None:
    held = {"shop/a": _converted(rules, "ALLOW")}
    for connection in _CONNECTIONS:
        if allows({"namespace": "shop"}, held, connection):
            assert any(_rule_holds(rule, connection, is_deny=False) for rule in rules), connection


@settings(max_examples=300, deadline=None)
@given(st.lists(_RULE, max_size=3))
def test_a_deny_refuses_every_connection_that_its_layer_4_part_refuses(rules: list[Fields]) -> None:
    held = {"shop/a": _converted(rules, "DENY")}
    for connection in _CONNECTIONS:
        if any(_rule_holds(rule, connection, is_deny=True) for rule in rules):
            assert not allows({"namespace": "shop"}, held, connection), connection


# No text stops a conversion, and nothing is sent that a ztunnel would drop or truncate.

_TEXTS = st.lists(st.text(max_size=6) | st.from_regex(r"[0-9a-f.:/%*]{0,12}"), max_size=3).map(tuple)
_SOURCES = st.builds(
    Source, _TEXTS, _TEXTS, _TEXTS, _TEXTS, _TEXTS, _TEXTS, _TEXTS, _TEXTS, st.sampled_from([(), ("x",)])
)
_OPERATIONS = st.builds(Operation, _TEXTS, _TEXTS, st.sampled_from([(), ("hosts",)]))
_CONDITIONS = st.builds(Condition, st.sampled_from([*_KEYS, *_UNSUPPORTED_KEYS]) | st.text(), _TEXTS, _TEXTS)
_RULES = st.lists(
    st.builds(
        Rule,
        st.lists(_SOURCES, max_size=2).map(tuple),
        st.lists(_OPERATIONS, max_size=2).map(tuple),
        st.lists(_CONDITIONS, max_size=2).map(tuple),
    ),
    max_size=3,
)


@settings(max_examples=300, deadline=None)
@given(_RULES, st.sampled_from(["ALLOW", "DENY"]))
def test_whatever_was_decoded_becomes_a_message_that_a_ztunnel_reads_in_full(rules: list[Rule], action: str) -> None:
    conversion = convert(_key(rules, action))
    assert conversion.policy is not None
    assert conversion.verdict is not None
    message = Authorization.FromString(conversion.policy.body)
    matches = [match for group in message.groups for entry in group.rules for match in entry.matches]
    assert all(entry.matches for group in message.groups for entry in group.rules)
    for match in matches:
        for text in (*match.principals, *match.not_principals, *match.namespaces, *match.not_namespaces):
            assert text.WhichOneof("match_type") is not None
        blocks = (*match.source_ips, *match.not_source_ips, *match.destination_ips, *match.not_destination_ips)
        assert all(block.length <= 8 * len(block.address) and len(block.address) in (4, 16) for block in blocks)
        assert all(port <= 65535 for port in (*match.destination_ports, *match.not_destination_ports))
    if action == "ALLOW":
        assert not any(
            text.WhichOneof("match_type") == "exact" and not text.exact for m in matches for text in m.namespaces
        )


@settings(max_examples=200, deadline=None)
@given(st.lists(_RULE, max_size=3))
def test_a_deny_is_called_inert_exactly_when_it_denies_nothing_for_want_of_layer_4_attributes(
    rules: list[Fields],
) -> None:
    put = decode_manifest(dict(policy("a", action="DENY", rules=list(rules))), "Kubernetes")
    assert isinstance(put, Put)
    assert isinstance(put.object, AuthorizationPolicy)
    verdict = convert(_key(put.object.rules, "DENY")).verdict
    assert verdict is not None
    groups = _converted(rules, "DENY").get("groups", [])
    is_inert = not any(all(any(entry["matches"]) for entry in group.get("rules", [])) for group in groups)
    assert (verdict.verdict is Verdict.DENY_INERT) is (is_inert and bool(verdict.attributes))
