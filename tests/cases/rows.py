"""The small rows of `golden/policies/*.json`: many combinations, each with few objects. Knows nothing of the
product."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.cases.loader import DEFAULTS, GOLDEN, Served, comparable
from tests.model.manifests import Manifest

Serve = Callable[[Sequence[Manifest], Mapping[str, str]], Served]
"""What is served for these objects, under these environment variables."""

MESH: Manifest = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "istio", "namespace": "istio-system"},
    "data": {"mesh": "rootNamespace: mesh-root\ntrustDomain: corp.example\n"},
}
"""The mesh configuration of all rows."""

_STATIC = "mesh-root/istio_converted_static_strict"
_CONVERTED = "shop/converted_peer_authentication_w"
_TILL = "Kubernetes//Pod/shop/till"


def wrong_conversions(serve: Serve) -> list[str]:
    """Rows of random AuthorizationPolicies that are not converted as they must be."""
    wrong = []
    for row in _rows("policies-conversion"):
        policy = {"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", **row["object"]}
        have = comparable(list(serve([MESH, policy], DEFAULTS).authorization.values()))
        want = [] if row["resource"] is None else [comparable(row["resource"])]
        if have != want:
            wrong.append(f"{row['object']['metadata']['name']}: {have}, expected {want}")
    return wrong


def wrong_modes(serve: Serve) -> list[str]:
    """Rows of the matrix of mesh, namespace, workload and port modes that come out differently."""
    wrong = []
    for row in _rows("policies-matrix"):
        served = serve(_matrix_manifests(row), DEFAULTS)
        converted = served.authorization.get(_CONVERTED)
        have = (
            None if converted is None else converted["groups"],
            served.address[_TILL]["workload"].get("authorization_policies", []),
        )
        names = {"static": _STATIC, "converted": _CONVERTED}
        want = row["converted"], [names[each] for each in row["lists"]]
        if have != want:
            wrong.append(f"{row}: {have}")
    return wrong


def _rows(document: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((GOLDEN / "policies" / f"{document}.json").read_bytes())["rows"]
    return rows


def _matrix_manifests(row: Mapping[str, Any]) -> list[Manifest]:
    """The objects of one row of the matrix, as its `setup` describes them."""
    till: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "till", "namespace": "shop", "labels": {"app": "till"}},
        "status": {"phase": "Running", "podIP": "10.244.1.10"},
    }
    manifests = [MESH, till]
    if row["mesh"] is not None:
        manifests.append(_peer("mesh-root", "m", 1, {"mtls": {"mode": row["mesh"]}}))
    if row["namespace"] is not None:
        manifests.append(_peer("shop", "n", 2, {"mtls": {"mode": row["namespace"]}}))
    ports = {port: {"mode": row[port]} for port in ("8080", "8443") if row[port] is not None}
    spec = {"selector": {"matchLabels": {"app": "till"}}, "mtls": {"mode": row["workload"]}}
    manifests.append(_peer("shop", "w", 3, {**spec, **({"portLevelMtls": ports} if ports else {})}))
    return manifests


def _peer(namespace: str, name: str, second: int, spec: dict[str, Any]) -> Manifest:
    return {
        "apiVersion": "security.istio.io/v1",
        "kind": "PeerAuthentication",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": f"2026-01-01T00:00:0{second}Z"},
        "spec": spec,
    }
