"""What is wrong with objects that were read: not enough to refuse them when they are decoded, and enough that an
operator should know (services.md 10, 17; workloads.md 3.2, 6). Must not change what is served."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ambientd.index.declarations import Derived, Reader, derive
from ambientd.index.entry_workloads import WORKLOAD_ENTRY_BINDINGS
from ambientd.index.inputs import ENDPOINT_SLICES, GATEWAYS, PODS, SERVICE_ENTRIES, SERVICES, WORKLOAD_ENTRIES, Trouble
from ambientd.index.ips import parse_ip
from ambientd.index.mesh import in_revision, mesh_of
from ambientd.index.namespaces import is_discovered
from ambientd.index.pod_workloads import unusable_ip
from ambientd.index.pods import is_finished
from ambientd.index.service_records import (
    ENTRY_BINDINGS,
    SERVICE_BINDINGS,
    SERVICE_RECORDS,
    Ruling,
    ServiceRecord,
    cluster_ips,
    entry_addresses,
    ruling_on,
    visibility_in,
)
from ambientd.index.services import ENTRY_ADDRESSES, TRAFFIC_DISTRIBUTION, is_traffic_distribution
from ambientd.index.slice_workloads import endpoint_address, names_pod, served_endpoints, service_of, usable_ports
from ambientd.index.waypoints import (
    CANARY_WEIGHT,
    INBOUND_BINDING,
    USE_CANARY,
    USE_WAYPOINT,
    WAYPOINTS,
    Binding,
    Reason,
    ServiceBinding,
    parse_inbound_binding,
)
from ambientd.resources.core import Pod, Service
from ambientd.resources.discovery import EndpointSlice
from ambientd.resources.faults import Fault, quote
from ambientd.resources.gateway import Gateway
from ambientd.resources.networking import ServiceEntry, WorkloadEntry
from ambientd.resources.ref import Labels, Ref, label

_REASONS = {
    Reason.NOT_READY: ("must name a Gateway that has an address in its status", ""),
    Reason.DENIED: (
        "must name a Gateway whose listener admits this namespace",
        "set allowedRoutes on the Gateway's HBONE listener",
    ),
    Reason.UNSUPPORTED_TYPE: (
        "must name a Gateway that serves this kind of traffic",
        "set the label istio.io/waypoint-for on the Gateway",
    ),
    Reason.CROSS_NAMESPACE: (
        "must name a Gateway of the same namespace, since the entry is visible there only",
        "change serviceEntryVisibility, or use a waypoint of this namespace",
    ),
    Reason.SAME_AS_PRIMARY: ("must name another Gateway than the primary waypoint", ""),
    Reason.INVALID_WEIGHT: (f"needs a whole number from 0 to 100 in the annotation {CANARY_WEIGHT}", ""),
}
_IP_RULE = "must be an IP address"
_UNBOUND = "traffic does not pass a waypoint"


def _trouble(faults: Iterable[Fault], is_served: bool) -> Trouble | None:
    ordered = tuple(sorted(faults))
    return Trouble(ordered, is_served) if ordered else None


def _binding_faults(binding: Binding | None, key: str, namespace: str, effect: str) -> Iterator[Fault]:
    if binding is not None and binding.reason is not None:
        rule, remedy = _REASONS[binding.reason]
        path = f"metadata.labels[{key}]"
        if binding.is_inherited:
            path += f" of Namespace {namespace}"
        yield Fault(path, rule, quote(binding.key), effect, remedy)


def _service_binding_faults(binding: ServiceBinding | None, namespace: str) -> Iterator[Fault]:
    if binding is not None:
        yield from _binding_faults(binding.primary, USE_WAYPOINT, namespace, _UNBOUND)
        yield from _binding_faults(binding.canary, USE_CANARY, namespace, "all traffic goes to the primary waypoint")


def _distribution_faults(annotations: Labels) -> Iterator[Fault]:
    value = label(annotations, TRAFFIC_DISTRIBUTION)
    if value and not is_traffic_distribution(value):
        path = f"metadata.annotations[{TRAFFIC_DISTRIBUTION}]"
        rule = "must be PreferClose, PreferSameZone or PreferSameNode"
        yield Fault(path, rule, quote(value), "traffic has no preference")


def _gather_pod(pod: Pod, read: Reader) -> Trouble | None:
    text = None if is_finished(pod) else unusable_ip(pod)
    if text is None or not is_discovered(pod.ref.namespace, read):
        return None
    return _trouble([Fault("status.podIPs", _IP_RULE, quote(text), "the pod is not served")], is_served=False)


POD_PROBLEMS: Derived[Ref, Trouble] = derive("pod problems", PODS, _gather_pod)


def _gather_service(service: Service, read: Reader) -> Trouble | None:
    if not is_discovered(service.ref.namespace, read) or service.type == "ExternalName":
        return None
    text = cluster_ips(service)[1]
    if text is not None:
        return _trouble([Fault("spec.clusterIPs", _IP_RULE, quote(text), "the Service is not served")], is_served=False)
    binding = read.get(SERVICE_BINDINGS, service.ref)
    faults = [
        *_distribution_faults(service.annotations),
        *_service_binding_faults(binding, service.ref.namespace),
    ]
    return _trouble(faults, is_served=True)


SERVICE_PROBLEMS: Derived[Ref, Trouble] = derive("service problems", SERVICES, _gather_service)


def _gather_entry(entry: ServiceEntry, read: Reader) -> Trouble | None:
    ref = entry.ref
    if not is_discovered(ref.namespace, read) or not in_revision(entry.labels, mesh_of(read).rules):
        return None
    text = entry_addresses(entry)[1]
    if text is not None:
        fault = Fault(
            "spec.addresses", "must be an IP address or a CIDR", quote(text), "no host of the ServiceEntry is served"
        )
        return _trouble([fault], is_served=False)
    if visibility_in(ref.namespace, read) == "NONE":
        return None
    binding = read.get(ENTRY_BINDINGS, ref)
    faults = [*_distribution_faults(entry.annotations), *_service_binding_faults(binding, ref.namespace)]
    is_served = False
    for number, host in enumerate(entry.hosts):
        ruling = ruling_on(host, read)
        if not ruling.is_winner(ref):
            faults.append(_lost(number, host, ref, ruling))
            continue
        is_served = True
        if ruling.canonical != ref and not _is_local(ref, read):
            faults.append(_not_canonical(number, host, ruling))
        faults.extend(_bypasses(number, host, entry, binding, read))
    return _trouble(faults, is_served)


def _is_local(ref: Ref, read: Reader) -> bool:
    return visibility_in(ref.namespace, read) == "NAMESPACE"


def _lost(number: int, host: str, ref: Ref, ruling: Ruling) -> Fault:
    if ref.namespace in ruling.service_namespaces:
        winner = "the Service of that name"
    else:
        winner = f"the older {dict(ruling.winners).get(ref.namespace, ref)}"
    effect = f"this host is served from {winner}"
    return Fault(f"spec.hosts[{number}]", "must be unique in its namespace", quote(host), effect)


def _not_canonical(number: int, host: str, ruling: Ruling) -> Fault:
    winner = ruling.canonical
    other = f"namespace {winner.namespace}" if winner is not None else f"namespace {ruling.service_namespaces[0]}"
    rule = "should be unique in the mesh"
    effect = f"clients of other namespaces use the one of {other}"
    return Fault(f"spec.hosts[{number}]", rule, quote(host), effect)


def _bypasses(
    number: int, host: str, entry: ServiceEntry, binding: ServiceBinding | None, read: Reader
) -> Iterator[Fault]:
    """Traffic that does not reach the waypoint that it is meant for (services.md 6)."""
    is_bound = binding is not None and binding.primary.reason is None
    served = read.get(ENTRY_ADDRESSES, (entry.ref, host))
    if binding is not None and is_bound and served is not None and not served.aliases:
        rule = f"must have an address for its traffic to pass the waypoint {binding.primary.key}"
        remedy = "set spec.addresses, or let addresses be allocated"
        yield Fault(f"spec.hosts[{number}]", rule, quote(host), "its traffic does not pass the waypoint", remedy)
    if entry.resolution == "DYNAMIC_DNS" and not is_bound:
        rule = "needs a waypoint when the resolution is DYNAMIC_DNS"
        remedy = f"set the label {USE_WAYPOINT}"
        yield Fault(f"spec.hosts[{number}]", rule, quote(host), "nobody resolves this host", remedy)


ENTRY_PROBLEMS: Derived[Ref, Trouble] = derive("service entry problems", SERVICE_ENTRIES, _gather_entry)


def _gather_slice(item: EndpointSlice, read: Reader) -> Trouble | None:
    service = service_of(item)
    if service is None or not is_discovered(item.ref.namespace, read):
        return None
    has_own = not all(names_pod(endpoint) for endpoint in item.endpoints)
    record = read.get(SERVICE_RECORDS, service) if has_own else None
    if record is None:
        return None
    faults = []
    for number, endpoint in enumerate(item.endpoints):
        text = next((text for text in endpoint.addresses if endpoint_address(item, text) is None), None)
        if text is not None and not names_pod(endpoint):
            path = f"endpoints[{number}].addresses"
            rule = _IP_RULE if parse_ip(text) is None else f"must be of the slice's addressType, {item.address_type}"
            faults.append(Fault(path, rule, quote(text), "this endpoint is left out"))
    faults.extend(_port_faults(item, record))
    return _trouble(faults, is_served=bool(served_endpoints(item)))


def _port_faults(item: EndpointSlice, record: ServiceRecord) -> Iterator[Fault]:
    names = ", ".join(quote(port.name) for port in record.ports)
    for number, port in enumerate(item.ports):
        is_usable = port.name is not None and port.number is not None and port.protocol == "TCP"
        if is_usable and not usable_ports((port,), record):
            rule = f"must be the name of a port of Service {record.hostname}, which has {names or 'none'}"
            yield Fault(f"ports[{number}].name", rule, quote(port.name), "this port of the endpoints is not used")


SLICE_PROBLEMS: Derived[Ref, Trouble] = derive("endpoint slice problems", ENDPOINT_SLICES, _gather_slice)


def _gather_workload_entry(entry: WorkloadEntry, read: Reader) -> Trouble | None:
    found = read.get(WORKLOAD_ENTRY_BINDINGS, entry.ref)
    binding = None if found is None else found.binding
    return _trouble(_binding_faults(binding, USE_WAYPOINT, entry.ref.namespace, _UNBOUND), is_served=True)


WORKLOAD_ENTRY_PROBLEMS: Derived[Ref, Trouble] = derive(
    "workload entry problems", WORKLOAD_ENTRIES, _gather_workload_entry
)


def _gather_gateway(gateway: Gateway, read: Reader) -> Trouble | None:
    waypoint = read.get(WAYPOINTS, gateway.ref)
    if waypoint is None:
        return None
    faults = []
    hint = label(gateway.annotations, INBOUND_BINDING)
    if hint is not None and parse_inbound_binding(hint) is None:
        rule = "must be PROXY or NONE, with a port or without: PROXY/15088"
        effect = "pods of the Gateway get no application tunnel"
        faults.append(Fault(f"metadata.annotations[{INBOUND_BINDING}]", rule, quote(hint), effect))
    if waypoint.destination is None:
        got = ", ".join(quote(address.value) for address in gateway.addresses)
        rule = "must have a Hostname or an IPAddress that parses"
        faults.append(Fault("status.addresses", rule, got, "what is bound to it is served without a waypoint"))
    return _trouble(faults, is_served=True)


GATEWAY_PROBLEMS: Derived[Ref, Trouble] = derive("gateway problems", GATEWAYS, _gather_gateway)

PROBLEMS: tuple[Derived[Ref, Trouble], ...] = (
    POD_PROBLEMS,
    SERVICE_PROBLEMS,
    ENTRY_PROBLEMS,
    SLICE_PROBLEMS,
    WORKLOAD_ENTRY_PROBLEMS,
    GATEWAY_PROBLEMS,
)

DECLARATIONS = PROBLEMS
