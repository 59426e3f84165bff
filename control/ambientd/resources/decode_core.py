"""Decoding of the kinds of the core API group (workloads.md 2.2, 2.3; services.md 3; operations.md 6.1). A field of the
wrong type makes the object undecodable: an API server never delivers one."""

from __future__ import annotations

import sys

import msgspec
from msgspec import Struct, field

from ambientd.resources.core import (
    ConfigMap,
    ContainerPort,
    Namespace,
    Node,
    Owner,
    Pod,
    Service,
    ServicePort,
)
from ambientd.resources.decode_common import (
    NO_META,
    Port,
    WireMeta,
    annotations_of,
    created_of,
    labels_of,
    make_ref,
)
from ambientd.resources.faults import Fault
from ambientd.resources.mesh_decode import decode_mesh
from ambientd.resources.ref import ClusterId


class _Owner(Struct, gc=False):
    kind: str | None = None
    name: str | None = None
    controller: bool | None = None


class _PodAnnotations(Struct, gc=False):
    redirection: str | None = field(default=None, name="ambient.istio.io/redirection")


class _PodMeta(Struct, gc=False):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None
    annotations: _PodAnnotations | None = None
    generate_name: str | None = field(default=None, name="generateName")
    owners: list[_Owner] | None = field(default=None, name="ownerReferences")
    deleted: str | None = field(default=None, name="deletionTimestamp")


class _ContainerPort(Struct, gc=False):
    name: str | None = None
    protocol: str | None = None
    number: Port | None = field(default=None, name="containerPort")


class _Container(Struct, gc=False):
    ports: list[_ContainerPort] | None = None


class _InitContainer(Struct, gc=False):
    ports: list[_ContainerPort] | None = None
    restart_policy: str | None = field(default=None, name="restartPolicy")


class _PodSpec(Struct, gc=False):
    service_account: str | None = field(default=None, name="serviceAccountName")
    node: str | None = field(default=None, name="nodeName")
    host_network: bool | None = field(default=None, name="hostNetwork")
    containers: list[_Container] | None = None
    init_containers: list[_InitContainer] | None = field(default=None, name="initContainers")


class _PodIp(Struct, gc=False):
    ip: str | None = None


class _PodCondition(Struct, gc=False):
    type: str | None = None
    status: str | None = None


class _PodStatus(Struct, gc=False):
    phase: str | None = None
    ip: str | None = field(default=None, name="podIP")
    ips: list[_PodIp] | None = field(default=None, name="podIPs")
    conditions: list[_PodCondition] | None = None


class _Pod(Struct, gc=False):
    metadata: _PodMeta | None = None
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


_POD = msgspec.json.Decoder(_Pod)
_NO_POD_META, _NO_POD_SPEC, _NO_POD_STATUS = _PodMeta(), _PodSpec(), _PodStatus()

_port_sets: dict[tuple[tuple[str, str, int], ...], tuple[ContainerPort, ...]] = {}
_PORT_SETS_LIMIT = 1 << 14


def decode_pod(raw: bytes, cluster: ClusterId) -> Pod:
    wire = _POD.decode(raw)
    meta = wire.metadata or _NO_POD_META
    spec = wire.spec or _NO_POD_SPEC
    status = wire.status or _NO_POD_STATUS
    if status.ips:
        ips = tuple([element.ip or "" for element in status.ips])
    else:
        ips = (status.ip,) if status.ip else ()
    return Pod(
        make_ref(cluster, "Pod", meta.namespace, meta.name),
        meta.uid or "",
        labels_of(meta.labels),
        sys.intern((meta.annotations.redirection or "") if meta.annotations else ""),
        bool(meta.generate_name),
        _owner(meta.owners) if meta.owners else None,
        sys.intern(spec.service_account or ""),
        sys.intern(spec.node or ""),
        bool(spec.host_network),
        _container_ports(spec),
        sys.intern(status.phase or ""),
        ips,
        _is_ready(status.conditions),
        bool(meta.deleted),
    )


def _owner(owners: list[_Owner]) -> Owner | None:
    for owner in owners:
        if owner.controller:
            return Owner(sys.intern(owner.kind or ""), sys.intern(owner.name or ""))
    return None


def _is_ready(conditions: list[_PodCondition] | None) -> bool:
    for condition in conditions or ():
        if condition.type == "Ready":
            return condition.status == "True"
    return False


def _container_ports(spec: _PodSpec) -> tuple[ContainerPort, ...]:
    ports: list[tuple[str, str, int]] = []
    for container in spec.containers or ():
        for port in container.ports or ():
            ports.append((port.name or "", port.protocol or "TCP", port.number or 0))
    for init in spec.init_containers or ():
        if init.ports and init.restart_policy == "Always":
            for port in init.ports:
                ports.append((port.name or "", port.protocol or "TCP", port.number or 0))
    if not ports:
        return ()
    key = tuple(ports)
    held = _port_sets.get(key)
    if held is None:
        if len(_port_sets) >= _PORT_SETS_LIMIT:
            # As for labels: sharing saves memory only, so starting over is always right.
            _port_sets.clear()
        held = tuple(ContainerPort(sys.intern(name), sys.intern(protocol), number) for name, protocol, number in key)
        _port_sets[key] = held
    return held


