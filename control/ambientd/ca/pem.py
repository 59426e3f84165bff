"""PEM blocks, one by one, as Go programs read them: any label, text between blocks, a missing last newline. Must not
look into what a block holds."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

CERTIFICATE = "CERTIFICATE"
CRL = "X509 CRL"

_BEGIN, _END, _DASHES = b"-----BEGIN ", b"-----END ", b"-----"
_HEADER = re.compile(rb"\A(?:[^\r\n:]+:[^\r\n]*\r?\n)+\s*")


class Block(Struct, frozen=True):
    label: str
    der: bytes

    def __repr__(self) -> str:
        # A block may be a key.
        return f"Block({self.label!r}, {len(self.der)} bytes)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("label", self.label)]


def blocks(text: bytes) -> Iterator[Block]:
    """The blocks that can be decoded, in order. What is not a block is passed over (ca.md 6.1, 8, 22.4)."""
    # Line by line, so that the cost of what a stranger sends goes with its length and not with the square of it.
    label: bytes | None = None
    body: list[bytes] = []
    for line in text.split(b"\n"):
        mark = line.rstrip()
        if mark.startswith(_BEGIN) and mark.endswith(_DASHES):
            label, body = mark[len(_BEGIN) : -len(_DASHES)], []
        elif mark.startswith(_END):
            if label is not None and mark == _END + label + _DASHES:
                der = _decoded(b"\n".join(body))
                if der is not None:
                    yield Block(label.decode("ascii", "replace"), der)
            label = None
        elif label is not None:
            body.append(line)


def _decoded(body: bytes) -> bytes | None:
    try:
        return base64.b64decode(b"".join(_HEADER.sub(b"", body).split()), validate=True)
    except binascii.Error:
        return None


def certificates(text: bytes) -> list[bytes]:
    """The DER of each certificate in a bundle."""
    return [block.der for block in blocks(text) if block.label == CERTIFICATE]


def encode(label: str, der: bytes) -> str:
    """One block that ends in exactly one newline."""
    body = base64.b64encode(der).decode()
    lines = (body[start : start + 64] for start in range(0, len(body), 64))
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


def join(*texts: str) -> str:
    """Several bundles as one, with a newline where one lacks its last (ca.md 8)."""
    return "".join(text if text.endswith("\n") else f"{text}\n" for text in texts if text)
