"""An authority that is kept in a secret: made once, found, renewed, followed, and never overwritten by a guess (ca.md
10.1, 10.3; table 21.5)."""

from __future__ import annotations

import asyncio
import datetime
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from ambientd.ca.authority import Authority, Kind, Public, Unusable
from ambientd.ca.keeping import START_S, Keeper, first_delay_s
from ambientd.ca.making import create_self_signed, renew_self_signed
from ambientd.ca.parsing import first_certificate
from ambientd.ca.roots import secret_data
from ambientd.ca.secrets import Conflict, Secrets
from ambientd.kube.errors import ApiError, Forbidden
from ambientd.security import Security
from tests.unit.authorities import Link, certify, files, key, key_pem
from tests.unit.patience import in_background, until
from tests.unit.stored_secrets import OUTAGE, FastClock, Stored

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
OWN, PLUGGED_IN = "istio-ca-secret", "cacerts"


def self_signed(*, days_old: float = 0, lifetime_days: int = 1000) -> Authority:
    made_at = NOW - days_old * DAY
    return create_self_signed("old.td", made_at, lifetime_s=lifetime_days * 86_400, source="x")


FRESH = secret_data(self_signed())
EXPIRED = secret_data(self_signed(days_old=100, lifetime_days=10))
NEAR_ITS_END = secret_data(self_signed(days_old=90, lifetime_days=100))
OF_ANOTHER = {**FRESH, "ca-key.pem": key_pem(key("RSA-2048"))}


class Kept:
    """A keeper over secrets and a folder."""

    def __init__(
        self, stored: Stored, folder: Path, *, sleep_s: float = 0.0, dice: random.Random | None = None, **settings: Any
    ) -> None:
        """`sleep_s`: no sleep is shorter."""
        self.stored = stored
        self.heard: list[Public] = []
        self.clock = FastClock(sleep_s)
        self.keeper = Keeper(
            Security(ca_dir=str(folder), **{"root_check_s": 0.01, "root_check_jitter": False} | settings),
            cast("Secrets", stored),
            trust_domain=lambda: "my.td",
            changed=self.heard.append,
            dice=dice or random.Random(1),
            sleep=self.clock.sleep,
            now_s=self.clock,
        )

    async def looks(self, times: int = 3) -> None:
        """Until the secret was read so often once more."""
        before = self.stored.reads
        await until(lambda: self.stored.reads >= before + times)


@asynccontextmanager
async def started(stored: Stored, folder: Path, **settings: Any) -> AsyncIterator[Kept]:
    """Has an authority, and follows nothing yet."""
    kept = Kept(stored, folder, **settings)
    try:
        await kept.keeper.start()
        yield kept
    finally:
        await kept.keeper.signer.close()


@asynccontextmanager
async def running(stored: Stored, folder: Path, **settings: Any) -> AsyncIterator[Kept]:
    async with started(stored, folder, **settings) as kept, in_background(kept.keeper.run()):
        yield kept


def put(folder: Path, contents: Mapping[str, bytes]) -> Path:
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


GENERATED = {**FRESH, "cert-chain.pem": b"", "istio-generated": b""}
"""As istiod mounts what it has made."""


# Where it is found (ca.md 10.1, 10.3).


