"""Why a workload has its waypoint, its services and its policies, in words. Pure; must not decide anything: the reasons
are those by which the index decided."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ambientd.index import authorization, peers
from ambientd.index.authorization_conversion import CONVERTED_PREFIX, STATIC_NAME, WAYPOINT_PREFIX
from ambientd.index.conditions import binding_message
from ambientd.index.declarations import Reader
from ambientd.index.graph import Graph
from ambientd.index.mesh import mesh_of
from ambientd.index.rendered import RenderedAddress, RenderedPolicy
from ambientd.index.service_records import ENTRY_RECORDS, SERVICE_RECORDS, ServiceRecord, ruling_on
from ambientd.index.waypoints import GATEWAY_NAME, USE_WAYPOINT, Binding, ServiceBinding, workload_binding
from ambientd.resources.ref import Labels, Ref, label
from ambientd_api.security_pb2 import GLOBAL, NAMESPACE


class Line(Struct, frozen=True):
    """One thing, and why."""

    what: str
    why: str


_NONE = "none"


def workload_waypoint_line(namespace: str, labels: Labels, read: Reader) -> Line:
    """The waypoint for traffic that is addressed to the workload itself (waypoints.md 6)."""
    found = workload_binding(namespace, labels, read)
    if found.binding is not None:
        return _binding_line(found.binding, namespace, "workload")
    if found.tunnel is not None:
        return Line(_NONE, f"it belongs to Gateway {label(labels, GATEWAY_NAME)}, a waypoint itself")
    return Line(_NONE, f"the label {USE_WAYPOINT} names none for workloads, neither on it nor on its Namespace")


def service_waypoint_lines(binding: ServiceBinding | None, namespace: str) -> tuple[Line, ...]:
    """The waypoint of a Service or ServiceEntry, and the canary (waypoints.md 6, 7)."""
    if binding is None:
        return (Line(_NONE, f"the label {USE_WAYPOINT} names none, neither on it nor on its Namespace"),)
    lines = [_binding_line(binding.primary, namespace, "service")]
    if binding.canary is not None:
        share = (
            f"canary, {binding.weight} % of the traffic: " if binding.canary.reason is None else "canary, not used: "
        )
        line = _binding_line(binding.canary, namespace, "service")
        lines.append(Line(line.what, share + line.why))
    return tuple(lines)


def _binding_line(binding: Binding, namespace: str, wanted: str) -> Line:
    place = f"Namespace {namespace}" if binding.is_inherited else "the object"
    message = binding_message(binding, namespace, wanted)
    if binding.reason is None:
        return Line(binding.key, f"{message}, by the label of {place}")
    return Line(_NONE, f"{binding.reason.value}: {message}; asked for by the label of {place}")


def joined_lines(keys: Iterable[str], ref: Ref, labels: Labels, read: Reader) -> tuple[Line, ...]:
    """The services of a workload, by their keys, and what joins it to them (workloads.md 3.12, 3.13)."""
    held = frozenset(labels)
    lines = []
    for key in keys:
        record = _record(key, ref.cluster, read)
        if record is not None and record.selector and held.issuperset(record.selector):
            why = f"selector {_pairs(record.selector)}"
        else:
            why = f"an EndpointSlice of the Service names the {ref.kind}"
        lines.append(Line(key, why))
    return tuple(lines)


def _record(key: str, cluster: str, read: Reader) -> ServiceRecord | None:
    namespace, _, host = key.partition("/")
    record = read.get(SERVICE_RECORDS, Ref(cluster, "Service", namespace, host.partition(".")[0]))
    if record is not None and record.key == key:
        return record
    entry = dict(ruling_on(host, read).winners).get(namespace)
    return None if entry is None else read.get(ENTRY_RECORDS, (entry, host))


def policy_lines(served: RenderedAddress, labels: Labels, graph: Graph, read: Reader) -> tuple[Line, ...]:
    """The policies that a ztunnel enforces for a workload: those that it lists, in their order, then those in force by
    their scope (policies.md 7, 13)."""
    listed = [Line(name, _why_listed(name, served.namespace, labels, read)) for name in served.policies]
    by_scope = [
        Line(policy.name, why)
        for _, policy in graph.items(authorization.POLICIES)
        if (why := _why_in_force(policy, served.namespace)) is not None
    ]
    return (*listed, *sorted(by_scope, key=lambda line: line.what))


def _why_in_force(policy: RenderedPolicy, namespace: str) -> str | None:
    if policy.scope == int(GLOBAL):
        return "by its scope: it is in the root namespace and has no selector"
    if policy.scope == int(NAMESPACE) and policy.namespace == namespace:
        return f"by its scope: it has no selector, and holds for namespace {namespace}"
    return None


def _why_listed(policy: str, namespace: str, labels: Labels, read: Reader) -> str:
    home, _, name = policy.partition("/")
    mesh = mesh_of(read)
    if name == STATIC_NAME:
        return f"every port is STRICT, by {_strict_by(namespace, labels, read)}"
    if name.startswith(CONVERTED_PREFIX):
        return f"PeerAuthentication {home}/{name.removeprefix(CONVERTED_PREFIX)} has modes for single ports"
    if name.startswith(WAYPOINT_PREFIX):
        return "the waypoint may reach what is bound to it, by the setting PILOT_AUTO_ALLOW_WAYPOINT_POLICY"
    record = read.get(authorization.RECORDS, Ref(mesh.rules.cluster_id, "AuthorizationPolicy", home, name))
    if record is None:
        return "its selector matches"
    place = ", in the root namespace" if home == mesh.root_namespace and home != namespace else ""
    return f"selector {_pairs(record.selector)}{place}"


def _strict_by(namespace: str, labels: Labels, read: Reader) -> str:
    """The PeerAuthentication whose mode decides: the oldest that selects the workload, else that of the namespace, else
    that of the root namespace (policies.md 6.2)."""
    oldest = peers.oldest_selecting(namespace, labels, read)
    if oldest is not None and oldest.mode == "STRICT":
        return f"PeerAuthentication {namespace}/{oldest.name}"
    for place in (namespace, mesh_of(read).root_namespace):
        level = read.get(peers.BASE_LEVELS, place)
        if level is not None and level.mode == "STRICT":
            return f"PeerAuthentication {place}/{level.name}"
    return "a PeerAuthentication"


def _pairs(selector: Labels) -> str:
    return ", ".join(f"{key}={value}" for key, value in selector)
