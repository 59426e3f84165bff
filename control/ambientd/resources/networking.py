"""Kinds of networking.istio.io (workloads.md 4, 5; services.md 6)."""

from __future__ import annotations

from msgspec import Struct

from ambientd.resources.ref import Labels, Ref


class EntryPort(Struct, frozen=True, gc=False):
    name: str
    number: int
    protocol: str
    target_number: int
    """`targetPort`; 0 when unset."""


class EntryEndpoint(Struct, frozen=True, gc=False):
    address: str
    ports: tuple[tuple[str, int], ...]
    labels: Labels
    network: str
    locality: str
    weight: int
    service_account: str


class HostAddress(Struct, frozen=True, gc=False):
    """An element of `status.addresses`."""

    value: str
    host: str


class ServiceEntry(Struct, frozen=True, gc=False):
    ref: Ref
    labels: Labels
    annotations: Labels
    created: str
    generation: int
    hosts: tuple[str, ...]
    addresses: tuple[str, ...]
    ports: tuple[EntryPort, ...]
    location: str
    resolution: str
    """`NONE`, `STATIC`, `DNS`, `DNS_ROUND_ROBIN`, `DYNAMIC_DNS`."""
    endpoints: tuple[EntryEndpoint, ...]
    workload_selector: Labels | None
    """None: no `workloadSelector` at all."""
    subject_alt_names: tuple[str, ...]
    status_addresses: tuple[HostAddress, ...]


class WorkloadEntry(Struct, frozen=True, gc=False):
    ref: Ref
    labels: Labels
    """`metadata.labels`."""
    annotations: Labels
    created: str
    generation: int
    spec_labels: Labels | None
    """`spec.labels`; None when absent."""
    address: str
    ports: tuple[tuple[str, int], ...]
    network: str
    locality: str
    weight: int
    service_account: str
