"""The kinds that we read."""

from __future__ import annotations

from ambientd.resources.core import ConfigMap, Namespace, Node, Pod, Service
from ambientd.resources.discovery import EndpointSlice
from ambientd.resources.gateway import Gateway, GatewayClass
from ambientd.resources.networking import ServiceEntry, WorkloadEntry
from ambientd.resources.security import AuthorizationPolicy, PeerAuthentication

Object = (
    Pod
    | Namespace
    | Node
    | Service
    | EndpointSlice
    | ConfigMap
    | ServiceEntry
    | WorkloadEntry
    | AuthorizationPolicy
    | PeerAuthentication
    | Gateway
    | GatewayClass
)

KINDS: dict[str, tuple[str, ...]] = {
    "Pod": ("v1",),
    "Namespace": ("v1",),
    "Node": ("v1",),
    "Service": ("v1",),
    "ConfigMap": ("v1",),
    "EndpointSlice": ("discovery.k8s.io/v1",),
    "ServiceEntry": ("networking.istio.io/v1", "networking.istio.io/v1beta1", "networking.istio.io/v1alpha3"),
    "WorkloadEntry": ("networking.istio.io/v1", "networking.istio.io/v1beta1", "networking.istio.io/v1alpha3"),
    "AuthorizationPolicy": ("security.istio.io/v1", "security.istio.io/v1beta1"),
    "PeerAuthentication": ("security.istio.io/v1", "security.istio.io/v1beta1"),
    "Gateway": ("gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"),
    "GatewayClass": ("gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"),
}
"""Kind to the API versions in which it is read, the preferred one first."""

POLICY_KINDS = ("AuthorizationPolicy", "PeerAuthentication")
"""Kinds of which nothing may be missing: what we cannot read of them, we could not enforce."""

CLUSTER_KINDS = frozenset({"Namespace", "Node", "GatewayClass"})
"""Kinds whose objects have no namespace."""
