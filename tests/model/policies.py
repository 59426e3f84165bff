"""AuthorizationPolicy to Authorization, field by field (policies.md 3.5, 4, 5, 12)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.model import ip
from tests.model.manifests import TRUE_TEXTS, Labels, Manifest, annotations_of, dig, entries, name, namespace
from tests.model.mesh import Settings

Fields = dict[str, Any]

_UNSUPPORTED_IN_SOURCE = (
    "requestPrincipals", "notRequestPrincipals", "remoteIpBlocks", "notRemoteIpBlocks", "trustDomains",
    "notTrustDomains",
)  # fmt: skip
_UNSUPPORTED_IN_OPERATION = ("hosts", "notHosts", "methods", "notMethods", "paths", "notPaths")


class _MatchesNothing(Exception):
    """A positive list of an ALLOW policy has no value that can be used [H5]."""


def selector(policy: Manifest) -> Labels:
    """The labels of its selector; none for a policy without a selector, and for one whose selector is empty [H1]."""
    return dig(policy, "spec", "selector", "matchLabels") or {}


def is_served(policy: Manifest, settings: Settings) -> bool:
    """Whether ztunnels get it at all (policies.md 5.1)."""
    if is_dry_run(policy) and not settings.serve_dry_run:
        return False
    if entries(policy, "spec", "targetRefs") or dig(policy, "spec", "targetRef"):
        return False
    return _action(policy) in ("ALLOW", "DENY")


def is_dry_run(policy: Manifest) -> bool:
    return annotations_of(policy).get("istio.io/dry-run", "") in TRUE_TEXTS


def _action(policy: Manifest) -> str:
    return dig(policy, "spec", "action") or "ALLOW"


def unsupported(policy: Manifest) -> list[str]:
    """Sorted names of what layer 4 cannot tell (policies.md 5.6)."""
    names: set[str] = set()
    for rule in entries(policy, "spec", "rules"):
        for element in entries(rule, "from"):
            names |= {field for field in _UNSUPPORTED_IN_SOURCE if dig(element, "source", field)}
        for element in entries(rule, "to"):
            names |= {field for field in _UNSUPPORTED_IN_OPERATION if dig(element, "operation", field)}
        names |= {condition["key"] for condition in entries(rule, "when") if condition["key"] not in _CONDITIONS}
    return sorted(names)


def message(policy: Manifest, settings: Settings) -> dict[str, Any]:
    """The Authorization of a policy that is served, in golden form."""
    scope = None if namespace(policy) == settings.root_namespace else "NAMESPACE"
    if selector(policy):
        scope = "WORKLOAD_SELECTOR"
    rules = [rule for rule in entries(policy, "spec", "rules") if rule is not None]
    groups = [_group(rule, policy) for rule in rules]
    return {
        "name": name(policy),
        "namespace": namespace(policy),
        "scope": scope,
        "action": None if _action(policy) == "ALLOW" else "DENY",
        "groups": [group for group in groups if group is not None],
        "dry_run": is_dry_run(policy),
    }


def _group(rule: Mapping[str, Any], policy: Manifest) -> Fields | None:
    """One Group; None: the rule of an ALLOW policy is left out, since layer 4 cannot tell whether it holds."""
    allow = _action(policy) == "ALLOW"
    operations = [dig(element, "operation") or {} for element in entries(rule, "to")]
    sources = [dig(element, "source") or {} for element in entries(rule, "from")]
    conditions = entries(rule, "when")
    if allow and (
        any(operation.get(field) for operation in operations for field in _UNSUPPORTED_IN_OPERATION)
        or any(source.get(field) for source in sources for field in _UNSUPPORTED_IN_SOURCE)
        or any(condition["key"] not in _CONDITIONS for condition in conditions)
    ):
        return None
    alternatives = []
    if operations:
        alternatives.append([_match(_OPERATION, operation, policy) for operation in operations])
    if sources:
        alternatives.append([_match(_SOURCE, source, policy) for source in sources])
    for condition in conditions:
        fields = _CONDITIONS.get(condition["key"])
        alternatives.append([{} if fields is None else _match(fields, condition, policy)])
    return {"rules": [{"matches": matches} for matches in alternatives]}


def _match(columns: Sequence[_Column], element: Mapping[str, Any], policy: Manifest) -> Fields:
    match: Fields = {}
    try:
        for written, field, convert in columns:
            values = element.get(written) or []
            must_hold_one = _action(policy) == "ALLOW" and not field.startswith("not_")
            converted = convert(values, policy, must_hold_one)
            if converted:
                match[field] = converted
    except _MatchesNothing:
        return {}
    return match


def _principals(values: Sequence[str], policy: Manifest, must_hold_one: bool) -> list[Any]:
    return [_string(value) for value in values]


def _namespaces(values: Sequence[str], policy: Manifest, must_hold_one: bool) -> list[Any]:
    if must_hold_one:
        # An empty text would admit peers without identity [H5].
        values = _required([value for value in values if value], values)
    return [_string(value) for value in values]


def _string(value: str) -> Fields:
    if value == "*":
        return {"presence": {}}
    if value.startswith("*"):
        return {"suffix": value[1:]}
    if value.endswith("*"):
        return {"prefix": value[:-1]}
    return {"exact": value}


def _service_accounts(values: Sequence[str], policy: Manifest, must_hold_one: bool) -> list[Any]:
    accounts = []
    for value in values:
        left, slash, right = value.partition("/")
        where, account = (left, right) if slash else (namespace(policy), value)
        accounts.append({"namespace": where, "serviceAccount": account})
    return accounts


def _ports(values: Sequence[str], policy: Manifest, must_hold_one: bool) -> list[Any]:
    ports = [port for port in map(port_number, values) if port is not None]
    return _required(ports, values) if must_hold_one else ports


def port_number(text: str) -> int | None:
    """A port in ASCII digits, up to 65535 (policies.md 3.5)."""
    return int(text) if re.fullmatch(r"[0-9]+", text, re.ASCII) and int(text) <= 65535 else None


def _ips(values: Sequence[str], policy: Manifest, must_hold_one: bool) -> list[Any]:
    ranges = [parsed for parsed in map(ip.parse_range, values) if parsed is not None]
    addresses = [{"address": ip.text(address), "length": length} for address, length in ranges]
    return _required(addresses, values) if must_hold_one else addresses


def _required(usable: list[Any], values: Sequence[str]) -> list[Any]:
    if values and not usable:
        raise _MatchesNothing
    return usable


_Column = tuple[str, str, Callable[[Sequence[str], Manifest, bool], list[Any]]]

_OPERATION: Sequence[_Column] = (
    ("ports", "destination_ports", _ports),
    ("notPorts", "not_destination_ports", _ports),
)
_SOURCE: Sequence[_Column] = (
    ("principals", "principals", _principals),
    ("notPrincipals", "not_principals", _principals),
    ("namespaces", "namespaces", _namespaces),
    ("notNamespaces", "not_namespaces", _namespaces),
    ("serviceAccounts", "service_accounts", _service_accounts),
    ("notServiceAccounts", "not_service_accounts", _service_accounts),
    ("ipBlocks", "source_ips", _ips),
    ("notIpBlocks", "not_source_ips", _ips),
)


def _condition(field: str, convert: Callable[[Sequence[str], Manifest, bool], list[Any]]) -> Sequence[_Column]:
    return ("values", field, convert), ("notValues", f"not_{field}", convert)


_CONDITIONS: Mapping[str, Sequence[_Column]] = {
    "source.principal": _condition("principals", _principals),
    "source.namespace": _condition("namespaces", _namespaces),
    "source.ip": _condition("source_ips", _ips),
    "destination.ip": _condition("destination_ips", _ips),
    "destination.port": _condition("destination_ports", _ports),
}
