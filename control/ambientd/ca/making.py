"""Roots that sign themselves: a new one, and the same one for longer (ca.md 7.5, 10.3.1). Makes values; must not store
or use them. Takes some 100 ms of computing, so it runs where keys are held, never on the event loop."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from ambientd.ca.authority import Authority
from ambientd.ca.certificates import SigningKey, make_root
from ambientd.ca.parsing import extension_of, first_certificate
from ambientd.ca.roots import read_self_signed
from ambientd.ca.verification import load_key, verify

MIN_RSA_BITS = 2048
"""Of a root that we make; a shorter one is refused at start."""


def create_self_signed(
    trust_domain: str,
    now: datetime.datetime,
    *,
    lifetime_s: int = 87_600 * 3600,
    key_bits: int = MIN_RSA_BITS,
    source: str,
    extra_roots: str = "",
) -> Authority:
    """A new root with a new key. `extra_roots`: PEM of further roots of the mesh. Raises ValueError for a key that is
    too short (ca.md 7.5)."""
    if key_bits < MIN_RSA_BITS:
        raise ValueError(f"CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE must be at least {MIN_RSA_BITS}, got {key_bits}")
    key = rsa.generate_private_key(65537, key_bits)
    certificate = make_root(_name(trust_domain), key, _key_id(key), lifetime_s=lifetime_s, now=now)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    data = {"ca-cert.pem": certificate.encode(), "ca-key.pem": key_pem}
    return read_self_signed(data, source, extra_roots)


def renew_self_signed(
    authority: Authority, now: datetime.datetime, *, trust_domain: str, lifetime_s: int, extra_roots: str = ""
) -> Authority:
    """The same root for longer: same key, subject and key id, new serial. So what was signed under one verifies under
    the other, and nobody has to be reached at once. `trust_domain` names a root whose old certificate cannot be read.
    Raises Unusable for a key that cannot be used, or is not the certificate's."""
    key = load_key(authority)
    old = first_certificate(authority.certificate)
    key_id: x509.SubjectKeyIdentifier | None
    if old is None:
        subject, key_id = _name(trust_domain), _key_id(key)
    else:
        # A root that has expired is sound but for its end, and is renewed all the same.
        verify(authority, min(now, old.not_valid_after_utc))
        subject, key_id = old.subject, extension_of(old, x509.SubjectKeyIdentifier)
    certificate = make_root(subject, key, key_id, lifetime_s=lifetime_s, now=now)
    data = {"ca-cert.pem": certificate.encode(), "ca-key.pem": authority.key.pem}
    return read_self_signed(data, authority.source, extra_roots)


def _name(trust_domain: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, trust_domain)])


def _key_id(key: SigningKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key.public_key())
