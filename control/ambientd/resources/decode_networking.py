"""Decoding of networking.istio.io (workloads.md 4, 5; services.md 6). An endpoint or a status address of the wrong type
is left out alone; everything else of the wrong type makes the object undecodable, an element of `spec.addresses` too,
since one bad address leaves no Service at all (services.md 6)."""

from __future__ import annotations

import sys
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from ambientd.resources.decode_common import (
    NO_META,
    Port,
    Unsigned,
    WireMeta,
    annotations_of,
    created_of,
    fault_of,
    labels_of,
    make_ref,
)
from ambientd.resources.faults import Fault, Undecodable, quote
from ambientd.resources.networking import EntryEndpoint, EntryPort, HostAddress, ServiceEntry, WorkloadEntry
from ambientd.resources.ref import ClusterId

T = TypeVar("T")
_RESOLUTIONS = ("NONE", "STATIC", "DNS", "DNS_ROUND_ROBIN", "DYNAMIC_DNS")


class _Workload(Struct, gc=False):
    """An endpoint of a ServiceEntry, and the spec of a WorkloadEntry."""

    address: str | None = None
    ports: dict[str, Port] | None = None
    labels: dict[str, str] | None = None
    network: str | None = None
    locality: str | None = None
    weight: Unsigned | None = None
    service_account: str | None = field(default=None, name="serviceAccount")


class _Port(Struct, gc=False):
    name: str | None = None
    number: Port | None = None
    protocol: str | None = None
    target: Port | None = field(default=None, name="targetPort")


class _Selector(Struct, gc=False):
    labels: dict[str, str] | None = None


class _EntrySpec(Struct, gc=False):
    hosts: list[str] | None = None
    addresses: list[str] | None = None
    ports: list[_Port] | None = None
    location: str | None = None
    resolution: str | None = None
    endpoints: list[msgspec.Raw] | None = None
    selector: _Selector | None = field(default=None, name="workloadSelector")
    subject_alt_names: list[str] | None = field(default=None, name="subjectAltNames")


class _Entry(Struct, gc=False):
    metadata: WireMeta | None = None
    spec: _EntrySpec | None = None
    status: msgspec.Raw = msgspec.Raw(b"null")


class _HostAddress(Struct, gc=False):
    value: str | None = None
    host: str | None = None


class _EntryStatus(Struct, gc=False):
    addresses: list[msgspec.Raw] | None = None


_ENTRY = msgspec.json.Decoder(_Entry)
_ENTRY_STATUS = msgspec.json.Decoder(_EntryStatus | None)
_HOST_ADDRESS = msgspec.json.Decoder(_HostAddress)
_ENDPOINT = msgspec.json.Decoder(_Workload)
_NO_ENTRY_SPEC = _EntrySpec()


def decode_service_entry(raw: bytes, cluster: ClusterId) -> tuple[ServiceEntry, tuple[Fault, ...]]:
    wire = _ENTRY.decode(raw)
    meta, spec = wire.metadata or NO_META, wire.spec or _NO_ENTRY_SPEC
    resolution = spec.resolution or "NONE"
    if resolution not in _RESOLUTIONS:
        rule = f"must be one of {', '.join(_RESOLUTIONS)}"
        raise Undecodable((Fault("spec.resolution", rule, quote(resolution), ""),))
    faults: list[Fault] = []
    endpoints = _each(_ENDPOINT, spec.endpoints, "spec.endpoints", "this endpoint is left out", faults)
    entry = ServiceEntry(
        ref=make_ref(cluster, "ServiceEntry", meta.namespace, meta.name),
        labels=labels_of(meta.labels),
        annotations=annotations_of(meta.annotations),
        created=created_of(meta.created),
        generation=meta.generation or 0,
        hosts=tuple(spec.hosts or ()),
        addresses=tuple(spec.addresses or ()),
        ports=tuple(
            EntryPort(sys.intern(port.name or ""), port.number or 0, sys.intern(port.protocol or ""), port.target or 0)
            for port in spec.ports or ()
        ),
        location=sys.intern(spec.location or ""),
        resolution=sys.intern(resolution),
        endpoints=tuple(_endpoint(endpoint) for endpoint in endpoints),
        workload_selector=None if spec.selector is None else labels_of(spec.selector.labels),
        subject_alt_names=tuple(spec.subject_alt_names or ()),
        status_addresses=_status_addresses(wire.status, faults),
    )
    return entry, tuple(faults)


def _status_addresses(raw: msgspec.Raw, faults: list[Fault]) -> tuple[HostAddress, ...]:
    effect = "the addresses in the status are left out"
    try:
        status = _ENTRY_STATUS.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        faults.append(fault_of(error, bytes(raw), effect, "status"))
        return ()
    addresses = status.addresses if status else None
    effect = "this address is left out"
    return tuple(
        HostAddress(address.value or "", address.host or "")
        for address in _each(_HOST_ADDRESS, addresses, "status.addresses", effect, faults)
    )


def _each(
    decoder: msgspec.json.Decoder[T], raws: list[msgspec.Raw] | None, path: str, effect: str, faults: list[Fault]
) -> list[T]:
    """The elements that decode; a fault for each other one."""
    values: list[T] = []
    for index, raw in enumerate(raws or ()):
        try:
            values.append(decoder.decode(raw))
        except (msgspec.DecodeError, RecursionError) as error:
            faults.append(fault_of(error, bytes(raw), effect, f"{path}[{index}]"))
    return values


def _ports(ports: dict[str, int] | None) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((sys.intern(name), number) for name, number in ports.items())) if ports else ()


def _endpoint(wire: _Workload) -> EntryEndpoint:
    return EntryEndpoint(
        address=wire.address or "",
        ports=_ports(wire.ports),
        labels=labels_of(wire.labels),
        network=sys.intern(wire.network or ""),
        locality=sys.intern(wire.locality or ""),
        weight=wire.weight or 0,
        service_account=sys.intern(wire.service_account or ""),
    )


class _WorkloadEntry(Struct, gc=False):
    metadata: WireMeta | None = None
    spec: _Workload | None = None


_WORKLOAD_ENTRY = msgspec.json.Decoder(_WorkloadEntry)
_NO_WORKLOAD = _Workload()


def decode_workload_entry(raw: bytes, cluster: ClusterId) -> WorkloadEntry:
    wire = _WORKLOAD_ENTRY.decode(raw)
    meta, spec = wire.metadata or NO_META, wire.spec or _NO_WORKLOAD
    return WorkloadEntry(
        ref=make_ref(cluster, "WorkloadEntry", meta.namespace, meta.name),
        labels=labels_of(meta.labels),
        annotations=annotations_of(meta.annotations),
        created=created_of(meta.created),
        generation=meta.generation or 0,
        spec_labels=None if spec.labels is None else labels_of(spec.labels),
        address=spec.address or "",
        ports=_ports(spec.ports),
        network=sys.intern(spec.network or ""),
        locality=sys.intern(spec.locality or ""),
        weight=spec.weight or 0,
        service_account=sys.intern(spec.service_account or ""),
    )
