"""What the TLS port shows: names, when another certificate is due, and pairs from files (ca.md 14)."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import NameOID
from msgspec.structs import replace
from structlog.testing import capture_logs

from ambientd.ca import serving
from ambientd.ca.authority import Authority, Public
from ambientd.ca.making import create_self_signed
from ambientd.ca.serving import (
    MOUNTED,
    BadPair,
    Files,
    Issuer,
    Pair,
    Shown,
    find_files,
    follow_files,
    followed,
    is_due,
    issue,
    read_pair,
    service_names,
)
from ambientd.ca.signing import Signer
from tests.e2e.tls_front import make_certificate
from tests.unit.authorities import DAY, NOW, certify, key_pem, plugged_in
from tests.unit.authorities import files as made_files
from tests.unit.certificate_server import Inline
from tests.unit.patience import in_background, until
from tests.unit.stored_secrets import FastClock
from tests.unit.volume import volume

DAY_S = 86_400
NAMES = ("istiod.istio-system.svc",)


@pytest.mark.parametrize(
    ("revision", "custom", "more"),
    [
        ("", (), ()),
        ("default", (), ()),
        ("canary", (), ("istiod-canary.mesh.svc",)),
        ("", ("b.com", "a.com", "a.com"), ("a.com", "b.com")),
    ],
)
def test_names_are_those_by_which_the_service_is_called(
    revision: str, custom: tuple[str, ...], more: tuple[str, ...]
) -> None:
    usual = ("istiod.mesh.svc", "istiod-remote.mesh.svc", "istio-pilot.mesh.svc", "istiod.istio-system.svc")
    assert service_names("mesh", revision, "istiod.istio-system.svc", custom) == tuple(sorted({*usual, *more}))


def test_names_of_revision_tags_are_among_them() -> None:
    assert "istiod-revision-tag-prod.mesh.svc" in service_names("mesh", "", "x", (), ["istiod-revision-tag-prod"])


def authority(lifetime_days: int = 3650) -> Authority:
    now = datetime.datetime.now(datetime.UTC)
    return create_self_signed("cluster.local", now, lifetime_s=lifetime_days * DAY_S, source="test")


class Now:
    """An authority that a test changes."""

    def __init__(self, held: Authority) -> None:
        self.held = held
        self.signer = Signer(self.load)

    async def load(self) -> Authority:
        return self.held

    def public(self) -> Public | None:
        return self.signer.public


@pytest_asyncio.fixture
async def now() -> AsyncIterator[Now]:
    now = Now(authority())
    await now.signer.start()
    yield now
    await now.signer.close()


async def test_the_certificate_is_of_our_authority_for_the_names_and_nothing_else(now: Now) -> None:
    shown = await Issuer(now.signer, now.public, lambda: NAMES, 100 * DAY_S).first()
    pair = shown.pair
    certificate = x509.load_pem_x509_certificate(pair.certificates.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in names] == list(NAMES)
    root = x509.load_pem_x509_certificate(now.held.certificate.encode())
    certificate.verify_directly_issued_by(root)
    assert pair.not_after_s - pair.not_before_s == 100 * DAY_S + 120
    assert "PRIVATE" not in f"{pair!r}{pair}{shown!r}"


async def test_another_authority_has_another_certificate_issued_and_the_same_has_not(now: Now) -> None:
    issuer = Issuer(now.signer, now.public, lambda: NAMES, 100 * DAY_S)
    shown = await issuer.first()
    first = shown.pair
    await issuer.renew(shown)
    assert shown.pair is first
    await now.signer.use(authority())
    await issuer.renew(shown)
    assert shown.pair.roots != first.roots


async def test_the_end_comes_also_at_the_moment_at_which_the_authority_changes(now: Now) -> None:
    issuer = Issuer(now.signer, now.public, lambda: NAMES, 100 * DAY_S)
    running = asyncio.create_task(issuer.run(await issuer.first()))
    await asyncio.sleep(0.05)
    issuer.look()
    running.cancel()
    ended, _ = await asyncio.wait([running], timeout=5)
    running.cancel()
    assert ended == {running}


async def test_a_signer_that_fails_leaves_what_is_shown(now: Now) -> None:
    issuer = Issuer(now.signer, now.public, lambda: NAMES, 100 * DAY_S)
    shown = await issuer.first()
    first = shown.pair
    await now.signer.close()
    await Issuer(now.signer, now.public, lambda: ("other",), 100 * DAY_S).renew(shown)
    assert shown.pair is first


def pair_of(public: Public, left_days: float, lived_days: float) -> Pair:
    now_s = time.time()
    key = authority(1).key
    return Pair("", key, public.roots, NAMES, now_s - lived_days * DAY_S, now_s + left_days * DAY_S, public)


@pytest.mark.parametrize(
    ("left_days", "lived_days", "is_renewed"),
    [(60, 40, False), (40, 60, True), (-1, 100, True)],
)
def test_a_certificate_is_renewed_in_the_second_half_of_its_life(
    left_days: float, lived_days: float, is_renewed: bool
) -> None:
    public = authority().public
    pair = pair_of(public, left_days, lived_days)
    assert is_due(pair, NAMES, public, 100 * DAY_S, time.time()) is is_renewed
    assert is_due(pair, ("other",), public, 100 * DAY_S, time.time())
    assert is_due(replace(pair, public=authority().public), NAMES, public, 100 * DAY_S, time.time())


def test_it_is_not_renewed_again_and_again_when_the_authority_itself_ends() -> None:
    public = authority(10).public
    assert not is_due(pair_of(public, 10, 30), NAMES, public, 100 * DAY_S, time.time())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    certificate, key = make_certificate(tmp_path)
    return Files(certificate, key, certificate)


def test_a_pair_of_files_is_read(files: Files) -> None:
    pair = read_pair(files)
    assert pair.names == ("localhost",)
    assert Shown(pair).pair.roots == files.roots.read_text()


@pytest.mark.parametrize(
    ("which", "content", "line"),
    [
        ("certificate", b"x", "front.pem: must hold certificates in PEM"),
        ("key", b"secret", "front.key: must be an unencrypted private key in PEM (ValueError)"),
        ("key", None, "front.key: cannot be read: no such file or directory"),
    ],
)
def test_a_file_that_cannot_be_shown_is_named_with_the_reason(
    files: Files, which: str, content: bytes | None, line: str
) -> None:
    path: Path = getattr(files, which)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(BadPair) as refused:
        read_pair(files)
    assert str(refused.value).endswith(line)


def test_a_key_of_another_certificate_is_refused(files: Files, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    _, key = make_certificate(tmp_path / "other")
    with pytest.raises(BadPair, match=r"front\.key: must be the key of .*front\.pem"):
        read_pair(replace(files, key=key))


def test_files_of_the_flags_count_only_together() -> None:
    assert find_files("a", "b", "") is None
    assert find_files("a", "b", "c") == Files(Path("a"), Path("b"), Path("c"))


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (["tls/tls.crt", "tls/tls.key", "ca/root-cert.pem"], MOUNTED[0]),
        (["tls/tls.crt", "tls/tls.key", "tls/ca.crt"], MOUNTED[1]),
        (["tls/tls.crt", "tls/tls.key", "tls/ca.crt", "ca/root-cert.pem"], MOUNTED[0]),
        (["tls/tls.crt", "tls/tls.key"], None),
        (["tls/tls.crt", "tls/ca.crt"], None),
        (["tls/tls.key", "ca/root-cert.pem"], None),
        ([], None),
    ],
)
def test_a_mounted_certificate_counts_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: list[str], expected: Files | None
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in there:
        path = Path("var/run/secrets/istiod") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    assert find_files("", "", "") == expected
    assert find_files("a", "b", "c") == Files(Path("a"), Path("b"), Path("c"))


def test_a_certificate_that_has_expired_is_refused_and_says_when(files: Files) -> None:
    old = certify("old", "P-256/old", starts=NOW - DAY, ends=NOW)
    files.certificate.write_bytes(old.pem)
    files.key.write_bytes(key_pem(old.key))
    with pytest.raises(BadPair, match=r"front\.pem: expired at 2026-08-01T12:00:00Z"):
        read_pair(files)


def test_a_certificate_that_is_not_valid_yet_is_refused_and_says_from_when(files: Files) -> None:
    early = certify("early", "P-256/early", starts=NOW + 3650 * DAY, ends=NOW + 3660 * DAY)
    files.certificate.write_bytes(early.pem)
    files.key.write_bytes(key_pem(early.key))
    with pytest.raises(BadPair, match=r"front\.pem: is not valid before 2036-07-29T12:00:00Z"):
        read_pair(files)


def self_signed(files: Files, key: Any, hash_: hashes.SHA256 | None = None) -> None:
    """Files with a certificate of this key."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 5, now - DAY, now + DAY)
    files.certificate.write_bytes(builder.sign(key, hash_).public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(key_pem(key))


@pytest.mark.parametrize("curve", [ec.SECP224R1(), ec.SECP256K1(), ec.BrainpoolP256R1()], ids=lambda curve: curve.name)
def test_a_curve_that_grpc_does_not_know_is_refused(files: Files, curve: ec.EllipticCurve) -> None:
    self_signed(files, ec.generate_private_key(curve), hashes.SHA256())
    with pytest.raises(BadPair, match=r"front\.pem: must have an RSA key, or one of P-256, P-384 or P-521"):
        read_pair(files)


@pytest.mark.parametrize("kind", [ed25519.Ed25519PrivateKey, ed448.Ed448PrivateKey])
def test_a_kind_of_key_that_is_not_shown_is_refused(files: Files, kind: Any) -> None:
    self_signed(files, kind.generate())
    with pytest.raises(BadPair, match=r"front\.pem: must have an RSA key"):
        read_pair(files)


def test_what_only_grpc_refuses_is_refused(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """As RSA-PSS keys, and curves by their parameters, which read as other keys do."""
    monkeypatch.setattr(serving, "_CURVES", {"secp224r1"})
    self_signed(files, ec.generate_private_key(ec.SECP224R1()), hashes.SHA256())
    with pytest.raises(BadPair, match=r"front\.pem: must have an RSA key, or one of P-256, P-384 or P-521"):
        read_pair(files)


def test_a_certificate_with_a_key_of_unknown_kind_is_refused(files: Files) -> None:
    self_signed(files, rsa.generate_private_key(65537, 2048), hashes.SHA256())
    der = x509.load_pem_x509_certificate(files.certificate.read_bytes()).public_bytes(serialization.Encoding.DER)
    known, unknown = bytes.fromhex("06092a864886f70d010101"), bytes.fromhex("06092a864886f70d01017f")
    changed = x509.load_der_x509_certificate(der.replace(known, unknown))
    files.certificate.write_bytes(changed.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(BadPair, match=r"front\.pem: has a key that cannot be used"):
        read_pair(files)


class Following:
    """A pair from files, with a clock that goes fast."""

    def __init__(self, files: Files) -> None:
        self.clock = FastClock()
        self.shown = Shown(read_pair(files))
        self.changed: list[Pair] = []


@asynccontextmanager
async def following(files: Files) -> AsyncIterator[Following]:
    found, pairs = Following(files), followed(files)
    await pairs.read()
    async with in_background(follow_files(pairs, found.shown, found.changed.append, found.clock.sleep, found.clock)):
        yield found


def with_roots_of_its_own(files: Files) -> Files:
    found = replace(files, roots=files.roots.with_name("roots.pem"))
    found.roots.write_bytes(files.certificate.read_bytes())
    return found


async def test_other_roots_alone_are_a_change_and_the_certificate_stays(files: Files) -> None:
    files = with_roots_of_its_own(files)
    async with following(files) as found:
        first = found.shown.pair
        files.roots.write_bytes(certify("another root", "P-256/x").pem)
        await until(lambda: len(found.changed) == 1)
    assert found.changed == [replace(first, roots=files.roots.read_text())]
    assert found.shown.pair == found.changed[0]


async def test_what_cannot_be_shown_leaves_the_former_and_is_said_every_minute(files: Files) -> None:
    async with following(files) as found:
        former, good = found.shown.pair, files.key.read_bytes()
        with capture_logs() as logs:
            files.key.write_bytes(b"half")
            await until(lambda: len(logs) >= 3)
            assert found.clock.now_s >= 2 * 60
        assert {entry["reason"] for entry in logs} == {found.shown.trouble}
        assert "front.key: must be an unencrypted private key" in found.shown.trouble
        assert (found.shown.pair, found.changed) == (former, [])
        files.key.write_bytes(good)
        await until(lambda: found.shown.trouble == "")


async def test_files_that_cannot_be_read_to_their_end_leave_the_former_too(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = with_roots_of_its_own(files)
    with volume(monkeypatch) as mount:
        async with following(files) as found:
            mount.hangs()
            with capture_logs() as logs:
                await until(lambda: len(logs) == 1)
            assert logs[0]["reason"] == found.shown.trouble
            assert found.shown.trouble == (
                "reading the files of the serving certificate takes longer than 0.05 s; see whether the volume answers"
            )
            files.roots.write_bytes(certify("another root", "P-256/x").pem)
            mount.answers()
            await until(lambda: len(found.changed) == 1)
            assert found.shown.trouble == ""


# Under our own authority.


@pytest.mark.parametrize(
    ("of_the_authority", "curve"), [("RSA-2048", "secp256r1"), ("P-256", "secp256r1"), ("P-384", "secp384r1")]
)
async def test_the_key_goes_with_that_of_the_authority(of_the_authority: str, curve: str) -> None:
    ca = certify("ca", of_the_authority)
    signer = Inline(plugged_in(made_files(ca, [ca], [ca])))
    pair = await issue(signer, signer.authority.public, NAMES, 100 * DAY_S)
    shown = x509.load_pem_x509_certificates(pair.certificates.encode())[0].public_key()
    assert isinstance(shown, ec.EllipticCurvePublicKey)
    assert shown.curve.name == curve
    assert signer.signed[0].is_limited is False
