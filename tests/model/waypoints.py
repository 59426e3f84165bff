"""Waypoints: which Gateways are some, who may use them, and who does (waypoints.md 1 to 7; workloads.md 3.14, 3.15)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.model import ip
from tests.model.manifests import (
    Labels,
    Manifest,
    annotations_of,
    dig,
    entries,
    kind,
    labels,
    matches,
    name,
    namespace,
)
from tests.model.mesh import Settings

HBONE_PORT = 15008

_USE = "istio.io/use-waypoint"
_CANARY = "istio.io/use-waypoint-canary"
_WEIGHT = "istio.io/use-waypoint-canary-weight"
_GATEWAY_NAME = "gateway.networking.k8s.io/gateway-name"
_BINDING = "ambient.istio.io/waypoint-inbound-binding"
_PROXIES_OF_OURS = ("istio.io-mesh-controller", "istio.io-eastwest-controller")


@dataclass(frozen=True)
class Binding:
    protocol: str
    port: int


@dataclass(frozen=True)
class Waypoint:
    namespace: str
    name: str
    address: Mapping[str, Any] | None
    """A GatewayAddress; None: it has none that can be used, and binds all the same."""
    traffic: str
    allowed: Mapping[str, Any]
    """`allowedRoutes.namespaces` of the listener that counts."""
    binding: Binding | None
    accounts: Sequence[str]
    """Service accounts of its pods, each once, sorted."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Bound:
    """What an object uses: its waypoint and, for services, the canary with its share in percent."""

    waypoint: Waypoint
    canary: Waypoint | None = None
    weight: int = 0


def waypoints_of(manifests: Sequence[Manifest], settings: Settings) -> dict[str, Waypoint]:
    """Every Gateway with a status address, by `namespace/name`."""
    found = {}
    for gateway in manifests:
        if kind(gateway) == "Gateway" and entries(gateway, "status", "addresses"):
            waypoint = _waypoint(gateway, manifests, settings)
            found[waypoint.key] = waypoint
    return found


def _waypoint(gateway: Manifest, manifests: Sequence[Manifest], settings: Settings) -> Waypoint:
    class_name = dig(gateway, "spec", "gatewayClassName")
    of_class: Manifest = {}
    for manifest in manifests:
        if kind(manifest) == "GatewayClass" and name(manifest) == class_name:
            of_class = manifest
    traffic = labels(gateway).get("istio.io/waypoint-for", labels(of_class).get("istio.io/waypoint-for", "service"))
    binding = _binding(annotations_of(gateway).get(_BINDING, annotations_of(of_class).get(_BINDING, "")))
    accounts = {
        dig(pod, "spec", "serviceAccountName") or ""
        for pod in manifests
        if kind(pod) == "Pod"
        and namespace(pod) == namespace(gateway)
        and labels(pod).get(_GATEWAY_NAME) == name(gateway)
    }
    return Waypoint(
        namespace=namespace(gateway),
        name=name(gateway),
        address=_address(gateway, settings),
        traffic=traffic,
        allowed=dig(_listener(gateway, binding), "allowedRoutes", "namespaces") or {},
        binding=binding,
        accounts=sorted(accounts),
    )


def _address(gateway: Manifest, settings: Settings) -> Mapping[str, Any] | None:
    addresses = entries(gateway, "status", "addresses")
    for address in addresses:
        if address["type"] == "Hostname":
            hostname = {"namespace": namespace(gateway), "hostname": address["value"]}
            return {"hostname": hostname, "hbone_mtls_port": HBONE_PORT}
    for address in addresses:
        parsed = ip.parse(address["value"])
        if address["type"] == "IPAddress" and parsed is not None:
            where = {"network": settings.network, "address": ip.text(parsed)}
            return {"address": where, "hbone_mtls_port": HBONE_PORT}
    return None


def _binding(annotation: str) -> Binding | None:
    protocol, _, port = annotation.partition("/")
    if protocol not in ("NONE", "PROXY") or "/" in port:
        return None
    fits = re.fullmatch(r"[0-9]+", port, re.ASCII) and int(port) < 2**32
    return Binding(protocol, int(port) if fits else 0)


