"""Random AuthorizationPolicies and PeerAuthentications. Every manifest can be read as a whole; values in it may be bad.
Names and ages are put in by `histories.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.model.dice import (
    CLASSES,
    NAMES,
    NAMESPACES,
    TRUE_AND_OTHER,
    Dice,
    Fields,
    revision_label,
    selector_labels,
)


def peer_authentication(dice: Dice) -> Fields:
    modes = ("UNSET", "DISABLE", "PERMISSIVE", "STRICT", "STRICT")
    spec: Fields = {}
    if dice.chance(0.7):
        spec["mtls"] = {"mode": dice.of(modes)}
    if dice.chance(0.6):
        spec["selector"] = {"matchLabels": selector_labels(dice)}
    if dice.chance(0.6):
        spec["portLevelMtls"] = {
            dice.one("8080", "9090", "443"): {"mode": dice.of(modes)} for _ in range(dice.one(1, 2))
        }
    return {"metadata": {"labels": revision_label(dice)}, "spec": spec}


def authorization_policy(dice: Dice) -> Fields:
    spec: Fields = {"rules": [rule(dice) for _ in range(dice.one(0, 1, 1, 2))]}
    if dice.chance(0.8):
        spec["action"] = dice.one("ALLOW", "ALLOW", "DENY", "DENY", "AUDIT", "CUSTOM")
    if dice.chance(0.6):
        spec["selector"] = {"matchLabels": selector_labels(dice)} if dice.chance(0.9) else {}
    elif dice.chance(0.4):
        targets = [target(dice) for _ in range(dice.one(1, 1, 2))]
        spec.update({"targetRefs": targets} if dice.chance(0.8) else {"targetRef": targets[0]})
    annotations = {"istio.io/dry-run": dice.of(TRUE_AND_OTHER)} if dice.chance(0.15) else {}
    metadata = {"labels": revision_label(dice), "annotations": annotations, "generation": dice.one(1, 2)}
    return {"metadata": metadata, "spec": spec}


def target(dice: Dice) -> Fields:
    """A reference to something that may or may not exist, or that no policy can be attached to."""
    group, kind, names = dice.one(
        ("", "Service", NAMES),
        ("", "Service", NAMES),
        ("networking.istio.io", "ServiceEntry", NAMES),
        ("gateway.networking.k8s.io", "Gateway", NAMES),
        ("gateway.networking.k8s.io", "GatewayClass", (*CLASSES, "other")),
        ("gateway.networking.k8s.io", "HTTPRoute", NAMES),
    )
    reference = {"group": group, "kind": kind, "name": dice.of(names)}
    return {**reference, "namespace": dice.of(NAMESPACES)} if dice.chance(0.1) else reference


def rule(dice: Dice) -> Fields:
    made: Fields = {}
    if dice.chance(0.7):
        made["from"] = [{"source": source(dice)} for _ in range(dice.one(1, 2))]
    if dice.chance(0.5):
        made["to"] = [{"operation": operation(dice)} for _ in range(dice.one(1, 2))]
    if dice.chance(0.4):
        made["when"] = [condition(dice) for _ in range(dice.one(1, 2))]
    return made


_PRINCIPALS = ("corp.example/ns/shop/sa/web", "*", "*/sa/db", "corp.example/*")
_SOURCE_NAMESPACES = ("shop", "ba*", "", "*", "**")
_ACCOUNTS = ("web", "bank/db", "a/b/c")
_PORTS = ("8080", "0443", "9090", "http", "70000")
_RANGES = None
"""Stands for a range of addresses, which is drawn anew."""

_SOURCE = (
    (0.3, "principals", _PRINCIPALS),
    (0.15, "notPrincipals", _PRINCIPALS),
    (0.3, "namespaces", _SOURCE_NAMESPACES),
    (0.15, "notNamespaces", _SOURCE_NAMESPACES),
    (0.15, "serviceAccounts", _ACCOUNTS),
    (0.1, "notServiceAccounts", _ACCOUNTS),
    (0.2, "ipBlocks", _RANGES),
    (0.1, "notIpBlocks", _RANGES),
    (0.05, "requestPrincipals", ("*",)),
    (0.05, "trustDomains", ("corp.example",)),
)
_OPERATION = ((0.6, "ports", _PORTS), (0.2, "notPorts", _PORTS), (0.15, "methods", ("GET",)))
_CONDITIONS: Mapping[str, Sequence[str] | None] = {
    "source.ip": _RANGES,
    "destination.ip": _RANGES,
    "destination.port": _PORTS,
    "source.namespace": _SOURCE_NAMESPACES,
    "source.principal": _PRINCIPALS,
    "request.headers[x]": ("y",),
}


def source(dice: Dice) -> Fields:
    return _filled(dice, _SOURCE)


def operation(dice: Dice) -> Fields:
    return _filled(dice, _OPERATION)


def condition(dice: Dice) -> Fields:
    key = dice.of(tuple(_CONDITIONS))
    values = _CONDITIONS[key]
    return {"key": key, **_filled(dice, ((0.8, "values", values), (0.3, "notValues", values)))}


def _filled(dice: Dice, fields: Sequence[tuple[float, str, Sequence[str] | None]]) -> Fields:
    return {
        field: [dice.range() if values is None else dice.of(values) for _ in range(dice.one(1, 2))]
        for probability, field, values in fields
        if dice.chance(probability)
    }
