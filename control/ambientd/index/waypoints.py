"""Which Gateways are waypoints, who may use them, and which one an object is bound to, with the reason as a value
(waypoints.md 1 to 7). Must not know how a service or workload is rendered."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from ambientd.index.declarations import Derived, Reader, derive, on_demand
from ambientd.index.inputs import GATEWAY_CLASSES, GATEWAYS
from ambientd.index.ips import parse_ip
from ambientd.index.mesh import mesh_of
from ambientd.index.namespaces import is_discovered, namespace_of
from ambientd.index.networks import Destination, address_destination, cluster_network, host_destination
from ambientd.resources.gateway import Gateway, GatewayClass, Listener
from ambientd.resources.mesh import LabelSelector
from ambientd.resources.ref import Labels, Ref, label

HBONE_PORT = 15008

USE_WAYPOINT = "istio.io/use-waypoint"
USE_WAYPOINT_NAMESPACE = "istio.io/use-waypoint-namespace"
USE_CANARY = "istio.io/use-waypoint-canary"
USE_CANARY_NAMESPACE = "istio.io/use-waypoint-canary-namespace"
CANARY_WEIGHT = "istio.io/use-waypoint-canary-weight"
GATEWAY_NAME = "gateway.networking.k8s.io/gateway-name"
MANAGED = "gateway.istio.io/managed"

BINDING_LABELS = (GATEWAY_NAME, USE_WAYPOINT, USE_WAYPOINT_NAMESPACE)
"""The labels of a workload that its binding depends on, in order."""

_WAYPOINT_FOR = "istio.io/waypoint-for"
INBOUND_BINDING = "ambient.istio.io/waypoint-inbound-binding"
_OPT_OUT = "none"
_EXEMPT_CONTROLLERS = ("istio.io-mesh-controller", "istio.io-eastwest-controller")


class Reason(Enum):
    """Why an object, or its canary, has no waypoint although it asks for one (waypoints.md 11.1)."""

    NOT_READY = "WaypointIsNotReady"
    DENIED = "AttachmentDenied"
    UNSUPPORTED_TYPE = "UnsupportedTrafficType"
    CROSS_NAMESPACE = "CrossNamespaceWaypointForbidden"
    SAME_AS_PRIMARY = "CanarySameAsPrimary"
    INVALID_WEIGHT = "CanaryInvalidWeight"


class InboundBinding(Struct, frozen=True, gc=False):
    """How the last hop hands traffic to a sandwiched waypoint (waypoints.md 5)."""

    protocol: str
    """`NONE` or `PROXY`."""
    port: int
    """0: the original one."""


class Waypoint(Struct, frozen=True, gc=False):
    key: str
    """`<namespace>/<name>`."""
    namespace: str
    destination: Destination | None
    """None: objects bind to it, and nothing is sent (waypoints.md 2)."""
    traffic_type: str
    allowed_from: str
    allowed_selector: LabelSelector | None
    binding: InboundBinding | None


class Binding(Struct, frozen=True, gc=False):
    """What came of asking for a waypoint."""

    key: str
    """`<namespace>/<name>` of the waypoint that was asked for."""
    reason: Reason | None
    """None: bound."""
    destination: Destination | None
    """Of the waypoint that is bound; None also when it has no usable address."""
    is_inherited: bool = False
    """The label stands on the Namespace."""


class _ClassView(Struct, frozen=True, gc=False):
    waypoint_for: str | None
    binding: str | None


def _gather_class(item: GatewayClass, _: Reader) -> _ClassView | None:
    view = _ClassView(label(item.labels, _WAYPOINT_FOR), label(item.annotations, INBOUND_BINDING))
    return None if view.waypoint_for is None and view.binding is None else view


_CLASS_VIEWS: Derived[Ref, _ClassView] = derive("gateway class views", GATEWAY_CLASSES, _gather_class)


def _gather_waypoint(gateway: Gateway, read: Reader) -> Waypoint | None:
    ref = gateway.ref
    if not gateway.addresses or not is_discovered(ref.namespace, read):
        return None
    traffic_type = label(gateway.labels, _WAYPOINT_FOR)
    hint = label(gateway.annotations, INBOUND_BINDING)
    if traffic_type is None or hint is None:
        of_class = read.get(_CLASS_VIEWS, Ref(ref.cluster, "GatewayClass", "", gateway.class_name))
        if of_class is not None:
            traffic_type = of_class.waypoint_for if traffic_type is None else traffic_type
            hint = of_class.binding if hint is None else hint
    binding = None if hint is None else parse_inbound_binding(hint)
    listener = _deciding_listener(gateway.listeners, binding)
    allowed_from = (listener.allowed_from if listener is not None else None) or "Same"
    return Waypoint(
        key=f"{ref.namespace}/{ref.name}",
        namespace=ref.namespace,
        destination=_destination(gateway, read),
        traffic_type="service" if traffic_type is None else traffic_type,
        allowed_from=allowed_from,
        allowed_selector=listener.allowed_selector if listener is not None and allowed_from == "Selector" else None,
        binding=binding,
    )


def _destination(gateway: Gateway, read: Reader) -> Destination | None:
    for address in gateway.addresses:
        if address.type == "Hostname" and address.value:
            return host_destination(gateway.ref.namespace, address.value, HBONE_PORT)
    for address in gateway.addresses:
        if address.type == "IPAddress" and (ip := parse_ip(address.value)) is not None:
            return address_destination(cluster_network(read), ip, HBONE_PORT)
    return None


def parse_inbound_binding(text: str) -> InboundBinding | None:
    """`PROTOCOL` or `PROTOCOL/PORT`; None for anything else. A port that is no unsigned decimal of 32 bits is 0
    (waypoints.md 5)."""
    protocol, slash, port = text.partition("/")
    if protocol not in ("NONE", "PROXY") or "/" in port:
        return None
    if slash and port.isascii() and port.isdecimal() and len(port.lstrip("0")) <= 10:
        number = int(port.lstrip("0") or "0")
        return InboundBinding(protocol, number if number < 1 << 32 else 0)
    return InboundBinding(protocol, 0)


def _deciding_listener(listeners: tuple[Listener, ...], binding: InboundBinding | None) -> Listener | None:
    """The listener whose allowed routes count (waypoints.md 4)."""
    if binding is not None and binding.port:
        found = next((item for item in listeners if item.port == binding.port), None)
    elif binding is not None and binding.protocol == "PROXY":
        found = next((item for item in listeners if item.protocol == "istio.io/PROXY"), None)
    else:
        found = None
    if found is None:
        found = next((item for item in listeners if item.protocol == "HBONE" and item.port == HBONE_PORT), None)
    return found


WAYPOINTS: Derived[Ref, Waypoint] = derive("waypoints", GATEWAYS, _gather_waypoint)
"""By Ref of the Gateway: those with a status address, of whatever class (waypoints.md 1)."""


def gateway_ref(key: str, read: Reader) -> Ref:
    """Of the Gateway `<namespace>/<name>`."""
    namespace, _, name = key.partition("/")
    return Ref(mesh_of(read).rules.cluster_id, "Gateway", namespace, name)


def waypoint_of(key: str, read: Reader) -> Waypoint | None:
    """The waypoint `<namespace>/<name>`."""
    return read.get(WAYPOINTS, gateway_ref(key, read))


def _admits(waypoint: Waypoint, namespace: str, read: Reader) -> bool:
    match waypoint.allowed_from:
        case "All":
            return True
        case "Selector":
            selector = waypoint.allowed_selector
            return selector is not None and selector.matches(namespace_of(namespace, read).labels)
        case _:
            return waypoint.namespace == namespace


def _reference(namespace: str, labels: Labels, use: str, use_namespace: str) -> str | None:
    """`<namespace>/<name>` that these labels name; empty for an opt-out, None when they say nothing."""
    name = label(labels, use)
    if name is None or name == _OPT_OUT:
        return name if name is None else ""
    home = label(labels, use_namespace)
    return f"{namespace if home is None else home}/{name}"


def _refusal(waypoint: Waypoint | None, namespace: str, wanted: str, read: Reader) -> Reason | None:
    """Why a waypoint cannot be used from a namespace for `service` or `workload` traffic (waypoints.md 6.2)."""
    if waypoint is None:
        return Reason.NOT_READY
    if not _admits(waypoint, namespace, read):
        return Reason.DENIED
    if waypoint.traffic_type not in (wanted, "all"):
        return Reason.UNSUPPORTED_TYPE
    return None


class WorkloadBinding(Struct, frozen=True, gc=False):
    """What a workload's labels and namespace make of it (waypoints.md 5, 6)."""

    binding: Binding | None
    """None: it asks for no waypoint, or inherits one that is not for workloads."""
    tunnel: InboundBinding | None
    """Set for instances of a waypoint with an inbound binding."""

    @property
    def destination(self) -> Destination | None:
        return None if self.binding is None else self.binding.destination

    @property
    def waypoint_key(self) -> str:
        """Of the waypoint that is bound; empty without one."""
        return self.binding.key if self.binding is not None and self.binding.reason is None else ""


