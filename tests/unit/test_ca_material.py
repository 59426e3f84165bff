"""What an authority is made of: reading and verification (ca.md 10.1, 10.2; table 21.5)."""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import PrivateFormat

from ambientd.ca import pem
from ambientd.ca.authority import Kind, Unusable
from ambientd.ca.roots import (
    read_plugged_in,
    read_self_signed,
    secret_data,
)
from ambientd.ca.verification import load_key, notices, verify
from tests.unit.authorities import (
    CLIENT_AUTH,
    DAY,
    NOW,
    SERVER_AUTH,
    certify,
    files,
    good_files,
    intermediate,
    key,
    key_pem,
    plugged_in,
    revocations,
    root,
    self_signed,
    signing_key,
)
from tests.unit.test_ca_requests import ECDSA_SHA256, tlv

Files = dict[str, bytes]


def tls_files() -> Files:
    return {
        "tls.crt": intermediate().pem.rstrip(b"\n"),
        "tls.key": key_pem(intermediate().key),
        "ca.crt": root().pem,
    }


# Reading.


def test_a_folder_without_any_part_holds_no_authority() -> None:
    assert read_plugged_in({"readme": b"x", "istio-generated": b""}, "/etc/cacerts") is None


@pytest.mark.parametrize("missing", ["ca-cert.pem", "ca-key.pem", "cert-chain.pem", "root-cert.pem"])
def test_a_part_of_a_native_set_is_refused_by_the_name_of_what_is_missing(missing: str) -> None:
    given = good_files()
    del given[missing]
    with pytest.raises(Unusable) as caught:
        read_plugged_in(given, "/etc/cacerts")
    assert str(caught.value) == (
        f"/etc/cacerts: {missing} must be there beside the others; "
        "the whole set is left alone, since half of one would sign what nobody can verify"
    )


def test_a_lone_root_is_refused_by_all_that_is_missing() -> None:
    with pytest.raises(Unusable) as caught:
        read_plugged_in({"root-cert.pem": root().pem}, "/etc/cacerts")
    assert [fault.path for fault in caught.value.faults] == ["ca-cert.pem", "ca-key.pem", "cert-chain.pem"]


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key", "ca.crt"])
def test_a_part_of_a_tls_set_is_refused(missing: str) -> None:
    given = tls_files()
    del given[missing]
    with pytest.raises(Unusable, match=missing):
        read_plugged_in(given, "/etc/cacerts")


def test_the_tls_layout_joins_its_chain_with_a_newline() -> None:
    made = plugged_in(tls_files())
    assert made.chain == intermediate().pem.decode() + root().pem.decode()
    assert made.roots == root().pem.decode()
    verify(made, NOW)


def test_the_marker_of_a_generated_set_makes_no_difference() -> None:
    assert plugged_in({**good_files(), "istio-generated": b""}).kind is Kind.PLUGGED_IN


def test_a_file_that_is_no_text_is_named() -> None:
    with pytest.raises(Unusable, match=r"root-cert\.pem must be PEM text"):
        plugged_in({**good_files(), "root-cert.pem": b"\xff\xfe"})


def test_a_secret_of_istiod_is_used_unchanged() -> None:
    own = signing_key("RSA-2048")
    link = certify("istiod", "RSA-2048")
    data = {"ca-cert.pem": link.pem, "ca-key.pem": key_pem(own), "root-cert.pem": b"old", "cert-chain.pem": b""}
    made = read_self_signed(data, "Secret istio-system/istio-ca-secret")
    assert verify(made, NOW).certificate == link.certificate
    assert (made.chain, made.roots) == ("", link.pem.decode())


def test_our_secret_has_the_keys_that_istiod_reads() -> None:
    data = secret_data(self_signed())
    assert set(data) == {"ca-cert.pem", "ca-key.pem", "root-cert.pem", "cert-chain.pem", "key.pem"}
    assert data["root-cert.pem"] == data["ca-cert.pem"]
    assert data["cert-chain.pem"] == data["key.pem"] == b""
    assert read_self_signed(data, self_signed().source) == self_signed()


def test_further_roots_follow_the_own_one() -> None:
    data = secret_data(self_signed())
    made = read_self_signed(data, "s", extra_roots=root().pem.decode().rstrip("\n"))
    assert made.roots == self_signed().certificate + root().pem.decode()


