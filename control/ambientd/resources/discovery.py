"""Kinds of discovery.k8s.io (workloads.md 3.13, 6)."""

from __future__ import annotations

from msgspec import Struct

from ambientd.resources.ref import Labels, Ref


class TargetRef(Struct, frozen=True, gc=False):
    kind: str
    namespace: str
    name: str
    uid: str


class Endpoint(Struct, frozen=True, gc=False):
    addresses: tuple[str, ...]
    is_ready: bool
    """`conditions.ready`, true when unset."""
    target: TargetRef | None


class SlicePort(Struct, frozen=True, gc=False):
    name: str | None
    number: int | None
    protocol: str


class EndpointSlice(Struct, frozen=True, gc=False):
    ref: Ref
    labels: Labels
    address_type: str
    ports: tuple[SlicePort, ...]
    endpoints: tuple[Endpoint, ...]
