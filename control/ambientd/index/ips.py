"""IP addresses and prefixes as text and as bytes, by the strict rules that a real API server and the client share
(wire-contract.md 4.1). Must not guess: what does not parse is None, and whoever asked says what follows."""

from __future__ import annotations

import re

_OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}", re.ASCII)
_GROUPS = re.compile(r"(?:[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4})*)?", re.ASCII)
_MAPPED = b"\0" * 10 + b"\xff\xff"


def parse_ip(text: str) -> bytes | None:
    """The 4 or 16 bytes of an address; None when it does not parse: leading zeros, brackets, blanks, a prefix length.
    An IPv4-mapped address keeps its 16 bytes; the zone of an IPv6 address is dropped."""
    if ":" not in text:
        found = _IPV4.fullmatch(text)
        return None if found is None else bytes(map(int, found.groups()))
    address, percent, zone = text.partition("%")
    if percent and not zone:
        return None
    return _parse_ipv6(address)


def _parse_ipv6(text: str) -> bytes | None:
    if "." in text:
        head, _, tail = text.rpartition(":")
        found = _IPV4.fullmatch(tail)
        if found is None:
            return None
        a, b, c, d = map(int, found.groups())
        text = f"{head}:{a:02x}{b:02x}:{c:02x}{d:02x}"
    left, ellipsis, right = text.partition("::")
    if _GROUPS.fullmatch(left) is None or _GROUPS.fullmatch(right) is None:
        return None
    before = left.split(":") if left else []
    after = right.split(":") if right else []
    missing = 8 - len(before) - len(after)
    # The ellipsis stands for one group at least.
    if missing < 1 if ellipsis else missing != 0:
        return None
    groups = (*before, *["0"] * missing, *after)
    return bytes.fromhex("".join([group.zfill(4) for group in groups]))


def parse_cidr(text: str) -> tuple[bytes, int] | None:
    """The address, its host bits kept, and the length of a prefix such as `10.0.0.1/8`. None when it does not parse: a
    zone, a length with a sign or a leading zero, or one that is too large for the family."""
    address, slash, length = text.rpartition("/")
    if not slash or "%" in address:
        return None
    raw = parse_ip(address)
    if raw is None or not (length.isascii() and length.isdecimal()) or (len(length) > 1 and length[0] == "0"):
        return None
    # Compared as text first: a number of a million digits is not worth converting.
    if len(length) > 3 or int(length) > len(raw) * 8:
        return None
    return raw, int(length)


def masked(raw: bytes, length: int) -> bytes:
    """The network address: all bits behind the first `length` set to zero."""
    bits = len(raw) * 8
    value = int.from_bytes(raw, "big") >> (bits - length) << (bits - length)
    return value.to_bytes(len(raw), "big")


def ip_text(raw: bytes) -> str:
    """Canonical text of 4 or 16 bytes: RFC 5952 in lower case; an IPv4-mapped address keeps its dotted tail
    (wire-contract.md 4.1)."""
    if len(raw) == 4:
        return f"{raw[0]}.{raw[1]}.{raw[2]}.{raw[3]}"
    if raw.startswith(_MAPPED):
        return f"::ffff:{raw[12]}.{raw[13]}.{raw[14]}.{raw[15]}"
    groups = [int.from_bytes(raw[at : at + 2], "big") for at in range(0, 16, 2)]
    start, length = _longest_zeros(groups)
    texts = [f"{group:x}" for group in groups]
    if length < 2:
        return ":".join(texts)
    return f"{':'.join(texts[:start])}::{':'.join(texts[start + length :])}"


def _longest_zeros(groups: list[int]) -> tuple[int, int]:
    """Where the longest run of zeros begins, the first of equal ones, and its length."""
    best, run = (0, 0), 0
    for at, group in enumerate(groups):
        run = run + 1 if group == 0 else 0
        if run > best[1]:
            best = (at - run + 1, run)
    return best
