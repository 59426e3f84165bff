"""Services: one record per Kubernetes Service and per host of a ServiceEntry, who survives among equal hostnames, and
the message of each (services.md 2 to 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.model import ip
from tests.model.manifests import (
    TRUE_TEXTS,
    Labels,
    Manifest,
    age,
    annotations_of,
    dig,
    entries,
    kind,
    labels,
    name,
    namespace,
)
from tests.model.mesh import Settings, visibility_of
from tests.model.waypoints import Bound, Waypoint, bound_service

_PROTOCOLS = {
    "http": "HTTP11",
    "http2": "HTTP2",
    "grpc": "GRPC",
    "https": "TLS",
    "tls": "TLS",
    "tcp": "TCP",
    # Known words without a protocol of their own on the wire.
    "udp": None,
    "grpc-web": None,
    "http_proxy": None,
    "mongo": None,
    "redis": None,
    "mysql": None,
}
_FINAL_APP_PROTOCOLS = {"kubernetes.io/h2c": "HTTP2", "kubernetes.io/ws": "HTTP11", "kubernetes.io/wss": "TLS"}
_TCP_PORTS = (25, 53, 3306, 27017)

_SAME_ZONE = ("NETWORK", "REGION", "ZONE")
_SAME_NODE = ("NETWORK", "REGION", "ZONE", "SUBZONE", "NODE")
_DISTRIBUTIONS = {"PreferClose": _SAME_ZONE, "PreferSameZone": _SAME_ZONE, "PreferSameNode": _SAME_NODE}
_DISTRIBUTION = "networking.istio.io/traffic-distribution"
_INGRESS = "istio.io/ingress-use-waypoint"


@dataclass(frozen=True)
class Port:
    number: int
    target: int
    """0: the target is a name."""
    protocol: str | None
    """On the wire; None is UNKNOWN."""


@dataclass(frozen=True)
class PortName:
    """What is kept per service port number: the last port of that number."""

    name: str
    target_name: str


@dataclass(frozen=True)
class Record:
    source: Manifest
    hostname: str
    addresses: Sequence[Mapping[str, Any]]
    ports: Sequence[Port]
    port_names: Mapping[int, PortName]
    selector: Labels
    load_balancing: Mapping[str, Any]
    bound: Bound | None
    ingress_uses_waypoint: bool
    visibility: str = "PUBLIC"
    canonical: bool = False

    @property
    def is_kubernetes(self) -> bool:
        return kind(self.source) == "Service"

    @property
    def namespace(self) -> str:
        return namespace(self.source)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.hostname}"


def services_of(manifests: Sequence[Manifest], waypoints: Mapping[str, Waypoint], settings: Settings) -> list[Record]:
    """The records that survive, the canonical ones marked."""
    candidates: list[Record] = []
    for manifest in manifests:
        home = namespace_object(manifests, namespace(manifest))
        if kind(manifest) == "Service":
            candidates += _of_service(manifest, home, waypoints, settings)
        elif kind(manifest) == "ServiceEntry":
            candidates += _of_entry(manifest, home, waypoints, settings)

    def rank(record: Record) -> tuple[bool, tuple[str, str, str]]:
        return not record.is_kubernetes, age(record.source)

    winners = [
        min((other for other in candidates if other.key == key), key=rank)
        for key in sorted({record.key for record in candidates})
    ]
    survivors = []
    for winner in winners:
        rivals = [
            other
            for other in winners
            if other.hostname == winner.hostname and (other.is_kubernetes or other.visibility == "PUBLIC")
        ]
        is_canonical = bool(rivals) and min(rivals, key=rank) is winner
        survivors.append(replace(winner, canonical=is_canonical))
    return survivors


def namespace_object(manifests: Sequence[Manifest], wanted: str) -> Manifest:
    """The Namespace of that name; an empty manifest, which has no labels, when it is unknown."""
    for manifest in manifests:
        if kind(manifest) == "Namespace" and name(manifest) == wanted:
            return manifest
    return {}


def _of_service(
    service: Manifest, home: Manifest, waypoints: Mapping[str, Waypoint], settings: Settings
) -> list[Record]:
    spec = service.get("spec") or {}
    if spec.get("type") == "ExternalName":
        return []
    addresses = []
    for spelling in spec.get("clusterIPs") or [spec.get("clusterIP") or ""]:
        if spelling in ("", "None"):
            continue
        parsed = ip.parse(spelling)
        if parsed is None:
            return []
        addresses.append({"network": settings.network, "address": ip.text(parsed)})
    ports, port_names = [], {}
    for port in entries(spec, "ports"):
        target = port["targetPort"]
        is_name = isinstance(target, str)
        ports.append(Port(port["port"], 0 if is_name else target, _protocol_of_service_port(port)))
        port_names[port["port"]] = PortName(port.get("name") or "", target if is_name else "")
    return [
        Record(
            source=service,
            hostname=f"{name(service)}.{namespace(service)}.svc.{settings.domain}",
            addresses=addresses,
            ports=ports,
            port_names=port_names,
            selector=spec.get("selector") or {},
            load_balancing=_load_balancing_of_service(service, home),
            bound=bound_service(service, home, waypoints, "PUBLIC"),
            ingress_uses_waypoint=_ingress_uses_waypoint(service, home),
        )
    ]


def _of_entry(entry: Manifest, home: Manifest, waypoints: Mapping[str, Waypoint], settings: Settings) -> list[Record]:
    spec = entry.get("spec") or {}
    visibility = visibility_of(settings, labels(home))
    if visibility == "NONE":
        return []
    explicit = []
    for spelling in entries(spec, "addresses"):
        parsed = ip.parse_range(spelling)
        if parsed is None:
            return []
        address, length = parsed
        network_address: dict[str, Any] = {"network": settings.network, "address": ip.text(ip.masked(address, length))}
        if length < address.max_prefixlen:
            network_address["length"] = length
        explicit.append(network_address)
    ports, port_names = [], {}
    for port in entries(spec, "ports"):
        target = port.get("targetPort") or port["number"]
        ports.append(Port(port["number"], target, _PROTOCOLS.get((port.get("protocol") or "").lower())))
        port_names[port["number"]] = PortName(port.get("name") or "", "")
    bound = bound_service(entry, home, waypoints, visibility)
    return [
        Record(
            source=entry,
            hostname=host,
            addresses=explicit or _automatic_addresses(entry, host, settings),
            ports=ports,
            port_names=port_names,
            selector=dig(spec, "workloadSelector", "labels") or {},
            load_balancing=_load_balancing_of_entry(entry, home),
            bound=bound,
            ingress_uses_waypoint=_ingress_uses_waypoint(entry, home),
            visibility=visibility,
        )
        for host in dict.fromkeys(entries(spec, "hosts"))
    ]


def resolution(entry: Manifest) -> str:
    return dig(entry, "spec", "resolution") or "NONE"


def _automatic_addresses(entry: Manifest, host: str, settings: Settings) -> list[Mapping[str, Any]]:
    opted_out = labels(entry).get("networking.istio.io/enable-autoallocate-ip", "").lower() == "false"
    if not settings.allocate_addresses or opted_out or resolution(entry) == "NONE":
        return []
    if host.startswith("*") and resolution(entry) != "DYNAMIC_DNS":
        return []
    parsed = [
        ip.parse(address.get("value") or "")
        for address in entries(entry, "status", "addresses")
        if address.get("host") == host
    ]
    return [{"network": settings.network, "address": ip.text(address)} for address in parsed if address is not None]


def _protocol_of_service_port(port: Mapping[str, Any]) -> str | None:
    if port["protocol"] == "UDP":
        return None
    text = port.get("appProtocol")
    if text is None:
        text = port.get("name") or ""
    elif text in _FINAL_APP_PROTOCOLS:
        return _FINAL_APP_PROTOCOLS[text]
    text = text.lower()
    word = "grpc-web" if text.startswith("grpc-web") else text.split("-")[0]
    if word in _PROTOCOLS:
        return _PROTOCOLS[word]
    return "TCP" if port["port"] in _TCP_PORTS else None


def _load_balancing_of_service(service: Manifest, home: Manifest) -> Mapping[str, Any]:
    spec = service.get("spec") or {}
    if spec.get("internalTrafficPolicy") == "Local":
        chosen: dict[str, Any] = {"routing_preference": ["NODE"], "mode": "STRICT"}
    else:
        chosen = _distribution(_DISTRIBUTIONS.get(spec.get("trafficDistribution") or ""), service, home)
    if spec.get("publishNotReadyAddresses"):
        chosen["health_policy"] = "ALLOW_ALL"
    return chosen


def _load_balancing_of_entry(entry: Manifest, home: Manifest) -> Mapping[str, Any]:
    if resolution(entry) == "NONE":
        return {"mode": "PASSTHROUGH", "health_policy": "ALLOW_ALL"}
    return _distribution(None, entry, home)


def _distribution(preset: Sequence[str] | None, object_: Manifest, home: Manifest) -> dict[str, Any]:
    by_lower_case = {text.lower(): scopes for text, scopes in _DISTRIBUTIONS.items()}
    for annotated in (object_, home):
        text = annotations_of(annotated).get(_DISTRIBUTION, "")
        if preset is None and text:
            # A text that is not known ends the search just as one that is.
            preset = by_lower_case.get(text.lower(), ())
    return {"routing_preference": list(preset), "mode": "FAILOVER"} if preset else {}


def _ingress_uses_waypoint(object_: Manifest, home: Manifest) -> bool:
    return labels(object_).get(_INGRESS, labels(home).get(_INGRESS)) in TRUE_TEXTS


def message(record: Record) -> dict[str, Any]:
    """The Service of a record, in golden form."""
    spec = record.source.get("spec") or {}
    service: dict[str, Any] = {
        "name": name(record.source),
        "namespace": record.namespace,
        "hostname": record.hostname,
        "addresses": record.addresses,
        "ports": [
            {"service_port": port.number, "target_port": port.target, "app_protocol": port.protocol}
            for port in record.ports
        ],
        "load_balancing": record.load_balancing,
        "canonical": record.canonical,
    }
    if record.is_kubernetes:
        match entries(spec, "ipFamilies"):
            case [family]:
                service["ip_families"] = "IPV4_ONLY" if family == "IPv4" else "IPV6_ONLY"
            case [_, _, *_]:
                service["ip_families"] = "DUAL"
    else:
        service["subject_alt_names"] = list(entries(spec, "subjectAltNames"))
        service["visibility"] = None if record.visibility == "PUBLIC" else record.visibility
    if record.bound is not None:
        service["ingress_use_waypoint"] = record.ingress_uses_waypoint
        address, canary = record.bound.waypoint.address, record.bound.canary
        service["waypoint"] = address
        if canary is not None and canary.address is not None and address is not None:
            service["weighted_waypoints"] = [
                {"destination": address, "weight": 100 - record.bound.weight},
                {"destination": canary.address, "weight": record.bound.weight},
            ]
    return service
