"""Reads what somebody else made: certificates and their extensions, in whatever state. Must not judge what they say."""

from __future__ import annotations

from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from ambientd.ca import pem

E = TypeVar("E", bound=x509.ExtensionType)

UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What the library raises for bytes that it cannot read; there is no common base. The text may quote what was read."""


def read_certificate(der: bytes) -> x509.Certificate | None:
    """None: it is none."""
    try:
        return x509.load_der_x509_certificate(der)
    except UNREADABLE:
        return None


def first_certificate(text: str) -> x509.Certificate | None:
    """The first block of a bundle; None: it has none, or that is no certificate."""
    block = next(pem.blocks(text.encode()), None)
    return None if block is None else read_certificate(block.der)


def extension_of(certificate: x509.Certificate, kind: type[E]) -> E | None:
    """None: it has none of this kind. Raises UNREADABLE when any of its extensions cannot be read."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def public_bytes(key: PublicKeyTypes) -> bytes:
    """A public key as certificates hold it (SubjectPublicKeyInfo), by which keys are compared."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
