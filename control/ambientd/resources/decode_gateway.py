"""Decoding of gateway.networking.k8s.io (waypoints.md 1 to 5). A field of the wrong type makes the object undecodable;
a selector with an unknown operator matches nothing and is reported (waypoints.md 4)."""

from __future__ import annotations

import sys

import msgspec
from msgspec import Struct, field

from ambientd.resources.decode_common import (
    NO_META,
    Port,
    WireMeta,
    annotations_of,
    created_of,
    labels_of,
    make_ref,
)
from ambientd.resources.faults import Fault, quote
from ambientd.resources.gateway import Gateway, GatewayClass, GatewayStatusAddress, Listener
from ambientd.resources.mesh import LabelSelector, Requirement
from ambientd.resources.ref import ClusterId

_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})


class _Requirement(Struct, gc=False):
    key: str | None = None
    operator: str | None = None
    values: list[str] | None = None


class _Selector(Struct, gc=False):
    match_labels: dict[str, str] | None = field(default=None, name="matchLabels")
    match_expressions: list[_Requirement] | None = field(default=None, name="matchExpressions")


class _Namespaces(Struct, gc=False):
    from_: str | None = field(default=None, name="from")
    selector: _Selector | None = None


class _AllowedRoutes(Struct, gc=False):
    namespaces: _Namespaces | None = None


class _Tls(Struct, gc=False):
    mode: str | None = None


class _Listener(Struct, gc=False):
    name: str | None = None
    port: Port | None = None
    protocol: str | None = None
    tls: _Tls | None = None
    allowed: _AllowedRoutes | None = field(default=None, name="allowedRoutes")


class _GatewaySpec(Struct, gc=False):
    class_name: str | None = field(default=None, name="gatewayClassName")
    listeners: list[_Listener] | None = None


class _Address(Struct, gc=False):
    type: str | None = None
    value: str | None = None


class _GatewayStatus(Struct, gc=False):
    addresses: list[_Address] | None = None


class _Gateway(Struct, gc=False):
    metadata: WireMeta | None = None
    spec: _GatewaySpec | None = None
    status: _GatewayStatus | None = None


_GATEWAY = msgspec.json.Decoder(_Gateway)
_NO_SPEC, _NO_STATUS = _GatewaySpec(), _GatewayStatus()


def decode_gateway(raw: bytes, cluster: ClusterId) -> tuple[Gateway, tuple[Fault, ...]]:
    wire = _GATEWAY.decode(raw)
    meta, spec, status = wire.metadata or NO_META, wire.spec or _NO_SPEC, wire.status or _NO_STATUS
    faults: list[Fault] = []
    gateway = Gateway(
        ref=make_ref(cluster, "Gateway", meta.namespace, meta.name),
        labels=labels_of(meta.labels),
        annotations=annotations_of(meta.annotations),
        created=created_of(meta.created),
        class_name=sys.intern(spec.class_name or ""),
        listeners=tuple(
            _listener(listener, f"spec.listeners[{index}]", faults)
            for index, listener in enumerate(spec.listeners or ())
        ),
        addresses=tuple(
            GatewayStatusAddress(sys.intern(address.type or ""), address.value or "")
            for address in status.addresses or ()
        ),
    )
    return gateway, tuple(faults)


def _listener(wire: _Listener, path: str, faults: list[Fault]) -> Listener:
    namespaces = wire.allowed.namespaces if wire.allowed else None
    selector = namespaces.selector if namespaces else None
    return Listener(
        name=sys.intern(wire.name or ""),
        port=wire.port or 0,
        protocol=sys.intern(wire.protocol or ""),
        tls_mode=sys.intern((wire.tls.mode or "") if wire.tls else ""),
        # Allowed routes without `from` say the same as `Same` does, and so does what is not configured.
        allowed_from=None if namespaces is None else sys.intern(namespaces.from_ or "Same"),
        allowed_selector=_selector(selector, f"{path}.allowedRoutes.namespaces.selector", faults) if selector else None,
    )


def _selector(wire: _Selector, path: str, faults: list[Fault]) -> LabelSelector:
    requirements: list[Requirement] = []
    for index, expression in enumerate(wire.match_expressions or ()):
        operator = expression.operator or ""
        values = tuple(expression.values or ())
        if operator not in _OPERATORS or (operator in ("In", "NotIn")) != bool(values):
            rule = "must have the operator In or NotIn with values, or Exists or DoesNotExist without"
            got = quote(f"{operator} with {len(values)} values")
            effect = "the selector matches no namespace"
            faults.append(Fault(f"{path}.matchExpressions[{index}]", rule, got, effect))
            operator = "Invalid"
        requirements.append(Requirement(expression.key or "", operator, values))
    return LabelSelector(labels_of(wire.match_labels), tuple(requirements))


class _GatewayClassSpec(Struct, gc=False):
    controller: str | None = field(default=None, name="controllerName")


class _GatewayClass(Struct, gc=False):
    metadata: WireMeta | None = None
    spec: _GatewayClassSpec | None = None


_GATEWAY_CLASS = msgspec.json.Decoder(_GatewayClass)


def decode_gateway_class(raw: bytes, cluster: ClusterId) -> GatewayClass:
    wire = _GATEWAY_CLASS.decode(raw)
    meta = wire.metadata or NO_META
    return GatewayClass(
        ref=make_ref(cluster, "GatewayClass", "", meta.name),
        labels=labels_of(meta.labels),
        annotations=annotations_of(meta.annotations),
        controller=(wire.spec.controller or "") if wire.spec else "",
    )
