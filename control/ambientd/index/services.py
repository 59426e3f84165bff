"""What a client gets to know of a service: from a Service or a host of a ServiceEntry to `istio.workload.Service`
(services.md 3 to 8). Must not decide who wins a hostname, nor which waypoint is bound."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from ambientd.index.declarations import Derived, Reader, derive
from ambientd.index.inputs import SERVICE_ENTRIES, SERVICES
from ambientd.index.ips import ip_text, parse_ip
from ambientd.index.mesh import mesh_of
from ambientd.index.namespaces import NamespaceView, namespace_of
from ambientd.index.networks import Destination, cluster_network, fill_destination
from ambientd.index.rendered import RenderedAddress, deterministic, version_of
from ambientd.index.service_records import (
    CANDIDATES,
    ENTRY_BINDINGS,
    SERVICE_BINDINGS,
    SERVICE_RECORDS,
    Candidate,
    IpRange,
    cluster_ips,
    entry_addresses,
    hostname_of,
    ruling_on,
    visibility_in,
)
from ambientd.index.waypoints import ServiceBinding
from ambientd.resources.booleans import TRUE_TEXTS
from ambientd.resources.core import Service, ServicePort
from ambientd.resources.networking import ServiceEntry
from ambientd.resources.ref import Labels, Ref, label
from ambientd_api import workload_pb2 as api

TRAFFIC_DISTRIBUTION = "networking.istio.io/traffic-distribution"
INGRESS_USE_WAYPOINT = "istio.io/ingress-use-waypoint"
_AUTO_ALLOCATE = "networking.istio.io/enable-autoallocate-ip"

_Lb = api.LoadBalancing


class Balancing(Struct, frozen=True, gc=False):
    """The content of `LoadBalancing`, frozen so that a preset cannot leak from one service to another."""

    preference: tuple[api.LoadBalancing.Scope.ValueType, ...] = ()
    mode: api.LoadBalancing.Mode.ValueType = _Lb.UNSPECIFIED_MODE
    health: api.LoadBalancing.HealthPolicy.ValueType = _Lb.ONLY_HEALTHY


_SAME_ZONE = Balancing((_Lb.NETWORK, _Lb.REGION, _Lb.ZONE), _Lb.FAILOVER)
_SAME_NODE = Balancing((_Lb.NETWORK, _Lb.REGION, _Lb.ZONE, _Lb.SUBZONE, _Lb.NODE), _Lb.FAILOVER)
_LOCAL = Balancing((_Lb.NODE,), _Lb.STRICT)
_PASSTHROUGH = Balancing((), _Lb.PASSTHROUGH, _Lb.ALLOW_ALL)
_PRESETS = {"preferclose": _SAME_ZONE, "prefersamezone": _SAME_ZONE, "prefersamenode": _SAME_NODE}
_SPEC_PRESETS = {"PreferClose": _SAME_ZONE, "PreferSameZone": _SAME_ZONE, "PreferSameNode": _SAME_NODE}

_PROTOCOLS: dict[str, api.AppProtocol.ValueType] = {
    "tcp": api.TCP,
    "udp": api.UNKNOWN,
    "grpc": api.GRPC,
    "grpc-web": api.UNKNOWN,
    "http": api.HTTP11,
    "http_proxy": api.UNKNOWN,
    "http2": api.HTTP2,
    "https": api.TLS,
    "tls": api.TLS,
    "mongo": api.UNKNOWN,
    "redis": api.UNKNOWN,
    "mysql": api.UNKNOWN,
}
_FINAL_PROTOCOLS: dict[str, api.AppProtocol.ValueType] = {
    "kubernetes.io/h2c": api.HTTP2,
    "kubernetes.io/ws": api.HTTP11,
    "kubernetes.io/wss": api.TLS,
}
_WELL_KNOWN_TCP = (25, 53, 3306, 27017)


class OutPort(Struct, frozen=True, gc=False):
    service_port: int
    target_port: int
    app_protocol: api.AppProtocol.ValueType


class ServiceKey(Struct, frozen=True, gc=False):
    """Everything that `Address.service` is made of."""

    name: str
    namespace: str
    hostname: str
    network: str
    addresses: tuple[IpRange, ...]
    ports: tuple[OutPort, ...]
    subject_alt_names: tuple[str, ...]
    waypoint: Destination | None
    weighted: tuple[tuple[Destination, int], ...]
    balancing: Balancing | None
    ip_families: api.IPFamilies.ValueType
    is_canonical: bool
    ingress_use_waypoint: bool
    is_namespace_local: bool


def app_protocol(port: ServicePort) -> api.AppProtocol.ValueType:
    """The application protocol of a Kubernetes Service port (services.md 4)."""
    if port.protocol == "UDP":
        return api.UNKNOWN
    text = port.name if port.app_protocol is None else port.app_protocol
    if port.app_protocol is not None and text in _FINAL_PROTOCOLS:
        return _FINAL_PROTOCOLS[text]
    text = text.lower()
    if text.startswith("grpc-web"):
        return api.UNKNOWN
    found = _PROTOCOLS.get(text.partition("-")[0])
    if found is None:
        return api.TCP if port.number in _WELL_KNOWN_TCP else api.UNKNOWN
    return found


def ingress_use_waypoint(labels: Labels, namespace_labels: Labels) -> bool | None:
    """What the label says, that of the object before that of its Namespace; None when there is none (services.md 8)."""
    value = label(labels, INGRESS_USE_WAYPOINT)
    if value is None:
        value = label(namespace_labels, INGRESS_USE_WAYPOINT)
    return None if value is None else value in TRUE_TEXTS


def _annotated_balancing(annotations: Labels, namespace: NamespaceView) -> Balancing | None:
    for held in (annotations, namespace.annotations):
        value = label(held, TRAFFIC_DISTRIBUTION)
        if value:
            # An unknown value ends the search (services.md 5).
            return _PRESETS.get(value.lower())
    return None


def is_traffic_distribution(value: str) -> bool:
    """Whether an annotation's value is one that has a meaning."""
    return value.lower() in _PRESETS


