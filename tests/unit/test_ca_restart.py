"""A signing process that dies gets the same authority again, or none: never another one (ca.md 10.3, 17)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import cast

from structlog.testing import capture_logs

from ambientd.ca.authority import Public
from ambientd.ca.keeping import Keeper
from ambientd.ca.secrets import Secrets
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
