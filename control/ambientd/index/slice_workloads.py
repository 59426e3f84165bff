"""EndpointSlices: which pods they name, and the endpoints that are no pods, as workloads of their own (workloads.md
3.13, 6). Must not read pods."""

from __future__ import annotations

from msgspec import Struct

from ambientd.index.declarations import Derived, Index, Reader, expand
from ambientd.index.inputs import ENDPOINT_SLICES
from ambientd.index.ips import parse_ip
from ambientd.index.mesh import mesh_of
from ambientd.index.namespaces import is_discovered
from ambientd.index.networks import SITE
from ambientd.index.rendered import RenderedAddress
from ambientd.index.service_records import SERVICE_RECORDS, ServiceRecord, hostname_of
from ambientd.index.workloads import PortMap, WorkloadKey, render_workload
from ambientd.resources.discovery import Endpoint, EndpointSlice, SlicePort
from ambientd.resources.ref import Ref, label

SERVICE_NAME = "kubernetes.io/service-name"
_FAMILIES = {"IPv4": 4, "IPv6": 16}
"""Bytes of an address of each `addressType`."""

PodId = tuple[str, str, str]
"""Namespace, name and UID of a pod."""


class Target(Struct, frozen=True, gc=False):
    """A pod that a slice names."""

    pod: PodId
    service: Ref
    hostname: str


def service_of(item: EndpointSlice) -> Ref | None:
    """The Service that a slice belongs to; None when the slice is none of ours (workloads.md 6.1)."""
    name = label(item.labels, SERVICE_NAME)
    if name is None or item.address_type == "FQDN":
        return None
    return Ref(item.ref.cluster, "Service", item.ref.namespace, name)


def _gather_targets(item: EndpointSlice, read: Reader) -> dict[tuple[Ref, PodId], Target]:
    service = service_of(item)
    if service is None or not is_discovered(item.ref.namespace, read):
        return {}
    hostname = hostname_of(service, mesh_of(read).rules.domain)
    targets = {}
    for endpoint in item.endpoints:
        target = endpoint.target
        # Without a UID it cannot be told from an earlier pod of that name.
        if target is not None and target.kind == "Pod" and target.uid:
            pod = (target.namespace, target.name, target.uid)
            targets[item.ref, pod] = Target(pod, service, hostname)
    return targets


# One value per pod and slice, so that a pod that comes or goes moves no other pod of its slice.
_TARGETS: Derived[tuple[Ref, PodId], Target] = expand("slice targets", ENDPOINT_SLICES, _gather_targets)
TARGETS_BY_POD: Index[PodId, Target] = Index("slice targets by pod", _TARGETS, lambda target: (target.pod,))


def usable_ports(ports: tuple[SlicePort, ...], record: ServiceRecord) -> PortMap:
    """Joined by name, the empty one included: the slice's number under the service's (workloads.md 6.2)."""
    joined = []
    for port in ports:
        if port.name is None or port.number is None or port.protocol != "TCP":
            continue
        number = next((held.number for held in record.ports if held.name == port.name), None)
        if number is not None:
            joined.append((number, port.number))
    return tuple(joined)


def endpoint_address(item: EndpointSlice, text: str) -> bytes | None:
    """An address of an endpoint; None unless it is one of the slice's `addressType`, which alone is trusted."""
    raw = parse_ip(text)
    return raw if raw is not None and _FAMILIES.get(item.address_type, len(raw)) == len(raw) else None


def names_pod(endpoint: Endpoint) -> bool:
    """It is a pod of the cluster, and no workload of its own."""
    return endpoint.target is not None and endpoint.target.kind == "Pod"


def served_endpoints(item: EndpointSlice) -> list[tuple[Endpoint, tuple[bytes, ...]]]:
    """Endpoints that are workloads of their own, with their addresses; one that has an address that is none, or
    of another family than the slice, is left out, as is a later one with the same first address (workloads.md 6.1)."""
    served = []
    seen = set()
    for endpoint in item.endpoints:
        if names_pod(endpoint) or not endpoint.addresses:
            continue
        if endpoint.addresses[0] in seen:
            continue
        seen.add(endpoint.addresses[0])
        raw = tuple(endpoint_address(item, text) for text in endpoint.addresses)
        addresses = tuple(address for address in raw if address is not None)
        if len(addresses) == len(raw):
            served.append((endpoint, addresses))
    return served


def _gather_endpoints(item: EndpointSlice, read: Reader) -> dict[tuple[Ref, str], WorkloadKey]:
    service = service_of(item)
    if service is None or not is_discovered(item.ref.namespace, read):
        return {}
    served = served_endpoints(item)
    record = read.get(SERVICE_RECORDS, service) if served else None
    site = read.get(SITE, ()) if served else None
    if record is None or site is None:
        return {}
    ref, services = item.ref, ((record.key, usable_ports(item.ports, record)),)
    return {
        (ref, endpoint.addresses[0]): WorkloadKey(
            uid=f"{site.cluster_id}/discovery.k8s.io/EndpointSlice/{ref.namespace}/{ref.name}/{endpoint.addresses[0]}",
            name=ref.name,
            namespace=ref.namespace,
            network=site.network,
            cluster_id=site.cluster_id,
            trust_domain=site.trust_domain,
            addresses=addresses,
            is_typed=False,
            is_healthy=endpoint.is_ready,
            is_host_network=True,
            services=services,
            service_keys=(record.key,),
        )
        for endpoint, addresses in served
    }


SLICE_WORKLOADS: Derived[tuple[Ref, str], RenderedAddress] = expand(
    "slice workloads", ENDPOINT_SLICES, _gather_endpoints, render_workload
)
"""By Ref of the EndpointSlice, and the endpoint's first address as written."""

DECLARATIONS = (ENDPOINT_SLICES, _TARGETS, TARGETS_BY_POD, SLICE_WORKLOADS)
