"""What an authority is made of: reading, verification, rotation, reload (ca.md 10; table 21.5)."""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import PrivateFormat
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from ambientd.ca.authority import Authority, Kind, Unusable
from ambientd.ca.making import create_self_signed, renew_self_signed
from ambientd.ca.roots import (
    Adopt,
    Ignore,
    Keep,
    Rotate,
    Take,
    expiries,
    expiry_warning,
    judge_reload,
    next_step,
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


@pytest.mark.parametrize("missing", ["tls.key", "ca.crt"])
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


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (broken(ca_cert=b""), r"ca-cert\.pem must hold a certificate in PEM"),
        (broken(ca_cert=b"garbage"), r"ca-cert\.pem must hold a certificate in PEM"),
        (
            broken(ca_cert=b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"),
            r"ca-cert\.pem must hold a certificate that can be read",
        ),
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


# Rotation.

YEAR_S = 365 * 86_400


def test_a_renewed_root_and_the_old_one_verify_for_each_other() -> None:
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "My Org"),
            x509.NameAttribute(NameOID.COMMON_NAME, "My Root"),
        ]
    )
    old = certify(name, "RSA-2048")
    data = {"ca-cert.pem": old.pem, "ca-key.pem": key_pem(old.key)}
    authority = read_self_signed(data, "Secret istio-system/istio-ca-secret")
    renewed = renew_self_signed(authority, NOW, trust_domain="cluster.local", lifetime_s=10 * YEAR_S)
    new = verify(renewed, NOW).certificate
    assert new.subject.public_bytes() == old.certificate.subject.public_bytes()
    assert new.public_key() == old.certificate.public_key()
    assert new.serial_number != old.certificate.serial_number
    assert new.not_valid_before_utc == NOW
    assert new.not_valid_after_utc == NOW + 3650 * DAY
    both = (old.certificate, new)
    assert len({c.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value for c in both}) == 1
    low = certify("leaf", by=old).certificate
    low.verify_directly_issued_by(new)
    assert renewed.key == authority.key


def test_a_root_that_has_expired_is_renewed_with_its_key() -> None:
    renewed = renew_self_signed(self_signed(), NOW + 4000 * DAY, trust_domain="cluster.local", lifetime_s=YEAR_S)
    assert renewed.key == self_signed().key
    verify(renewed, NOW + 4001 * DAY)


def test_a_root_that_cannot_be_read_is_renewed_under_the_trust_domain() -> None:
    authority = replace(self_signed(), certificate="garbage")
    renewed = renew_self_signed(authority, NOW, trust_domain="new.td", lifetime_s=YEAR_S)
    found = verify(renewed, NOW).certificate
    assert found.subject.rfc4514_string() == "O=new.td"


def test_a_root_without_its_key_is_not_renewed() -> None:
    authority = replace(self_signed(), key=plugged_in().key)
    with pytest.raises(Unusable, match=r"ca-key\.pem must be the key"):
        renew_self_signed(authority, NOW, trust_domain="td", lifetime_s=YEAR_S)


def dated(life_days: int, remaining_days: float) -> str:
    end = NOW + remaining_days * DAY
    return certify("root", starts=end - life_days * DAY, ends=end).pem.decode()


@pytest.mark.parametrize(
    ("life", "remaining", "percent", "rotates"),
    [
        (100, 21, 20, False),
        (100, 20, 20, True),
        (100, 19, 20, True),
        (100, -1, 20, True),
        (100, 0, 0, True),
        (100, 1, 0, False),
        (100, 100, 100, True),
    ],
)
def test_a_root_is_rotated_inside_its_grace_period(life: int, remaining: float, percent: int, rotates: bool) -> None:
    stored = dated(life, remaining)
    assert isinstance(next_step(stored, stored, NOW, percent), Rotate) is rotates


def test_another_replicas_root_is_adopted_and_an_own_one_kept() -> None:
    ours, theirs = dated(100, 90), dated(100, 91)
    assert next_step(ours, theirs, NOW, 20) == Adopt()
    assert next_step(ours, ours, NOW, 20) == Keep()
    assert next_step(ours, ours.rstrip("\n"), NOW, 20) == Keep()


@pytest.mark.parametrize("stored", ["", "garbage", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"])
def test_a_stored_root_that_cannot_be_read_is_rotated(stored: str) -> None:
    assert isinstance(next_step(dated(100, 90), stored, NOW, 20), Rotate)


def test_a_key_that_is_too_short_is_not_made() -> None:
    with pytest.raises(ValueError, match="CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE must be at least 2048, got 1024"):
        create_self_signed("td", NOW, key_bits=1024, source="s")


def test_a_lifetime_beyond_the_calendar_ends_with_it() -> None:
    made = renew_self_signed(self_signed(), NOW, trust_domain="td", lifetime_s=2**62)
    assert verify(made, NOW).certificate.not_valid_after_utc.year == 9999


# Reload.


def rooted(*roots: bytes) -> Authority:
    return plugged_in({**good_files(), "root-cert.pem": b"".join(roots)})


ONE, TWO, THREE = (certify(f"root {number}", f"P-256/r{number}").pem for number in range(3))


def test_a_new_intermediate_under_equal_roots_is_taken() -> None:
    link = certify("next", "P-256/next", by=root())
    assert judge_reload(plugged_in().public, plugged_in(files(link, [link], [root()]))) == Take()


@pytest.mark.parametrize("fresh", [(ONE, TWO), (ONE, b"\n")])
def test_other_roots_are_ignored_even_if_only_a_newline_differs(fresh: tuple[bytes, ...]) -> None:
    assert isinstance(judge_reload(rooted(ONE).public, rooted(*fresh)), Ignore)


@pytest.mark.parametrize(
    ("old", "new", "takes"),
    [
        ((ONE,), (ONE, TWO), True),
        ((ONE, TWO), (ONE,), True),
        ((ONE, TWO), (TWO, ONE), True),
        ((ONE,), (TWO,), False),
        ((ONE, TWO), (TWO, THREE), False),
        ((ONE,), (b"",), False),
    ],
    ids=["add", "remove", "reorder", "disjoint", "overlap", "nothing"],
)
def test_with_several_roots_they_are_added_first_and_removed_later(
    old: tuple[bytes, ...], new: tuple[bytes, ...], takes: bool
) -> None:
    verdict = judge_reload(rooted(*old).public, rooted(*new), is_multi_root=True)
    assert isinstance(verdict, Take) is takes


# Expiry.


@pytest.mark.fault(84)
@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (91, None),
        (89, "the root certificate expires in less than 90 days; renew it before"),
        (29, "the root certificate expires in less than 30 days; renew it before"),
        (6, "the root certificate expires in less than 7 days; renew it before"),
        (-1, "the root certificate has expired: no client can verify anything that it stands behind"),
    ],
)
def test_a_root_warns_before_it_expires(days: int, expected: str | None) -> None:
    (expiry,) = expiries(self_signed().public)
    assert expiry.what == "root"
    assert expiry_warning(expiry, expiry.not_after_s - days * 86_400) == expected


def test_a_chain_has_an_expiry_of_its_own() -> None:
    assert [expiry.what for expiry in expiries(plugged_in().public)] == ["root", "chain"]


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