def _listener(gateway: Manifest, binding: Binding | None) -> Mapping[str, Any] | None:
    listeners = entries(gateway, "spec", "listeners")
    if binding is not None:
        for listener in listeners:
            if binding.port and listener.get("port") == binding.port:
                return dict(listener)
            if not binding.port and binding.protocol == "PROXY" and listener.get("protocol") == "istio.io/PROXY":
                return dict(listener)
    for listener in listeners:
        if listener.get("protocol") == "HBONE" and listener.get("port") == HBONE_PORT:
            return dict(listener)
    return None


def admits(waypoint: Waypoint, from_namespace: str, namespace_labels: Labels) -> bool:
    """Whether objects of a namespace may use the waypoint (waypoints.md 4)."""
    match waypoint.allowed.get("from"):
        case "All":
            return True
        case "Selector":
            selector = waypoint.allowed.get("selector")
            return selector is not None and matches(selector, namespace_labels)
    return from_namespace == waypoint.namespace


def instance_of(from_namespace: str, held: Labels, waypoints: Mapping[str, Waypoint]) -> Waypoint | None:
    """The waypoint that a workload with these labels is a proxy of (waypoints.md 5)."""
    gateway = held.get(_GATEWAY_NAME)
    return waypoints.get(f"{from_namespace}/{gateway}") if gateway else None


def bound_workload(
    from_namespace: str, held: Labels, namespace_labels: Labels, waypoints: Mapping[str, Waypoint]
) -> Waypoint | None:
    """The waypoint for traffic addressed to a workload itself."""
    if instance_of(from_namespace, held, waypoints) is not None:
        return None
    return _usable(
        reference(_USE, from_namespace, held, namespace_labels),
        from_namespace,
        namespace_labels,
        waypoints,
        ("workload", "all"),
    )


def bound_service(
    service: Manifest, namespace_object: Manifest, waypoints: Mapping[str, Waypoint], visibility: str
) -> Bound | None:
    """Waypoint and canary of a Service or ServiceEntry; `visibility` is that of the entry, `PUBLIC` for a Service."""
    held, of_namespace = labels(service), labels(namespace_object)
    home = namespace(service)
    if held.get("gateway.istio.io/managed") in _PROXIES_OF_OURS:
        return None

    def usable(reference: str | None) -> Waypoint | None:
        waypoint = _usable(reference, home, of_namespace, waypoints, ("service", "all"))
        if waypoint is None or (visibility == "NAMESPACE" and waypoint.namespace != home):
            return None
        return waypoint

    primary_reference = reference(_USE, home, held, of_namespace)
    primary = usable(primary_reference)
    if primary is None:
        return None
    # With a primary of its own the object alone says what the canary is (waypoints.md 7).
    inherited: Labels = {} if _USE in held else of_namespace
    canary_reference = reference(_CANARY, home, held, inherited)
    if _place(_CANARY, held, inherited).get(_CANARY) in (None, ""):
        canary_reference = None
    weight_text = annotations_of(service).get(_WEIGHT)
    if weight_text is None and _USE not in held:
        weight_text = annotations_of(namespace_object).get(_WEIGHT) if namespace_object else None
    weight = usable_weight("0" if weight_text is None else weight_text)
    if canary_reference is None or canary_reference == primary_reference or weight is None:
        return Bound(primary)
    canary = usable(canary_reference)
    return Bound(primary) if canary is None else Bound(primary, canary, weight)


def _place(label: str, held: Labels, of_namespace: Labels) -> Labels:
    return held if label in held else of_namespace


def reference(label: str, home: str, held: Labels, of_namespace: Labels) -> str | None:
    """`namespace/name` of what the label refers to; None when there is no label, or it says `none`."""
    place = _place(label, held, of_namespace)
    wanted = place.get(label)
    if wanted is None or wanted == "none":
        return None
    return f"{place.get(f'{label}-namespace', home)}/{wanted}"


def _usable(
    reference: str | None,
    from_namespace: str,
    namespace_labels: Labels,
    waypoints: Mapping[str, Waypoint],
    traffic: tuple[str, ...],
) -> Waypoint | None:
    waypoint = None if reference is None else waypoints.get(reference)
    if waypoint is None or not admits(waypoint, from_namespace, namespace_labels) or waypoint.traffic not in traffic:
        return None
    return waypoint


def usable_weight(text: str) -> int | None:
    if not re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII):
        return None
    return int(text) if 0 <= int(text) <= 100 else None
