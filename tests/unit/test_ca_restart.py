"""A signing process that dies gets the same authority again, or none: never another one (ca.md 10.3, 17)."""

from __future__ import annotations

import asyncio
import datetime
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from ambientd.ca.authority import Authority, Public
from ambientd.ca.keeping import Keeper, read_folder
from ambientd.ca.making import create_self_signed
from ambientd.ca.orders import SignError
from ambientd.ca.parsing import first_certificate
from ambientd.ca.roots import secret_data
from ambientd.ca.secrets import Secrets
from ambientd.ca.signing import SigningFailed
from ambientd.security import Security
from tests.unit.patience import in_background, until
from tests.unit.stored_secrets import Stored
from tests.unit.test_keeping import GOOD, changed_to, issued, made, plug_in, write


async def test_a_secret_that_was_deleted_is_not_made_again_while_the_server_runs(tmp_path: Path) -> None:
    stored, heard = Stored(), list[Public]()
    security = Security(ca_dir=str(tmp_path / "none"), root_check_s=None)
    keeper = Keeper(security, cast("Secrets", stored), trust_domain=lambda: "cluster.local", changed=heard.append)
    await keeper.start()
    gone = stored.held["istio-ca-secret"]
    await _dies_between(
        keeper, lambda: stored.held.clear(), lambda: stored.held.update({"istio-ca-secret": gone}), "must be there"
    )
    assert list(stored.kinds) == ["istio-ca-secret"]
    assert len({public.roots for public in heard}) == 1


async def test_roots_that_were_not_taken_are_not_taken_by_a_death_either(tmp_path: Path) -> None:
    heard, first, second = list[Public](), made(), made()
    plug_in(tmp_path / "cacerts", first)
    security = Security(ca_dir=str(tmp_path / "cacerts"))
    keeper = Keeper(security, None, trust_domain=lambda: "cluster.local", changed=heard.append)
    await keeper.start()
    await _dies_between(
        keeper,
        lambda: plug_in(tmp_path / "cacerts", second),
        lambda: plug_in(tmp_path / "cacerts", first),
        "must hold the roots in use",
    )
    assert {public.roots for public in heard} == {first.roots}


@pytest.mark.parametrize("has_secret", [False, True], ids=["nothing else", "an old self-signed secret"])
@pytest.mark.parametrize("place", ["folder without a cluster", "folder", "secret"])
async def test_a_plugged_in_authority_that_is_gone_is_not_replaced_by_a_self_signed_one(
    tmp_path: Path, place: str, has_secret: bool
) -> None:
    stored, heard, folder = Stored(), list[Public](), tmp_path / "cacerts"
    if has_secret:
        other = Keeper(
            Security(ca_dir=str(folder)), cast("Secrets", stored), trust_domain=lambda: "other", changed=lambda _: None
        )
        await other.start()
        await other.signer.close()
    before = set(stored.held)
    security = Security(ca_dir=str(folder), uses_remote_certs=place == "secret")
    secrets = None if place == "folder without a cluster" else cast("Secrets", stored)

    def plug() -> None:
        write(folder, GOOD) if place != "secret" else stored.put("cacerts", GOOD)

    def unplug() -> None:
        shutil.rmtree(folder) if place != "secret" else stored.held.pop("cacerts")

    plug()
    keeper = Keeper(security, secrets, trust_domain=lambda: "cluster.local", changed=heard.append)
    await keeper.start()
    said = "Secret istio-system/cacerts" if place == "secret" else str(folder)
    await _dies_between(keeper, unplug, plug, f"{said}: must hold the certificate authority")
    assert {public.certificate.encode() for public in heard} == {GOOD["ca-cert.pem"]}
    assert set(stored.held) - {"cacerts"} == before


@pytest.mark.parametrize("has_cluster", [False, True])
async def test_a_self_signed_root_is_not_replaced_by_what_is_plugged_in_meanwhile(
    tmp_path: Path, has_cluster: bool
) -> None:
    heard, folder = list[Public](), tmp_path / "cacerts"
    secrets = cast("Secrets", Stored()) if has_cluster else None
    keeper = Keeper(Security(ca_dir=str(folder)), secrets, trust_domain=lambda: "cluster.local", changed=heard.append)
    await keeper.start()
    async with in_background(keeper.run()):
        write(folder, GOOD)
        assert keeper.signer.pid is not None
        os.kill(keeper.signer.pid, signal.SIGKILL)
        await until(lambda: keeper.signer.restarts > 0 and keeper.signer.is_ready)
    assert len({public.roots for public in heard}) == 1


