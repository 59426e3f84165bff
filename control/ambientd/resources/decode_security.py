"""Decoding of security.istio.io, field by field (policies.md 3.2 to 3.5, 12).

A null field is absent; a null `from`, `to`, `when`, `source` or `operation` is an empty object; a null rule is left
out. For a wrong type the rule is that nothing may allow more or deny less than was written:

- scope (selector, targets), action, modes: the object is undecodable;
- in a rule of DENY: the object is undecodable, since a value left out would deny less, and a rule too;
- in a rule of another action: a value of a positive list is left out; where that leaves none, or where a value of a
  negative list is concerned, or anything that is no list or no object, the whole rule is left out: it allows less.

A whole number among ports is read as its text, for that is what it means in a file; an API server would refuse it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from ambientd.resources.decode_common import (
    NO_META,
    WireMeta,
    annotations_of,
    created_of,
    describe,
    labels_of,
    make_ref,
)
from ambientd.resources.faults import Fault, Undecodable, quote
from ambientd.resources.ref import ClusterId, Labels
from ambientd.resources.security import (
    AuthorizationPolicy,
    Condition,
    Operation,
    PeerAuthentication,
    PolicyTarget,
    Rule,
    Source,
)

T = TypeVar("T")
_ACTIONS = ("ALLOW", "DENY", "AUDIT", "CUSTOM")
_MODES = ("UNSET", "DISABLE", "PERMISSIVE", "STRICT")
_SOURCE_UNSUPPORTED = (
    "requestPrincipals",
    "notRequestPrincipals",
    "remoteIpBlocks",
    "notRemoteIpBlocks",
    "trustDomains",
    "notTrustDomains",
)
_OPERATION_UNSUPPORTED = ("hosts", "notHosts", "methods", "notMethods", "paths", "notPaths")


class _Head(msgspec.Struct):
    metadata: WireMeta | None = None
    spec: Any = None


_HEAD = msgspec.json.Decoder(_Head)


class _RuleLost(Exception):
    """The rule that is being read must not be used; its fault is noted."""


def decode_authorization_policy(raw: bytes, cluster: ClusterId) -> tuple[AuthorizationPolicy, tuple[Fault, ...]]:
    head = _HEAD.decode(raw)
    meta = head.metadata or NO_META
    spec = _object(head.spec, "spec")
    faults: list[Fault] = []
    action = spec.get("action")
    if action is None:
        action = "ALLOW"
    elif action not in _ACTIONS:
        raise _undecodable("spec.action", f"must be one of {', '.join(_ACTIONS)}", action)
    policy = AuthorizationPolicy(
        ref=make_ref(cluster, "AuthorizationPolicy", meta.namespace, meta.name),
        labels=labels_of(meta.labels),
        annotations=annotations_of(meta.annotations),
        created=created_of(meta.created),
        generation=meta.generation or 0,
        selector=_selector(spec),
        targets=_targets(spec),
        action=action,
        rules=_RuleReader(action, faults).rules(spec.get("rules")),
    )
    return policy, tuple(faults)


def _undecodable(path: str, rule: str, value: Any) -> Undecodable:
    return Undecodable((Fault(path, rule, describe(value), ""),))


def _object(value: Any, path: str) -> dict[str, Any]:
    """An object, empty for null. Raises Undecodable."""
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    raise _undecodable(path, "must be an object", value)


def _text(value: Any, path: str) -> str:
    """A string, empty for null. Raises Undecodable."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise _undecodable(path, "must be a string", value)


def _selector(spec: dict[str, Any]) -> Labels:
    labels = _object(_object(spec.get("selector"), "spec.selector").get("matchLabels"), "spec.selector.matchLabels")
    for key, value in labels.items():
        # A null here would be dropped by an API server, and the policy would then apply to more workloads.
        if not isinstance(value, str):
            raise _undecodable(f'spec.selector.matchLabels["{key}"]', "must be a string", value)
    return labels_of(labels)