@pytest.mark.parametrize("missing", ["ca-cert.pem", "ca-key.pem"])
@pytest.mark.parametrize("value", [None, b""])
def test_a_secret_without_its_parts_is_refused(missing: str, value: bytes | None) -> None:
    data = secret_data(self_signed())
    if value is None:
        del data[missing]
    else:
        data[missing] = value
    with pytest.raises(Unusable, match=missing):
        read_self_signed(data, "Secret istio-system/istio-ca-secret")


# Verification.


def of_version_ten(given: bytes) -> bytes:
    """A certificate with a version that there is not, whose parts can be read all the same."""
    (block,) = pem.blocks(given)
    assert block.der.count(b"\xa0\x03\x02\x01\x02") == 1
    return pem.encode(block.label, block.der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x09")).encode()


def broken(**changes: bytes) -> Callable[[], Files]:
    return lambda: {**good_files(), **{name.replace("_", "-") + ".pem": value for name, value in changes.items()}}


def signed_by_nobody() -> Files:
    return files(intermediate(), [intermediate()], [certify("another root", "P-256/x")])


def without_its_chain() -> Files:
    low = certify("low", "P-256/low", by=intermediate())
    return files(low, [low], [root()])


def no_authority() -> Files:
    leaf = certify("leaf", "P-256/leaf", by=root(), ca=False)
    return files(leaf, [leaf], [root()])


def without_constraints() -> Files:
    leaf = certify("leaf", "P-256/leaf", by=root(), ca=None)
    return files(leaf, [leaf], [root()])


def expired() -> Files:
    link = certify("old", "P-256/old", by=root(), starts=NOW - 10 * DAY, ends=NOW - DAY)
    return files(link, [link], [root()])


def not_yet() -> Files:
    link = certify("new", "P-256/new", by=root(), starts=NOW + DAY)
    return files(link, [link], [root()])


def expired_root() -> Files:
    top = certify("top", "P-256/top", starts=NOW - 10 * DAY, ends=NOW - DAY)
    link = certify("mid", "P-256/mid", by=top)
    return files(link, [link], [top])


def wrong_usage() -> Files:
    mid = certify("mid", "P-256/mid", by=root(), usages=[CLIENT_AUTH])
    low = certify("low", "P-256/low", by=mid)
    return files(low, [low, mid], [root()])


def too_short_a_path() -> Files:
    mid = certify("mid", "P-256/mid", by=root(), path_length=0)
    low = certify("low", "P-256/low", by=mid)
    return files(low, [low, mid], [root()])


def through_a_leaf() -> Files:
    mid = certify("mid", "P-256/mid", by=root(), ca=False)
    low = certify("low", "P-256/low", by=mid)
    return files(low, [low, mid], [root()])


def leads_elsewhere() -> Files:
    mid = certify("mid", "P-256/mid", by=certify("elsewhere", "P-256/x"))
    low = certify("low", "P-256/low", by=mid)
    return files(low, [low, mid], [root()])


def too_long_a_path() -> Files:
    links = [root()]
    for number in range(12):
        links.append(certify(f"link {number}", f"P-256/{number}", by=links[-1]))
    return files(links[-1], links[:0:-1], [root()])


def an_expired_chain() -> Files:
    old = certify("old", "P-256/old", by=root(), starts=NOW - 10 * DAY, ends=NOW - DAY)
    return files(intermediate(), [old, intermediate()], [root()])


def without_a_name_that_can_be_read() -> Files:
    """A subject whose text is not in its own encoding, under a good signature."""
    link = certify("xx", "P-256/xx", by=root())
    tbs = link.certificate.tbs_certificate_bytes
    assert tbs.count(b"\x0c\x02xx") == 1
    tbs = tbs.replace(b"\x0c\x02xx", b"\x0c\x02\xff\xfe")
    signer = root().key
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    signature = tlv(0x03, b"\x00" + signer.sign(tbs, ec.ECDSA(hashes.SHA256())))
    own = pem.encode(pem.CERTIFICATE, tlv(0x30, tbs, ECDSA_SHA256, signature)).encode()
    return {**files(link, [], [root()]), "ca-cert.pem": own, "cert-chain.pem": own}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (broken(ca_cert=b""), r"ca-cert\.pem must hold a certificate in PEM"),
        (broken(ca_cert=b"garbage"), r"ca-cert\.pem must hold a certificate in PEM"),
        (
            broken(ca_cert=b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"),
            r"ca-cert\.pem must hold a certificate that can be read",
        ),
        (broken(ca_cert=of_version_ten(intermediate().pem)), r"ca-cert\.pem must hold a certificate that can be read"),
        (broken(root_cert=of_version_ten(root().pem)), r"root-cert\.pem must hold certificates, and number 1"),
        (broken(root_cert=b""), r"root-cert\.pem must hold a root certificate"),
        (broken(cert_chain=b"\n"), r"cert-chain\.pem must hold a certificate"),
        (
            broken(cert_chain=b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"),
            r"cert-chain\.pem must hold certificates, and number 1 cannot be read",
        ),
        (broken(ca_key=b""), r"ca-key\.pem must be an unencrypted private key"),
        (broken(ca_key=b"garbage"), r"ca-key\.pem must be an unencrypted private key"),
        (
            broken(ca_key=b"-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n"),
            r"ca-key\.pem must be a private key that can be read",
        ),
        (broken(ca_key=key_pem(key("P-256"), password=b"x")), r"ca-key\.pem must be an unencrypted private key"),
        (broken(ca_key=key_pem(key("P-256/other"))), r"ca-key\.pem must be the key of ca-cert\.pem"),
        (broken(ca_key=key_pem(key("RSA-1024"))), r"ca-key\.pem must be RSA of at least 2048 bits"),
        (leads_elsewhere, r"ca-cert\.pem must be signed by a root, or by way of"),
        (too_long_a_path, r"ca-cert\.pem must be signed by a root, or by way of"),
        (an_expired_chain, r"cert-chain\.pem must begin with a certificate that is still valid"),
        (without_a_name_that_can_be_read, r"ca-cert\.pem must have a subject that can be repeated byte for byte"),
        (signed_by_nobody, r"ca-cert\.pem must be signed by a root"),
        (without_its_chain, r"ca-cert\.pem must be signed by a root"),
        (no_authority, r"ca-cert\.pem must be the certificate of an authority"),
        (without_constraints, r"ca-cert\.pem must be the certificate of an authority"),
        (expired, r"ca-cert\.pem must be valid now, and expired at 2026-07-31T12:00:00Z"),
        (not_yet, r"ca-cert\.pem must be valid now, and begins at 2026-08-02T12:00:00Z"),
        (expired_root, r"path of certificates that are valid now, and one \(CN=top, 1 above it\) expired"),
        (wrong_usage, r"permits server authentication, and one \(CN=mid, 1 above it\) does not"),
        (too_short_a_path, r"one \(CN=mid, 1 above it\) allows 0 authorities below"),
        (through_a_leaf, r"path of authorities, and one \(CN=mid, 1 above it\) is none"),
    ],
)
def test_an_unsound_set_is_refused_by_file_and_reason(made: Callable[[], Files], expected: str) -> None:
    with pytest.raises(Unusable) as caught:
        verify(plugged_in(made()), NOW)
    text = str(caught.value)
    assert re.search(expected, text)
    assert text.startswith("/etc/cacerts: ")
    assert text.endswith("the set is not put to use")


def deep() -> Files:
    mid = certify("mid", "P-256/mid", by=root(), usages=[SERVER_AUTH, CLIENT_AUTH], path_length=1)
    low = certify("low", "P-384", by=mid, path_length=0)
    return files(low, [low, mid, root()], [certify("another", "P-256/x"), root()])


def crossed() -> Files:
    """Two certificates of one name and key in the middle, the first of which leads to no root."""
    lost = certify("mid", "P-256/mid", by=certify("lost", "P-256/lost"))
    good = certify("mid", "P-256/mid", by=root())
    low = certify("low", "P-256/low", by=good)
    return files(low, [low, lost, good], [root()])


def bare_root() -> Files:
    """As scripts make them: no key id, no key usage for revocation lists."""
    top = certify("top", "RSA-2048", with_key_id=False, signs_crls=False)
    low = certify("low", "P-256/low", by=top, with_key_id=False)
    return files(low, [low], [top])


def signs_itself() -> Files:
    return files(root(), [root()], [root()])


@pytest.mark.parametrize("made", [good_files, deep, crossed, bare_root, signs_itself, tls_files])
def test_a_sound_set_is_taken(made: Callable[[], Files]) -> None:
    assert verify(plugged_in(made()), NOW).default_limit_s is not None


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("Ed25519", PrivateFormat.PKCS8),
        *itertools.product(
            ["RSA-2048", "P-256", "P-384", "P-521"], [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL]
        ),
    ],
)
def test_keys_of_every_kind_and_form_are_read(kind: str, form: PrivateFormat) -> None:
    link = certify("ca", kind)
    made = plugged_in({**files(link, [link], [link]), "ca-key.pem": key_pem(link.key, form)})
    assert verify(made, NOW).key.public_key() == link.key.public_key()


