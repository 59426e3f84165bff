"""What became of one object: what is served of it under which names, or the rule that leaves it out; its waypoint,
services and policies, each with the reason; its conditions, and what is wrong with it. How pods and entries are joined
to others is told in `attachments`. Pure; must not know how the answer is shown."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ambientd.explain.attachments import (
    Line,
    joined_lines,
    policy_lines,
    service_waypoint_lines,
    workload_waypoint_line,
)
from ambientd.explain.onlooker import Onlooker
from ambientd.index import authorization, peers
from ambientd.index.authorization_conversion import Verdict
from ambientd.index.conditions import Conditions
from ambientd.index.declarations import Reader
from ambientd.index.entry_workloads import SERVICE_ENTRY_WORKLOADS, WORKLOAD_ENTRY_WORKLOADS, effective_labels
from ambientd.index.inputs import BY_KIND, TROUBLES
from ambientd.index.mesh import in_revision, mesh_of
from ambientd.index.namespaces import is_discovered
from ambientd.index.networks import GATEWAY_RECORDS, GATEWAY_WORKLOADS
from ambientd.index.pod_workloads import POD_WORKLOADS, unusable_ip
from ambientd.index.pods import is_finished
from ambientd.index.rendered import RenderedAddress, RenderedPolicy
from ambientd.index.service_records import ENTRY_BINDINGS, SERVICE_BINDINGS, cluster_ips, entry_addresses, visibility_in
from ambientd.index.services import ENTRY_ADDRESSES, SERVICE_ADDRESSES
from ambientd.index.slice_workloads import SLICE_WORKLOADS, names_pod, served_endpoints, service_of
from ambientd.index.waypoint_policies import WAYPOINT_POLICIES
from ambientd.index.waypoints import WAYPOINTS
from ambientd.index.world import World
from ambientd.resources.core import Pod, Service
from ambientd.resources.discovery import EndpointSlice
from ambientd.resources.gateway import Gateway
from ambientd.resources.kinds import CLUSTER_KINDS, KINDS, Object
from ambientd.resources.networking import ServiceEntry, WorkloadEntry
from ambientd.resources.ref import Labels, Ref
from ambientd.resources.security import AuthorizationPolicy, PeerAuthentication

_SHORT = {
    "ap": "AuthorizationPolicy",
    "cm": "ConfigMap",
    "gc": "GatewayClass",
    "gtw": "Gateway",
    "no": "Node",
    "ns": "Namespace",
    "pa": "PeerAuthentication",
    "po": "Pod",
    "se": "ServiceEntry",
    "svc": "Service",
    "we": "WorkloadEntry",
}
_REVISIONED = (ServiceEntry, WorkloadEntry, AuthorizationPolicy, PeerAuthentication)


class Outcome(Struct, frozen=True):
    """What became of an object."""

    summary: str
    """In a sentence."""
    addresses: tuple[RenderedAddress, ...] = ()
    policies: tuple[RenderedPolicy, ...] = ()
    """What is served of it."""
    waypoints: tuple[Line, ...] = ()
    joined: tuple[Line, ...] = ()
    """The services that a workload belongs to; the hosts of a ServiceEntry."""
    enforced: tuple[Line, ...] = ()
    """The policies that hold for a workload."""


class Description(Struct, frozen=True):
    object: Ref
    is_read: bool
    """A version of the object is in force."""
    outcome: Outcome
    conditions: Conditions
    problems: tuple[str, ...]


class NoSuchKind(Exception):
    """A text that is not the name of a kind that we read."""


def ref_of(cluster: str, kind: str, namespace: str, name: str) -> Ref:
    """What somebody means by these texts: kinds as kubectl takes them, in any case, plural or short. Raises
    NoSuchKind."""
    text = kind.lower()
    for known in KINDS:
        plural = f"{known[:-1]}ies" if known.endswith("y") else f"{known}es" if known.endswith("s") else f"{known}s"
        if text in (known.lower(), plural.lower()) or _SHORT.get(text) == known:
            return Ref(cluster, known, "" if known in CLUSTER_KINDS else namespace, name)
    raise NoSuchKind(f"{kind!r} is no kind that is read; kinds: {', '.join(sorted(KINDS))}")


def describe(world: World, ref: Ref) -> Description:
    """Everything that there is to say about one object now. Costs time in the number of policies, not of workloads."""
    read = Onlooker(world.graph)
    held: Object | None = read.get(BY_KIND[ref.kind], ref)
    if held is not None:
        outcome = _tell(held, world, read)
    elif read.get(TROUBLES, ref) is not None:
        outcome = Outcome("it cannot be read, and there is no former version of it")
    else:
        outcome = Outcome("there is no such object")
    return Description(ref, held is not None, outcome, world.conditions_of(ref), world.problems_of(ref))


def _tell(held: Object, world: World, read: Reader) -> Outcome:
    namespace = held.ref.namespace
    if namespace and not is_discovered(namespace, read) and held.ref.kind != "ConfigMap":
        return Outcome(f"not served: discoverySelectors of the mesh configuration leave namespace {namespace} out")
    if isinstance(held, _REVISIONED) and not in_revision(held.labels, mesh_of(read).rules):
        return Outcome("not served: its label istio.io/rev names another revision")
    match held:
        case Pod():
            return _tell_pod(held, world, read)
        case Service():
            return _tell_service(held, read)
        case ServiceEntry():
            return _tell_entry(held, world, read)
        case WorkloadEntry():
            return _tell_workload_entry(held, world, read)
        case EndpointSlice():
            return _tell_slice(held, read)
        case AuthorizationPolicy():
            return _tell_policy(held, read)
        case PeerAuthentication():
            return _tell_peer(held, read)
        case Gateway():
            return _tell_gateway(held, read)
    return Outcome(f"read; a {held.ref.kind} is not served itself, what it says shows in others")


def _present(*values: RenderedAddress | None) -> tuple[RenderedAddress, ...]:
    return tuple(value for value in values if value is not None)


def _tell_pod(pod: Pod, world: World, read: Reader) -> Outcome:
    served = _present(read.get(POD_WORKLOADS, pod.ref))
    if not served:
        if is_finished(pod):
            return Outcome(f"not served: its phase is {pod.phase}")
        text = unusable_ip(pod)
        return Outcome("not served: it has no IP address" if text is None else f"not served: {text!r} is no IP address")
    return _workload("served as a workload", served, pod.ref, pod.labels, world, read)


def _workload(
    summary: str,
    served: tuple[RenderedAddress, ...],
    ref: Ref,
    labels: Labels,
    world: World,
    read: Reader,
) -> Outcome:
    first = served[0]
    return Outcome(
        summary,
        addresses=served,
        waypoints=(workload_waypoint_line(ref.namespace, labels, read),),
        joined=joined_lines(first.services, ref, labels, read),
        enforced=policy_lines(first, labels, world.graph, read),
    )


def _tell_service(service: Service, read: Reader) -> Outcome:
    served = _present(read.get(SERVICE_ADDRESSES, service.ref))
    if not served:
        if service.type == "ExternalName":
            return Outcome("not served: an ExternalName is no service of the mesh")
        return Outcome(f"not served: {cluster_ips(service)[1]!r} among its clusterIPs is no IP address")
    waypoints = service_waypoint_lines(read.get(SERVICE_BINDINGS, service.ref), service.ref.namespace)
    return Outcome("served as a service", addresses=served, waypoints=waypoints)


def _tell_entry(entry: ServiceEntry, world: World, read: Reader) -> Outcome:
    ref = entry.ref
    text = entry_addresses(entry)[1]
    if text is not None:
        return Outcome(f"not served: {text!r} in spec.addresses is neither an IP address nor a CIDR")
    visibility = visibility_in(ref.namespace, read)
    if visibility == "NONE":
        return Outcome("not served: serviceEntryVisibility of the mesh configuration withholds it")
    hosts = dict.fromkeys(entry.hosts)
    services = _present(*(read.get(ENTRY_ADDRESSES, (ref, host)) for host in hosts))
    endpoints = dict.fromkeys([*(endpoint.address for endpoint in entry.endpoints), *hosts])
    workloads = _present(*(read.get(SERVICE_ENTRY_WORKLOADS, (ref, address)) for address in endpoints))
    if not services:
        return Outcome(
            "not served: all its hosts belong to older objects of the namespace", joined=_hosts(hosts, ref, read)
        )
    summary = f"served as {_count(len(services), 'service')} and {_count(len(workloads), 'workload')}"
    if visibility == "NAMESPACE":
        summary += f", for namespace {ref.namespace} only"
    return Outcome(
        summary,
        addresses=(*services, *workloads),
        waypoints=service_waypoint_lines(read.get(ENTRY_BINDINGS, ref), ref.namespace),
        joined=_hosts(hosts, ref, read),
        enforced=policy_lines(workloads[0], entry.labels, world.graph, read) if workloads else (),
    )


def _hosts(hosts: Iterable[str], ref: Ref, read: Reader) -> tuple[Line, ...]:
    lines = []
    for host in hosts:
        served = read.get(ENTRY_ADDRESSES, (ref, host))
        if served is None:
            why = "another object of the namespace has this host"
        elif served.is_canonical:
            why = "served, and preferred in the whole mesh"
        else:
            why = f"served; clients of other namespaces than {ref.namespace} prefer another one, or do not see it"
        lines.append(Line(host, why))
    return tuple(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _tell_workload_entry(entry: WorkloadEntry, world: World, read: Reader) -> Outcome:
    served = _present(read.get(WORKLOAD_ENTRY_WORKLOADS, entry.ref))
    if not served:
        return Outcome("not served")
    return _workload("served as a workload", served, entry.ref, effective_labels(entry), world, read)


def _tell_slice(item: EndpointSlice, read: Reader) -> Outcome:
    service = service_of(item)
    if service is None:
        return Outcome("not used: it has no label kubernetes.io/service-name, or its addresses are names")
    if read.get(SERVICE_ADDRESSES, service) is None:
        return Outcome(f"not used: {service} is not served")
    pods = sum(1 for endpoint in item.endpoints if names_pod(endpoint))
    found = served_endpoints(item)
    served = _present(*(read.get(SLICE_WORKLOADS, (item.ref, endpoint.addresses[0])) for endpoint, _ in found))
    summary = f"joins {_count(pods, 'pod')} to {service}, and is served as {_count(len(served), 'workload')} beside"
    return Outcome(summary, addresses=served)


def _tell_policy(policy: AuthorizationPolicy, read: Reader) -> Outcome:
    served = read.get(authorization.POLICIES, policy.ref)
    verdict = read.get(authorization.VERDICTS, policy.ref)
    if served is None:
        if verdict is not None:
            return Outcome(f"not served: {verdict.message}")
        if policy.targets:
            return Outcome("not for ztunnels: it has targets, and their waypoints enforce it")
        return Outcome("not served: its name is one of those that are made here")
    assert verdict is not None, "what is served was judged"
    summary = f"served to ztunnels; it holds for {_scope(policy, read)}"
    if verdict.verdict is not Verdict.ACCEPTED:
        summary += f"; {verdict.message}"
    return Outcome(summary, policies=(served,))


def _scope(policy: AuthorizationPolicy, read: Reader) -> str:
    is_in_root = policy.ref.namespace == mesh_of(read).root_namespace
    place = "the whole mesh" if is_in_root else f"namespace {policy.ref.namespace}"
    if not policy.selector:
        return place
    selector = ", ".join(f"{key}={value}" for key, value in policy.selector)
    return f"workloads with {selector} in {place}"


def _tell_peer(peer: PeerAuthentication, read: Reader) -> Outcome:
    converted = read.get(peers.POLICIES, peer.ref)
    if converted is not None:
        return Outcome("served to ztunnels, as a policy for the ports with modes of their own", policies=(converted,))
    return Outcome("in force through the policies that workloads list; not served itself")


def _tell_gateway(gateway: Gateway, read: Reader) -> Outcome:
    waypoint = read.get(WAYPOINTS, gateway.ref)
    names = (f"{gateway.ref.namespace}/{gateway.ref.name}/{address.value}" for address in gateway.addresses)
    records = (read.get(GATEWAY_RECORDS, (name, gateway.ref)) for name in names)
    served = _present(*(read.get(GATEWAY_WORKLOADS, record.uid) for record in records if record is not None))
    policy = read.get(WAYPOINT_POLICIES, gateway.ref)
    policies = () if policy is None else (policy,)
    if waypoint is None:
        return Outcome("no waypoint: its status has no address", addresses=served)
    users = {
        "All": "every namespace",
        "Selector": "the namespaces that its listener selects",
    }.get(waypoint.allowed_from, f"namespace {waypoint.namespace}")
    summary = f"a waypoint for traffic to {_TRAFFIC.get(waypoint.traffic_type, 'nobody')}, open to {users}"
    if waypoint.destination is None:
        summary += "; its status has no address that can be sent, so nothing is sent to it"
    return Outcome(summary, addresses=served, policies=policies)


_TRAFFIC = {"all": "services and workloads", "service": "services", "workload": "workloads"}