class _Namespace(Struct, gc=False):
    metadata: WireMeta | None = None


_NAMESPACE = msgspec.json.Decoder(_Namespace)


def decode_namespace(raw: bytes, cluster: ClusterId) -> Namespace:
    meta = _NAMESPACE.decode(raw).metadata or NO_META
    ref = make_ref(cluster, "Namespace", "", meta.name)
    return Namespace(ref, labels_of(meta.labels), annotations_of(meta.annotations))


class _NodeLabels(Struct, gc=False):
    region: str | None = field(default=None, name="topology.kubernetes.io/region")
    zone: str | None = field(default=None, name="topology.kubernetes.io/zone")
    subzone: str | None = field(default=None, name="topology.istio.io/subzone")


class _NodeMeta(Struct, gc=False):
    name: str | None = None
    labels: _NodeLabels | None = None


class _Node(Struct, gc=False):
    metadata: _NodeMeta | None = None


_NODE = msgspec.json.Decoder(_Node)
_NO_NODE_META, _NO_NODE_LABELS = _NodeMeta(), _NodeLabels()


def decode_node(raw: bytes, cluster: ClusterId) -> Node:
    meta = _NODE.decode(raw).metadata or _NO_NODE_META
    labels = meta.labels or _NO_NODE_LABELS
    ref = make_ref(cluster, "Node", "", meta.name)
    return Node(ref, sys.intern(labels.region or ""), sys.intern(labels.zone or ""), sys.intern(labels.subzone or ""))


class _ServicePort(Struct, gc=False):
    name: str | None = None
    number: Port | None = field(default=None, name="port")
    protocol: str | None = None
    target: Port | str | None = field(default=None, name="targetPort")
    app_protocol: str | None = field(default=None, name="appProtocol")


class _ServiceSpec(Struct, gc=False):
    type: str | None = None
    cluster_ip: str | None = field(default=None, name="clusterIP")
    cluster_ips: list[str] | None = field(default=None, name="clusterIPs")
    ports: list[_ServicePort] | None = None
    selector: dict[str, str] | None = None
    ip_families: list[str] | None = field(default=None, name="ipFamilies")
    publish_not_ready: bool | None = field(default=None, name="publishNotReadyAddresses")
    internal_traffic_policy: str | None = field(default=None, name="internalTrafficPolicy")
    traffic_distribution: str | None = field(default=None, name="trafficDistribution")


class _Service(Struct, gc=False):
    metadata: WireMeta | None = None
    spec: _ServiceSpec | None = None


_SERVICE = msgspec.json.Decoder(_Service)
_NO_SERVICE_SPEC = _ServiceSpec()


def decode_service(raw: bytes, cluster: ClusterId) -> Service:
    wire = _SERVICE.decode(raw)
    meta, spec = wire.metadata or NO_META, wire.spec or _NO_SERVICE_SPEC
    if spec.cluster_ips:
        cluster_ips = tuple(spec.cluster_ips)
    else:
        cluster_ips = (spec.cluster_ip,) if spec.cluster_ip else ()
    return Service(
        ref=make_ref(cluster, "Service", meta.namespace, meta.name),
        labels=labels_of(meta.labels),
        annotations=annotations_of(meta.annotations),
        created=created_of(meta.created),
        type=sys.intern(spec.type or "ClusterIP"),
        cluster_ips=cluster_ips,
        ports=tuple(_service_port(port) for port in spec.ports or ()),
        selector=labels_of(spec.selector),
        ip_families=tuple(sys.intern(family) for family in spec.ip_families or ()),
        publish_not_ready=bool(spec.publish_not_ready),
        internal_traffic_policy=sys.intern(spec.internal_traffic_policy or ""),
        traffic_distribution=sys.intern(spec.traffic_distribution or ""),
    )


def _service_port(port: _ServicePort) -> ServicePort:
    return ServicePort(
        name=sys.intern(port.name or ""),
        number=port.number or 0,
        protocol=sys.intern(port.protocol or "TCP"),
        target_number=port.target if isinstance(port.target, int) else 0,
        target_name=sys.intern(port.target) if isinstance(port.target, str) else "",
        app_protocol=None if port.app_protocol is None else sys.intern(port.app_protocol),
    )


class _ConfigMapData(Struct, gc=False):
    mesh: str | None = None


class _ConfigMap(Struct, gc=False):
    metadata: WireMeta | None = None
    data: _ConfigMapData | None = None


_CONFIG_MAP = msgspec.json.Decoder(_ConfigMap)


def decode_config_map(raw: bytes, cluster: ClusterId) -> tuple[ConfigMap, tuple[Fault, ...]]:
    """A ConfigMap whose key `mesh` does not parse is undecodable, so that the last good one stays in force."""
    wire = _CONFIG_MAP.decode(raw)
    meta = wire.metadata or NO_META
    ref = make_ref(cluster, "ConfigMap", meta.namespace, meta.name)
    text = wire.data.mesh if wire.data else None
    if text is None:
        return ConfigMap(ref, None), ()
    mesh, faults = decode_mesh(text, prefix="data.mesh: ")
    return ConfigMap(ref, mesh), faults
