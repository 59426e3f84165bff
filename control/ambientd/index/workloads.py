"""What all workloads share: the key that `Address.workload` is made of, how it is rendered, and the implicit policies
that a workload lists (workloads.md 3 to 5, 8.1). Must not know where a workload comes from."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ambientd.index.declarations import Reader
from ambientd.index.ips import ip_text
from ambientd.index.networks import Destination, fill_destination
from ambientd.index.nodes import Locality
from ambientd.index.rendered import RenderedAddress, deterministic, version_of
from ambientd.index.service_records import ServiceRecord
from ambientd.index.waypoint_policies import allow_names
from ambientd.index.waypoints import InboundBinding
from ambientd_api import workload_pb2 as api

PortMap = tuple[tuple[int, int], ...]
"""Service port and target port, in the order of the service's ports."""

REDIRECTION = "ambient.istio.io/redirection"
CAPTURED = "enabled"


class WorkloadKey(Struct, frozen=True, gc=False):
    """Everything that `Address.workload` is made of; field names as in the message, where they have one."""

    uid: str
    name: str
    namespace: str
    network: str
    cluster_id: str
    trust_domain: str
    addresses: tuple[bytes, ...] = ()
    hostname: str = ""
    service_account: str = ""
    node: str = ""
    workload_name: str = ""
    canonical_name: str = ""
    canonical_revision: str = ""
    is_typed: bool = True
    """`workload_type` is POD; it is left out for endpoints of slices."""
    has_hbone: bool = False
    has_native_tunnel: bool = False
    is_healthy: bool = True
    is_host_network: bool = False
    capacity: int = 0
    locality: Locality | None = None
    network_gateway: Destination | None = None
    waypoint: Destination | None = None
    tunnel: InboundBinding | None = None
    services: tuple[tuple[str, PortMap], ...] = ()
    service_keys: tuple[str, ...] = ()
    """The keys of `services`, as a tuple to share."""
    policies: tuple[str, ...] = ()


def render_workload(key: WorkloadKey) -> RenderedAddress:
    """The bytes of `Address.workload` and the facts about it that pushing needs."""
    address = api.Address()
    workload = address.workload
    workload.uid = key.uid
    workload.name = key.name
    workload.namespace = key.namespace
    workload.network = key.network
    workload.cluster_id = key.cluster_id
    workload.trust_domain = key.trust_domain
    workload.addresses.extend(key.addresses)
    workload.hostname = key.hostname
    workload.service_account = key.service_account
    workload.node = key.node
    workload.workload_name = key.workload_name
    workload.canonical_name = key.canonical_name
    workload.canonical_revision = key.canonical_revision
    if key.is_typed:
        workload.workload_type = api.POD
    if key.has_hbone:
        workload.tunnel_protocol = api.HBONE
    if key.has_native_tunnel:
        workload.native_tunnel = True
    if not key.is_healthy:
        workload.status = api.UNHEALTHY
    if key.is_host_network:
        workload.network_mode = api.HOST_NETWORK
    if key.capacity > 0:
        workload.capacity.value = key.capacity
    if key.locality is not None:
        workload.locality.region = key.locality.region
        workload.locality.zone = key.locality.zone
        workload.locality.subzone = key.locality.subzone
    if key.network_gateway is not None:
        fill_destination(workload.network_gateway, key.network_gateway)
    if key.waypoint is not None:
        fill_destination(workload.waypoint, key.waypoint)
    if key.tunnel is not None:
        _fill_tunnel(workload.application_tunnel, key.tunnel)
    for service, ports in key.services:
        # Reading a key of the map is what puts it there: an endpoint without ports of its own is one all the same.
        listed = workload.services[service].ports
        for service_port, target_port in ports:
            listed.add(service_port=service_port, target_port=target_port)
    workload.authorization_policies.extend(key.policies)
    body = deterministic(address)
    network = key.network
    return RenderedAddress(
        name=key.uid,
        body=body,
        version=version_of(body),
        namespace=key.namespace,
        aliases=tuple([f"{network}/{ip_text(raw)}" for raw in key.addresses]),
        policies=key.policies,
        services=key.service_keys,
        node=key.node,
        references=_references(key.waypoint, key.network_gateway),
    )


def _fill_tunnel(message: api.ApplicationTunnel, tunnel: InboundBinding) -> None:
    # Protocol NONE and port 0 still make a message that is present (workloads.md 3.15).
    message.SetInParent()
    if tunnel.protocol == "PROXY":
        message.protocol = api.ApplicationTunnel.PROXY
    message.port = tunnel.port


def _references(waypoint: Destination | None, gateway: Destination | None) -> tuple[str, ...]:
    if waypoint is None:
        return () if gateway is None else (gateway.reference,)
    return (waypoint.reference,) if gateway is None else (waypoint.reference, gateway.reference)


def implicit_policies(services: Iterable[ServiceRecord], own_waypoint: str, read: Reader) -> tuple[str, ...]:
    """Names of the policies of the waypoints of the services, in order of their keys, then that of the own waypoint
    (workloads.md 3.18). `own_waypoint` is its key, empty without one."""
    keys = sorted({key for record in services for key in record.waypoint_keys if key != own_waypoint})
    if own_waypoint:
        keys.append(own_waypoint)
    return allow_names(tuple(keys), read)