UNBOUND = WorkloadBinding(None, None)


def binding_labels(labels: Labels) -> Labels:
    """Those of the labels that `WORKLOAD_BINDINGS` is keyed by."""
    return tuple(pair for pair in labels if pair[0] in BINDING_LABELS)


def _gather_workload_binding(key: tuple[str, Labels], read: Reader) -> WorkloadBinding:
    namespace, labels = key
    gateway = label(labels, GATEWAY_NAME)
    if gateway:
        waypoint = waypoint_of(f"{namespace}/{gateway}", read)
        if waypoint is not None:
            return WorkloadBinding(None, waypoint.binding) if waypoint.binding else UNBOUND
    reference = _reference(namespace, labels, USE_WAYPOINT, USE_WAYPOINT_NAMESPACE)
    is_inherited = reference is None
    if reference is None:
        of_namespace = namespace_of(namespace, read).labels
        reference = _reference(namespace, of_namespace, USE_WAYPOINT, USE_WAYPOINT_NAMESPACE)
    if not reference:
        return UNBOUND
    waypoint = waypoint_of(reference, read)
    reason = _refusal(waypoint, namespace, "workload", read)
    if reason is Reason.UNSUPPORTED_TYPE and is_inherited:
        return UNBOUND
    return WorkloadBinding(Binding(reference, reason, _bound_destination(waypoint, reason), is_inherited), None)


