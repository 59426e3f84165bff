"""PeerAuthentications as DENY policies, since a ztunnel has no notion of mTLS modes: the levels and their precedence,
one converted policy for each object with ports that matter, the static strict policy, and what a workload lists
(policies.md 6). The same functions decide what is listed and what is served, so that every listed name is served. Must
not look at workloads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from google.protobuf.empty_pb2 import Empty
from msgspec import Struct

from ambientd.index.authorization_conversion import CONVERTED_PREFIX, STATIC_NAME
from ambientd.index.declarations import Derived, Index, Reader, derive, derive_over_index, on_demand
from ambientd.index.inputs import PEER_AUTHENTICATIONS
from ambientd.index.mesh import MeshView, in_revision, mesh_of
from ambientd.index.namespaces import is_discovered
from ambientd.index.rendered import RenderedPolicy, render_policy
from ambientd.index.selectors import Pair, by_first_pair, selecting
from ambientd.resources.faults import Fault
from ambientd.resources.ref import Labels, Ref
from ambientd.resources.security import PeerAuthentication
from ambientd_api.security_pb2 import DENY, WORKLOAD_SELECTOR, Authorization, Group, Match, Rules, StringMatch

_OPEN: Final = frozenset({"PERMISSIVE", "DISABLE"})
"""Modes that accept plaintext; at a ztunnel they are the same thing."""


class PeerRecord(Struct, frozen=True, gc=False):
    """A PeerAuthentication that exists for this control plane."""

    ref: Ref
    created: str
    selector: Labels
    mode: str
    port_modes: tuple[tuple[int, str], ...]


class SelectorRecord(Struct, frozen=True, gc=False):
    """What workloads depend on of an object that may apply to some of them (workloads.md 9.2)."""

    namespace: str
    name: str
    created: str
    selector: Labels
    """At least one pair, in order of the keys."""
    mode: str
    modes_of_ports: tuple[str, ...]
    """The distinct modes of its ports, sorted. Not the ports: a workload lists the same whichever they are."""


class BaseLevel(Struct, frozen=True, gc=False):
    """The one object without selector that counts in a namespace."""

    name: str
    mode: str


class ConvertedKey(Struct, frozen=True, gc=False):
    """All that a converted policy depends on."""

    namespace: str
    name: str
    mode: str
    exempt: tuple[int, ...]
    """Ports that accept plaintext although the base is strict; ascending."""
    strict: tuple[int, ...]
    """Ports that are strict although the base is not; ascending."""
    is_parent_strict: bool


# The rules, as functions of modes (policies.md 6.2, 6.3, 6.6).


def is_base_strict(mode: str, is_parent_strict: bool) -> bool:
    """Whether ports without a mode of their own are strict."""
    return mode == "STRICT" or (mode == "UNSET" and is_parent_strict)


def is_converted(mode: str, modes_of_ports: Collection[str], is_parent_strict: bool) -> bool:
    """Whether an object with a selector has ports that the static policy, or none, cannot express (policies.md 6.3
    [H3])."""
    if is_base_strict(mode, is_parent_strict):
        return any(held in _OPEN for held in modes_of_ports)
    return "STRICT" in modes_of_ports


def lists_converted(mode: str, modes_of_ports: Collection[str], is_parent_strict: bool) -> bool:
    """Whether a workload lists the converted policy: never when that is not served. With an inherited strict base,
    ports that are only DISABLE do not suffice, and stay strict (policies.md 6.6 [K3])."""
    if not is_converted(mode, modes_of_ports, is_parent_strict):
        return False
    is_inherited = mode == "UNSET" and is_parent_strict
    return not is_inherited or "PERMISSIVE" in modes_of_ports


# Levels.


def gather_record(peer: PeerAuthentication, read: Reader) -> PeerRecord | None:
    """None: the object does not exist for this control plane (policies.md 3.1)."""
    if not in_revision(peer.labels, mesh_of(read).rules) or not is_discovered(peer.ref.namespace, read):
        return None
    return PeerRecord(peer.ref, peer.created, peer.selector, peer.mode, peer.port_modes)


RECORDS: Derived[Ref, PeerRecord] = derive("peer authentication records", PEER_AUTHENTICATIONS, gather_record)
RECORDS_BY_NAMESPACE: Index[str, PeerRecord] = Index(
    "peer authentications by namespace", RECORDS, lambda record: (record.ref.namespace,)
)
BASES_BY_NAMESPACE: Index[str, PeerRecord] = Index(
    "peer authentications without selector",
    RECORDS,
    lambda record: () if record.selector else (record.ref.namespace,),
)


def gather_base(namespace: str, read: Reader) -> BaseLevel | None:
    """The oldest object without selector; of equal age the first by name [H6]."""
    records = read.under(BASES_BY_NAMESPACE, namespace)
    if not records:
        return None
    oldest = min(records, key=lambda record: (record.created, record.ref.name))
    return BaseLevel(oldest.ref.name, oldest.mode)


BASE_LEVELS: Derived[str, BaseLevel] = on_demand("peer authentication base levels", gather_base)


def gather_parent_strict(namespace: str, read: Reader) -> bool:
    """Whether workloads of the namespace are strict where nothing of their own says otherwise (policies.md 6.2)."""
    mesh = mesh_of(read)
    if namespace != mesh.root_namespace:
        level = read.get(BASE_LEVELS, namespace)
        if level is not None and level.mode != "UNSET":
            return level.mode == "STRICT"
    level = read.get(BASE_LEVELS, mesh.root_namespace)
    return level is not None and level.mode == "STRICT"


PARENT_STRICT: Derived[str, bool] = on_demand("peer authentication parent strictness", gather_parent_strict)


def _is_parent_strict(namespace: str, read: Reader) -> bool:
    return read.get(PARENT_STRICT, namespace) is True


def gather_selector(record: PeerRecord, read: Reader) -> SelectorRecord | None:
    """The workload level: with a selector, and outside the root namespace [K6]."""
    if not record.selector or record.ref.namespace == mesh_of(read).root_namespace:
        return None
    return SelectorRecord(
        namespace=record.ref.namespace,
        name=record.ref.name,
        created=record.created,
        selector=record.selector,
        mode=record.mode,
        modes_of_ports=tuple(sorted({mode for _, mode in record.port_modes})),
    )


SELECTORS: Derived[Ref, SelectorRecord] = derive("peer authentication selectors", RECORDS, gather_selector)
SELECTORS_BY_NAMESPACE: Index[str, SelectorRecord] = Index(
    "peer authentication selectors by namespace", SELECTORS, lambda record: (record.namespace,)
)
SELECTORS_BY_PAIR: Index[tuple[str, Pair], SelectorRecord] = Index(
    "peer authentication selectors by pair", SELECTORS, by_first_pair
)


# What is served.


def gather_converted(record: PeerRecord, read: Reader) -> ConvertedKey | None:
    """Whether or not any workload lists it (policies.md 6.3)."""
    selector = read.get(SELECTORS, record.ref)
    if selector is None or not record.port_modes:
        return None
    is_parent_strict = _is_parent_strict(record.ref.namespace, read)
    if not is_converted(record.mode, selector.modes_of_ports, is_parent_strict):
        return None
    is_strict = is_base_strict(record.mode, is_parent_strict)
    return ConvertedKey(
        namespace=record.ref.namespace,
        name=CONVERTED_PREFIX + record.ref.name,
        mode=record.mode,
        exempt=tuple(port for port, mode in sorted(record.port_modes) if is_strict and mode in _OPEN),
        strict=tuple(port for port, mode in sorted(record.port_modes) if not is_strict and mode == "STRICT"),
        is_parent_strict=is_parent_strict and is_strict,
    )


def render_converted(key: ConvertedKey) -> RenderedPolicy:
    """Deny a peer without identity, save at the exempt ports; or at the strict ports only (policies.md 6.4)."""
    if key.exempt:
        matches = [Match(not_destination_ports=[port]) for port in key.exempt]
        # Twice when both hold: harmless, and byte for byte what ztunnels get from istiod.
        if key.mode == "STRICT":
            matches.insert(0, _without_identity())
        if key.is_parent_strict:
            matches.append(_without_identity())
        groups = [Group(rules=[Rules(matches=[match]) for match in matches])]
    else:
        # A group for each port, since groups are alternatives, and entries of one group are not.
        groups = [
            Group(rules=[Rules(matches=[Match(not_principals=_anyone(), destination_ports=[port])])])
            for port in key.strict
        ]
    return _denying(key.namespace, key.name, groups)


def gather_presence(namespace: str, records: tuple[PeerRecord, ...], read: Reader) -> str:
    return namespace


def gather_static(key: tuple[()], namespaces: tuple[str, ...], read: Reader) -> str:
    """The namespace of the static policy: it is served while any PeerAuthentication exists (policies.md 6.5 [K8])."""
    return mesh_of(read).root_namespace


def render_static(root_namespace: str) -> RenderedPolicy:
    return _denying(root_namespace, STATIC_NAME, [Group(rules=[Rules(matches=[_without_identity()])])])


def _denying(namespace: str, name: str, groups: list[Group]) -> RenderedPolicy:
    return render_policy(
        Authorization(name=name, namespace=namespace, scope=WORKLOAD_SELECTOR, action=DENY, groups=groups)
    )


def _without_identity() -> Match:
    return Match(not_principals=_anyone())


def _anyone() -> list[StringMatch]:
    return [StringMatch(presence=Empty())]


POLICIES: Derived[Ref, RenderedPolicy] = derive(
    "peer authentications as served", RECORDS, gather_converted, render_converted
)
"""The converted policies. What ztunnels get is these and `STATIC_POLICY`."""
PRESENT_NAMESPACES: Derived[str, str] = derive_over_index(
    "namespaces with peer authentications", RECORDS_BY_NAMESPACE, gather_presence
)
PRESENCE: Index[tuple[()], str] = Index("presence of peer authentications", PRESENT_NAMESPACES, lambda _: ((),))
"""One bucket, of namespaces instead of objects, so that it changes with the first and last object of a namespace."""
STATIC_POLICY: Derived[tuple[()], RenderedPolicy] = derive_over_index(
    "static strict policy", PRESENCE, gather_static, render_static
)


# What is wrong.


def gather_problems(record: PeerRecord, read: Reader) -> tuple[Fault, ...] | None:
    root_namespace = mesh_of(read).root_namespace
    if not record.selector:
        faults = _base_problems(record, read)
    elif record.ref.namespace == root_namespace:
        faults = [
            Fault(
                "spec.selector",
                f"must not be set in the root namespace {root_namespace}",
                "",
                "ztunnels ignore the object",
                "put it into the namespace of the workloads that it selects",
            )
        ]
    else:
        faults = _selector_problems(record, read)
    return tuple(faults) or None


def _base_problems(record: PeerRecord, read: Reader) -> list[Fault]:
    faults = []
    if record.port_modes:
        faults.append(
            Fault(
                "spec.portLevelMtls",
                "must stand beside a selector with at least one label",
                "",
                "the modes of ports are ignored, and spec.mtls.mode holds for all ports",
            )
        )
    level = read.get(BASE_LEVELS, record.ref.namespace)
    if level is not None and level.name != record.ref.name:
        faults.append(
            Fault(
                "",
                "must be the only one without selector in its namespace",
                "",
                f"the older {level.name} counts, and this object is ignored",
            )
        )
    return faults


def _selector_problems(record: PeerRecord, read: Reader) -> list[Fault]:
    modes = {mode for _, mode in record.port_modes}
    is_parent_strict = _is_parent_strict(record.ref.namespace, read)
    if not is_converted(record.mode, modes, is_parent_strict) or lists_converted(record.mode, modes, is_parent_strict):
        return []
    return [
        Fault(
            "spec.portLevelMtls",
            "must stand beside spec.mtls.mode, or hold a PERMISSIVE port, to open ports under an inherited STRICT",
            "DISABLE",
            "these ports stay strict",
            "write PERMISSIVE, which is the same at a ztunnel",
        )
    ]


PROBLEMS: Derived[Ref, tuple[Fault, ...]] = derive("peer authentication problems", RECORDS, gather_problems)

DECLARATIONS = (
    RECORDS,
    RECORDS_BY_NAMESPACE,
    BASES_BY_NAMESPACE,
    BASE_LEVELS,
    PARENT_STRICT,
    SELECTORS,
    SELECTORS_BY_NAMESPACE,
    SELECTORS_BY_PAIR,
    POLICIES,
    PRESENT_NAMESPACES,
    PRESENCE,
    STATIC_POLICY,
    PROBLEMS,
)


def gather_listed(namespace: str, labels: Labels, mesh: MeshView, read: Reader) -> str | None:
    """The one policy that a workload with these labels lists for its mTLS modes, or none (policies.md 6.6)."""
    applying = None if namespace == mesh.root_namespace else oldest_selecting(namespace, labels, read)
    mode = "UNSET" if applying is None else applying.mode
    # A mode of one's own makes the levels above irrelevant, and then they are not read.
    is_parent_strict = mode == "UNSET" and _is_parent_strict(namespace, read)
    if applying is not None and lists_converted(mode, applying.modes_of_ports, is_parent_strict):
        return f"{namespace}/{CONVERTED_PREFIX}{applying.name}"
    if is_base_strict(mode, is_parent_strict):
        return f"{mesh.root_namespace}/{STATIC_NAME}"
    return None


def oldest_selecting(namespace: str, labels: Labels, read: Reader) -> SelectorRecord | None:
    """The one object that applies to a workload with these labels; of equal age the first by name [H6]."""
    applying = selecting(SELECTORS_BY_PAIR, namespace, labels, read)
    return min(applying, key=lambda record: (record.created, record.name), default=None)