@pytest.mark.parametrize(
    ("held", "flag", "created", "used"),
    [
        ((), False, OWN, ""),
        ((), True, PLUGGED_IN, ""),
        ((OWN,), False, "", OWN),
        ((OWN, PLUGGED_IN), True, "", OWN),
        ((PLUGGED_IN,), True, "", PLUGGED_IN),
        ((PLUGGED_IN,), False, OWN, ""),
    ],
    ids=["nothing", "nothing, flag", "own", "both, flag", "plugged in, flag", "plugged in and not mounted"],
)
async def test_a_secret_is_used_where_it_is_and_made_where_none_is(
    tmp_path: Path, held: tuple[str, ...], flag: bool, created: str, used: str
) -> None:
    contents = {name: secret_data(self_signed()) for name in held}
    stored = Stored(contents)
    async with started(stored, tmp_path / "none", self_signed_in_cacerts=flag) as kept:
        (public,) = kept.heard
        assert stored.kinds == ({created: "istio.io/ca-root"} if created else {})
        assert public.source == f"Secret istio-system/{created or used}"
        assert public.certificate.encode() == stored.data(created or used)["ca-cert.pem"]
    for name, content in contents.items():
        assert stored.data(name) == content
    if created:
        keys = {"ca-cert.pem", "ca-key.pem", "root-cert.pem", "cert-chain.pem", "key.pem"}
        assert stored.data(created).keys() == keys | ({"istio-generated"} if created == PLUGGED_IN else set())
        assert "O=my.td" in subject_of(public.certificate)


def subject_of(certificate: str) -> str:
    found = first_certificate(certificate)
    assert found is not None
    return found.subject.rfc4514_string()


@pytest.mark.parametrize(("flag", "kind"), [(False, Kind.PLUGGED_IN), (True, Kind.SELF_SIGNED)])
async def test_a_marked_folder_is_plugged_in_unless_the_flag_says_that_we_made_it(
    tmp_path: Path, flag: bool, kind: Kind
) -> None:
    link = certify("ca", "RSA-2048", starts=NOW - DAY, ends=NOW + 90 * DAY)
    folder = put(tmp_path / "cacerts", {**files(link, [link], [link]), "istio-generated": b""})
    stored = Stored({PLUGGED_IN: FRESH})
    async with started(stored, folder, self_signed_in_cacerts=flag) as kept:
        (public,) = kept.heard
        assert public.kind is kind
        further = link.pem.decode()
        assert public.roots == (FRESH["ca-cert.pem"].decode() + further if flag else further)
    assert stored.kinds == {}


async def test_a_marked_folder_of_which_a_part_is_missing_ends_the_start_all_the_same(tmp_path: Path) -> None:
    contents = {name: content for name, content in GENERATED.items() if name != "ca-key.pem"}
    kept = Kept(Stored({PLUGGED_IN: FRESH}), put(tmp_path / "cacerts", contents), self_signed_in_cacerts=True)
    with pytest.raises(Unusable, match=r"cacerts: ca-key\.pem must be there beside the others"):
        await kept.keeper.start()


def plugged_in_files(name: str = "intermediate") -> dict[str, bytes]:
    root = certify("root", "P-256/of-the-secret", starts=NOW - DAY, ends=NOW + 90 * DAY)
    return files_under(root, name)


def files_under(root: Link, name: str) -> dict[str, bytes]:
    link = certify(name, f"P-256/{name}", by=root, starts=NOW - DAY, ends=NOW + 80 * DAY)
    return files(link, [link], [root])


def as_tls(native: Mapping[str, bytes]) -> dict[str, bytes]:
    return {"tls.crt": native["ca-cert.pem"], "tls.key": native["ca-key.pem"], "ca.crt": native["root-cert.pem"]}


@pytest.mark.parametrize("as_kept", [dict, as_tls], ids=["native", "TLS"])
async def test_a_secret_that_is_not_mounted_is_read_where_that_is_asked_for_and_followed(
    tmp_path: Path, as_kept: Callable[[Mapping[str, bytes]], dict[str, bytes]]
) -> None:
    root = certify("root", "P-256/top", starts=NOW - DAY, ends=NOW + 90 * DAY)
    stored = Stored({PLUGGED_IN: as_kept(files_under(root, "first"))})
    async with running(stored, tmp_path / "none", uses_remote_certs=True) as kept:
        assert [(each.kind, each.source) for each in kept.heard] == [(Kind.PLUGGED_IN, "Secret istio-system/cacerts")]
        stored.put(PLUGGED_IN, as_kept(files_under(root, "second")))
        await until(lambda: len(kept.heard) == 2)
        assert "CN=second" in subject_of(kept.heard[1].certificate)
        third = as_kept(files_under(root, "third"))
        stored.put(PLUGGED_IN, {name: b"" if "key" in name else content for name, content in third.items()})
        await until(lambda: "must be an unencrypted private key" in kept.keeper.trouble)
        stored.put(PLUGGED_IN, {})
        await until(lambda: "is no longer there" in kept.keeper.trouble)
        assert len(kept.heard) == 2
        stored.put(PLUGGED_IN, third)
        await until(lambda: len(kept.heard) == 3)
        assert kept.keeper.trouble == ""
    assert stored.kinds == {}


