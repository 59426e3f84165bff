"""The status conditions that Services, ServiceEntries and WorkloadEntries deserve, as values (waypoints.md 11;
workloads.md 4.5); those of AuthorizationPolicies are in `policy_conditions`. What has no record has no condition. Must
not write anything, and must not know what conditions an object has now."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ambientd.index.declarations import Derived, Reader, derive
from ambientd.index.entry_workloads import WORKLOAD_ENTRY_BINDINGS
from ambientd.index.inputs import SERVICE_ENTRIES, SERVICES, WORKLOAD_ENTRIES
from ambientd.index.mesh import mesh_of
from ambientd.index.namespaces import namespace_of
from ambientd.index.service_records import ENTRY_BINDINGS, ENTRY_RECORDS, SERVICE_BINDINGS, visibility_in
from ambientd.index.services import INGRESS_USE_WAYPOINT, ingress_use_waypoint
from ambientd.index.waypoints import CANARY_WEIGHT, Binding, Reason, ServiceBinding
from ambientd.resources.core import Service
from ambientd.resources.networking import ServiceEntry, WorkloadEntry
from ambientd.resources.ref import Labels, Ref, label

WAYPOINT_BOUND = "istio.io/WaypointBound"
WAYPOINT_MISSING = "istio.io/WaypointMissing"
VISIBILITY_APPLIED = "istio.io/VisibilityApplied"

CONNECT_STRATEGY = "istio.io/connect-strategy"
_RACE = "race_first_tcp_connect"


class Condition(Struct, frozen=True, order=True, gc=False):
    """One element of `status.conditions`, without its time. Every text is a function of the objects alone, since a text
    that changes by itself would be written for ever (waypoints.md 11.1)."""

    type: str
    status: str
    """`True` or `False`."""
    reason: str
    message: str
    observed_generation: int = 0
    """`metadata.generation` of the object that was judged; 0: it is left out."""


Conditions = tuple[Condition, ...]
"""Of one object, at least one, in order of their types."""


def ordered(conditions: Iterator[Condition]) -> Conditions | None:
    return tuple(sorted(conditions)) or None


def is_written(read: Reader) -> bool:
    """Whether anybody is to have conditions (`AMBIENT_ENABLE_STATUS`)."""
    return mesh_of(read).rules.writes_status


def binding_message(binding: Binding, namespace: str, wanted: str) -> str:
    """Why an object of this namespace cannot use the waypoint that it asks for (waypoints.md 11.1). `wanted`: `service`
    or `workload`."""
    key = binding.key
    match binding.reason:
        case Reason.NOT_READY:
            return f"waypoint {key} is not ready: there is no such Gateway, or its status has no address"
        case Reason.DENIED:
            return f"waypoint {key} does not admit namespace {namespace}: see allowedRoutes of the Gateway's listener"
        case Reason.UNSUPPORTED_TYPE:
            return f"waypoint {key} is not for traffic to a {wanted}: see the Gateway's label istio.io/waypoint-for"
        case Reason.CROSS_NAMESPACE:
            return f"waypoint {key} is not in namespace {namespace}, and the ServiceEntry is visible there only"
        case Reason.SAME_AS_PRIMARY:
            return f"waypoint {key} is the primary waypoint too"
        case Reason.INVALID_WEIGHT:
            return f"waypoint {key} needs a whole number from 0 to 100 in the annotation {CANARY_WEIGHT}"
        case None:
            return f"bound to waypoint {key}"


def _refused(binding: Binding, reason: Reason, namespace: str, wanted: str) -> Condition:
    return Condition(WAYPOINT_BOUND, "False", reason.value, binding_message(binding, namespace, wanted))


def _accepted(message: str) -> Condition:
    return Condition(WAYPOINT_BOUND, "True", "WaypointAccepted", message)


def _service_bound(binding: ServiceBinding, namespace: str, labels: Labels, read: Reader) -> Condition:
    primary, canary = binding.primary, binding.canary
    if primary.reason is not None:
        return _refused(primary, primary.reason, namespace, "service")
    message = binding_message(primary, namespace, "service")
    match ingress_use_waypoint(labels, namespace_of(namespace, read).labels):
        case True:
            message += "; traffic from ingress gateways passes it too"
        case False:
            message += f"; traffic from ingress gateways does not pass it: set the label {INGRESS_USE_WAYPOINT}=true"
    if canary is not None and canary.reason is not None:
        message += f"; no canary ({canary.reason.value}): {binding_message(canary, namespace, 'service')}"
    return _accepted(message)


def _gather_service(service: Service, read: Reader) -> Conditions | None:
    binding = read.get(SERVICE_BINDINGS, service.ref)
    if binding is None or not is_written(read):
        return None
    return (_service_bound(binding, service.ref.namespace, service.labels, read),)


SERVICE_CONDITIONS: Derived[Ref, Conditions] = derive("service conditions", SERVICES, _gather_service)
"""By Ref of the Service."""


def _gather_entry(entry: ServiceEntry, read: Reader) -> Conditions | None:
    ref = entry.ref
    # All hosts write to one object, so what holds for any of them is said (waypoints.md Q3).
    surviving = [host for host in dict.fromkeys(entry.hosts) if read.get(ENTRY_RECORDS, (ref, host)) is not None]
    if not surviving or not is_written(read):
        return None
    return ordered(_entry_conditions(entry, surviving, read))


def _entry_conditions(entry: ServiceEntry, hosts: list[str], read: Reader) -> Iterator[Condition]:
    namespace = entry.ref.namespace
    binding = read.get(ENTRY_BINDINGS, entry.ref)
    if binding is not None:
        yield _service_bound(binding, namespace, entry.labels, read)
    if binding is None or binding.primary.reason is not None:
        wildcards = [host for host in hosts if host.startswith("*")]
        if (label(entry.annotations, CONNECT_STRATEGY) or "").lower() == _RACE:
            message = "only a waypoint tries several addresses at once, and the ServiceEntry is bound to none"
            yield Condition(WAYPOINT_MISSING, "True", "NoWaypointForRacingConnectStrategy", message)
        elif wildcards:
            message = f"only a waypoint can serve wildcard hosts, and the ServiceEntry is bound to none: {wildcards[0]}"
            yield Condition(WAYPOINT_MISSING, "True", "NoWaypointForWildcardService", message)
    if mesh_of(read).visibility is not None:
        if visibility_in(namespace, read) == "NAMESPACE":
            message = f"visible in namespace {namespace} only, by serviceEntryVisibility of the mesh configuration"
            yield Condition(VISIBILITY_APPLIED, "True", "Namespace", message)
        else:
            message = "visible in the whole mesh, by serviceEntryVisibility of the mesh configuration"
            yield Condition(VISIBILITY_APPLIED, "True", "Public", message)


ENTRY_CONDITIONS: Derived[Ref, Conditions] = derive("service entry conditions", SERVICE_ENTRIES, _gather_entry)
"""By Ref of the ServiceEntry."""


def _gather_workload_entry(entry: WorkloadEntry, read: Reader) -> Conditions | None:
    found = read.get(WORKLOAD_ENTRY_BINDINGS, entry.ref)
    binding = None if found is None else found.binding
    if binding is None or not is_written(read):
        return None
    namespace = entry.ref.namespace
    if binding.reason is None:
        return (_accepted(binding_message(binding, namespace, "workload")),)
    return (_refused(binding, binding.reason, namespace, "workload"),)


WORKLOAD_ENTRY_CONDITIONS: Derived[Ref, Conditions] = derive(
    "workload entry conditions", WORKLOAD_ENTRIES, _gather_workload_entry
)
"""By Ref of the WorkloadEntry."""

DECLARATIONS = (SERVICE_CONDITIONS, ENTRY_CONDITIONS, WORKLOAD_ENTRY_CONDITIONS)
