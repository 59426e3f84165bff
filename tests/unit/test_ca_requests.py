"""What is honoured of a certificate request, and what is refused (ca.md 6.1, table 21.3)."""

from __future__ import annotations

import base64
import ipaddress
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ambientd.ca.requests import CsrError, parse_request
from ambientd.ca.signing import CSR_LIMIT_BYTES
from tests.unit.authorities import common_name, csr, empty, empty_organization, key, pem_of, signing_key

GOOD = csr()
SAN_OID = bytes.fromhex("0603551d11")
REQUEST_OID = bytes.fromhex("06092a864886f70d01090e")
ECDSA_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")


def tlv(tag: int, *parts: bytes) -> bytes:
    """One DER value."""
    body = b"".join(parts)
    size = len(body)
    # As short as can be, which DER demands.
    octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
    head = bytes([size]) if size < 128 else bytes([0x80 | len(octets)]) + octets
    return bytes([tag]) + head + body


def by_hand(extensions: bytes, *, subject: bytes = b"\x30\x00", version: int = 0) -> str:
    """A request that no library would write, signed all the same."""
    own = signing_key("P-256")
    assert isinstance(own, ec.EllipticCurvePrivateKey)
    spki = own.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    attributes = tlv(0xA0, tlv(0x30, REQUEST_OID, tlv(0x31, tlv(0x30, extensions)))) if extensions else tlv(0xA0)
    info = tlv(0x30, tlv(0x02, bytes([version])), subject, spki, attributes)
    signature = own.sign(info, ec.ECDSA(hashes.SHA256()))
    return pem_of(tlv(0x30, info, ECDSA_SHA256, tlv(0x03, b"\x00" + signature)))


def uri_san(text: bytes) -> bytes:
    return tlv(0x30, SAN_OID, tlv(0x04, tlv(0x30, tlv(0x86, text))))


@pytest.mark.parametrize("kind", ["RSA-2048", "P-256", "P-384", "P-521", "Ed25519"])
def test_a_key_of_a_good_kind_is_kept(kind: str) -> None:
    own = key(kind)
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    parsed = parse_request(pem_of(csr(kind)))
    assert parsed.public_key.public_bytes(*form) == own.public_key().public_bytes(*form)


@pytest.mark.parametrize("kind", ["RSA-1024", "P-224", "secp256k1", "DSA"])
def test_a_weak_or_foreign_key_is_refused(kind: str) -> None:
    with pytest.raises(CsrError, match="csr must have"):
        parse_request(pem_of(csr(kind)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "-----BEGIN CERTIFICATE REQUEST-----\n",
        pem_of(GOOD)[:-10],
        pem_of(GOOD).replace("\n", ""),
        "-----BEGIN CERTIFICATE REQUEST-----\n????\n-----END CERTIFICATE REQUEST-----\n",
        pem_of(GOOD).replace("-----END CERTIFICATE REQUEST", "-----END CERTIFICATE"),
        pem_of(b""),
        pem_of(b"\x30\x80"),
        pem_of(b"\x30\x84\xff\xff\xff\xff"),
        pem_of(b"\x00" * 3000),
        pem_of(GOOD + b"\x00"),
        pem_of(GOOD[:-1]),
        pem_of(GOOD[1:]),
        "\x00" * 100,
        "é" * 100,
        base64.b64encode(GOOD).decode(),
    ],
)
def test_what_is_no_request_is_refused(text: str) -> None:
    with pytest.raises(CsrError):
        parse_request(text)


# What is signed stands first; of the signature itself, a bit that nobody reads may differ.
SIGNED_BYTES = GOOD.index(ECDSA_SHA256)


@pytest.mark.parametrize("position", range(0, SIGNED_BYTES, 3))
def test_no_changed_byte_gets_a_certificate(position: int) -> None:
    changed = bytearray(GOOD)
    changed[position] ^= 0x01
    with pytest.raises(CsrError):
        parse_request(pem_of(bytes(changed)))


