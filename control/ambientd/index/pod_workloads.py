"""Workloads that are pods (workloads.md 3). Must not read anything of another kind but what others derived from it."""

from __future__ import annotations

from msgspec import Struct

from ambientd.index.declarations import Derived, Reader, derive
from ambientd.index.inputs import PODS
from ambientd.index.ips import parse_ip
from ambientd.index.networks import SITE, Site
from ambientd.index.nodes import LOCALITIES, Locality
from ambientd.index.pods import is_finished
from ambientd.index.rendered import RenderedAddress
from ambientd.index.selection import Selection, select
from ambientd.index.service_records import SERVICE_RECORDS, ServiceRecord
from ambientd.index.slice_workloads import TARGETS_BY_POD
from ambientd.index.workload_names import canonical_name, canonical_revision, has_native_tunnel, pod_workload_name
from ambientd.index.workloads import CAPTURED, PortMap, WorkloadKey, implicit_policies, render_workload
from ambientd.resources.core import ContainerPort, Pod
from ambientd.resources.ref import Ref


class PodKey(Struct, frozen=True, gc=False):
    """What a pod's workload is made of: the pod, and values that it shares with others."""

    pod: Pod
    site: Site
    locality: Locality | None
    selection: Selection
    listed_in: tuple[ServiceRecord, ...]
    """Services that only an EndpointSlice joins to the pod (workloads.md 3.13)."""
    implicit_policies: tuple[str, ...]


def unusable_ip(pod: Pod) -> str | None:
    """The first address text that does not parse: then the pod is not served (workloads.md 3.4)."""
    return next((text for text in pod.ips if parse_ip(text) is None), None)


def _gather_pod(pod: Pod, read: Reader) -> PodKey | None:
    if not pod.ips or is_finished(pod) or unusable_ip(pod) is not None:
        return None
    ref = pod.ref
    selection = select(ref.namespace, pod.labels, read)
    site = read.get(SITE, ())
    if selection is None or site is None:
        return None
    locality = read.get(LOCALITIES, Ref(ref.cluster, "Node", "", pod.node)) if pod.node else None
    listed_in = _listed_in(pod, selection, site, read)
    implicit: tuple[str, ...] = ()
    if site.auto_allow_waypoints:
        services = (*_selected(selection, site), *listed_in)
        implicit = implicit_policies(services, selection.waypoint_key, read)
    return PodKey(pod, site, locality, selection, listed_in, implicit)


def _selected(selection: Selection, site: Site) -> tuple[ServiceRecord, ...]:
    if site.service_entries_select_pods:
        return selection.services
    return tuple(record for record in selection.services if not record.is_entry)


def _listed_in(pod: Pod, selection: Selection, site: Site, read: Reader) -> tuple[ServiceRecord, ...]:
    if not pod.uid:
        return ()
    targets = read.under(TARGETS_BY_POD, (pod.ref.namespace, pod.ref.name, pod.uid))
    if not targets:
        return ()
    found = {record.hostname for record in _selected(selection, site)}
    extra: dict[str, ServiceRecord] = {}
    for target in targets:
        if target.hostname not in found and target.hostname not in extra:
            record = read.get(SERVICE_RECORDS, target.service)
            if record is not None:
                extra[record.hostname] = record
    return tuple(extra.values())


def _render_pod(key: PodKey) -> RenderedAddress:
    pod, site, selection = key.pod, key.site, key.selection
    ref, labels = pod.ref, pod.labels
    workload_name = pod_workload_name(pod)
    is_native = has_native_tunnel(labels)
    records = selection.services
    service_keys = selection.service_keys
    if key.listed_in or not site.service_entries_select_pods:
        records = (*_selected(selection, site), *key.listed_in)
        service_keys = tuple(record.key for record in records)
    policies = selection.policies
    if key.implicit_policies:
        policies += key.implicit_policies
    return render_workload(
        WorkloadKey(
            uid=f"{site.cluster_id}//Pod/{ref.namespace}/{ref.name}",
            name=ref.name,
            namespace=ref.namespace,
            network=site.network,
            cluster_id=site.cluster_id,
            trust_domain=site.trust_domain,
            addresses=tuple([raw for text in pod.ips if (raw := parse_ip(text)) is not None]),
            service_account=pod.service_account,
            node=pod.node,
            workload_name=workload_name,
            canonical_name=canonical_name(labels, workload_name),
            canonical_revision=canonical_revision(labels),
            has_hbone=is_native or pod.redirection == CAPTURED,
            has_native_tunnel=is_native,
            is_healthy=pod.is_ready and not pod.is_deleting,
            is_host_network=pod.host_network,
            locality=key.locality,
            network_gateway=site.network_gateway,
            waypoint=selection.waypoint,
            tunnel=selection.tunnel,
            services=tuple([(record.key, _ports(record, pod.ports)) for record in records]),
            service_keys=service_keys,
            policies=policies,
        )
    )


def _ports(record: ServiceRecord, container_ports: tuple[ContainerPort, ...]) -> PortMap:
    """The ports of a service on this pod; one whose named target the pod does not have is left out (workloads.md
    3.12)."""
    ports = []
    for port in record.ports:
        target: int | None = port.target_number
        if record.is_entry:
            named = _container_port(container_ports, port.name)
            target = named if named is not None else target
        elif port.target_name:
            target = _container_port(container_ports, port.target_name)
        if target is not None:
            ports.append((port.number, target))
    return tuple(ports)


def _container_port(ports: tuple[ContainerPort, ...], name: str) -> int | None:
    for port in ports:
        if port.name == name and port.protocol == "TCP":
            return port.number
    return None


POD_WORKLOADS: Derived[Ref, RenderedAddress] = derive("pod workloads", PODS, _gather_pod, _render_pod)
"""By Ref of the Pod."""

DECLARATIONS = (PODS, POD_WORKLOADS)
