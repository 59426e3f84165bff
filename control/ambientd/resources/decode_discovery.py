"""Decoding of discovery.k8s.io (workloads.md 3.13, 6). A field of the wrong type makes the slice undecodable."""

from __future__ import annotations

import sys

import msgspec
from msgspec import Struct, field

from ambientd.resources.decode_common import NO_META, Port, WireMeta, labels_of, make_ref
from ambientd.resources.discovery import Endpoint, EndpointSlice, SlicePort, TargetRef
from ambientd.resources.ref import ClusterId


class _Conditions(Struct, gc=False):
    ready: bool | None = None


class _TargetRef(Struct, gc=False):
    kind: str | None = None
    namespace: str | None = None
    name: str | None = None
    uid: str | None = None


class _Endpoint(Struct, gc=False):
    addresses: list[str] | None = None
    conditions: _Conditions | None = None
    target: _TargetRef | None = field(default=None, name="targetRef")


class _SlicePort(Struct, gc=False):
    name: str | None = None
    number: Port | None = field(default=None, name="port")
    protocol: str | None = None


class _Slice(Struct, gc=False):
    metadata: WireMeta | None = None
    address_type: str | None = field(default=None, name="addressType")
    ports: list[_SlicePort] | None = None
    endpoints: list[_Endpoint] | None = None


_SLICE = msgspec.json.Decoder(_Slice)


def decode_endpoint_slice(raw: bytes, cluster: ClusterId) -> EndpointSlice:
    wire = _SLICE.decode(raw)
    meta = wire.metadata or NO_META
    return EndpointSlice(
        ref=make_ref(cluster, "EndpointSlice", meta.namespace, meta.name),
        labels=labels_of(meta.labels),
        address_type=sys.intern(wire.address_type or ""),
        ports=tuple(_port(port) for port in wire.ports or ()),
        endpoints=tuple(_endpoint(endpoint) for endpoint in wire.endpoints or ()),
    )


def _port(port: _SlicePort) -> SlicePort:
    name = None if port.name is None else sys.intern(port.name)
    return SlicePort(name, port.number, sys.intern(port.protocol or "TCP"))


def _endpoint(wire: _Endpoint) -> Endpoint:
    ready = wire.conditions.ready if wire.conditions else None
    return Endpoint(tuple(wire.addresses or ()), ready is not False, _target(wire.target) if wire.target else None)


def _target(wire: _TargetRef) -> TargetRef:
    return TargetRef(sys.intern(wire.kind or ""), sys.intern(wire.namespace or ""), wire.name or "", wire.uid or "")