async def test_files_that_are_whole_win_over_the_secret(tmp_path: Path) -> None:
    folder = put(tmp_path / "cacerts", plugged_in_files())
    async with started(Stored({PLUGGED_IN: plugged_in_files("other")}), folder, uses_remote_certs=True) as kept:
        assert kept.heard[0].source == str(folder)


# A start that does not succeed.


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (OF_ANOTHER, r"ca-key\.pem must be the key of ca-cert\.pem"),
        (EXPIRED, r"ca-cert\.pem must be valid now, and expired"),
        ({**FRESH, "ca-key.pem": b""}, r"ca-key\.pem must be there"),
        ({**FRESH, "ca-cert.pem": b"garbage"}, r"ca-cert\.pem must hold a certificate"),
    ],
    ids=["key of another", "expired", "no key", "garbage"],
)
async def test_a_secret_that_cannot_be_used_is_never_overwritten_and_ends_the_start_at_last(
    tmp_path: Path, content: dict[str, bytes], said: str
) -> None:
    stored = Stored({OWN: content})
    kept = Kept(stored, tmp_path / "none", sleep_s=START_S / 3)
    with capture_logs() as logs, pytest.raises(Unusable, match=rf"Secret istio-system/istio-ca-secret: {said}"):
        await kept.keeper.start()
    assert kept.clock.now_s >= START_S
    assert (stored.data(OWN), stored.kinds, stored.writes) == (content, {}, [])
    warnings = [entry["event"] for entry in logs if entry["log_level"] == "warning"]
    assert warnings == ["there is no certificate authority yet, tried again"]


async def test_an_api_server_that_does_not_answer_is_tried_again_for_a_while(tmp_path: Path) -> None:
    stored = Stored()
    stored.trouble = OUTAGE
    kept = Kept(stored, tmp_path / "none", sleep_s=START_S / 3)
    with capture_logs() as logs, pytest.raises(ApiError, match="does not answer"):
        await kept.keeper.start()
    assert kept.clock.now_s >= START_S
    assert [entry["reason"] for entry in logs] == [str(OUTAGE)]


async def test_who_comes_second_uses_what_the_first_has_made(tmp_path: Path) -> None:
    stored = Stored()
    read = stored.read

    async def read_too_early(name: str) -> Any:
        found = await read(name)
        if found is None:
            stored.put(OWN, FRESH)
        return found

    stored.read = read_too_early  # type: ignore[method-assign]
    async with started(stored, tmp_path / "none") as kept:
        assert kept.heard[0].certificate.encode() == FRESH["ca-cert.pem"]
    assert stored.data(OWN) == FRESH


# Renewal (ca.md 10.3.1).


async def test_a_root_near_its_end_is_renewed_in_the_secret_and_used(tmp_path: Path) -> None:
    stored = Stored({OWN: {**NEAR_ITS_END, "mine": b"x"}})
    async with running(stored, tmp_path / "none") as kept:
        await until(lambda: len(kept.heard) == 2)
        await kept.looks()
    assert stored.writes == [OWN]
    written = stored.data(OWN)
    assert written == {**NEAR_ITS_END, "mine": b"x", "ca-cert.pem": written["ca-cert.pem"]}
    assert [public.certificate.encode() for public in kept.heard] == [
        NEAR_ITS_END["ca-cert.pem"],
        written["ca-cert.pem"],
    ]