def test_a_request_with_somebody_elses_key_is_refused() -> None:
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    mine = key("P-256").public_key().public_bytes(*form)
    theirs = key("P-256/2").public_key().public_bytes(*form)
    with pytest.raises(CsrError, match="signed with the key"):
        parse_request(pem_of(GOOD.replace(mine, theirs)))


@pytest.mark.parametrize(
    "text",
    [
        pem_of(GOOD, "NEW CERTIFICATE REQUEST"),
        pem_of(GOOD) + "junk after it\n",
        pem_of(GOOD) + "-----BEGIN CERTIFICATE REQUEST-----\n????\n-----END CERTIFICATE REQUEST-----\n",
        "a comment\n" + pem_of(GOOD),
        "-----BEGIN CERTIFICATE REQUEST-----\n" + pem_of(GOOD),
        "-----BEGIN X-----\n-----END CERTIFICATE REQUEST-----\n" + pem_of(GOOD),
        "-----END CERTIFICATE REQUEST-----\n" + pem_of(GOOD),
        pem_of(GOOD).replace("-----\n", "----- \t\n"),
        pem_of(GOOD).replace("REQUEST-----\n", "REQUEST-----\nProc-Type: 4\nX: y\n\n", 1),
        pem_of(GOOD).replace("\n", "\r\n"),
        pem_of(GOOD).rstrip("\n"),
    ],
)
def test_what_stands_around_the_first_block_does_not_matter(text: str) -> None:
    assert not parse_request(text).has_common_name


@pytest.mark.parametrize(
    "line",
    [
        "-----BEGIN A-----\n",
        "-----BEGIN A-----\n-----END A----\n",
        "-----BEGIN A-----\n-----END A-----x\n",
        "-----BEGIN A-----\n????\n-----END A-----\n",
        "-----BEGIN ",
        "a:\n",
        "\n",
    ],
)
def test_what_is_no_request_costs_little_however_long(line: str) -> None:
    """All are signed by one process, one after the other: a second for one is a second for everybody."""
    text = (line * CSR_LIMIT_BYTES)[:CSR_LIMIT_BYTES]
    started_s = time.process_time()
    for each in (text, f"-----BEGIN A-----\n{text}"):
        with pytest.raises(CsrError):
            parse_request(each)
    assert time.process_time() - started_s < 0.3


@pytest.mark.parametrize(
    "names",
    [
        [x509.UniformResourceIdentifier("spiffe://cluster.local/ns/other/sa/other")],
        [x509.DNSName("istiod.istio-system.svc"), x509.IPAddress(ipaddress.ip_address("10.0.0.1"))],
        [x509.RFC822Name("a@b.c")],
        [x509.DNSName(f"n{number}.example") for number in range(2000)],
    ],
)
def test_names_in_a_request_are_not_read(names: list[x509.GeneralName]) -> None:
    assert not parse_request(pem_of(csr(names=names))).has_common_name


def test_a_request_to_be_an_authority_is_not_read() -> None:
    parse_request(pem_of(csr(extensions=[x509.BasicConstraints(ca=True, path_length=None)])))


def test_a_request_made_by_hand_is_good_where_nothing_is_strange() -> None:
    assert not parse_request(by_hand(b"")).has_common_name
    assert not parse_request(by_hand(uri_san(b"spiffe://x/ns/a/sa/b"))).has_common_name
    assert parse_request(by_hand(b"", subject=common_name("x").public_bytes())).has_common_name