def _targets(spec: dict[str, Any]) -> tuple[PolicyTarget, ...]:
    listed = spec.get("targetRefs")
    if listed is not None and not isinstance(listed, list):
        raise _undecodable("spec.targetRefs", "must be a list", listed)
    if listed:
        return tuple(_target(element, f"spec.targetRefs[{index}]") for index, element in enumerate(listed))
    single = spec.get("targetRef")
    return () if single is None else (_target(single, "spec.targetRef"),)


def _target(value: Any, path: str) -> PolicyTarget:
    fields = _object(value, path)
    group, kind, namespace, name = (
        _text(fields.get(key), f"{path}.{key}") for key in ("group", "kind", "namespace", "name")
    )
    return PolicyTarget(group, kind, namespace, name)


class _RuleReader:
    """Reads the rules of one policy; what a wrong type means depends on the action (see the module)."""

    def __init__(self, action: str, faults: list[Fault]) -> None:
        self._is_deny = action == "DENY"
        self._faults = faults

    def rules(self, value: Any) -> tuple[Rule, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            raise _undecodable("spec.rules", "must be a list", value)
        rules: list[Rule] = []
        for index, element in enumerate(value):
            path = f"spec.rules[{index}]"
            if element is None:
                self._faults.append(Fault(path, "must be an object", "null", "this rule is left out"))
                continue
            try:
                rules.append(self._rule(element, path))
            except _RuleLost:
                continue
        return tuple(rules)

    def _lose(self, path: str, rule: str, value: Any) -> Exception:
        """The exception to raise for a wrong type that cannot be left out alone."""
        if self._is_deny:
            return _undecodable(path, rule, value)
        self._faults.append(Fault(path, rule, describe(value), "the whole rule is left out"))
        return _RuleLost()

    def _object(self, value: Any, path: str) -> dict[str, Any]:
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        raise self._lose(path, "must be an object", value)

    def _each(self, value: Any, path: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self._lose(path, "must be a list", value)
        return tuple(read(element, f"{path}[{index}]") for index, element in enumerate(value))

    def _rule(self, value: Any, path: str) -> Rule:
        fields = self._object(value, path)
        return Rule(
            self._each(fields.get("from"), f"{path}.from", self._source),
            self._each(fields.get("to"), f"{path}.to", self._operation),
            self._each(fields.get("when"), f"{path}.when", self._condition),
        )

    def _source(self, value: Any, path: str) -> Source:
        fields = self._object(self._object(value, path).get("source"), f"{path}.source")
        path = f"{path}.source"
        return Source(
            principals=self._positive(fields, "principals", path),
            not_principals=self._negative(fields, "notPrincipals", path),
            namespaces=self._positive(fields, "namespaces", path),
            not_namespaces=self._negative(fields, "notNamespaces", path),
            service_accounts=self._positive(fields, "serviceAccounts", path),
            not_service_accounts=self._negative(fields, "notServiceAccounts", path),
            ip_blocks=self._positive(fields, "ipBlocks", path),
            not_ip_blocks=self._negative(fields, "notIpBlocks", path),
            unsupported=_present(fields, _SOURCE_UNSUPPORTED),
        )

    def _operation(self, value: Any, path: str) -> Operation:
        fields = self._object(self._object(value, path).get("operation"), f"{path}.operation")
        path = f"{path}.operation"
        return Operation(
            ports=self._positive(fields, "ports", path, are_ports=True),
            not_ports=self._negative(fields, "notPorts", path, are_ports=True),
            unsupported=_present(fields, _OPERATION_UNSUPPORTED),
        )

    def _condition(self, value: Any, path: str) -> Condition:
        fields = self._object(value, path)
        key = fields.get("key")
        if key is not None and not isinstance(key, str):
            raise self._lose(f"{path}.key", "must be a string", key)
        are_ports = key == "destination.port"
        return Condition(
            key or "",
            self._positive(fields, "values", path, are_ports),
            self._negative(fields, "notValues", path, are_ports),
        )

    def _positive(self, fields: dict[str, Any], name: str, path: str, are_ports: bool = False) -> tuple[str, ...]:
        """A list of alternatives: to leave one out matches less."""
        values = self._list(fields, name, path)
        texts: list[str] = []
        for index, value in enumerate(values):
            text = self._value(value, f"{path}.{name}[{index}]", are_ports)
            if text is not None:
                texts.append(text)
            elif self._is_deny:
                raise self._lose(f"{path}.{name}[{index}]", "must be a string", value)
            else:
                fault = Fault(f"{path}.{name}[{index}]", "must be a string", describe(value), "this value is left out")
                self._faults.append(fault)
        if values and not texts:
            raise self._lose(f"{path}.{name}", "must hold a string", fields[name])
        return tuple(texts)

    def _negative(self, fields: dict[str, Any], name: str, path: str, are_ports: bool = False) -> tuple[str, ...]:
        """A list of exceptions: to leave one out matches more."""
        texts: list[str] = []
        for index, value in enumerate(self._list(fields, name, path)):
            text = self._value(value, f"{path}.{name}[{index}]", are_ports)
            if text is None:
                raise self._lose(f"{path}.{name}[{index}]", "must be a string", value)
            texts.append(text)
        return tuple(texts)

    def _list(self, fields: dict[str, Any], name: str, path: str) -> list[Any]:
        value = fields.get(name)
        if value is None:
            return []
        if isinstance(value, list):
            return value
        raise self._lose(f"{path}.{name}", "must be a list", value)

    def _value(self, value: Any, path: str, are_ports: bool) -> str | None:
        if isinstance(value, str):
            return value
        if are_ports and isinstance(value, int) and not isinstance(value, bool):
            effect = f'it is read as "{value}"; an API server would refuse it'
            self._faults.append(Fault(path, "must be a string", quote(value), effect, f'write "{value}"'))
            return str(value)
        return None


def _present(fields: dict[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """A field counts as present when its list is not empty (policies.md 5.6); one that is no list counts too."""
    return tuple(name for name in names if fields.get(name) is not None and fields[name] != [])


def decode_peer_authentication(raw: bytes, cluster: ClusterId) -> tuple[PeerAuthentication, tuple[Fault, ...]]:
    head = _HEAD.decode(raw)
    meta = head.metadata or NO_META
    spec = _object(head.spec, "spec")
    faults: list[Fault] = []
    authentication = PeerAuthentication(
        ref=make_ref(cluster, "PeerAuthentication", meta.namespace, meta.name),
        labels=labels_of(meta.labels),
        created=created_of(meta.created),
        selector=_selector(spec),
        mode=_mode(spec.get("mtls"), "spec.mtls"),
        port_modes=_port_modes(spec.get("portLevelMtls"), faults),
    )
    return authentication, tuple(faults)


def _mode(value: Any, path: str) -> str:
    mode = _object(value, path).get("mode")
    if mode is None:
        return "UNSET"
    if mode not in _MODES:
        raise _undecodable(f"{path}.mode", f"must be one of {', '.join(_MODES)}", mode)
    return str(mode)


def _port_modes(value: Any, faults: list[Fault]) -> tuple[tuple[int, str], ...]:
    modes: list[tuple[int, str]] = []
    for key, element in _object(value, "spec.portLevelMtls").items():
        path = f'spec.portLevelMtls["{key}"]'
        mode = _mode(element, path)
        is_number = key.isascii() and key.isdigit() and len(key) <= 5 and not key.startswith("0")
        if not is_number or int(key) > 65535:
            faults.append(Fault(path, "must be a port from 1 to 65535", quote(key), "this entry is left out"))
        elif element is not None:
            # An API server drops a null entry.
            modes.append((int(key), mode))
    return tuple(sorted(modes))
