"""What is honoured of a certificate request: its public key, once it has proved to hold the private one, and whether
its subject has a common name (ca.md 6.1). Everything else that a request says is ignored. Must not issue anything."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from msgspec import Struct

from ambientd.ca.parsing import UNREADABLE
from ambientd.ca.pem import blocks

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey

MIN_RSA_BITS = 2048
CURVES = frozenset({"secp256r1", "secp384r1", "secp521r1"})


class CsrError(Exception):
    """A request that cannot be used; the text concerns the caller's own request, and may be told."""


class Parsed(Struct, frozen=True):
    public_key: PublicKey
    has_common_name: bool


def parse_request(text: str) -> Parsed:
    """Reads the first PEM block, whatever its label and whatever follows. Raises CsrError."""
    block = next(blocks(text.encode()), None)
    if block is None:
        raise CsrError("csr must be a PEM block")
    try:
        request = x509.load_der_x509_csr(block.der)
        key, is_signed = request.public_key(), request.is_signature_valid
        names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except UNREADABLE as error:
        raise CsrError(f"csr must hold a PKCS#10 request that can be read ({type(error).__name__})") from None
    public_key = _usable(key)
    if not is_signed:
        raise CsrError("csr must be signed with the key that it holds")
    return Parsed(public_key, any(name.value for name in names))


def _usable(key: object) -> PublicKey:
    match key:
        case rsa.RSAPublicKey() if key.key_size >= MIN_RSA_BITS:
            return key
        case rsa.RSAPublicKey():
            raise CsrError(f"csr must have an RSA key of at least {MIN_RSA_BITS} bits, got {key.key_size}")
        case ec.EllipticCurvePublicKey() if key.curve.name in CURVES:
            return key
        case ec.EllipticCurvePublicKey():
            raise CsrError(f"csr must have a key on P-256, P-384 or P-521, got {key.curve.name}")
        case ed25519.Ed25519PublicKey():
            return key
        case _:
            raise CsrError("csr must have an RSA, ECDSA or Ed25519 key")
