"""Where the authority is kept, and what follows when that changes (ca.md 10): files are reloaded as a whole or not at
all."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ambientd.ca.authority import Authority, Public, Unusable
from ambientd.ca.keeping import Keeper, read_folder
from ambientd.ca.making import create_self_signed
from ambientd.security import Security

PATIENCE_S = 20.0


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

    async def until(self, claim: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not claim():
                await asyncio.sleep(0.02)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    found = Running(folder)
    await found.keeper.start()
    task = asyncio.create_task(found.keeper.run())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.wait([task])


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
        await found.until(lambda: "root bundle differs" in found.keeper.trouble)
        assert len(found.heard) == 1

        plug_in(folder, first)
        await found.until(lambda: found.keeper.trouble == "")
        assert found.keeper.signer.public == found.heard[0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("ca-key.pem", b"", "ca-key.pem must be an unencrypted private key"),
        ("ca-cert.pem", b"garbage", "ca-cert.pem must hold a certificate"),
        ("cert-chain.pem", None, "cert-chain.pem must be there beside the others"),
    ],
)
async def test_half_of_a_change_leaves_the_former_in_force(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    folder = tmp_path / "cacerts"
    plug_in(folder, made())
    async with running(folder) as found:
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)
        await found.until(lambda: said in found.keeper.trouble)
        assert found.keeper.signer.is_ready
        assert len(found.heard) == 1


async def test_part_of_a_set_ends_the_start_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "cacerts"
    plug_in(folder, made())
    (folder / "ca-key.pem").unlink()
    with pytest.raises(Unusable, match=r"cacerts: ca-key\.pem must be there beside the others"):
        await Running(folder).keeper.start()


async def test_a_key_of_another_certificate_ends_the_start_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "cacerts"
    plug_in(folder, made())
    (folder / "ca-key.pem").write_bytes(made().key.pem)
    with pytest.raises(Unusable, match=r"ca-key\.pem must be the key of ca-cert\.pem"):
        await Running(folder).keeper.start()


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert read_folder(tmp_path / "none") == {}
