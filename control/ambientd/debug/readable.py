"""A protobuf message as the plain values of proto-JSON (operations.md 12.3), as fast as the library's own conversion,
with its addresses in the form that the reader wants: every bytes field of the messages that we serve is an IP address.
Must not know any single message."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from ambientd.index.ips import ip_text

AddressForm = Callable[[bytes], str]


def text_address(raw: bytes) -> str:
    """`10.0.0.1`: for people. Bytes that are no address are shown in hexadecimal."""
    return ip_text(raw) if len(raw) in (4, 16) else f"0x{raw.hex()}"


def raw_address(raw: bytes) -> str:
    """`CgAAAQ==`: proto-JSON to the letter."""
    return base64.b64encode(raw).decode()


def quirky_address(raw: bytes) -> str:
    """`MTAuMC4wLjE=`: the text of the address, and then base64, as scripts decode it (operations.md 12.5.3)."""
    return base64.b64encode(text_address(raw).encode()).decode()


def plain(message: Message, address_form: AddressForm = text_address) -> Any:
    """The message as proto-JSON: camelCase, enums by name, what is default left out; 32-bit numbers only."""
    well_known = _WELL_KNOWN.get(message.DESCRIPTOR.full_name)
    if well_known is not None:
        return well_known(message)
    return {field.json_name: _field(field, value, address_form) for field, value in message.ListFields()}


def _field(field: FieldDescriptor, value: Any, address_form: AddressForm) -> Any:
    if not field.is_repeated:
        return _value(field, value, address_form)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        inner = entry.fields_by_name["value"]
        # Sorted, because the order of a map is not the same twice.
        return {str(key): _value(inner, value[key], address_form) for key in sorted(value)}
    return [_value(field, item, address_form) for item in value]


def _value(field: FieldDescriptor, value: Any, address_form: AddressForm) -> Any:
    if field.message_type is not None:
        return plain(value, address_form)
    if field.enum_type is not None:
        return _enum(field.enum_type, value)
    if isinstance(value, bytes):
        return address_form(value)
    return value


def _enum(enum: EnumDescriptor, number: int) -> str | int:
    """Its name; an unknown number stays one, as in proto-JSON."""
    value = enum.values_by_number.get(number)
    return number if value is None else value.name


_WELL_KNOWN: dict[str, Callable[[Any], Any]] = {
    "google.protobuf.UInt32Value": lambda message: message.value,
    "google.protobuf.Empty": lambda _: {},
}
