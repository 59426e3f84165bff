"""Workloads that are not pods of the cluster: WorkloadEntries, and the endpoints of ServiceEntries (workloads.md 4, 5).
Must not decide which hosts of a ServiceEntry survive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ambientd.index.declarations import Derived, Reader, derive, expand
from ambientd.index.inputs import SERVICE_ENTRIES, WORKLOAD_ENTRIES
from ambientd.index.ips import parse_ip
from ambientd.index.mesh import in_revision, mesh_of
from ambientd.index.namespaces import is_discovered
from ambientd.index.networks import NETWORK_GATEWAYS, SITE, Destination, Site
from ambientd.index.nodes import parse_locality
from ambientd.index.rendered import RenderedAddress
from ambientd.index.selection import Selection, select
from ambientd.index.service_records import ENTRY_RECORDS, ServiceRecord
from ambientd.index.waypoints import UNBOUND, WorkloadBinding, workload_binding
from ambientd.index.workload_names import WORKLOAD_NAME, canonical_name, canonical_revision, has_native_tunnel
from ambientd.index.workloads import (
    CAPTURED,
    REDIRECTION,
    PortMap,
    WorkloadKey,
    implicit_policies,
    render_workload,
)
from ambientd.resources.networking import EntryEndpoint, ServiceEntry, WorkloadEntry
from ambientd.resources.ref import Labels, Ref, intern_labels, label

_AUTO_REGISTRATION_GROUP = "istio.io/autoRegistrationGroup"
_DNS_RESOLUTIONS = ("DNS", "DNS_ROUND_ROBIN", "DYNAMIC_DNS")


def effective_labels(entry: WorkloadEntry) -> Labels:
    """Those of the spec, overlaid with those of the metadata (workloads.md 4.1)."""
    if not entry.spec_labels:
        return entry.labels
    return intern_labels({**dict(entry.spec_labels), **dict(entry.labels)})


def _ports(record: ServiceRecord, ports: Mapping[str, int]) -> PortMap:
    """The ports of a service on an entry that maps names to numbers (workloads.md 4.3)."""
    joined = []
    for port in record.ports:
        if port.target_name:
            # A named target does not fall back to the name of the service's port.
            target = ports.get(port.target_name)
        else:
            target = ports.get(port.name, port.target_number)
        if target is not None:
            joined.append((port.number, target))
    return tuple(joined)


def _addresses(text: str) -> tuple[tuple[bytes, ...], str]:
    """Addresses and hostname: what is no IP is a hostname, as written (workloads.md 4.2)."""
    raw = parse_ip(text)
    return ((), text) if raw is None else ((raw,), "")


def _gateway(network: str, site: Site, read: Reader) -> Destination | None:
    return site.network_gateway if network == site.network else read.get(NETWORK_GATEWAYS, network)


def _policies(
    selection: Selection, services: tuple[ServiceRecord, ...], own_waypoint: str, site: Site, read: Reader
) -> tuple[str, ...]:
    if not site.auto_allow_waypoints:
        return selection.policies
    return selection.policies + implicit_policies(services, own_waypoint, read)


def _gather_workload_entry(entry: WorkloadEntry, read: Reader) -> WorkloadKey | None:
    ref = entry.ref
    site = read.get(SITE, ())
    if site is None or not in_revision(entry.labels, mesh_of(read).rules):
        return None
    labels = effective_labels(entry)
    selection = select(ref.namespace, labels, read)
    if selection is None:
        return None
    services = selection.services
    if not site.services_select_workload_entries:
        services = tuple(record for record in services if record.is_entry)
    addresses, hostname = _addresses(entry.address)
    network = entry.network or site.network
    workload_name = label(entry.annotations, _AUTO_REGISTRATION_GROUP)
    if workload_name is None:
        workload_name = label(labels, WORKLOAD_NAME)
    if workload_name is None:
        workload_name = ref.name
    is_native = has_native_tunnel(labels)
    ports = dict(entry.ports)
    return WorkloadKey(
        uid=f"{site.cluster_id}/networking.istio.io/WorkloadEntry/{ref.namespace}/{ref.name}",
        name=ref.name,
        namespace=ref.namespace,
        network=network,
        cluster_id=site.cluster_id,
        trust_domain=site.trust_domain,
        addresses=addresses,
        hostname=hostname,
        service_account=entry.service_account,
        workload_name=workload_name,
        canonical_name=canonical_name(labels, workload_name),
        canonical_revision=canonical_revision(labels),
        has_hbone=is_native or label(entry.annotations, REDIRECTION) == CAPTURED,
        has_native_tunnel=is_native,
        capacity=entry.weight,
        locality=parse_locality(entry.locality),
        network_gateway=_gateway(network, site, read),
        waypoint=selection.waypoint,
        tunnel=selection.tunnel,
        services=tuple((record.key, _ports(record, ports)) for record in services),
        service_keys=tuple(record.key for record in services),
        policies=_policies(selection, services, selection.waypoint_key, site, read),
    )


WORKLOAD_ENTRY_WORKLOADS: Derived[Ref, RenderedAddress] = derive(
    "workload entry workloads", WORKLOAD_ENTRIES, _gather_workload_entry, render_workload
)
"""By Ref of the WorkloadEntry."""


def _gather_workload_entry_binding(entry: WorkloadEntry, read: Reader) -> WorkloadBinding | None:
    if not in_revision(entry.labels, mesh_of(read).rules) or not is_discovered(entry.ref.namespace, read):
        return None
    return workload_binding(entry.ref.namespace, effective_labels(entry), read)


WORKLOAD_ENTRY_BINDINGS: Derived[Ref, WorkloadBinding] = derive(
    "workload entry bindings", WORKLOAD_ENTRIES, _gather_workload_entry_binding
)
"""By Ref of the WorkloadEntry: its waypoint, or why it has none (workloads.md 4.5)."""


def _gather_endpoints(entry: ServiceEntry, read: Reader) -> dict[tuple[Ref, str], WorkloadKey]:
    is_implied = not entry.endpoints
    if is_implied and (entry.resolution not in _DNS_RESOLUTIONS or entry.workload_selector is not None):
        return {}
    ref = entry.ref
    found = ((host, read.get(ENTRY_RECORDS, (ref, host))) for host in dict.fromkeys(entry.hosts))
    surviving = {host: record for host, record in found if record is not None}
    if not surviving:
        return {}
    selection, site = select(ref.namespace, entry.labels, read), read.get(SITE, ())
    if selection is None or site is None:
        return {}
    endpoints = _implied(surviving) if is_implied else _listed(entry, surviving, read)
    return {
        (ref, endpoint.address): _endpoint_key(entry, endpoint, records, binding, selection, site, read)
        for endpoint, records, binding in endpoints
    }


_Endpoint = tuple[EntryEndpoint, tuple[ServiceRecord, ...], WorkloadBinding]


def _implied(surviving: Mapping[str, ServiceRecord]) -> Iterator[_Endpoint]:
    for host, record in surviving.items():
        implied = EntryEndpoint(
            address=host, ports=(), labels=(), network="", locality="", weight=0, service_account=""
        )
        yield implied, (record,), UNBOUND


def _listed(entry: ServiceEntry, surviving: Mapping[str, ServiceRecord], read: Reader) -> Iterator[_Endpoint]:
    records = tuple(surviving[host] for host in sorted(surviving))
    for endpoint in entry.endpoints:
        yield endpoint, records, workload_binding(entry.ref.namespace, endpoint.labels, read)


def _endpoint_key(
    entry: ServiceEntry,
    endpoint: EntryEndpoint,
    records: tuple[ServiceRecord, ...],
    binding: WorkloadBinding,
    selection: Selection,
    site: Site,
    read: Reader,
) -> WorkloadKey:
    ref = entry.ref
    addresses, hostname = _addresses(endpoint.address)
    network = endpoint.network or site.network
    is_native = has_native_tunnel(entry.labels)
    ports = dict(endpoint.ports)
    return WorkloadKey(
        uid=f"{site.cluster_id}/networking.istio.io/ServiceEntry/{ref.namespace}/{ref.name}/{endpoint.address}",
        name=ref.name,
        namespace=ref.namespace,
        network=network,
        cluster_id=site.cluster_id,
        trust_domain=site.trust_domain,
        addresses=addresses,
        hostname=hostname,
        service_account=endpoint.service_account,
        workload_name=ref.name,
        canonical_name=canonical_name(entry.labels, ref.name),
        canonical_revision=canonical_revision(entry.labels),
        has_hbone=is_native or label(entry.annotations, REDIRECTION) == CAPTURED,
        has_native_tunnel=is_native,
        capacity=endpoint.weight,
        locality=parse_locality(endpoint.locality),
        network_gateway=_gateway(network, site, read),
        waypoint=binding.destination,
        tunnel=binding.tunnel,
        services=tuple((record.key, _ports(record, ports)) for record in records),
        service_keys=tuple(record.key for record in records),
        policies=_policies(selection, records, binding.waypoint_key, site, read),
    )


SERVICE_ENTRY_WORKLOADS: Derived[tuple[Ref, str], RenderedAddress] = expand(
    "service entry workloads", SERVICE_ENTRIES, _gather_endpoints, render_workload
)
"""By Ref of the ServiceEntry, and the endpoint's address as written."""

DECLARATIONS = (WORKLOAD_ENTRIES, WORKLOAD_ENTRY_WORKLOADS, WORKLOAD_ENTRY_BINDINGS, SERVICE_ENTRY_WORKLOADS)