@pytest.mark.parametrize("is_followed", [False, True])
async def test_another_key_in_the_secret_is_taken_only_where_the_secret_is_followed(
    tmp_path: Path, is_followed: bool
) -> None:
    stored, heard, others = Stored(), list[Public](), Stored()
    security = Security(ca_dir=str(tmp_path / "none"), root_check_s=3600.0 if is_followed else None)
    keepers = [
        Keeper(security, cast("Secrets", each), trust_domain=lambda: "cluster.local", changed=heard.append)
        for each in (stored, others)
    ]
    for keeper in keepers:
        await keeper.start()
    await keepers[1].signer.close()
    own, other = stored.held["istio-ca-secret"], others.held["istio-ca-secret"]
    if not is_followed:
        await _dies_between(
            keepers[0],
            lambda: stored.held.update({"istio-ca-secret": other}),
            lambda: stored.held.update({"istio-ca-secret": own}),
            "the root has another key",
        )
        assert heard[-1] == heard[0]
        return
    async with in_background(keepers[0].run()):
        stored.held["istio-ca-secret"] = other
        assert keepers[0].signer.pid is not None
        os.kill(keepers[0].signer.pid, signal.SIGKILL)
        await until(lambda: len(heard) == 3)
    assert heard[2].certificate == heard[1].certificate


async def test_what_was_not_taken_while_the_process_was_dead_is_no_trouble_once_it_was(tmp_path: Path) -> None:
    heard = list[Public]()
    folder = tmp_path / "cacerts"
    write(folder, GOOD)
    security = Security(ca_dir=str(folder))
    keeper = Keeper(security, None, trust_domain=lambda: "cluster.local", changed=heard.append)
    await keeper.start()
    assert keeper.signer.pid is not None
    os.kill(keeper.signer.pid, signal.SIGSTOP)
    other = issued("other")
    async with in_background(keeper.run()):
        write(folder, changed_to(other))
        await until(lambda: keeper.signer.queued > 0)
        os.kill(keeper.signer.pid, signal.SIGKILL)
        await until(lambda: keeper.trouble != "")
        await until(lambda: keeper.trouble == "")
    assert [public.certificate.encode() for public in heard] == [GOOD["ca-cert.pem"], other.pem]


def _keeper(tmp_path: Path, stored: Stored, heard: list[Public], **settings: Any) -> Keeper:
    security = Security(**{"ca_dir": str(tmp_path / "cacerts"), "root_check_jitter": False, **settings})
    return Keeper(security, cast("Secrets", stored), trust_domain=lambda: "cluster.local", changed=heard.append)


def _root(lifetime_s: int = 3600 * 24 * 3650) -> dict[str, bytes]:
    now = datetime.datetime.now(datetime.UTC)
    return secret_data(create_self_signed("old.domain", now, lifetime_s=lifetime_s, source="x"))


def _key_and_names(public: Public) -> tuple[object, ...]:
    found = first_certificate(public.certificate)
    assert found is not None
    key_id = found.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return found.public_key(), found.subject, key_id


async def test_a_root_that_has_ended_is_renewed_although_the_process_died(tmp_path: Path) -> None:
    stored, heard = Stored({"istio-ca-secret": _root(lifetime_s=3)}), list[Public]()
    keeper = _keeper(tmp_path, stored, heard, root_check_s=3600.0)
    await keeper.start()
    async with in_background(keeper.run()):
        await asyncio.sleep(3.1)
        assert keeper.signer.pid is not None
        os.kill(keeper.signer.pid, signal.SIGKILL)
        await until(lambda: len(heard) == 2)
    assert _key_and_names(heard[0]) == _key_and_names(heard[1])
    assert stored.data("istio-ca-secret")["ca-cert.pem"].decode() == heard[1].certificate


@pytest.mark.parametrize("dies", [False, True])
async def test_a_certificate_in_the_secret_that_cannot_be_read_is_renewed_after_the_one_in_use(
    tmp_path: Path, dies: bool
) -> None:
    stored, heard = Stored({"istio-ca-secret": _root()}), list[Public]()
    keeper = _keeper(tmp_path, stored, heard, root_check_s=3600.0 if dies else 0.1)
    await keeper.start()
    async with in_background(keeper.run()):
        stored.put("istio-ca-secret", {**stored.data("istio-ca-secret"), "ca-cert.pem": b"oops"})
        if dies:
            assert keeper.signer.pid is not None
            os.kill(keeper.signer.pid, signal.SIGKILL)
        await until(lambda: len(heard) == 2)
    assert _key_and_names(heard[0]) == _key_and_names(heard[1])
    assert stored.data("istio-ca-secret")["ca-cert.pem"].decode() == heard[1].certificate


async def test_a_key_of_another_root_beside_an_unreadable_certificate_is_left_alone(tmp_path: Path) -> None:
    stored, heard = Stored({"istio-ca-secret": _root()}), list[Public]()
    keeper = _keeper(tmp_path, stored, heard, root_check_s=0.1)
    await keeper.start()
    async with in_background(keeper.run()):
        stored.put("istio-ca-secret", {**_root(), "ca-cert.pem": b"oops"})
        await until(lambda: keeper.trouble != "")
    assert len(heard) == 1
    assert stored.data("istio-ca-secret")["ca-cert.pem"] == b"oops"


