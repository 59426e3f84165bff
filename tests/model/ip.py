"""IP texts: what parses, and how it is printed (wire-contract.md 4.1, 4.2; policies.md 3.5). Python's own parser treats
zones and IPv4-mapped addresses in its own way, so both are settled here."""

from __future__ import annotations

import ipaddress
import re

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LENGTH = re.compile(r"0|[1-9][0-9]*", re.ASCII)


def parse(text: str) -> Address | None:
    """The address that the text spells, None if it spells none. A zone of an IPv6 address is dropped."""
    bare, percent, zone = text.partition("%")
    if percent and (not zone or ":" not in bare):
        return None
    try:
        return ipaddress.ip_address(bare)
    except ValueError:
        return None


def parse_range(text: str) -> tuple[Address, int] | None:
    """Address and prefix length of `address/length`, host bits kept; a text without slash is a single address."""
    base, slash, length = text.partition("/")
    if not slash:
        single = parse(base)
        return None if single is None else (single, single.max_prefixlen)
    address = None if "%" in base else parse(base)
    if address is None or not _LENGTH.fullmatch(length) or int(length) > address.max_prefixlen:
        return None
    return address, int(length)


def masked(address: Address, length: int) -> Address:
    """The address with all bits behind the prefix cleared."""
    host_bits = address.max_prefixlen - length
    return type(address)(int(address) >> host_bits << host_bits)


def text(address: Address) -> str:
    """RFC 5952; an IPv4-mapped address has a dotted tail, which Python prints so only from 3.13 on."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return f"::ffff:{address.ipv4_mapped}"
    return str(address)


def canonical(spelling: str) -> str:
    """The one text of an address, however it was spelled; what is no address stays as it is."""
    address = parse(spelling)
    return spelling if address is None else text(address)


def from_bytes(packed: bytes) -> str:
    """The text of 4 or 16 bytes in network order."""
    return text(ipaddress.ip_address(packed))
