"""The profile of what is issued (ca.md 6.2, 7, 8; table 21.3)."""

from __future__ import annotations

import datetime
import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtensionOID, NameOID, SignatureAlgorithmOID

from ambientd.ca import pem
from ambientd.ca.certificates import (
    GenerationError,
    Leaf,
    LifetimeError,
    assemble,
    lifetime,
    make_leaf,
    new_serial,
)
from ambientd.ca.requests import PublicKey
from ambientd.ca.verification import verify
from tests.unit.authorities import (
    CLIENT_AUTH,
    ID,
    NOW,
    SERVER_AUTH,
    Link,
    certify,
    common_name,
    self_signed,
    signing_key,
)

HOUR = datetime.timedelta(hours=1)


def public_key() -> PublicKey:
    own = signing_key("P-256").public_key()
    assert isinstance(own, ec.EllipticCurvePublicKey)
    return own


def leaf(
    *ids: str,
    by: Link | None = None,
    lifetime_s: int = 86_400,
    wants_common_name: bool = False,
    now: datetime.datetime = NOW,
) -> Leaf:
    sound = verify(self_signed(), NOW)
    issuer, own = (sound.certificate, sound.key) if by is None else (by.certificate, by.key)
    return make_leaf(
        issuer, own, public_key(), ids or (ID,), lifetime_s=lifetime_s, now=now, wants_common_name=wants_common_name
    )


def read(made: Leaf) -> x509.Certificate:
    return x509.load_pem_x509_certificate(made.certificate.encode())


def test_a_leaf_has_every_field_of_the_profile() -> None:
    root = verify(self_signed(), NOW).certificate
    made = read(leaf())
    assert made.version is x509.Version.v3
    assert made.subject.public_bytes() == b"\x30\x00"
    assert made.issuer.public_bytes() == root.subject.public_bytes()
    assert made.not_valid_before_utc == NOW - datetime.timedelta(seconds=120)
    assert made.not_valid_after_utc == NOW + 24 * HOUR
    assert made.signature_algorithm_oid == SignatureAlgorithmOID.RSA_WITH_SHA256
    made.verify_directly_issued_by(root)
    key_id = root.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    assert [(each.oid, each.critical) for each in made.extensions] == [
        (ExtensionOID.KEY_USAGE, True),
        (ExtensionOID.EXTENDED_KEY_USAGE, False),
        (ExtensionOID.BASIC_CONSTRAINTS, True),
        (ExtensionOID.SUBJECT_ALTERNATIVE_NAME, True),
        (ExtensionOID.AUTHORITY_KEY_IDENTIFIER, False),
    ]
    values = [each.value for each in made.extensions]
    assert values[0].public_bytes() == bytes.fromhex("030205a0")
    assert values[1] == x509.ExtendedKeyUsage([SERVER_AUTH, CLIENT_AUTH])
    assert values[2].public_bytes() == bytes.fromhex("3000")
    assert values[3] == x509.SubjectAlternativeName([x509.UniformResourceIdentifier(ID)])
    assert values[4] == x509.AuthorityKeyIdentifier(key_id, None, None)


def test_serials_are_unique_and_fit_128_bits() -> None:
    serials = {new_serial() for _ in range(2000)}
    assert len(serials) == 2000
    assert all(0 < serial < 1 << 128 for serial in serials)
    made = leaf()
    assert read(made).serial_number == made.serial


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        ("P-256", SignatureAlgorithmOID.ECDSA_WITH_SHA256),
        ("P-384", SignatureAlgorithmOID.ECDSA_WITH_SHA384),
        ("P-521", SignatureAlgorithmOID.ECDSA_WITH_SHA512),
        ("RSA-2048", SignatureAlgorithmOID.RSA_WITH_SHA256),
        ("Ed25519", SignatureAlgorithmOID.ED25519),
    ],
)
def test_the_hash_follows_the_signing_key(kind: str, algorithm: x509.ObjectIdentifier) -> None:
    assert read(leaf(by=certify("ca", kind))).signature_algorithm_oid == algorithm


def test_an_authority_without_key_id_makes_leaves_without_one() -> None:
    made = read(leaf(by=certify("ca", with_key_id=False)))
    with pytest.raises(x509.ExtensionNotFound):
        made.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier)


def test_the_issuers_name_is_repeated_byte_for_byte() -> None:
    name = x509.Name(
        [
            x509.RelativeDistinguishedName(
                [
                    x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Bäcker & Söhne"),
                    x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "Mesh", x509.name._ASN1Type.PrintableString),
                ]
            ),
            x509.RelativeDistinguishedName(
                [x509.NameAttribute(NameOID.COMMON_NAME, "ca", x509.name._ASN1Type.T61String)]
            ),
        ]
    )
    by = certify(name, "RSA-2048")
    assert by.certificate.subject.public_bytes() in read(leaf(by=by)).tbs_certificate_bytes


@pytest.mark.parametrize(
    ("requested", "expected"),
    [(0, 86_400), (-5, 86_400), (-(2**63), 86_400), (1, 1), (600, 600), (7_776_000, 7_776_000)],
)
def test_a_lifetime_is_what_was_asked_for_or_the_default(requested: int, expected: int) -> None:
    assert lifetime(requested, 86_400, 7_776_000) == expected