def test_parameters_before_a_key_are_passed_over() -> None:
    parameters = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    own = key_pem(intermediate().key, PrivateFormat.TraditionalOpenSSL)
    verify(plugged_in({**good_files(), "ca-key.pem": parameters + own}), NOW)


def test_an_expired_self_signed_root_is_refused_and_says_when() -> None:
    with pytest.raises(Unusable, match=r"Secret istio-system/istio-ca-secret: ca-cert\.pem must be valid now"):
        verify(self_signed(), NOW + 4000 * DAY)


def test_the_chains_first_certificate_bounds_the_default_lifetime() -> None:
    link = certify("short", "P-256/short", by=root(), ends=NOW + datetime.timedelta(hours=1))
    assert verify(plugged_in(files(link, [link], [root()])), NOW).default_limit_s == 3600


def test_an_operator_hears_of_what_works_for_some_only() -> None:
    link = certify("ed", "Ed25519", by=root())
    assert [fault.path for fault in notices(verify(plugged_in(files(link, [root()], [root()])), NOW))] == [
        "ca-key.pem",
        "cert-chain.pem",
    ]
    assert notices(verify(plugged_in(), NOW)) == ()


# Revocation lists.


def test_a_list_of_each_certificate_of_the_chain_is_taken() -> None:
    given = files(intermediate(), [intermediate(), root()], [root()])
    crl = revocations(root(), intermediate())
    made = plugged_in({**given, "ca-crl.pem": crl})
    assert verify(made, NOW).authority.crl == crl.decode()


