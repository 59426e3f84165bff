"""From the JSON of one object to its frozen value, for every kind. The one place that says what follows when an object
cannot be decoded. Must not apply the API server's defaulting (`manifest.py` does, for objects that never met one)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct, field, structs

from ambientd.resources.decode_common import fault_of, make_ref
from ambientd.resources.decode_core import (
    decode_config_map,
    decode_namespace,
    decode_node,
    decode_pod,
    decode_service,
)
from ambientd.resources.decode_discovery import decode_endpoint_slice
from ambientd.resources.decode_gateway import decode_gateway, decode_gateway_class
from ambientd.resources.decode_networking import decode_service_entry, decode_workload_entry
from ambientd.resources.decode_security import decode_authorization_policy, decode_peer_authentication
from ambientd.resources.faults import Fault, Undecodable
from ambientd.resources.kinds import POLICY_KINDS, Object
from ambientd.resources.ref import ClusterId, Ref

_WHOLE: dict[str, Callable[[bytes, ClusterId], Object]] = {
    "Pod": decode_pod,
    "Namespace": decode_namespace,
    "Node": decode_node,
    "Service": decode_service,
    "EndpointSlice": decode_endpoint_slice,
    "WorkloadEntry": decode_workload_entry,
    "GatewayClass": decode_gateway_class,
}
"""Kinds that are decoded as a whole or not at all."""

_IN_PARTS: dict[str, Callable[[bytes, ClusterId], tuple[Object, tuple[Fault, ...]]]] = {
    "ConfigMap": decode_config_map,
    "Gateway": decode_gateway,
    "ServiceEntry": decode_service_entry,
    "AuthorizationPolicy": decode_authorization_policy,
    "PeerAuthentication": decode_peer_authentication,
}
"""Kinds of which parts may be left out, with a fault for each."""


def decode(raw: bytes, kind: str, cluster: ClusterId) -> tuple[Object, tuple[Fault, ...]]:
    """The object in the JSON of one Kubernetes object of a kind of `KINDS`, and what of it was left out. Raises
    Undecodable when it cannot be used at all, and nothing else whatever the bytes are."""
    try:
        whole = _WHOLE.get(kind)
        return (whole(raw, cluster), ()) if whole else _IN_PARTS[kind](raw, cluster)
    except Undecodable as error:
        effect = effect_of(kind)
        raise Undecodable(
            tuple(fault if fault.effect else structs.replace(fault, effect=effect) for fault in error.faults)
        ) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise Undecodable((fault_of(error, raw, effect_of(kind)),)) from error


def effect_of(kind: str) -> str:
    """What follows for an object of a kind that cannot be decoded."""
    what = "it is not enforced" if kind in POLICY_KINDS else "it is not used"
    return f"the last good version stays in force; without one {what}"


class _Meta(Struct, gc=False):
    name: str | None = None
    namespace: str | None = None
    version: str | None = field(default=None, name="resourceVersion")


class _Head(Struct, gc=False):
    metadata: _Meta | None = None


_HEAD = msgspec.json.Decoder(_Head)


def decode_head(raw: bytes, kind: str, cluster: ClusterId) -> tuple[Ref, str]:
    """The name and the resource version of an object, which are often there when the rest cannot be decoded. Raises
    Undecodable."""
    try:
        meta = _HEAD.decode(raw).metadata or _Meta()
        return make_ref(cluster, kind, meta.namespace, meta.name), meta.version or ""
    except (msgspec.DecodeError, RecursionError) as error:
        raise Undecodable((fault_of(error, raw, "the object cannot be used"),)) from error


def _refuse_infinite(value: Any) -> None:
    """JSON has no such numbers, and the encoder would write null, which means something else. Raises ValueError."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case dict() as members:
                waiting.extend(members.values())
            case list() as elements:
                waiting.extend(elements)
            case float() as number if not math.isfinite(number):
                raise ValueError(f"{number} is no number of JSON")


def to_json(value: Any) -> bytes:
    """Plain values as JSON. Raises Undecodable for text that is no Unicode, and for numbers that do not fit."""
    try:
        _refuse_infinite(value)
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError, RecursionError, TypeError, ValueError) as error:
        rule = "must hold only what JSON can say"
        raise Undecodable((Fault("", rule, str(error)[:120], "the object cannot be used"),)) from error
