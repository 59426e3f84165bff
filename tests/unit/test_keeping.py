"""Where the authority is kept, and what follows when that changes (ca.md 10): files are reloaded as a whole or not at
all."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ambientd.ca.authority import Authority, Public, Unusable
from ambientd.ca.keeping import Keeper, read_folder
from ambientd.ca.making import create_self_signed
from ambientd.security import Security
from tests.unit.authorities import Link, certify, files, key, key_pem, revocations
from tests.unit.patience import in_background, until
from tests.unit.volume import volume

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


def made(lifetime_days: int = 1000) -> Authority:
    now = datetime.datetime.now(datetime.UTC)
    return create_self_signed("cluster.local", now, lifetime_s=lifetime_days * 86_400, source="test")


def plug_in(folder: Path, authority: Authority, roots: str = "") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "ca-key.pem").write_bytes(authority.key.pem)
    for name in ("ca-cert.pem", "cert-chain.pem"):
        (folder / name).write_text(authority.certificate)
    (folder / "root-cert.pem").write_text(roots or authority.roots)


class Running:
    def __init__(self, folder: Path) -> None:
        self.heard: list[Public] = []
        security = Security(ca_dir=str(folder))
        self.keeper = Keeper(security, None, trust_domain=lambda: "cluster.local", changed=self.heard.append)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    found = Running(folder)
    await found.keeper.start()
    async with in_background(found.keeper.run()):
        yield found
    await found.keeper.signer.close()  # which it does itself, but not where the test ends before it has begun


async def test_without_anything_a_root_is_made_for_the_life_of_the_process(tmp_path: Path) -> None:
    async with running(tmp_path / "none") as found:
        assert [public.kind.value for public in found.heard] == ["self-signed"]
        assert found.keeper.trouble == ""


async def test_a_plugged_in_authority_is_used_and_one_with_other_roots_is_not_taken(tmp_path: Path) -> None:
    folder = tmp_path / "cacerts"
    first, second = made(), made()
    plug_in(folder, first)
    async with running(folder) as found:
        assert found.heard[0].roots == first.roots
        plug_in(folder, second)
        await until(lambda: "root bundle differs" in found.keeper.trouble)
        assert len(found.heard) == 1

        plug_in(folder, first)
        await until(lambda: found.keeper.trouble == "")
        assert found.keeper.signer.public == found.heard[0]


OWN_ROOT = certify("root", "P-256/of-the-folder", starts=NOW - 2 * DAY, ends=NOW + 90 * DAY)


def issued(name: str, **about: Any) -> Link:
    return certify(name, f"P-256/{name}", by=OWN_ROOT, **{"starts": NOW - DAY, "ends": NOW + 60 * DAY} | about)


GOOD = files(issued("good"), [issued("good")], [OWN_ROOT])


def write(folder: Path, contents: Mapping[str, bytes | None]) -> None:
    """As a mount is swapped: what a file holds changes at once."""
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        if content is None:
            (folder / name).unlink(missing_ok=True)
        else:
            (folder / "new").write_bytes(content)
            os.replace(folder / "new", folder / name)


def changed_to(link: Link) -> dict[str, bytes | None]:
    return {**files(link, [link], [OWN_ROOT])}


every_fault = pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ca-key.pem": b""}, "ca-key.pem must be an unencrypted private key"),
        ({"ca-key.pem": b"garbage"}, "ca-key.pem must be an unencrypted private key"),
        ({"ca-key.pem": key_pem(key("P-256/other"))}, "ca-key.pem must be the key of ca-cert.pem"),
        ({"ca-key.pem": None}, "ca-key.pem must be there beside the others"),
        ({"ca-cert.pem": b"garbage"}, "ca-cert.pem must hold a certificate"),
        ({"cert-chain.pem": None}, "cert-chain.pem must be there beside the others"),
        ({"cert-chain.pem": b""}, "cert-chain.pem must hold a certificate"),
        (changed_to(issued("expired", ends=NOW - DAY / 2)), "ca-cert.pem must be valid now, and expired"),
        (changed_to(issued("leaf", ca=False)), "ca-cert.pem must be the certificate of an authority (CA:TRUE)"),
        ({"ca-crl.pem": b"garbage"}, "ca-crl.pem must hold a list signed by each certificate of the chain"),
        ({"ca-crl.pem": revocations(OWN_ROOT)}, "ca-crl.pem must hold a list signed by each certificate of the chain"),
    ],
    ids=[
        *("empty key", "garbage for a key", "key of another", "no key", "garbage for a certificate", "no chain"),
        *("empty chain", "expired", "not an authority", "garbage for a list", "no list of the chain"),
    ],
)


@every_fault
async def test_a_change_that_cannot_be_used_leaves_the_former_in_force(
    tmp_path: Path, changes: dict[str, bytes | None], said: str
) -> None:
    folder = tmp_path / "cacerts"
    write(folder, GOOD)
    async with running(folder) as found:
        write(folder, changes)
        await until(lambda: said in found.keeper.trouble)
        assert found.keeper.trouble.startswith(f"{folder}: ")
        assert found.keeper.signer.is_ready
        assert len(found.heard) == 1


@every_fault
async def test_files_that_cannot_be_used_end_the_start_at_once(
    tmp_path: Path, changes: dict[str, bytes | None], said: str
) -> None:
    folder = tmp_path / "cacerts"
    write(folder, {**GOOD, **changes})
    found = Running(folder)
    with pytest.raises(Unusable) as refused:
        await found.keeper.start()
    assert str(refused.value).startswith(f"{folder}: ")
    assert said in str(refused.value)
    assert found.heard == []


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
async def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    folder = tmp_path / "cacerts"
    write(folder, GOOD)
    async with running(folder) as found:
        write(folder, {"ca-key.pem": None})
        make(folder / "ca-key.pem")
        await until(lambda: "ca-key.pem must be a file that can be read" in found.keeper.trouble)
    with pytest.raises(Unusable, match=r"cacerts: ca-key\.pem must be a file that can be read"):
        await Running(folder).keeper.start()


async def test_a_file_that_is_too_large_is_named_and_the_former_stays(tmp_path: Path) -> None:
    folder = tmp_path / "cacerts"
    write(folder, GOOD)
    async with running(folder) as found:
        os.truncate(folder / "ca-key.pem", 5 << 30)
        await until(lambda: "ca-key.pem must be a file that can be read" in found.keeper.trouble)
        assert found.keeper.signer.is_ready


async def test_a_volume_that_hangs_is_told_of_and_what_changed_meanwhile_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = tmp_path / "cacerts", issued("next")
    write(folder, GOOD)
    with volume(monkeypatch) as mount:
        async with running(folder) as found:
            mount.hangs()
            write(folder, changed_to(other))
            told = f"reading {folder} takes longer than 0.05 s; see whether the volume answers"
            await until(lambda: found.keeper.trouble == told)
            mount.answers()
            await until(lambda: found.keeper.trouble == "" and len(found.heard) == 2)
            assert found.heard[1].certificate.encode() == other.pem


async def test_a_volume_that_hangs_at_the_start_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with volume(monkeypatch) as mount:
        mount.hangs()
        with pytest.raises(Unusable, match=r"cacerts: .*takes longer than 0\.05 s"):
            await Running(tmp_path / "cacerts").keeper.start()


async def test_another_intermediate_is_used_within_a_second_or_so(tmp_path: Path) -> None:
    folder, other = tmp_path / "cacerts", issued("next")
    write(folder, GOOD)
    async with running(folder) as found:
        write(folder, changed_to(other))
        started_s = time.monotonic()
        await until(lambda: len(found.heard) == 2)
        assert time.monotonic() - started_s < 5
        assert found.heard[1].certificate.encode() == other.pem
        assert found.heard[1].roots == found.heard[0].roots


async def test_a_revocation_list_that_comes_is_told_of_and_stays_until_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "cacerts"
    write(folder, GOOD)
    async with running(folder) as found:
        lists = revocations(issued("good"))
        write(folder, {"ca-crl.pem": lists})
        await until(lambda: len(found.heard) == 2)
        write(folder, {"ca-crl.pem": None})
        await until(lambda: len(found.heard) == 3)
    assert [public.crl for public in found.heard] == ["", lists.decode(), lists.decode()]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert read_folder(tmp_path / "none") == {}