async def test_a_healthy_root_is_left_alone(tmp_path: Path) -> None:
    stored = Stored({OWN: FRESH})
    async with running(stored, tmp_path / "none", root_grace_percent=0) as kept:
        await kept.looks()
    assert (stored.writes, len(kept.heard)) == ([], 1)


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (Forbidden("403: the server knows us, and we may not"), "could not be written: 403"),
        (OUTAGE, "could not be written"),
        (Conflict("it has changed"), ""),
    ],
    ids=["forbidden", "outage", "conflict"],
)
async def test_a_renewal_that_cannot_be_written_changes_nothing(tmp_path: Path, trouble: Exception, said: str) -> None:
    stored = Stored({OWN: NEAR_ITS_END})
    stored.trouble_with_writes = trouble
    async with running(stored, tmp_path / "none") as kept:
        await until(lambda: stored.attempts >= 2)
        assert (stored.data(OWN), len(kept.heard)) == (NEAR_ITS_END, 1)
        assert said in kept.keeper.trouble
        assert kept.keeper.signer.is_ready
        stored.trouble_with_writes = None
        await until(lambda: len(kept.heard) == 2)
        assert kept.keeper.trouble == ""


async def test_a_renewal_that_cannot_be_used_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored({OWN: NEAR_ITS_END})
    async with started(stored, tmp_path / "none") as kept:

        async def use(authority: Authority) -> None:
            raise Unusable(authority.source, ())

        monkeypatch.setattr(kept.keeper.signer, "use", use)
        async with in_background(kept.keeper.run()):
            await until(lambda: len(stored.writes) >= 2)
    assert stored.writes[:2] == [OWN, OWN]
    assert stored.data(OWN) == NEAR_ITS_END
    assert len(kept.heard) == 1


async def test_the_root_of_another_replica_is_used_and_one_that_is_unsound_is_not(tmp_path: Path) -> None:
    stored = Stored({OWN: FRESH})
    async with running(stored, tmp_path / "none") as kept:
        stored.put(OWN, {**secret_data(self_signed()), "ca-key.pem": FRESH["ca-key.pem"]})
        await until(lambda: "must be the key of" in kept.keeper.trouble)
        assert len(kept.heard) == 1
        theirs = renew_self_signed(self_signed(), NOW, trust_domain="x", lifetime_s=10_000_000)
        stored.put(OWN, secret_data(theirs))
        await until(lambda: len(kept.heard) == 2)
        assert kept.heard[1].roots == theirs.roots
        assert kept.keeper.trouble == ""
    assert stored.writes == []


async def test_a_secret_that_is_gone_or_cannot_be_read_is_not_made_again(tmp_path: Path) -> None:
    stored = Stored({OWN: FRESH})
    async with running(stored, tmp_path / "none") as kept:
        with capture_logs() as logs:
            stored.trouble = OUTAGE
            await until(lambda: any("cannot be looked at" in entry["event"] for entry in logs))
        stored.trouble = None
        stored.held.clear()
        await until(lambda: "it is gone" in kept.keeper.trouble)
        await kept.looks()
        assert kept.keeper.signer.is_ready
    assert (stored.held, stored.kinds, len(kept.heard)) == ({}, {}, 1)


async def test_a_read_that_fails_twice_is_tried_again_in_the_same_look(tmp_path: Path) -> None:
    stored = Stored({OWN: NEAR_ITS_END})
    async with started(stored, tmp_path / "none") as kept:
        stored.trouble_with_next_reads = [OUTAGE, OUTAGE]
        with capture_logs() as logs:
            async with in_background(kept.keeper.run()):
                await until(lambda: len(kept.heard) == 2)
    assert [entry for entry in logs if "cannot be looked at" in entry["event"]] == []


async def test_after_a_conflict_what_the_other_wrote_is_looked_at_soon(tmp_path: Path) -> None:
    stored = Stored({OWN: NEAR_ITS_END})
    stored.trouble_with_writes = Conflict("it has changed")
    async with running(stored, tmp_path / "none", root_check_s=3600.0) as kept:
        kept.keeper.look()
        await until(lambda: stored.attempts >= 1)
        stored.trouble_with_writes = None
        await until(lambda: len(kept.heard) == 2)