async def test_a_root_without_a_final_newline_gives_the_same_bundle_again(tmp_path: Path) -> None:
    data = _root()
    stored, heard = Stored({"istio-ca-secret": {**data, "ca-cert.pem": data["ca-cert.pem"].rstrip()}}), list[Public]()
    keeper = _keeper(tmp_path, stored, heard)
    await keeper.start()
    async with in_background(keeper.run()):
        for deaths in (1, 2):
            assert keeper.signer.pid is not None
            os.kill(keeper.signer.pid, signal.SIGKILL)
            await until(lambda deaths=deaths: len(heard) == 1 + deaths)  # type: ignore[misc]
    assert {public.roots for public in heard} == {data["ca-cert.pem"].decode()}


async def test_what_somebody_wrote_over_a_renewal_that_could_not_be_used_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, heard, other = Stored({"istio-ca-secret": _root(lifetime_s=60)}), list[Public](), _root()
    keeper = _keeper(tmp_path, stored, heard, root_check_s=0.1, root_grace_percent=100)
    await keeper.start()

    async def use(_: Authority) -> NoReturn:
        stored.put("istio-ca-secret", other)
        raise SigningFailed(SignError.NOT_READY, "it does not answer")

    monkeypatch.setattr(keeper.signer, "use", use)
    async with in_background(keeper.run()):
        await until(lambda: "it does not answer" in keeper.trouble)
        assert stored.data("istio-ca-secret") == other


@pytest.mark.parametrize("dies", [False, True])
async def test_what_an_operator_plugs_into_the_secret_of_a_self_signed_root_is_left_alone(
    tmp_path: Path, dies: bool
) -> None:
    stored, heard = Stored(), list[Public]()
    keeper = _keeper(tmp_path, stored, heard, root_check_s=3600.0 if dies else 0.1, self_signed_in_cacerts=True)
    await keeper.start()
    own = stored.held["cacerts"]
    async with in_background(keeper.run()):
        stored.held.pop("cacerts")
        stored.put("cacerts", GOOD)
        if dies:
            assert keeper.signer.pid is not None
            os.kill(keeper.signer.pid, signal.SIGKILL)
        await until(lambda: "istio-generated must be there" in keeper.trouble)
        assert stored.data("cacerts") == GOOD
        stored.held["cacerts"] = own
        await until(lambda: keeper.trouble == "" and keeper.signer.is_ready)
    assert {public.roots for public in heard} == {heard[0].roots}


async def test_a_broken_plugged_in_secret_that_goes_before_the_next_try_is_waited_for(tmp_path: Path) -> None:
    stored, heard = Stored({"cacerts": {**GOOD, "ca-key.pem": b"oops"}}), list[Public]()
    keeper = _keeper(tmp_path, stored, heard, uses_remote_certs=True)
    with capture_logs() as logs:
        starting = asyncio.create_task(keeper.start())
        await until(lambda: bool(logs))
        del stored.held["cacerts"]
        await until(lambda: any("Secret istio-system/cacerts: must hold" in each["reason"] for each in logs))
    stored.put("cacerts", GOOD)
    await starting
    await keeper.signer.close()
    assert [public.certificate.encode() for public in heard] == [GOOD["ca-cert.pem"]]
    assert list(stored.held) == ["cacerts"]


async def test_a_folder_that_is_in_use_is_kept_to_when_a_secret_appears(tmp_path: Path) -> None:
    stored, heard, folder = Stored(), list[Public](), tmp_path / "cacerts"
    in_tls_layout = {"tls.crt": GOOD["ca-cert.pem"], "tls.key": GOOD["ca-key.pem"], "ca.crt": GOOD["root-cert.pem"]}
    write(folder, in_tls_layout)
    keeper = _keeper(tmp_path, stored, heard, uses_remote_certs=True)
    await keeper.start()
    other = made()
    async with in_background(keeper.run()):
        plug_in(tmp_path / "other", other)
        stored.put("cacerts", read_folder(tmp_path / "other"))
        assert keeper.signer.pid is not None
        os.kill(keeper.signer.pid, signal.SIGKILL)
        await until(lambda: len(heard) == 2)
    assert heard[0] == heard[1]


async def _dies_between(keeper: Keeper, change: Callable[[], None], restore: Callable[[], None], said: str) -> None:
    """The signing process ends after a change, and signs again once that is undone."""
    with capture_logs() as logs:
        async with in_background(keeper.run()):
            change()
            assert keeper.signer.pid is not None
            os.kill(keeper.signer.pid, signal.SIGKILL)
            await until(lambda: any("has no authority" in each["event"] and said in each["reason"] for each in logs))
            assert not keeper.signer.is_ready
            restore()
            await until(lambda: keeper.signer.is_ready)