@pytest.mark.parametrize("requested", [7_776_001, 9_223_372_037, 2**40, 2**63 - 1])
def test_more_than_the_maximum_is_refused_and_not_shortened(requested: int) -> None:
    with pytest.raises(LifetimeError):
        lifetime(requested, 86_400, 7_776_000)


def test_the_default_may_be_longer_than_the_maximum() -> None:
    assert lifetime(0, 360_000, 180_000) == 360_000


@pytest.mark.parametrize("lifetime_s", [7200, 2**62])
def test_a_leaf_ends_with_its_issuer_at_the_latest(lifetime_s: int) -> None:
    by = certify("ca", ends=NOW + HOUR)
    made = leaf(by=by, lifetime_s=lifetime_s)
    assert made.not_after_s == int((NOW + HOUR).timestamp())


def test_one_second_is_one_second() -> None:
    assert read(leaf(lifetime_s=1)).not_valid_after_utc == NOW + datetime.timedelta(seconds=1)


@pytest.mark.parametrize("now", [NOW + HOUR, NOW + 2 * HOUR])
def test_an_issuer_that_has_expired_signs_nothing(now: datetime.datetime) -> None:
    with pytest.raises(GenerationError, match="expired"):
        leaf(by=certify("ca", ends=NOW + HOUR), now=now)


def test_the_common_name_is_the_identity_and_never_the_requests() -> None:
    assert read(leaf(wants_common_name=True)).subject == x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ID)])


@pytest.mark.parametrize(("length", "is_name"), [(63, True), (64, True), (65, False), (200, False)])
def test_an_identity_is_the_common_name_where_it_fits(length: int, is_name: bool) -> None:
    subject = "spiffe://cluster.local/ns/a/sa/".ljust(length, "b")
    made = leaf(subject, wants_common_name=True)
    assert made.lacks_common_name is not is_name
    assert read(made).subject == (common_name(subject) if is_name else x509.Name([]))


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("istiod.istio-system.svc", x509.DNSName("istiod.istio-system.svc")),
        ("10.0.0.1", x509.IPAddress(ipaddress.ip_address("10.0.0.1"))),
        ("2001:db8::1", x509.IPAddress(ipaddress.ip_address("2001:db8::1"))),
        ("::ffff:10.0.0.1", x509.IPAddress(ipaddress.ip_address("10.0.0.1"))),
        (ID, x509.UniformResourceIdentifier(ID)),
    ],
)
def test_a_subject_becomes_one_name_of_its_kind(subject: str, name: x509.GeneralName) -> None:
    names = read(leaf(subject)).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [name]


@pytest.mark.parametrize("subject", ["", "a,b", "spiffe://x,y/ns/a/sa/b", "é", "a b", "a\nb", "a\x00b"])
def test_a_subject_that_could_be_two_is_refused(subject: str) -> None:
    with pytest.raises(GenerationError):
        leaf(subject)


def test_a_certificate_about_nobody_is_not_made() -> None:
    with pytest.raises(GenerationError):
        make_leaf(certify("ca").certificate, signing_key("P-256"), public_key(), (), lifetime_s=1, now=NOW)


def test_a_new_root_has_every_field_of_the_profile() -> None:
    sound = verify(self_signed(), NOW)
    root = sound.certificate
    assert root.subject == root.issuer == x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "cluster.local")])
    assert root.not_valid_before_utc == NOW
    assert root.not_valid_after_utc == NOW + datetime.timedelta(days=3650)
    assert isinstance(sound.key, rsa.RSAPrivateKey)
    assert sound.key.key_size == 2048
    assert [(each.oid, each.critical) for each in root.extensions] == [
        (ExtensionOID.KEY_USAGE, True),
        (ExtensionOID.BASIC_CONSTRAINTS, True),
        (ExtensionOID.SUBJECT_KEY_IDENTIFIER, False),
    ]
    assert root.extensions[0].value.public_bytes() == bytes.fromhex("03020204")
    assert root.extensions[1].value.public_bytes() == bytes.fromhex("30030101ff")
    assert self_signed().key.pem.startswith(b"-----BEGIN RSA PRIVATE KEY-----")
    assert isinstance(root.signature_hash_algorithm, hashes.SHA256)


@pytest.mark.fault(85)
def test_a_response_has_one_certificate_an_element_and_all_roots_in_the_last() -> None:
    first, second = certify("int1").pem.decode(), certify("int2").pem.decode()
    roots = "# ours\n" + certify("root1").pem.decode() + certify("root2").pem.decode().rstrip("\n")
    chain = "text before\n" + first + "\n\ntext between\n" + second.rstrip("\n")
    elements = assemble("leaf\n", chain, roots)
    assert elements == ("leaf\n", first, second, roots)
    assert [len(pem.certificates(element.encode())) for element in elements[1:]] == [1, 1, 2]


def test_a_self_signed_response_has_two_elements() -> None:
    authority = self_signed()
    elements = assemble(leaf().certificate, authority.chain, authority.roots)
    assert len(elements) == 2
    assert elements[1] == authority.certificate
    assert all(element.endswith("-----\n") for element in elements)
    assert elements[0].encode().count(b"BEGIN") == 1


def test_texts_without_a_last_newline_are_joined_with_one() -> None:
    assert pem.join("a", "b\n", "", "c") == "a\nb\nc\n"