def _service_balancing(service: Service, namespace: NamespaceView) -> Balancing | None:
    if service.internal_traffic_policy == "Local":
        found: Balancing | None = _LOCAL
    else:
        found = _SPEC_PRESETS.get(service.traffic_distribution)
        if found is None:
            found = _annotated_balancing(service.annotations, namespace)
    if service.publish_not_ready:
        base = found or Balancing()
        return Balancing(base.preference, base.mode, _Lb.ALLOW_ALL)
    return found


def _ip_families(families: tuple[str, ...]) -> api.IPFamilies.ValueType:
    if not families:
        return api.AUTOMATIC
    if len(families) > 1:
        return api.DUAL
    return api.IPV4_ONLY if families[0] == "IPv4" else api.IPV6_ONLY


def _weighted(binding: ServiceBinding | None) -> tuple[tuple[Destination, int], ...]:
    """Primary and canary with their shares; none unless both can be sent (waypoints.md 2, 7)."""
    if binding is None or binding.canary is None or binding.canary.reason is not None:
        return ()
    primary, canary = binding.primary.destination, binding.canary.destination
    if primary is None or canary is None:
        return ()
    return (primary, 100 - binding.weight), (canary, binding.weight)


def _is_bound(binding: ServiceBinding | None) -> bool:
    return binding is not None and binding.primary.reason is None


def _gather_service(service: Service, read: Reader) -> ServiceKey | None:
    ref = service.ref
    if read.get(SERVICE_RECORDS, ref) is None:
        return None
    namespace = namespace_of(ref.namespace, read)
    binding = read.get(SERVICE_BINDINGS, ref)
    return ServiceKey(
        name=ref.name,
        namespace=ref.namespace,
        hostname=hostname_of(ref, mesh_of(read).rules.domain),
        network=cluster_network(read),
        addresses=tuple((raw, None) for raw in cluster_ips(service)[0]),
        ports=tuple(OutPort(port.number, port.target_number, app_protocol(port)) for port in service.ports),
        subject_alt_names=(),
        waypoint=None if binding is None else binding.primary.destination,
        weighted=_weighted(binding),
        balancing=_service_balancing(service, namespace),
        ip_families=_ip_families(service.ip_families),
        is_canonical=True,
        ingress_use_waypoint=_is_bound(binding) and bool(ingress_use_waypoint(service.labels, namespace.labels)),
        is_namespace_local=False,
    )


class _EntryView(Struct, frozen=True, gc=False):
    """What the hosts of a ServiceEntry have in common."""

    shared: ServiceKey
    """For no host in particular; its addresses are the explicit ones."""
    automatic: tuple[tuple[str, bytes], ...]
    """Host and address, in the order of the status; none unless the entry is eligible."""
    gives_wildcards: bool
    """Wildcard hosts get automatic addresses too."""


