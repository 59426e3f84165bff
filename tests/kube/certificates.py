"""The keys and certificates of a test cluster, made anew for each. Must not be used outside tests: nothing here is
protected."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct


class ClusterFiles(Struct, frozen=True):
    """Paths of PEM files."""

    ca: Path
    serving_certificate: Path
    serving_key: Path
    account_public_key: Path
    account_key: Path


def write_cluster_files(folder: Path) -> ClusterFiles:
    """A certificate authority, a serving certificate for loopback and for the names of the `kubernetes` Service, and
    the pair that signs tokens of service accounts. Valid for a day."""
    files = ClusterFiles(
        ca=folder / "ca.crt",
        serving_certificate=folder / "serving.crt",
        serving_key=folder / "serving.key",
        account_public_key=folder / "accounts.pub",
        account_key=folder / "accounts.key",
    )
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = (
        _certificate("test cluster", "test cluster", ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    serving_key = ec.generate_private_key(ec.SECP256R1())
    names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    serving = (
        _certificate("kube-apiserver", "test cluster", serving_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        # Python's strict verification, the default since 3.13, asks for both identifiers.
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), *(x509.DNSName(name) for name in names)]
            ),
            critical=False,
        )
        .sign(ca_key, hashes.SHA256())
    )
    account_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    files.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    files.serving_certificate.write_bytes(serving.public_bytes(serialization.Encoding.PEM))
    files.serving_key.write_bytes(_pem(serving_key))
    files.account_key.write_bytes(_pem(account_key))
    files.account_public_key.write_bytes(
        account_key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return files


def _certificate(subject: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return x509.CertificateBuilder(
        issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]),
        subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]),
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - datetime.timedelta(minutes=5),
        not_valid_after=now + datetime.timedelta(days=1),
    )


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
