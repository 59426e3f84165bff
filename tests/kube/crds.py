"""Definitions of the custom kinds that we read, as far as an API server needs them to store and serve objects: names
and versions as upstream's, no schema of their fields, so that a test may also write what upstream's schema refuses."""

from __future__ import annotations

from typing import Any

_ISTIO = ("v1", "v1beta1")
_ISTIO_OLD = ("v1", "v1beta1", "v1alpha3")

KINDS: tuple[tuple[str, str, str, tuple[str, ...], bool], ...] = (
    ("networking.istio.io", "ServiceEntry", "serviceentries", _ISTIO_OLD, True),
    ("networking.istio.io", "WorkloadEntry", "workloadentries", _ISTIO_OLD, True),
    ("security.istio.io", "AuthorizationPolicy", "authorizationpolicies", _ISTIO, True),
    ("security.istio.io", "PeerAuthentication", "peerauthentications", _ISTIO, True),
    ("gateway.networking.k8s.io", "Gateway", "gateways", ("v1", "v1beta1"), True),
    ("gateway.networking.k8s.io", "GatewayClass", "gatewayclasses", ("v1", "v1beta1"), False),
)
"""Group, kind, plural, versions (the first one is stored), and whether objects have a namespace."""


def definitions() -> list[dict[str, Any]]:
    """One CustomResourceDefinition per kind. All of a kind's versions have one schema, so none needs conversion."""
    return [_definition(*kind) for kind in KINDS]


def _definition(group: str, kind: str, plural: str, versions: tuple[str, ...], has_namespace: bool) -> dict[str, Any]:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition: dict[str, Any] = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced" if has_namespace else "Cluster",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == versions[0],
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}
                    },
                    "subresources": {"status": {}},
                }
                for version in versions
            ],
        },
    }
    if group.endswith(".k8s.io"):
        # The API server keeps such groups to kinds that were approved as part of Kubernetes; the value names the
        # approval, and says here that there is none.
        definition["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, for tests"}
    return definition
