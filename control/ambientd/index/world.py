"""The whole index: every subject's declarations in one order, a graph of them, and what it gives to those who push and
explain. Must not hold state beside the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from ambientd.index import (
    authorization,
    conditions,
    entry_workloads,
    mesh,
    namespaces,
    networks,
    nodes,
    peers,
    pod_workloads,
    policy_conditions,
    problems,
    selection,
    service_records,
    services,
    slice_workloads,
    waypoint_policies,
    waypoints,
)
from ambientd.index.conditions import Conditions
from ambientd.index.declarations import Collection, Derived, Index
from ambientd.index.graph import Graph, Transaction
from ambientd.index.inputs import SOURCES, TROUBLES, changes_of
from ambientd.index.mesh import RULES
from ambientd.index.rendered import RenderedAddress, RenderedPolicy
from ambientd.index.rules import Rules
from ambientd.resources.events import Event
from ambientd.resources.faults import Fault
from ambientd.resources.ref import Ref

DECLARATIONS: tuple[Collection[Any, Any] | Index[Any, Any], ...] = (
    *SOURCES,
    *mesh.DECLARATIONS,
    *namespaces.DECLARATIONS,
    *nodes.DECLARATIONS,
    *networks.DECLARATIONS,
    *waypoints.DECLARATIONS,
    *waypoint_policies.DECLARATIONS,
    *service_records.DECLARATIONS,
    *services.DECLARATIONS,
    *authorization.DECLARATIONS,
    *peers.DECLARATIONS,
    *selection.DECLARATIONS,
    *slice_workloads.DECLARATIONS,
    *pod_workloads.DECLARATIONS,
    *entry_workloads.DECLARATIONS,
    *problems.DECLARATIONS,
    *conditions.DECLARATIONS,
    *policy_conditions.DECLARATIONS,
)
"""Each reads only what stands before it."""

ADDRESS_OUTPUTS: tuple[Derived[Any, RenderedAddress], ...] = (
    networks.GATEWAY_WORKLOADS,
    services.SERVICE_ADDRESSES,
    services.ENTRY_ADDRESSES,
    slice_workloads.SLICE_WORKLOADS,
    pod_workloads.POD_WORKLOADS,
    entry_workloads.WORKLOAD_ENTRY_WORKLOADS,
    entry_workloads.SERVICE_ENTRY_WORKLOADS,
)
"""Their names never clash (wire-contract.md 3)."""

POLICY_OUTPUTS: tuple[Derived[Any, RenderedPolicy], ...] = (
    authorization.POLICIES,
    peers.POLICIES,
    peers.STATIC_POLICY,
    waypoint_policies.WAYPOINT_POLICIES,
)

CONDITIONS: tuple[Derived[Ref, Conditions], ...] = (
    conditions.SERVICE_CONDITIONS,
    conditions.ENTRY_CONDITIONS,
    conditions.WORKLOAD_ENTRY_CONDITIONS,
    policy_conditions.POLICY_CONDITIONS,
)

_POLICY_PROBLEMS: tuple[tuple[Derived[Ref, tuple[Fault, ...]], Derived[Ref, RenderedPolicy] | None], ...] = (
    (authorization.PROBLEMS, authorization.POLICIES),
    # A PeerAuthentication takes effect through others' lists, whether or not it becomes a policy of its own.
    (peers.PROBLEMS, None),
)


class Problem(Struct, frozen=True, order=True, gc=False):
    """What is wrong with one object or file now."""

    object: Ref
    faults: tuple[str, ...]
    is_served: bool
    """Some version or part of the object is in force."""


class World:
    """All objects that were told of, and everything that follows from them."""

    def __init__(self, rules: Rules, *, is_strict: bool = False) -> None:
        self.graph = Graph(DECLARATIONS, is_strict=is_strict)
        self.graph.apply([(RULES, (), rules)])

    def begin(self, events: Sequence[Event]) -> Transaction:
        """Starts a transaction; the former one must be settled."""
        return self.graph.begin(changes_of(events, self.graph))

    def apply(self, events: Sequence[Event]) -> None:
        """A whole transaction in one call."""
        self.graph.apply(changes_of(events, self.graph))

    def addresses(self) -> dict[str, RenderedAddress]:
        """All addresses as last committed, by primary name."""
        return {item.name: item for output in ADDRESS_OUTPUTS for _, item in self.graph.items(output)}

    def authorizations(self) -> dict[str, RenderedPolicy]:
        """All policies as last committed, by primary name."""
        return {item.name: item for output in POLICY_OUTPUTS for _, item in self.graph.items(output)}

    def conditions(self) -> dict[Ref, Conditions]:
        """The status conditions that objects deserve, as last committed; an object that is not here deserves none."""
        return {ref: held for output in CONDITIONS for ref, held in self.graph.items(output)}

    def conditions_of(self, ref: Ref) -> Conditions:
        """Those of one object; none for one that deserves none."""
        return next((held for output in CONDITIONS if (held := self.graph.get(output, ref)) is not None), ())

    def unbound(self) -> Counter[tuple[str, str]]:
        """How many objects do not get the waypoint that they ask for, by kind and reason."""
        counts: Counter[tuple[str, str]] = Counter()
        for bindings in (service_records.SERVICE_BINDINGS, service_records.ENTRY_BINDINGS):
            for ref, binding in self.graph.items(bindings):
                if binding.primary.reason is not None:
                    counts[ref.kind, binding.primary.reason.value] += 1
        for ref, found in self.graph.items(entry_workloads.WORKLOAD_ENTRY_BINDINGS):
            if found.binding is not None and found.binding.reason is not None:
                counts[ref.kind, found.binding.reason.value] += 1
        return counts

    def verdicts(self) -> Counter[str]:
        """How many AuthorizationPolicies got which verdict (policies.md 10.2)."""
        return Counter(found.verdict.value for _, found in self.graph.items(authorization.VERDICTS))

    def problems(self) -> list[Problem]:
        """Everything that an operator should know of, in order of the objects."""
        texts: dict[Ref, list[str]] = {}
        unserved: set[Ref] = set()
        for ref, faults, is_served in self._faulty():
            texts.setdefault(ref, []).extend(str(fault) for fault in faults)
            if not is_served:
                unserved.add(ref)
        found = [Problem(ref, tuple(dict.fromkeys(held)), ref not in unserved) for ref, held in texts.items()]
        found.extend(self._failures())
        return sorted(found)

    def problem_counts(self) -> Counter[str]:
        """How many `problems` there are, by the kind of the object; their texts take ten times as long."""
        counts = Counter(ref.kind for ref in {ref for ref, _, _ in self._faulty()})
        counts.update(problem.object.kind for problem in self._failures())
        return counts

    def _faulty(self) -> Iterator[tuple[Ref, Sequence[Fault], bool]]:
        """Objects with what one collection says is wrong with them, and whether some version or part is in force."""
        graph = self.graph
        for collection in (TROUBLES, *problems.PROBLEMS):
            for ref, trouble in graph.items(collection):
                yield ref, trouble.faults, trouble.is_served
        for faults_of, served in _POLICY_PROBLEMS:
            for ref, faults in graph.items(faults_of):
                yield ref, faults, served is None or graph.get(served, ref) is not None

    def problems_of(self, ref: Ref) -> tuple[str, ...]:
        """What is wrong with one object or file; the same texts as in `problems`."""
        graph = self.graph
        troubles = (graph.get(collection, ref) for collection in (TROUBLES, *problems.PROBLEMS))
        faults = [fault for trouble in troubles if trouble is not None for fault in trouble.faults]
        faults += [fault for faults_of, _ in _POLICY_PROBLEMS for fault in graph.get(faults_of, ref) or ()]
        failed = [text for problem in self._failures() if problem.object == ref for text in problem.faults]
        return tuple(dict.fromkeys([*(str(fault) for fault in faults), *failed]))

    def _failures(self) -> Iterator[Problem]:
        return (_failure(name, key, error) for (name, key), error in self.graph.failures.items())


def _failure(name: str, key: object, error: Exception) -> Problem:
    """A fault of ours, told at the object that it concerns, as far as that can be said."""
    parts = key if isinstance(key, tuple) else (key,)
    ref = next((part for part in parts if isinstance(part, Ref)), Ref("", "Derivation", "", f"{name} of {key}"))
    text = f"{name} of {key} could not be derived ({type(error).__name__}: {error}); the former state stays in force"
    return Problem(ref, (text,), is_served=True)
