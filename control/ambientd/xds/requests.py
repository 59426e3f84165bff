"""A request as raw bytes, and what it says. Requests that tell what a client holds can have 200,000 entries, and
parsing those in one piece would hold the loop for a tenth of a second, so they are cut and parsed in slices, whatever
strangers put into them. No I/O."""

from __future__ import annotations

from collections.abc import Generator

from envoy.config.core.v3.base_pb2 import Node as NodeMessage
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest
from google.protobuf.message import DecodeError
from msgspec import Struct

_SMALL_BYTES = 128 * 1024
_SLICE_BYTES = 64 * 1024
_FIELDS_LIMIT = 1_000_000
"""A large mesh has 200,000 resources."""
_OTHERS_LIMIT_BYTES = 1 << 20
_YIELD_EVERY = 1024
_LISTS = frozenset({0x1A, 0x22, 0x2A})
"""Tags of the names subscribed to and unsubscribed from, and of the versions that are held."""
_OTHERS = frozenset({0x0A, 0x12, 0x32, 0x3A})
"""Tags of node, type, nonce and error."""


class Request(Struct, frozen=True):
    """A `DeltaDiscoveryRequest`, as far as the protocol reads it (wire-contract.md 8)."""

    type_url: str
    node: NodeMessage | None = None
    subscribe: tuple[str, ...] = ()
    """Each name once, as in the other one."""
    unsubscribe: tuple[str, ...] = ()
    claims: dict[str, str] = {}
    """`initial_resource_versions`."""
    nonce: str = ""
    error: str | None = None
    """Message of `error_detail`; None when there is none, which alone makes a request a NACK or not."""
    size_bytes: int = 0


class Malformed(Exception):
    """The bytes are not a request."""


def parse(raw: bytes) -> Generator[None, None, Request]:
    """What a request says, parsed in slices. Raises Malformed."""
    try:
        if len(raw) <= _SMALL_BYTES:
            message = DeltaDiscoveryRequest.FromString(raw)
            parts: list[bytes] = []
        else:
            rest, parts = yield from _cut(raw)
            message = DeltaDiscoveryRequest.FromString(rest)
        # Hashed here, in slices, whoever looks for them later.
        subscribe = dict.fromkeys(message.resource_names_subscribe)
        unsubscribe = dict.fromkeys(message.resource_names_unsubscribe)
        claims = dict(message.initial_resource_versions)
        for raw_part in parts:
            yield
            part = DeltaDiscoveryRequest.FromString(raw_part)
            subscribe.update(dict.fromkeys(part.resource_names_subscribe))
            unsubscribe.update(dict.fromkeys(part.resource_names_unsubscribe))
            claims.update(part.initial_resource_versions)
    except (DecodeError, ValueError, IndexError) as error:
        raise Malformed(str(error)) from error
    return Request(
        type_url=message.type_url,
        node=message.node if message.HasField("node") else None,
        subscribe=tuple(subscribe),
        unsubscribe=tuple(unsubscribe),
        claims=claims,
        nonce=message.response_nonce,
        error=message.error_detail.message if message.HasField("error_detail") else None,
        size_bytes=len(raw),
    )


def _cut(raw: bytes) -> Generator[None, None, tuple[bytes, list[bytes]]]:
    """The request without its lists of names and versions, and these in slices, each a request of its own. The entries
    of a list stand one after another, so that whole runs of them are cut out without touching their content."""
    rest, slices = bytearray(), []
    at = run = fields = 0
    end = len(raw)
    while at < end:
        fields += 1
        if fields > _FIELDS_LIMIT:
            raise Malformed(f"more than {_FIELDS_LIMIT} names, versions and other fields")
        if fields % _YIELD_EVERY == 0:
            yield
        start = at
        tag, at = _varint(raw, at)
        if tag < 8:
            raise Malformed("a field has no number")
        at = _skip(raw, at, tag & 7)
        if at > end:
            raise Malformed("a field is longer than the message")
        if tag in _LISTS:
            if at - run >= _SLICE_BYTES:
                slices.append(raw[run:at])
                run = at
        else:
            if start > run:
                slices.append(raw[run:start])
            run = at
            if tag in _OTHERS:
                rest += raw[start:at]
            if len(rest) > _OTHERS_LIMIT_BYTES:
                raise Malformed(f"more than {_OTHERS_LIMIT_BYTES} bytes that are neither names nor versions")
    if run < end:
        slices.append(raw[run:end])
    return bytes(rest), slices


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise Malformed("a number is too long")


def _skip(raw: bytes, at: int, wire_type: int) -> int:
    """Where the field ends whose content begins at `at`."""
    match wire_type:
        case 0:
            return _varint(raw, at)[1]
        case 1:
            return at + 8
        case 2:
            length, at = _varint(raw, at)
            return at + length
        case 5:
            return at + 4
        case _:
            raise Malformed(f"wire type {wire_type}")