def _bound_destination(waypoint: Waypoint | None, reason: Reason | None) -> Destination | None:
    return waypoint.destination if waypoint is not None and reason is None else None


WORKLOAD_BINDINGS = on_demand("workload bindings", _gather_workload_binding)
"""By namespace and `binding_labels`."""


def workload_binding(namespace: str, labels: Labels, read: Reader) -> WorkloadBinding:
    return read.get(WORKLOAD_BINDINGS, (namespace, binding_labels(labels))) or UNBOUND


class ServiceBinding(Struct, frozen=True, gc=False):
    """The waypoint of a Service or ServiceEntry, with its canary (waypoints.md 6, 7)."""

    primary: Binding
    canary: Binding | None = None
    """None: no canary is named, or the primary is not bound."""
    weight: int = 0
    """Percent that the canary gets."""

    @property
    def waypoint_keys(self) -> tuple[str, ...]:
        """`<namespace>/<name>` of the waypoints in use, in their order."""
        bindings = (self.primary, self.canary)
        return tuple(sorted({item.key for item in bindings if item is not None and item.reason is None}))


def bind_service(
    namespace: str, labels: Labels, annotations: Labels, is_namespace_local: bool, read: Reader
) -> ServiceBinding | None:
    """The binding of a Service or ServiceEntry with this metadata; None when it asks for none. `is_namespace_local`:
    the entry's visibility is `NAMESPACE` (waypoints.md 6.2 step 7)."""
    if label(labels, MANAGED) in _EXEMPT_CONTROLLERS:
        return None
    own = _reference(namespace, labels, USE_WAYPOINT, USE_WAYPOINT_NAMESPACE)
    of_namespace = namespace_of(namespace, read)
    is_inherited = own is None
    reference = own
    if reference is None:
        reference = _reference(namespace, of_namespace.labels, USE_WAYPOINT, USE_WAYPOINT_NAMESPACE)
    if not reference:
        return None
    primary = _bind_for_service(reference, namespace, is_namespace_local, is_inherited, read)
    if primary.reason is not None:
        return ServiceBinding(primary)
    canary_place, is_canary_inherited = labels, False
    weight = label(annotations, CANARY_WEIGHT)
    if is_inherited:
        if label(labels, USE_CANARY) is None:
            canary_place, is_canary_inherited = of_namespace.labels, True
        if weight is None:
            weight = label(of_namespace.annotations, CANARY_WEIGHT)
    if label(canary_place, USE_CANARY) == "":
        return ServiceBinding(primary)
    wanted = _reference(namespace, canary_place, USE_CANARY, USE_CANARY_NAMESPACE)
    if not wanted:
        return ServiceBinding(primary)
    percent = parse_weight("0" if weight is None else weight)
    if wanted == reference:
        canary = Binding(wanted, Reason.SAME_AS_PRIMARY, None, is_canary_inherited)
    elif percent is None:
        canary = Binding(wanted, Reason.INVALID_WEIGHT, None, is_canary_inherited)
    else:
        # The guard against foreign waypoints holds for the canary too (waypoints.md Q1).
        canary = _bind_for_service(wanted, namespace, is_namespace_local, is_canary_inherited, read)
    return ServiceBinding(primary, canary, percent or 0)


def _bind_for_service(
    reference: str, namespace: str, is_namespace_local: bool, is_inherited: bool, read: Reader
) -> Binding:
    waypoint = waypoint_of(reference, read)
    reason = _refusal(waypoint, namespace, "service", read)
    if reason is None and waypoint is not None and is_namespace_local and waypoint.namespace != namespace:
        reason = Reason.CROSS_NAMESPACE
    return Binding(reference, reason, _bound_destination(waypoint, reason), is_inherited)


def parse_weight(text: str) -> int | None:
    """A percentage: an optional sign and ASCII digits, 0 to 100; None for anything else (waypoints.md 7)."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdecimal()):
        return None
    digits = digits.lstrip("0") or "0"
    if len(digits) > 3 or int(digits) > 100 or (text.startswith("-") and digits != "0"):
        return None
    return int(digits)


DECLARATIONS = (GATEWAYS, GATEWAY_CLASSES, _CLASS_VIEWS, WAYPOINTS, WORKLOAD_BINDINGS)
