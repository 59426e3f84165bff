"""A request as raw bytes, and what it says. Requests that tell what a client holds can have 200,000 entries, and
parsing those in one piece would hold the loop for a tenth of a second, so they are cut and parsed in slices. No I/O."""

from __future__ import annotations

from collections.abc import Generator

from envoy.config.core.v3.base_pb2 import Node as NodeMessage
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest
from google.protobuf.message import DecodeError
from msgspec import Struct

_SMALL_BYTES = 128 * 1024
_SLICE_BYTES = 64 * 1024
_INITIAL_RESOURCE_VERSIONS = 0x2A


class Request(Struct, frozen=True):
    """A `DeltaDiscoveryRequest`, as far as the protocol reads it (wire-contract.md 8)."""

    type_url: str
    node: NodeMessage | None = None
    subscribe: tuple[str, ...] = ()
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
            claims = dict(message.initial_resource_versions)
        else:
            rest, slices = yield from _cut(raw)
            message = DeltaDiscoveryRequest.FromString(rest)
            claims = {}
            for piece in slices:
                claims.update(DeltaDiscoveryRequest.FromString(piece).initial_resource_versions)
                yield
    except (DecodeError, ValueError, IndexError) as error:
        raise Malformed(str(error)) from error
    return Request(
        type_url=message.type_url,
        node=message.node if message.HasField("node") else None,
        subscribe=tuple(message.resource_names_subscribe),
        unsubscribe=tuple(message.resource_names_unsubscribe),
        claims=claims,
        nonce=message.response_nonce,
        error=message.error_detail.message if message.HasField("error_detail") else None,
        size_bytes=len(raw),
    )


def _cut(raw: bytes) -> Generator[None, None, tuple[bytes, list[bytes]]]:
    """The request without its version map, and the map in slices, each a request of its own. The map's entries stand
    one after another, so that whole runs of them are cut out without touching their content."""
    rest, slices = bytearray(), []
    at = run = 0
    end = len(raw)
    while at < end:
        start = at
        tag, at = _varint(raw, at)
        at = _skip(raw, at, tag & 7)
        if at > end:
            raise Malformed("a field is longer than the message")
        if tag == _INITIAL_RESOURCE_VERSIONS:
            if at - run >= _SLICE_BYTES:
                slices.append(raw[run:at])
                run = at
                yield
        else:
            if start > run:
                slices.append(raw[run:start])
            rest += raw[start:at]
            run = at
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
