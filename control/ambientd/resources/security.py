"""Kinds of security.istio.io, decoded field by field so that one bad field does not lose the rest (policies.md 3,
12)."""

from __future__ import annotations

from msgspec import Struct

from ambientd.resources.ref import Labels, Ref


class Source(Struct, frozen=True, gc=False):
    principals: tuple[str, ...] = ()
    not_principals: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    not_namespaces: tuple[str, ...] = ()
    service_accounts: tuple[str, ...] = ()
    not_service_accounts: tuple[str, ...] = ()
    ip_blocks: tuple[str, ...] = ()
    not_ip_blocks: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    """Names, as written in the object, of the non-empty fields that have no meaning at layer 4 (policies.md 5.6)."""


class Operation(Struct, frozen=True, gc=False):
    ports: tuple[str, ...] = ()
    not_ports: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()


class Condition(Struct, frozen=True, gc=False):
    key: str
    values: tuple[str, ...] = ()
    not_values: tuple[str, ...] = ()


class Rule(Struct, frozen=True, gc=False):
    """A null or missing `source` or `operation` is an empty one; a null rule is left out (policies.md 12 [H7])."""

    sources: tuple[Source, ...] = ()
    operations: tuple[Operation, ...] = ()
    conditions: tuple[Condition, ...] = ()


class PolicyTarget(Struct, frozen=True, gc=False):
    group: str
    kind: str
    namespace: str
    name: str


class AuthorizationPolicy(Struct, frozen=True, gc=False):
    ref: Ref
    labels: Labels
    annotations: Labels
    created: str
    generation: int
    selector: Labels
    """`spec.selector.matchLabels`; empty when there is no selector or an empty one, which is the same [H1]."""
    targets: tuple[PolicyTarget, ...]
    """`targetRefs`, else the one `targetRef`."""
    action: str
    """`ALLOW`, `DENY`, `AUDIT`, `CUSTOM`; absent is `ALLOW`; any other text makes the object undecodable."""
    rules: tuple[Rule, ...]


class PeerAuthentication(Struct, frozen=True, gc=False):
    ref: Ref
    labels: Labels
    created: str
    selector: Labels
    mode: str
    """`UNSET`, `DISABLE`, `PERMISSIVE`, `STRICT`."""
    port_modes: tuple[tuple[int, str], ...]
    """In ascending order of the port; ports outside 1 to 65535 are left out [H5]."""