def _gather_entry_view(entry: ServiceEntry, read: Reader) -> _EntryView:
    ref, mesh = entry.ref, mesh_of(read)
    namespace = namespace_of(ref.namespace, read)
    binding = read.get(ENTRY_BINDINGS, ref)
    is_passthrough = entry.resolution == "NONE"
    is_eligible = (
        mesh.rules.auto_allocate_addresses
        and not is_passthrough
        and not entry.addresses
        and (label(entry.labels, _AUTO_ALLOCATE) or "").lower() != "false"
    )
    automatic = [
        (item.host, raw)
        for item in (entry.status_addresses if is_eligible else ())
        if (raw := parse_ip(item.value)) is not None
    ]
    shared = ServiceKey(
        name=ref.name,
        namespace=ref.namespace,
        hostname="",
        network=cluster_network(read),
        addresses=entry_addresses(entry)[0],
        ports=tuple(
            OutPort(port.number, port.target_number or port.number, _PROTOCOLS.get(port.protocol.lower(), api.UNKNOWN))
            for port in entry.ports
        ),
        subject_alt_names=entry.subject_alt_names,
        waypoint=None if binding is None else binding.primary.destination,
        weighted=_weighted(binding),
        balancing=_PASSTHROUGH if is_passthrough else _annotated_balancing(entry.annotations, namespace),
        ip_families=api.AUTOMATIC,
        is_canonical=False,
        ingress_use_waypoint=_is_bound(binding) and bool(ingress_use_waypoint(entry.labels, namespace.labels)),
        is_namespace_local=visibility_in(ref.namespace, read) == "NAMESPACE",
    )
    return _EntryView(shared, tuple(automatic), gives_wildcards=entry.resolution == "DYNAMIC_DNS")


_ENTRY_VIEWS: Derived[Ref, _EntryView] = derive("service entry views", SERVICE_ENTRIES, _gather_entry_view)


def _gather_host(candidate: Candidate, read: Reader) -> ServiceKey | None:
    ruling = ruling_on(candidate.host, read)
    if not ruling.is_winner(candidate.entry):
        return None
    view = read.get(_ENTRY_VIEWS, candidate.entry)
    if view is None:
        return None
    addresses = view.shared.addresses
    if not addresses and (view.gives_wildcards or not candidate.host.startswith("*")):
        addresses = tuple((raw, None) for host, raw in view.automatic if host == candidate.host)
    is_canonical = ruling.canonical == candidate.entry
    key: ServiceKey = replace(view.shared, hostname=candidate.host, addresses=addresses, is_canonical=is_canonical)
    return key


def _render(key: ServiceKey) -> RenderedAddress:
    address = api.Address()
    service = address.service
    service.name = key.name
    service.namespace = key.namespace
    service.hostname = key.hostname
    for raw, length in key.addresses:
        item = service.addresses.add(network=key.network, address=raw)
        if length is not None:
            item.length = length
    for port in key.ports:
        service.ports.add(service_port=port.service_port, target_port=port.target_port, app_protocol=port.app_protocol)
    service.subject_alt_names.extend(key.subject_alt_names)
    if key.waypoint is not None:
        fill_destination(service.waypoint, key.waypoint)
    for destination, weight in key.weighted:
        fill_destination(service.weighted_waypoints.add(weight=weight).destination, destination)
    if key.balancing is not None:
        service.load_balancing.SetInParent()
        service.load_balancing.routing_preference.extend(key.balancing.preference)
        service.load_balancing.mode = key.balancing.mode
        service.load_balancing.health_policy = key.balancing.health
    service.ip_families = key.ip_families
    service.canonical = key.is_canonical
    service.ingress_use_waypoint = key.ingress_use_waypoint
    if key.is_namespace_local:
        service.visibility = api.Service.NAMESPACE
    body = deterministic(address)
    return RenderedAddress(
        name=f"{key.namespace}/{key.hostname}",
        body=body,
        version=version_of(body),
        namespace=key.namespace,
        aliases=tuple(_aliases(key)),
        is_workload=False,
        is_canonical=key.is_canonical,
        references=_references(key),
    )


def _aliases(key: ServiceKey) -> Iterable[str]:
    for raw, length in key.addresses:
        alias = f"{key.network}/{ip_text(raw)}"
        yield alias if length is None else f"{alias}/{length}"


def _references(key: ServiceKey) -> tuple[str, ...]:
    destinations = [destination for destination, _ in key.weighted]
    if key.waypoint is not None:
        destinations.append(key.waypoint)
    return tuple(sorted({destination.reference for destination in destinations}))


SERVICE_ADDRESSES = derive("service addresses", SERVICES, _gather_service, _render)
"""By Ref of the Service."""
ENTRY_ADDRESSES = derive("service entry addresses", CANDIDATES, _gather_host, _render)
"""By Ref of the ServiceEntry, and host."""

DECLARATIONS = (SERVICE_ADDRESSES, _ENTRY_VIEWS, ENTRY_ADDRESSES)
