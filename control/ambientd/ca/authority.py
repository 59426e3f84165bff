"""Values of a certificate authority: what it is made of, what of it is public, and how a set that cannot be used is
refused. A private key never shows in a text. Must not read or check anything."""

from __future__ import annotations

from enum import Enum
from typing import Any

from msgspec import Struct

from ambientd.resources.faults import Fault


class PrivateKey(Struct, frozen=True):
    """A private key as PEM. Its own type, so that whatever prints a value that holds one prints nothing of it."""

    pem: bytes

    def __repr__(self) -> str:
        return "PrivateKey(...)"

    __str__ = __repr__

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class Kind(Enum):
    SELF_SIGNED = "self-signed"
    PLUGGED_IN = "plugged-in"


class Authority(Struct, frozen=True):
    """One set of key material, used as a whole or not at all (ca.md 10.2)."""

    kind: Kind
    source: str
    """A folder, or `Secret istio-system/istio-ca-secret`, for errors and logs."""
    certificate: str
    """PEM of the certificate that signs."""
    key: PrivateKey
    chain: str
    """PEM of what stands between a leaf and the root, the signing certificate included; empty: self-signed."""
    roots: str
    """PEM of the root bundle, as it is distributed and sent."""
    crl: str = ""
    """PEM; empty: there is none."""
    names: tuple[str, str, str, str, str] = (
        "ca-cert.pem",
        "ca-key.pem",
        "cert-chain.pem",
        "root-cert.pem",
        "ca-crl.pem",
    )
    """Where certificate, key, chain, roots and CRL came from, for errors."""

    @property
    def public(self) -> Public:
        return Public(self.kind, self.source, self.certificate, self.chain, self.roots, self.crl)


class Public(Struct, frozen=True):
    """What anybody may see of an authority: all but the key."""

    kind: Kind
    source: str
    certificate: str
    chain: str
    roots: str
    crl: str


class Lifetimes(Struct, frozen=True):
    """How long leaves are valid, seconds (ca.md 6.2)."""

    default_s: int = 24 * 3600
    """`DEFAULT_WORKLOAD_CERT_TTL`; not compared with the maximum."""
    maximum_s: int = 90 * 24 * 3600
    """`MAX_WORKLOAD_CERT_TTL`: a request for more is refused, not shortened."""


class Unusable(Exception):
    """A set of key material that is not put to use; says of which place, and what is wrong with which file."""

    def __init__(self, source: str, faults: tuple[Fault, ...]) -> None:
        super().__init__(f"{source}: " + "; ".join(str(fault) for fault in faults))
        self.source = source
        self.faults = faults
