"""The network of the cluster, the gateways of other networks, and what all workloads of the cluster share. Must not
look at workloads or services."""

from __future__ import annotations

from msgspec import Struct

from ambientd.index.declarations import Derived, Index, Reader, derive_over_index, expand, on_demand
from ambientd.index.inputs import GATEWAYS, NAMESPACES
from ambientd.index.ips import ip_text, parse_ip
from ambientd.index.mesh import mesh_of
from ambientd.index.namespaces import is_discovered
from ambientd.index.rendered import RenderedAddress, deterministic, version_of
from ambientd.resources.gateway import Gateway
from ambientd.resources.ref import Ref, label
from ambientd_api import workload_pb2 as api

NETWORK_LABEL = "topology.istio.io/network"

_REMOTE_CLASS = "istio-remote"
_ADDRESS_TYPES = ("IPAddress", "Hostname")


class Destination(Struct, frozen=True, gc=False):
    """Where a waypoint or a network gateway is reached: a `GatewayAddress`, by hostname or, without one, by address."""

    namespace: str
    hostname: str
    network: str
    ip: bytes
    port: int
    reference: str
    """The name under which a client looks the destination up (wire-contract.md 3.6)."""


def host_destination(namespace: str, hostname: str, port: int) -> Destination:
    return Destination(namespace, hostname, "", b"", port, f"{namespace}/{hostname}")


def address_destination(network: str, ip: bytes, port: int) -> Destination:
    return Destination("", "", network, ip, port, f"{network}/{ip_text(ip)}")


def fill_destination(message: api.GatewayAddress, destination: Destination) -> None:
    """Writes a destination into a message (wire-contract.md 5.4)."""
    if destination.hostname:
        message.hostname.namespace = destination.namespace
        message.hostname.hostname = destination.hostname
    else:
        message.address.network = destination.network
        message.address.address = destination.ip
    message.hbone_mtls_port = destination.port


class GatewayRecord(Struct, frozen=True, gc=False):
    """One address of a network gateway (workloads.md 7.2)."""

    name: str
    """`<namespace>/<name>/<address>`: the order among records."""
    namespace: str
    network: str
    address: str
    ip: bytes
    """Empty: the address is a hostname."""
    port: int
    """HBONE port."""
    service_account: str

    @property
    def uid(self) -> str:
        return f"NetworkGateway/{self.network}/{self.address}/{self.port}"


def _gather_gateway_records(gateway: Gateway, read: Reader) -> dict[tuple[str, Ref], GatewayRecord]:
    network = label(gateway.labels, NETWORK_LABEL)
    port = next((listener.port for listener in gateway.listeners if listener.protocol == "HBONE"), None)
    if not network or gateway.class_name != _REMOTE_CLASS or port is None:
        return {}
    ref = gateway.ref
    if not is_discovered(ref.namespace, read):
        return {}
    account = label(gateway.annotations, "gateway.istio.io/service-account") or f"{ref.name}-istio-remote"
    records = {}
    for address in gateway.addresses:
        if address.type in _ADDRESS_TYPES and address.value:
            name = f"{ref.namespace}/{ref.name}/{address.value}"
            ip = parse_ip(address.value) or b""
            records[name, ref] = GatewayRecord(name, ref.namespace, network, address.value, ip, port, account)
    return records


GATEWAY_RECORDS: Derived[tuple[str, Ref], GatewayRecord] = expand("gateway records", GATEWAYS, _gather_gateway_records)
_GATEWAYS_BY_NETWORK: Index[str, GatewayRecord] = Index(
    "gateway records by network", GATEWAY_RECORDS, lambda record: (record.network,)
)
_GATEWAYS_BY_UID: Index[str, GatewayRecord] = Index(
    "gateway records by uid", GATEWAY_RECORDS, lambda record: (record.uid,)
)


def _gather_network_gateway(network: str, read: Reader) -> Destination | None:
    for record in read.under(_GATEWAYS_BY_NETWORK, network):
        if record.port:
            if record.ip:
                return address_destination(record.network, record.ip, record.port)
            return host_destination(record.namespace, record.address, record.port)
    return None


NETWORK_GATEWAYS = on_demand("network gateways", _gather_network_gateway)
"""By network: how callers on other networks reach it (workloads.md 3.11)."""


class Site(Struct, frozen=True, gc=False):
    """What all workloads of the cluster have in common."""

    cluster_id: str
    trust_domain: str
    """As sent: empty for `cluster.local`."""
    network: str
    network_gateway: Destination | None
    service_entries_select_pods: bool
    services_select_workload_entries: bool
    auto_allow_waypoints: bool


def _gather_cluster_network(_: tuple[()], read: Reader) -> str:
    # Not subject to discovery selectors (operations.md 8).
    rules = mesh_of(read).rules
    system = read.get(NAMESPACES, Ref(rules.cluster_id, "Namespace", "", rules.system_namespace))
    return (label(system.labels, NETWORK_LABEL) or "") if system is not None else ""


CLUSTER_NETWORK = on_demand("cluster network", _gather_cluster_network)
"""Under the key `()`: the network of the cluster, empty when it has no name (workloads.md 7.1)."""


def cluster_network(read: Reader) -> str:
    return read.get(CLUSTER_NETWORK, ()) or ""


def _gather_site(_: tuple[()], read: Reader) -> Site:
    mesh = mesh_of(read)
    network = cluster_network(read)
    return Site(
        cluster_id=mesh.rules.cluster_id,
        trust_domain=mesh.sent_trust_domain,
        network=network,
        network_gateway=read.get(NETWORK_GATEWAYS, network),
        service_entries_select_pods=mesh.rules.service_entries_select_pods,
        services_select_workload_entries=mesh.rules.services_select_workload_entries,
        auto_allow_waypoints=mesh.rules.auto_allow_waypoints,
    )


SITE = on_demand("site", _gather_site)
"""Under the key `()`."""


class _GatewayKey(Struct, frozen=True, gc=False):
    record: GatewayRecord
    trust_domain: str


def _gather_gateway(_: str, records: tuple[GatewayRecord, ...], read: Reader) -> _GatewayKey:
    # Members come in the order of their names, and the smallest name decides (workloads.md 2.1).
    return _GatewayKey(records[0], mesh_of(read).sent_trust_domain)


def _render_gateway(key: _GatewayKey) -> RenderedAddress:
    record, address = key.record, api.Address()
    message = address.workload
    uid = message.uid = message.name = record.uid
    message.namespace = record.namespace
    message.service_account = record.service_account
    message.network = record.network
    message.trust_domain = key.trust_domain
    aliases: tuple[str, ...] = ()
    if record.ip:
        message.addresses.append(record.ip)
        aliases = (f"{record.network}/{ip_text(record.ip)}",)
    else:
        message.hostname = record.address
    body = deterministic(address)
    return RenderedAddress(uid, body, version_of(body), record.namespace, aliases)


GATEWAY_WORKLOADS = derive_over_index("gateway workloads", _GATEWAYS_BY_UID, _gather_gateway, _render_gateway)

DECLARATIONS = (
    GATEWAYS,
    GATEWAY_RECORDS,
    _GATEWAYS_BY_NETWORK,
    _GATEWAYS_BY_UID,
    NETWORK_GATEWAYS,
    CLUSTER_NETWORK,
    SITE,
    GATEWAY_WORKLOADS,
)
