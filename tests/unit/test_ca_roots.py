"""What follows for roots as time goes by: rotation, reload, expiry (ca.md 10.3.1, 10.4, 16.1; table 21.5)."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from ambientd.ca.authority import Authority, Unusable
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
    read_self_signed,
)
from ambientd.ca.verification import verify
from ambientd.debug.certificate_metrics import CertificateMetrics
from tests.unit.authorities import (
    DAY,
    NOW,
    Link,
    certify,
    files,
    good_files,
    intermediate,
    key_pem,
    plugged_in,
    root,
    self_signed,
)
from tests.unit.test_ca_material import of_version_ten

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
    certify("leaf", by=old).certificate.verify_directly_issued_by(new)
    certify("leaf", by=Link(new, old.key)).certificate.verify_directly_issued_by(old.certificate)
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


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "garbage",
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        of_version_ten(root().pem).decode(),
    ],
)
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


ONE, TWO = (certify(f"root {number}", f"P-256/r{number}").pem for number in range(2))


def test_a_new_intermediate_under_equal_roots_is_taken() -> None:
    link = certify("next", "P-256/next", by=root())
    assert judge_reload(plugged_in().public, plugged_in(files(link, [link], [root()]))) == Take()


@pytest.mark.parametrize("fresh", [(ONE, TWO), (ONE, b"\n")])
def test_other_roots_are_ignored_even_if_only_a_newline_differs(fresh: tuple[bytes, ...]) -> None:
    assert isinstance(judge_reload(rooted(ONE).public, rooted(*fresh)), Ignore)


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


def test_the_gauges_tell_of_what_is_in_use_and_of_nothing_else() -> None:
    metrics = CertificateMetrics()
    root_s = root().certificate.not_valid_after_utc.timestamp()
    chain_s = intermediate().certificate.not_valid_after_utc.timestamp()
    metrics.recorded(expiries(plugged_in().public))
    metrics.refresh(root_s + 60)
    assert gauges(metrics) == {
        "citadel_server_root_cert_expiry_timestamp": root_s,
        "citadel_server_root_cert_expiry_seconds": -60,
        "citadel_server_cert_chain_expiry_timestamp": chain_s,
        "citadel_server_cert_chain_expiry_seconds": chain_s - root_s - 60,
    }
    metrics.recorded(expiries(self_signed().public))
    metrics.refresh(0.0)
    assert gauges(metrics).keys() == {
        "citadel_server_root_cert_expiry_timestamp",
        "citadel_server_root_cert_expiry_seconds",
    }


def gauges(metrics: CertificateMetrics) -> dict[str, float]:
    return {
        sample.name: sample.value
        for series in metrics.series
        for sample in series.samples()
        if "_expiry_" in sample.name
    }
