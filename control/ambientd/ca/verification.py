"""Whether a set of key material is sound: it parses, its parts belong together, and what it signs can be verified now
(ca.md 10.2). Errors name the file and the reason, and hold nothing of a key. Must not put anything to use."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from msgspec import Struct

from ambientd.ca import pem
from ambientd.ca.authority import Authority, Kind, Unusable
from ambientd.ca.certificates import SigningKey
from ambientd.ca.parsing import UNREADABLE, extension_of, public_bytes, read_certificate
from ambientd.ca.requests import CURVES, MIN_RSA_BITS, PublicKey
from ambientd.resources.faults import Fault

_UNUSED = "the set is not put to use"
_PATH_LIMIT = 10
_SERVER = frozenset({ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE})
_KEY_LABELS = frozenset({"PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"})


class Sound(Struct, frozen=True):
    """A verified set, ready to sign with."""

    authority: Authority
    certificate: x509.Certificate
    key: SigningKey
    default_limit_s: int | None
    """Remaining life of the first certificate of the chain, which bounds the default lifetime; None: there is no chain
    (ca.md 6.2 step 4)."""


def verify(authority: Authority, now: datetime.datetime) -> Sound:
    """Raises Unusable. Parsing a key tests its primes, some 50 ms: not for the event loop."""
    certificate_name, key_name, chain_name, roots_name, crl_name = authority.names
    certificate = _certificate(authority, certificate_name, authority.certificate)
    chain = _bundle(authority, chain_name, authority.chain)
    roots = _bundle(authority, roots_name, authority.roots)
    if not roots:
        raise _unusable(authority, roots_name, "must hold a root certificate")
    if authority.kind is Kind.PLUGGED_IN and not chain:
        raise _unusable(authority, chain_name, "must hold a certificate")
    _check_end(authority, certificate_name, certificate, now)
    if (wrong := _path(certificate, chain, roots, now)) is not None:
        raise _unusable(authority, certificate_name, wrong)
    key = load_key(authority)
    if public_bytes(key.public_key()) != public_bytes(certificate.public_key()):
        raise _unusable(authority, key_name, f"must be the key of {certificate_name}")
    if authority.crl:
        _check_crl(authority, crl_name, chain)
    if not _is_authority(certificate):
        raise _unusable(authority, certificate_name, "must be the certificate of an authority (CA:TRUE)")
    if not _repeats_its_subject(certificate):
        raise _unusable(authority, certificate_name, "must have a subject that can be repeated byte for byte")
    limit_s: int | None = None
    if chain:
        limit_s = int((chain[0].not_valid_after_utc - now).total_seconds())
        if limit_s <= 0:
            raise _unusable(authority, chain_name, "must begin with a certificate that is still valid")
    return Sound(authority, certificate, key, limit_s)


def notices(sound: Sound) -> tuple[Fault, ...]:
    """What an operator should hear about a set that is put to use all the same."""
    found: list[Fault] = []
    certificate_name, key_name, chain_name, _, _ = sound.authority.names
    if isinstance(sound.key, ed25519.Ed25519PrivateKey):
        found.append(Fault(key_name, "should be RSA or ECDSA", "Ed25519", "some proxies cannot verify what it signs"))
    ders = pem.certificates(sound.authority.chain.encode())
    if ders and x509.load_der_x509_certificate(ders[0]) != sound.certificate:
        effect = "clients cannot verify leaves without it"
        found.append(Fault(chain_name, f"should begin with {certificate_name}", "another certificate", effect))
    return tuple(found)


def load_key(authority: Authority) -> SigningKey:
    """The private key, from the first block that is one; parameters before it are passed over. Raises Unusable."""
    name = authority.names[1]
    block = next((block for block in pem.blocks(authority.key.pem) if block.label != "EC PARAMETERS"), None)
    if block is None or block.label not in _KEY_LABELS:
        raise _unusable(authority, name, "must be an unencrypted private key in PEM (PKCS#1, SEC 1 or PKCS#8)")
    try:
        key = serialization.load_der_private_key(block.der, password=None)
    except UNREADABLE as error:
        raise _unusable(authority, name, f"must be a private key that can be read ({type(error).__name__})") from None
    match key:
        case rsa.RSAPrivateKey() if key.key_size >= MIN_RSA_BITS:
            return key
        case ec.EllipticCurvePrivateKey() if key.curve.name in CURVES:
            return key
        case ed25519.Ed25519PrivateKey():
            return key
        case _:
            rule = f"must be RSA of at least {MIN_RSA_BITS} bits, ECDSA on P-256, P-384 or P-521, or Ed25519"
            raise _unusable(authority, name, rule)


def _unusable(authority: Authority, name: str, rule: str, got: str = "") -> Unusable:
    return Unusable(authority.source, (Fault(name, rule, got, _UNUSED),))


def _certificate(authority: Authority, name: str, text: str) -> x509.Certificate:
    block = next(pem.blocks(text.encode()), None)
    if block is None:
        raise _unusable(authority, name, "must hold a certificate in PEM")
    certificate = read_certificate(block.der)
    if certificate is None:
        raise _unusable(authority, name, "must hold a certificate that can be read")
    return certificate


def _bundle(authority: Authority, name: str, text: str) -> list[x509.Certificate]:
    found: list[x509.Certificate] = []
    for number, der in enumerate(pem.certificates(text.encode()), 1):
        certificate = read_certificate(der)
        if certificate is None:
            raise _unusable(authority, name, f"must hold certificates, and number {number} cannot be read")
        found.append(certificate)
    return found


def _check_end(authority: Authority, name: str, certificate: x509.Certificate, now: datetime.datetime) -> None:
    if (wrong := _outside(certificate, now)) is not None:
        raise _unusable(authority, name, f"must be valid now, and {wrong}")


def _outside(certificate: x509.Certificate, now: datetime.datetime) -> str | None:
    if now > certificate.not_valid_after_utc:
        return f"expired at {certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
    if now < certificate.not_valid_before_utc:
        return f"begins at {certificate.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ}"
    return None


def _path(
    certificate: x509.Certificate,
    chain: list[x509.Certificate],
    roots: list[x509.Certificate],
    now: datetime.datetime,
) -> str | None:
    """Why no path leads from the signing certificate to a root; None: one does. Built by hand, since the library's
    verifier asks for more than roots that common scripts make do have (ca.md 22.4)."""
    wrong = "must be signed by a root, or by way of the certificates of the chain, and no path leads there"
    paths = [[certificate]]
    while paths:
        path = paths.pop()
        last = path[-1]
        if (found := _link(path, now)) is not None:
            wrong = found
            continue
        if last in roots:
            return None
        if len(path) >= _PATH_LIMIT:
            continue
        paths.extend([*path, issuer] for issuer in (*chain, *roots) if issuer not in path and _issued(last, issuer))
    return wrong


def _link(path: list[x509.Certificate], now: datetime.datetime) -> str | None:
    """What is wrong with the last certificate of a path, as a link of it."""
    last = path[-1]
    where = "" if len(path) == 1 else f" ({_who(last)}, {len(path) - 1} above it)"
    if (outside := _outside(last, now)) is not None:
        return f"must have a path of certificates that are valid now, and one{where} {outside}"
    if len(path) > 1 and last.version is x509.Version.v3 and not _is_authority(last):
        return f"must have a path of authorities, and one{where} is none"
    usages = _usages(last)
    if usages is not None and not usages & _SERVER:
        return f"must have a path that permits server authentication, and one{where} does not"
    constraints = _constraints(last)
    if constraints is not None and constraints.path_length is not None and constraints.path_length < len(path) - 1:
        # Leaves would be refused, though the path itself holds.
        return f"must have a path of enough length, and one{where} allows {constraints.path_length} authorities below"
    return None


def _issued(subject: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        subject.verify_directly_issued_by(issuer)
    except (*UNREADABLE, InvalidSignature):
        return False
    return True


def _who(certificate: x509.Certificate) -> str:
    try:
        return certificate.subject.rfc4514_string() or "no name"
    except UNREADABLE:
        return "a name that cannot be read"


def _repeats_its_subject(certificate: x509.Certificate) -> bool:
    """Whether leaves will name their issuer as it names itself: clients compare the two byte by byte."""
    try:
        return certificate.subject.public_bytes() in certificate.tbs_certificate_bytes
    except UNREADABLE:
        return False


def _is_authority(certificate: x509.Certificate) -> bool:
    constraints = _constraints(certificate)
    return constraints is not None and constraints.ca


def _constraints(certificate: x509.Certificate) -> x509.BasicConstraints | None:
    try:
        return extension_of(certificate, x509.BasicConstraints)
    except UNREADABLE:
        return None


def _usages(certificate: x509.Certificate) -> frozenset[x509.ObjectIdentifier] | None:
    """What the certificate is limited to; None: it is not limited."""
    try:
        usages = extension_of(certificate, x509.ExtendedKeyUsage)
    except UNREADABLE:
        return frozenset()
    return None if usages is None else frozenset(usages)


def _check_crl(authority: Authority, name: str, chain: list[x509.Certificate]) -> None:
    lists: list[x509.CertificateRevocationList] = []
    for number, block in enumerate(pem.blocks(authority.crl.encode()), 1):
        try:
            lists.append(x509.load_der_x509_crl(block.der))
        except UNREADABLE:
            raise _unusable(authority, name, f"must hold revocation lists only, and number {number} is none") from None
    for certificate in chain:
        # A verifier that sees a list for one authority of a path demands one for all.
        if not any(_signed_list(certificate, each) for each in lists):
            rule = "must hold a list signed by each certificate of the chain"
            raise _unusable(authority, name, rule, _who(certificate))


def _signed_list(certificate: x509.Certificate, revoked: x509.CertificateRevocationList) -> bool:
    try:
        usage, key = extension_of(certificate, x509.KeyUsage), certificate.public_key()
        if isinstance(key, PublicKey) and (usage is None or usage.crl_sign):
            return revoked.is_signature_valid(key)
    except UNREADABLE:
        pass
    return False
