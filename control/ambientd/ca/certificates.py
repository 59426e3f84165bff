"""The profiles of what we issue: leaves, and roots that sign themselves (ca.md 6.2, 7, 8). Pure but for the serial
numbers; the clock is handed in. Must not decide who may have a certificate."""

from __future__ import annotations

import datetime
import ipaddress
import secrets
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from ambientd.ca import pem
from ambientd.ca.parsing import extension_of
from ambientd.ca.requests import PublicKey

SigningKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

BACKDATED_S = 120
"""How far a client's clock may be behind ours."""
_COMMON_NAME_LIMIT = 64
_LAST = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)

_NO_USAGE = {
    "digital_signature": False,
    "content_commitment": False,
    "key_encipherment": False,
    "data_encipherment": False,
    "key_agreement": False,
    "key_cert_sign": False,
    "crl_sign": False,
    "encipher_only": False,
    "decipher_only": False,
}
# Encipherment also for EC keys, as every certificate of this mesh has had it.
_LEAF_USAGE = x509.KeyUsage(**_NO_USAGE | {"digital_signature": True, "key_encipherment": True})
_ROOT_USAGE = x509.KeyUsage(**_NO_USAGE | {"key_cert_sign": True})
_BOTH_SIDES = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


class LifetimeError(Exception):
    """More time was asked for than anybody gets."""


class GenerationError(Exception):
    """No certificate can be made, whatever is asked for in its place."""


class Leaf(Struct, frozen=True):
    certificate: str
    """PEM."""
    serial: int
    not_before_s: int
    """Unix time."""
    not_after_s: int
    lacks_common_name: bool
    """The request had one, and the identity is too long to be one."""


def lifetime(requested_s: int, default_s: int, maximum_s: int) -> int:
    """Seconds that a leaf is valid from now. Compared in seconds, so that nothing absurd wraps around. Raises
    LifetimeError (ca.md 6.2)."""
    if requested_s <= 0:
        return default_s
    if requested_s > maximum_s:
        raise LifetimeError(f"validity_duration must be at most {maximum_s} s, got {requested_s}")
    return requested_s


def make_leaf(
    issuer: x509.Certificate,
    key: SigningKey,
    public_key: PublicKey,
    subject_ids: Sequence[str],
    *,
    lifetime_s: int,
    now: datetime.datetime,
    wants_common_name: bool = False,
) -> Leaf:
    """A leaf about these subjects. Its end is cut to that of the issuer. Raises GenerationError (ca.md 7.1–7.3)."""
    names = [_general_name(subject) for subject in subject_ids]
    if not names:
        raise GenerationError("a certificate must be about somebody")
    end = issuer.not_valid_after_utc
    if now >= end:
        raise GenerationError(f"the signing certificate expired at {end:%Y-%m-%dT%H:%M:%SZ}")
    start = now.replace(microsecond=0)
    not_before = start - datetime.timedelta(seconds=BACKDATED_S)
    # Compared before it is added: a configured lifetime may be longer than the calendar.
    not_after = end if lifetime_s >= (end - start).total_seconds() else start + datetime.timedelta(seconds=lifetime_s)
    fits = len(subject_ids[0].encode()) <= _COMMON_NAME_LIMIT
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject_ids[0])] if wants_common_name and fits else [])
    serial = new_serial()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject)
        .public_key(public_key)
        .serial_number(serial)
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(_LEAF_USAGE, critical=True)
        .add_extension(_BOTH_SIDES, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
    )
    if (key_id := extension_of(issuer, x509.SubjectKeyIdentifier)) is not None:
        # Taken over, not computed: whoever made the signing certificate may compute it otherwise.
        authority = x509.AuthorityKeyIdentifier(key_id.digest, None, None)
        builder = builder.add_extension(authority, critical=False)
    certificate = builder.sign(key, signature_hash(key))
    return Leaf(
        certificate=pem.encode(pem.CERTIFICATE, certificate.public_bytes(serialization.Encoding.DER)),
        serial=serial,
        not_before_s=int(not_before.timestamp()),
        not_after_s=int(not_after.timestamp()),
        lacks_common_name=wants_common_name and not fits,
    )


def make_root(
    subject: x509.Name,
    key: SigningKey,
    key_id: x509.SubjectKeyIdentifier | None,
    *,
    lifetime_s: int,
    now: datetime.datetime,
) -> str:
    """A root that signs itself, as PEM (ca.md 7.5)."""
    start = now.replace(microsecond=0)
    end = _LAST if lifetime_s >= (_LAST - start).total_seconds() else start + datetime.timedelta(seconds=lifetime_s)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(new_serial())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(_ROOT_USAGE, critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    if key_id is not None:
        builder = builder.add_extension(key_id, critical=False)
    certificate = builder.sign(key, signature_hash(key))
    return pem.encode(pem.CERTIFICATE, certificate.public_bytes(serialization.Encoding.DER))


def assemble(leaf: str, chain: str, roots: str) -> tuple[str, ...]:
    """The elements of a response: the leaf, one element for each certificate of the chain, and the root bundle verbatim
    as the last, by which alone clients know roots (ca.md 8)."""
    elements = [leaf, *(pem.encode(pem.CERTIFICATE, der) for der in pem.certificates(chain.encode()))]
    if roots:
        elements.append(roots)
    return tuple(elements)


def new_serial() -> int:
    """Uniform in 1 … 2¹²⁸−1."""
    return 1 + secrets.randbelow((1 << 128) - 1)


def signature_hash(key: SigningKey) -> hashes.SHA256 | hashes.SHA384 | hashes.SHA512 | None:
    """The hash that goes with a key; None: the key's algorithm brings its own (ca.md 7.1)."""
    match key:
        case ec.EllipticCurvePrivateKey() if key.key_size > 384:
            return hashes.SHA512()
        case ec.EllipticCurvePrivateKey() if key.key_size > 256:
            return hashes.SHA384()
        case ed25519.Ed25519PrivateKey():
            return None
        case _:
            return hashes.SHA256()


def _general_name(subject: str) -> x509.GeneralName:
    if not subject or not subject.isascii() or not subject.isprintable() or any(sign in subject for sign in ", "):
        # Anything else could become a second name where ids are written as a list.
        raise GenerationError("a subject must be printable ASCII without comma and blank")
    if subject.startswith("spiffe://"):
        return x509.UniformResourceIdentifier(subject)
    try:
        address = ipaddress.ip_address(subject)
    except ValueError:
        return x509.DNSName(subject)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return x509.IPAddress(mapped or address)