async def test_the_end_comes_also_at_the_moment_at_which_somebody_asks(tmp_path: Path) -> None:
    async with started(Stored({OWN: FRESH}), tmp_path / "none", root_check_s=3600.0) as kept:
        running = asyncio.create_task(kept.keeper.run())
        await asyncio.sleep(0.05)
        kept.keeper.look()
        running.cancel()
        ended, _ = await asyncio.wait([running], timeout=5)
        running.cancel()
        assert ended == {running}


async def test_however_often_somebody_asks_the_api_server_is_spared(tmp_path: Path) -> None:
    stored = Stored({OWN: FRESH})
    async with running(stored, tmp_path / "none", root_check_s=3600.0) as kept:
        before, since_s = stored.reads, kept.clock.now_s
        for _ in range(100):
            kept.keeper.look()
            await asyncio.sleep(0.001)
        looks, passed_s = stored.reads - before, kept.clock.now_s - since_s
        assert 1 < looks <= passed_s / 5 + 1


async def test_without_an_interval_nobody_looks(tmp_path: Path) -> None:
    stored = Stored({OWN: NEAR_ITS_END})
    async with running(stored, tmp_path / "none", root_check_s=None):
        await asyncio.sleep(0.3)
    assert stored.reads == 1


def test_the_first_look_waits_a_part_of_the_interval_that_differs_between_replicas() -> None:
    delays = {first_delay_s(3600.0, random.Random(seed)) for seed in range(100)}
    assert len(delays) > 90
    assert all(0 <= delay < 3600 and delay == int(delay) for delay in delays)
    assert {first_delay_s(0.5, random.Random(seed)) for seed in range(10)} == {0.0}


class Late(random.Random):
    """Every delay is an hour."""

    def randrange(self, *_: object) -> int:
        return 3600


async def test_the_delay_can_be_switched_off(tmp_path: Path) -> None:
    delayed, at_once = Stored({OWN: NEAR_ITS_END}), Stored({OWN: NEAR_ITS_END})
    async with (
        running(delayed, tmp_path / "none", root_check_jitter=True, dice=Late()),
        running(at_once, tmp_path / "none", root_check_jitter=False, dice=Late()),
    ):
        await until(lambda: at_once.reads > 3)
        assert delayed.reads == 1


# What an operator hears.


async def test_what_is_not_in_use_is_said_every_minute_until_it_is(tmp_path: Path) -> None:
    stored = Stored({OWN: FRESH})
    event = "the certificate authority that is kept is not in use; the former stays"
    async with running(stored, tmp_path / "none") as kept:
        with capture_logs() as logs:
            stored.held.clear()
            await until(lambda: "it is gone" in kept.keeper.trouble)
            since_s = kept.clock.now_s
            await until(lambda: sum(entry["event"] == event for entry in logs) >= 4)
            assert kept.clock.now_s - since_s >= 3 * 60 - 60
            assert all("it is gone" in entry["reason"] for entry in logs if entry["event"] == event)
        stored.put(OWN, FRESH)
        await until(lambda: kept.keeper.trouble == "")
        with capture_logs() as logs:
            until_s = kept.clock.now_s + 150
            await until(lambda: kept.clock.now_s >= until_s)
        assert logs == []


@pytest.mark.fault(84)
async def test_an_end_that_comes_near_is_said_once(tmp_path: Path) -> None:
    stored = Stored({OWN: secret_data(self_signed(lifetime_days=20))})
    with capture_logs() as logs:
        async with running(stored, tmp_path / "none", root_check_s=None) as kept:
            await until(lambda: kept.clock.now_s > 200)
    said = [entry for entry in logs if entry["event"] == "a certificate of the authority ends"]
    assert [entry["what"] for entry in said] == ["the root certificate expires in less than 30 days; renew it before"]