@pytest.mark.parametrize(
    "crl",
    [
        revocations(root()),
        revocations(certify("intermediate", "P-256/forged")),
        b"-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n",
        root().pem,
        b"garbage",
    ],
    ids=["one missing", "forged", "unreadable", "a certificate", "garbage"],
)
def test_a_list_that_does_not_cover_the_chain_is_refused(crl: bytes) -> None:
    with pytest.raises(Unusable, match=r"ca-crl\.pem must hold"):
        verify(plugged_in({**good_files(), "ca-crl.pem": crl}), NOW)


def test_an_issuer_that_may_not_sign_lists_has_none() -> None:
    link = certify("mid", "P-256/mid", by=root(), signs_crls=False)
    with pytest.raises(Unusable, match=r"ca-crl\.pem"):
        verify(plugged_in({**files(link, [link], [root()]), "ca-crl.pem": revocations(link)}), NOW)


def test_lists_can_be_switched_off() -> None:
    made = read_plugged_in({**good_files(), "ca-crl.pem": b"garbage"}, "/etc/cacerts", with_crl=False)
    assert made is not None
    assert made.crl == ""


def test_the_tls_layout_has_no_lists() -> None:
    assert plugged_in({**tls_files(), "ca-crl.pem": b"garbage"}).crl == ""


# Keys stay keys.


@pytest.mark.parametrize("show", [repr, str, lambda value: f"{value!r:.2000}", lambda value: str([value])])
def test_no_text_of_an_authority_shows_its_key(show: Callable[[object], str]) -> None:
    for authority in (self_signed(), plugged_in()):
        body = authority.key.pem.splitlines()[1].decode()
        text = show(authority) + show(authority.key) + show(verify(authority, NOW))
        assert body not in text
        assert "PRIVATE KEY" not in text


def test_no_error_about_a_key_shows_it() -> None:
    body = key_pem(key("P-256")).splitlines()[1]
    cut = b"-----BEGIN PRIVATE KEY-----\n" + body + b"\n-----END PRIVATE KEY-----\n"
    with pytest.raises(Unusable) as caught:
        load_key(plugged_in({**good_files(), "ca-key.pem": cut}))
    assert body.decode()[:20] not in str(caught.value) + repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