@pytest.mark.parametrize(
    "extensions",
    [
        uri_san(b"spiffe://x/ns/a/sa/b") * 2,
        tlv(0x30, SAN_OID, tlv(0x04, b"\x30\x05")),
        tlv(0x30, SAN_OID, tlv(0x04, tlv(0x30))),
        uri_san(b"spiffe://a b/"),
        uri_san("spiffe://é/".encode()),
        tlv(0x30, SAN_OID, tlv(0x04, tlv(0x30, tlv(0x87, b"\x01\x02\x03")))),
        tlv(0x30, SAN_OID, tlv(0x04, tlv(0x30, tlv(0x82, b"a\x00b")))),
        tlv(0x30, bytes.fromhex("06032a0304"), bytes.fromhex("0101ff"), tlv(0x04, b"\x05\x00")),
    ],
    ids=["twice", "cut off", "empty", "blank", "not ASCII", "3-byte address", "NUL", "critical and unknown"],
)
def test_strange_extensions_are_ignored_or_refused_and_never_worse(extensions: bytes) -> None:
    try:
        assert not parse_request(by_hand(extensions)).has_common_name
    except CsrError:
        pass


@pytest.mark.filterwarnings("ignore:Attribute's length")
def test_the_request_of_a_waypoints_agent_is_good() -> None:
    assert not parse_request(pem_of(csr("RSA-2048", subject=empty_organization()))).has_common_name


@pytest.mark.filterwarnings("ignore:Attribute's length")
@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (common_name("x"), True),
        (x509.Name([]), False),
        (empty(NameOID.COMMON_NAME), False),
        (x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "x")]), False),
        (x509.Name([*empty_organization(), *common_name("x")]), True),
    ],
)
def test_a_common_name_counts_when_it_says_something(subject: x509.Name, expected: bool) -> None:
    assert parse_request(pem_of(csr(subject=subject))).has_common_name is expected


def test_a_subject_that_cannot_be_read_is_refused() -> None:
    broken = tlv(0x30, tlv(0x31, tlv(0x30, bytes.fromhex("0603550403"), tlv(0x0C, b"\xff\xfe"))))
    with pytest.raises(CsrError):
        parse_request(by_hand(b"", subject=broken))


@pytest.mark.parametrize("version", [1, 2, 127])
def test_a_version_that_there_is_not_is_refused(version: int) -> None:
    with pytest.raises(CsrError, match="InvalidVersion"):
        parse_request(by_hand(b"", version=version))


# Which byte stands where, in a request with an RSA key: its algorithm, the length of the key, the exponent, and the
# algorithm of the signature.
RSA = csr("RSA-2048")
RSA_OID = bytes.fromhex("06092a864886f70d010101")
RSA_SHA256 = bytes.fromhex("06092a864886f70d01010b")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (RSA_OID, bytes.fromhex("06092a864886f70d010177")),
        (RSA_OID, bytes.fromhex("06092b0601040182370101")),
        (b"\x03\x82\x01\x0f\x00", b"\x03\x82\x01\x0f\x07"),
        (b"\x02\x82\x01\x01\x00", b"\x02\x82\x01\x01\x80"),
        (b"\x02\x03\x01\x00\x01", b"\x02\x03\x00\x00\x00"),
        (b"\x02\x03\x01\x00\x01", b"\x02\x03\x01\x00\x02"),
        (RSA_SHA256, bytes.fromhex("06092a864886f70d010104")),
        (RSA_SHA256, bytes.fromhex("06092a864886f70d010177")),
        (RSA_SHA256, RSA_OID),
    ],
    ids=[
        *("unknown key", "foreign key", "unused bits", "negative modulus", "exponent 0", "even exponent"),
        *("MD5", "unknown signature", "a key for a signature"),
    ],
)
def test_a_request_with_one_thing_that_is_not_possible_is_refused(before: bytes, after: bytes) -> None:
    assert RSA.count(before) == 1
    with pytest.raises(CsrError):
        parse_request(pem_of(RSA.replace(before, after)))


def test_an_error_says_nothing_of_the_request() -> None:
    with pytest.raises(CsrError) as caught:
        parse_request(pem_of(b"secret-bytes"))
    assert "secret" not in str(caught.value)
