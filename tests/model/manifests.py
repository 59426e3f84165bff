"""Reading of raw manifests: names, labels, selectors, and what the API server fills in (workloads.md 2.3). A manifest
is a dict as YAML gives it. No rule of the mesh stands here."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Manifest = Mapping[str, Any]
Labels = Mapping[str, str]
Ref = tuple[str, str, str]
"""Kind, namespace (empty for kinds of the cluster), name."""

TRUE_TEXTS = frozenset({"1", "t", "T", "true", "True", "TRUE"})
FALSE_TEXTS = frozenset({"0", "f", "F", "false", "False", "FALSE"})


@dataclass(frozen=True)
class Change:
    """An object as it is now; without a manifest, that it is gone."""

    ref: Ref
    manifest: Manifest | None


def dig(value: Any, *path: str) -> Any:
    """The value under a path of keys; None as soon as one of them is missing or null."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def entries(value: Any, *path: str) -> Sequence[Any]:
    """The list under a path of keys, empty when it is missing or null."""
    return dig(value, *path) or ()


def kind(manifest: Manifest) -> str:
    return str(manifest["kind"])


def name(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])


def namespace(manifest: Manifest) -> str:
    return dig(manifest, "metadata", "namespace") or ""


def ref_of(manifest: Manifest) -> Ref:
    return kind(manifest), namespace(manifest), name(manifest)


def labels(manifest: Manifest) -> Labels:
    return dig(manifest, "metadata", "labels") or {}


def annotations_of(manifest: Manifest) -> Labels:
    return dig(manifest, "metadata", "annotations") or {}


def age(manifest: Manifest) -> tuple[str, str, str]:
    """Oldest first, then namespace, then name. RFC 3339 in UTC sorts by time; an unknown time comes first."""
    return dig(manifest, "metadata", "creationTimestamp") or "", namespace(manifest), name(manifest)


def is_selected(selector: Labels | None, held: Labels) -> bool:
    """A non-empty map of labels, all of which are held (workloads.md 1)."""
    return bool(selector) and all(held.get(key) == value for key, value in (selector or {}).items())


def matches(selector: Mapping[str, Any], held: Labels) -> bool:
    """A Kubernetes label selector; an empty one matches everything, an operator that does not exist nothing."""
    if any(held.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_holds(requirement, held) for requirement in entries(selector, "matchExpressions"))


def is_selector(selector: Mapping[str, Any]) -> bool:
    """Whether every expression of the selector has a known operator with as many values as it needs."""
    for requirement in entries(selector, "matchExpressions"):
        operator, values = requirement.get("operator"), entries(requirement, "values")
        if operator in ("In", "NotIn"):
            if not values:
                return False
        elif operator not in ("Exists", "DoesNotExist") or values:
            return False
    return True


def _holds(requirement: Mapping[str, Any], held: Labels) -> bool:
    value, values = held.get(requirement["key"]), entries(requirement, "values")
    match requirement.get("operator"):
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False


def defaulted(manifest: Manifest) -> dict[str, Any]:
    """A copy as the API server would return it. Doing it twice changes nothing. The service account of a Pod is filled
    in by an admission plugin, which may be off; without one it stays empty."""
    object_: dict[str, Any] = copy.deepcopy(dict(manifest))
    match kind(manifest):
        case "Namespace":
            metadata = object_["metadata"]
            metadata["labels"] = {"kubernetes.io/metadata.name": name(manifest), **(metadata.get("labels") or {})}
        case "Pod":
            for container in [*entries(object_, "spec", "containers"), *entries(object_, "spec", "initContainers")]:
                for port in entries(container, "ports"):
                    port["protocol"] = port.get("protocol") or "TCP"
        case "Service":
            for port in entries(object_, "spec", "ports"):
                port["protocol"] = port.get("protocol") or "TCP"
                port["targetPort"] = port.get("targetPort") or port["port"]
        case "EndpointSlice":
            for port in entries(object_, "ports"):
                port["name"] = port.get("name") or ""
                port["protocol"] = port.get("protocol") or "TCP"
        case "Gateway":
            for address in entries(object_, "status", "addresses"):
                address["type"] = address["type"] if address.get("type") is not None else "IPAddress"
    return object_
