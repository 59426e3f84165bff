"""What a workload's namespace and labels make of it: services, policies, waypoint. Computed once for all workloads of a
namespace that look alike to every selector there and in the root namespace. Must not look at a workload itself."""

from __future__ import annotations

from msgspec import Struct

from ambientd.index import authorization, peers
from ambientd.index.declarations import Derived, Reader, on_demand
from ambientd.index.mesh import mesh_of
from ambientd.index.namespaces import is_discovered
from ambientd.index.networks import Destination
from ambientd.index.selectors import Pair, selecting
from ambientd.index.service_records import (
    ENTRIES_BY_FIRST_PAIR,
    ENTRY_PAIRS_BY_NAMESPACE,
    SERVICE_PAIRS_BY_NAMESPACE,
    SERVICES_BY_FIRST_PAIR,
    ServiceRecord,
)
from ambientd.index.waypoints import BINDING_LABELS, InboundBinding, workload_binding
from ambientd.resources.ref import Labels

Pairs = frozenset[Pair]


class Selection(Struct, frozen=True, gc=False):
    services: tuple[ServiceRecord, ...]
    """Those whose selector matches, Services and ServiceEntries, in order of their keys (workloads.md 3.12)."""
    service_keys: tuple[str, ...]
    policies: tuple[str, ...]
    """Names of selector policies, then that of the mTLS policy (workloads.md 3.16, 3.17)."""
    waypoint: Destination | None
    waypoint_key: str
    """Of the waypoint that is bound; only with the setting `auto_allow_waypoints`, otherwise empty."""
    tunnel: InboundBinding | None


EMPTY = Selection((), (), (), None, "", None)


def _gather_policy_pairs(namespace: str, read: Reader) -> Pairs:
    policies = read.under(authorization.SELECTORS_BY_NAMESPACE, namespace)
    modes = read.under(peers.SELECTORS_BY_NAMESPACE, namespace)
    return frozenset(
        pair for selector in (*(p.selector for p in policies), *(m.selector for m in modes)) for pair in selector
    )


_POLICY_PAIRS: Derived[str, Pairs] = on_demand("policy selector pairs", _gather_policy_pairs)


def _gather_projection(namespace: str, read: Reader) -> Pairs | None:
    if not is_discovered(namespace, read):
        return None
    root = mesh_of(read).root_namespace
    services = {pair for _, pair in read.under(SERVICE_PAIRS_BY_NAMESPACE, namespace)}
    entries = {pair for _, pair in read.under(ENTRY_PAIRS_BY_NAMESPACE, namespace)}
    policies = (read.get(_POLICY_PAIRS, name) or frozenset() for name in {namespace: None, root: None})
    return frozenset(services.union(entries, *policies))


PROJECTIONS: Derived[str, Pairs] = on_demand("label projections", _gather_projection)
"""By namespace: the label pairs by which some selector may tell workloads apart; None: it is not discovered, and has no
workloads."""


def project(labels: Labels, pairs: Pairs) -> Labels:
    """The labels that make a difference, in their order."""
    return tuple(pair for pair in labels if pair in pairs or pair[0] in BINDING_LABELS)


def _gather_selection(key: tuple[str, Labels], read: Reader) -> Selection:
    namespace, labels = key
    mesh = mesh_of(read)
    services = [
        record
        for index in (SERVICES_BY_FIRST_PAIR, ENTRIES_BY_FIRST_PAIR)
        for record in selecting(index, namespace, labels, read)
    ]
    services.sort(key=_key)
    policies = authorization.gather_listed(namespace, labels, mesh, read)
    mode = peers.gather_listed(namespace, labels, mesh, read)
    found = workload_binding(namespace, labels, read)
    return Selection(
        services=tuple(services),
        service_keys=tuple(record.key for record in services),
        policies=policies if mode is None else (*policies, mode),
        waypoint=found.destination,
        waypoint_key=found.waypoint_key if mesh.rules.auto_allow_waypoints else "",
        tunnel=found.tunnel,
    )


def _key(record: ServiceRecord) -> str:
    return record.key


SELECTIONS: Derived[tuple[str, Labels], Selection] = on_demand("selections", _gather_selection)
"""By namespace and projected labels."""


def select(namespace: str, labels: Labels, read: Reader) -> Selection | None:
    """The selection of a workload with these labels; None: its namespace is not discovered. Two reads."""
    pairs = read.get(PROJECTIONS, namespace)
    if pairs is None:
        return None
    return read.get(SELECTIONS, (namespace, project(labels, pairs))) or EMPTY


DECLARATIONS = (_POLICY_PAIRS, PROJECTIONS, SELECTIONS)
