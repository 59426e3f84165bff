"""What an API server and kubectl refuse in a policy and a file of manifests cannot: fields that do not exist, and
fields that stand there without a value. Both are how a typing error, or a file that was cut off, makes a policy mean
something else, often something wider. Names of fields only; their values are decoded elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ambientd.resources.decode_common import key_path
from ambientd.resources.faults import Fault

_ANY = None
"""A value that is not looked into."""

_SELECTOR = {"matchLabels": _ANY}
_TARGET = {name: _ANY for name in ("group", "kind", "name", "namespace")}
_SOURCE = {
    name: _ANY
    for field in (
        "principals",
        "requestPrincipals",
        "namespaces",
        "serviceAccounts",
        "ipBlocks",
        "remoteIpBlocks",
        "trustDomains",
    )
    for name in (field, f"not{field[0].upper()}{field[1:]}")
}
_OPERATION = {
    name: _ANY
    for field in ("hosts", "ports", "methods", "paths")
    for name in (field, f"not{field[0].upper()}{field[1:]}")
}
_RULE = {
    "from": [{"source": _SOURCE}],
    "to": [{"operation": _OPERATION}],
    "when": [{"key": _ANY, "values": _ANY, "notValues": _ANY}],
}

_FIELDS: dict[str, Any] = {
    "AuthorizationPolicy": {
        "selector": _SELECTOR,
        "targetRef": _TARGET,
        "targetRefs": [_TARGET],
        "action": _ANY,
        "provider": {"name": _ANY},
        "rules": [_RULE],
    },
    "PeerAuthentication": {"selector": _SELECTOR, "mtls": {"mode": _ANY}, "portLevelMtls": {"*": {"mode": _ANY}}},
}
"""Fields of `spec` by kind; a list stands for lists of what is in it, `*` for any name (policies.md 3.2, 3.3)."""

_TOP = ("apiVersion", "kind", "metadata", "spec", "status")
_RUINED = ("rules", "from", "to", "when", "selector", "action", "targetRef", "targetRefs", "mtls", "mode")
"""Fields whose loss changes what the others mean."""


def strict_faults(document: dict[str, Any], effect: str) -> tuple[Fault, ...]:
    """What kubectl would have refused in a manifest; empty for kinds other than policies."""
    fields = _FIELDS.get(str(document.get("kind")))
    if fields is None:
        return ()
    faults = [_unknown(name, _TOP, effect) for name in document if name not in _TOP]
    if "spec" in document and document["spec"] is None:
        faults.append(_empty("spec", effect))
    faults.extend(_look(document.get("spec"), fields, "spec", effect))
    return tuple(faults)


def _look(value: Any, fields: Any, path: str, effect: str) -> Iterator[Fault]:
    if isinstance(fields, list):
        for number, element in enumerate(value if isinstance(value, list) else ()):
            yield from _look(element, fields[0], f"{path}[{number}]", effect)
    elif isinstance(fields, dict) and isinstance(value, dict):
        for name, member in value.items():
            inner = fields.get(name, fields.get("*", ...))
            if inner is ...:
                yield _unknown(f"{path}{key_path(str(name))}", tuple(fields), effect)
            elif member is None and name in _RUINED:
                yield _empty(f"{path}.{name}", effect)
            else:
                yield from _look(member, inner, f"{path}{key_path(str(name))}", effect)


def _unknown(path: str, known: tuple[str, ...], effect: str) -> Fault:
    return Fault(path, f"is not a field; there are {', '.join(known)}", "", effect)


def _empty(path: str, effect: str) -> Fault:
    return Fault(path, "must have a value where it is written", "nothing", effect, "give it one, or leave it out")
