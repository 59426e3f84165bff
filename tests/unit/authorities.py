"""Keys, requests and authorities for tests: of the right form and of many wrong ones. No test stands here."""

from __future__ import annotations

import base64
import datetime
import functools
import warnings
from collections.abc import Mapping, Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from ambientd.ca.authority import Authority
from ambientd.ca.certificates import SigningKey
from ambientd.ca.making import create_self_signed
from ambientd.ca.roots import read_plugged_in

NOW = datetime.datetime(2026, 8, 1, 12, 0, 0, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
ID = "spiffe://cluster.local/ns/ns-a/sa/sa-a"

Key = SigningKey | dsa.DSAPrivateKey


@functools.cache
def key(kind: str) -> Key:
    """One key of each kind for a whole run, since making RSA keys takes long. `P-256/2` is another than `P-256`."""
    name = kind.partition("/")[0]
    match name.partition("-"):
        case ("RSA", _, bits):
            return rsa.generate_private_key(65537, int(bits))
        case ("DSA", _, _):
            return dsa.generate_private_key(2048)
        case ("Ed25519", _, _):
            return ed25519.Ed25519PrivateKey.generate()
        case _:
            curves: Mapping[str, ec.EllipticCurve] = {
                "P-224": ec.SECP224R1(),
                "P-256": ec.SECP256R1(),
                "P-384": ec.SECP384R1(),
                "P-521": ec.SECP521R1(),
                "secp256k1": ec.SECP256K1(),
            }
            return ec.generate_private_key(curves[name])


def signing_key(kind: str) -> SigningKey:
    made = key(kind)
    assert not isinstance(made, dsa.DSAPrivateKey)
    return made


def _hash(signer: Key) -> hashes.SHA256 | None:
    return None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256()


def csr(
    kind: str = "P-256",
    *,
    subject: x509.Name | None = None,
    names: Sequence[x509.GeneralName] = (),
    extensions: Sequence[x509.ExtensionType] = (),
) -> bytes:
    """DER of a request."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]) if subject is None else subject)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    signer = key(kind)
    return builder.sign(signer, _hash(signer)).public_bytes(serialization.Encoding.DER)


def common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def empty(oid: x509.ObjectIdentifier) -> x509.Name:
    """A name of one attribute without a value."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x509.Name([x509.NameAttribute(oid, "", _validate=False)])


def empty_organization() -> x509.Name:
    """What the agent of waypoints sends."""
    return empty(NameOID.ORGANIZATION_NAME)


def usage(**yes: bool) -> x509.KeyUsage:
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    every = dict.fromkeys((*names, "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(**every | yes)


def pem_of(der: bytes, label: str = "CERTIFICATE REQUEST") -> str:
    body = base64.encodebytes(der).decode()
    return f"-----BEGIN {label}-----\n{body}-----END {label}-----\n"


def key_pem(
    signer: Key, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8, password: bytes = b""
) -> bytes:
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return signer.private_bytes(serialization.Encoding.PEM, form, hidden)


class Link(Struct, frozen=True):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: SigningKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def certify(
    subject: str | x509.Name,
    kind: str = "P-256",
    *,
    by: Link | None = None,
    ca: bool | None = True,
    path_length: int | None = None,
    starts: datetime.datetime = NOW - DAY,
    ends: datetime.datetime = NOW + 365 * DAY,
    usages: Sequence[x509.ObjectIdentifier] = (),
    with_key_id: bool = True,
    signs_crls: bool = True,
) -> Link:
    """A certificate of an authority, signed by another or by itself. `ca=None`: without basic constraints."""
    own = signing_key(kind)
    name = subject if isinstance(subject, x509.Name) else common_name(subject)
    signer = by.key if by is not None else own
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(by.certificate.subject if by is not None else name)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts)
        .not_valid_after(ends)
        .add_extension(usage(key_cert_sign=True, crl_sign=signs_crls), critical=True)
    )
    if ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca, path_length if ca else None), critical=True)
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if with_key_id:
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
    return Link(builder.sign(signer, _hash(signer)), own)


def revocations(*issuers: Link) -> bytes:
    """One empty list of each."""
    lists = b""
    for issuer in issuers:
        made = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(issuer.certificate.subject)
            .last_update(NOW)
            .next_update(NOW + DAY)
            .sign(issuer.key, _hash(issuer.key))
        )
        lists += made.public_bytes(serialization.Encoding.PEM)
    return lists


@functools.cache
def root() -> Link:
    return certify("root", "P-256/root")


@functools.cache
def intermediate() -> Link:
    return certify("intermediate", "P-256/intermediate", by=root())


def files(signer: Link, chain: Sequence[Link], roots: Sequence[Link]) -> dict[str, bytes]:
    """A plugged-in authority in the native layout."""
    return {
        "ca-cert.pem": signer.pem,
        "ca-key.pem": key_pem(signer.key),
        "cert-chain.pem": b"".join(link.pem for link in chain),
        "root-cert.pem": b"".join(link.pem for link in roots),
    }


def good_files() -> dict[str, bytes]:
    return files(intermediate(), [intermediate()], [root()])


def plugged_in(given: Mapping[str, bytes] | None = None) -> Authority:
    made = read_plugged_in(good_files() if given is None else given, "/etc/cacerts")
    assert made is not None
    return made


@functools.cache
def self_signed() -> Authority:
    return create_self_signed("cluster.local", NOW, source="Secret istio-system/istio-ca-secret")


def lasting() -> Authority:
    """An authority that is valid by the real clock, for what runs in a process of its own."""
    now = datetime.datetime.now(datetime.UTC)
    return create_self_signed("cluster.local", now, source="Secret istio-system/istio-ca-secret")


SERVER_AUTH, CLIENT_AUTH = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
