"""The objects as they are now, per kind: what sources set, and what is wrong with objects and files. Applies events;
the last good version of an invalid object stays. Must not interpret any object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from ambientd.index.declarations import Change, Source
from ambientd.index.graph import Graph
from ambientd.resources.core import ConfigMap, Namespace, Node, Pod, Service
from ambientd.resources.discovery import EndpointSlice
from ambientd.resources.events import Absent, Delete, Event, Invalid, Put, Replace, Synced
from ambientd.resources.faults import Fault
from ambientd.resources.gateway import Gateway, GatewayClass
from ambientd.resources.kinds import Object
from ambientd.resources.mesh import settled
from ambientd.resources.networking import ServiceEntry, WorkloadEntry
from ambientd.resources.ref import Ref
from ambientd.resources.security import AuthorizationPolicy, PeerAuthentication

PODS: Source[Ref, Pod] = Source("pods")
NAMESPACES: Source[Ref, Namespace] = Source("namespaces")
NODES: Source[Ref, Node] = Source("nodes")
SERVICES: Source[Ref, Service] = Source("services")
CONFIG_MAPS: Source[Ref, ConfigMap] = Source("config maps")
ENDPOINT_SLICES: Source[Ref, EndpointSlice] = Source("endpoint slices")
SERVICE_ENTRIES: Source[Ref, ServiceEntry] = Source("service entries")
WORKLOAD_ENTRIES: Source[Ref, WorkloadEntry] = Source("workload entries")
AUTHORIZATION_POLICIES: Source[Ref, AuthorizationPolicy] = Source("authorization policies")
PEER_AUTHENTICATIONS: Source[Ref, PeerAuthentication] = Source("peer authentications")
GATEWAYS: Source[Ref, Gateway] = Source("gateways")
GATEWAY_CLASSES: Source[Ref, GatewayClass] = Source("gateway classes")

BY_KIND: dict[str, Source[Ref, Any]] = {
    "Pod": PODS,
    "Namespace": NAMESPACES,
    "Node": NODES,
    "Service": SERVICES,
    "ConfigMap": CONFIG_MAPS,
    "EndpointSlice": ENDPOINT_SLICES,
    "ServiceEntry": SERVICE_ENTRIES,
    "WorkloadEntry": WORKLOAD_ENTRIES,
    "AuthorizationPolicy": AUTHORIZATION_POLICIES,
    "PeerAuthentication": PEER_AUTHENTICATIONS,
    "Gateway": GATEWAYS,
    "GatewayClass": GATEWAY_CLASSES,
}


class Trouble(Struct, frozen=True, gc=False):
    """What is wrong with an object or file now."""

    faults: tuple[Fault, ...]
    is_served: bool
    """Some version of the object is in force: a good part of it, or its last good version."""


TROUBLES: Source[Ref, Trouble] = Source("troubles")

SOURCES: tuple[Source[Ref, Any], ...] = (*BY_KIND.values(), TROUBLES)


def changes_of(events: Sequence[Event], graph: Graph) -> Iterator[Change]:
    """What events change, in their order. `graph` is the state before them; the result must be used before that
    changes."""
    batch = _Batch(graph)
    for event in events:
        match event:
            case Put():
                yield from batch.put(event)
            case Delete():
                yield from batch.delete(event.ref)
            case Invalid():
                yield batch.invalid(event)
            case Replace():
                yield from batch.replace(event)
            case Synced() | Absent():
                pass


class _Batch:
    """The objects as the events so far leave them: what they touched, over what the graph holds."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._touched: dict[Ref, Object | None] = {}

    def _held(self, ref: Ref) -> Object | None:
        if ref in self._touched:
            return self._touched[ref]
        source = BY_KIND.get(ref.kind)
        return None if source is None else self._graph.get(source, ref)

    def put(self, event: Put) -> Iterator[Change]:
        value = event.object
        if isinstance(value, ConfigMap):
            value = _in_force(value, self._held(value.ref))
        self._touched[value.ref] = value
        yield BY_KIND[value.ref.kind], value.ref, value
        yield TROUBLES, value.ref, Trouble(event.faults, is_served=True) if event.faults else None

    def delete(self, ref: Ref) -> Iterator[Change]:
        self._touched[ref] = None
        source = BY_KIND.get(ref.kind)
        if source is not None:
            yield source, ref, None
        yield TROUBLES, ref, None

    def invalid(self, event: Invalid) -> Change:
        return TROUBLES, event.ref, Trouble(event.faults, is_served=self._held(event.ref) is not None)

    def replace(self, event: Replace) -> Iterator[Change]:
        listed = {item.ref for item in event.objects}
        known = dict.fromkeys(self._touched)
        for collection in (BY_KIND[event.kind], TROUBLES):
            known.update(dict.fromkeys(ref for ref, _ in self._graph.items(collection)))
        for ref in known:
            if ref.kind == event.kind and ref.cluster == event.cluster and ref not in listed:
                yield from self.delete(ref)
        for item in event.objects:
            if isinstance(item, Put):
                yield from self.put(item)
            else:
                yield self.invalid(item)


def _in_force(new: ConfigMap, held: Object | None) -> ConfigMap:
    """A ConfigMap with its mesh configuration as it takes effect after the one that is held."""
    if new.mesh is None:
        return new
    former = held.mesh if isinstance(held, ConfigMap) else None
    return ConfigMap(new.ref, settled(new.mesh, former))
