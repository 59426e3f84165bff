"""Bytes on the wire: one resource as a field of a response, and whole responses joined from such fields
(wire-contract.md 8). Written by hand because a response is then a join of ready bytes. Must not look into a
resource, but for `listing`."""

from __future__ import annotations

from collections.abc import Iterable

ADDRESS = "type.googleapis.com/istio.workload.Address"
AUTHORIZATION = "type.googleapis.com/istio.security.Authorization"

_RESOURCES = b"\x12"
_WORKLOAD = b"\x0a"
_AUTHORIZATION_POLICIES = b"\x82\x01"


def varint(number: int) -> bytes:
    """A number in protobuf's variable-length form."""
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(tag: bytes, value: bytes) -> bytes:
    """A length-delimited field."""
    return tag + varint(len(value)) + value


_TYPE_FIELD = {url: field(b"\x0a", url.encode()) for url in (ADDRESS, AUTHORIZATION)}


def encode_frame(type_url: str, name: str, version: str, body: bytes, aliases: Iterable[str] = ()) -> bytes:
    """One resource as an element of `DeltaDiscoveryResponse.resources`, its tag and length included."""
    value = _TYPE_FIELD[type_url] + field(b"\x12", body)
    resource = field(b"\x0a", version.encode()) + field(b"\x12", value) + field(b"\x1a", name.encode())
    for alias in aliases:
        resource += field(b"\x22", alias.encode())
    return field(_RESOURCES, resource)


def encode_response(
    type_url: str, frames: Iterable[bytes], removed: Iterable[str], nonce: str, system_version: str
) -> bytes:
    """A complete `DeltaDiscoveryResponse`."""
    parts = [field(b"\x0a", system_version.encode()), *frames, field(b"\x22", type_url.encode())]
    parts.append(field(b"\x2a", nonce.encode()))
    parts.extend(field(b"\x32", name.encode()) for name in removed)
    return b"".join(parts)


def listing(address_body: bytes, policy: str) -> bytes:
    """The bytes of an Address whose workload lists one more policy. A repeated field may continue anywhere, so the name
    is appended to the workload and the lengths around it are written again."""
    assert address_body.startswith(_WORKLOAD), "a service lists no policies"
    start = 1
    while address_body[start] & 0x80:
        start += 1
    return field(_WORKLOAD, address_body[start + 1 :] + field(_AUTHORIZATION_POLICIES, policy.encode()))
