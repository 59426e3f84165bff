"""A signing process that dies gets the same authority again, or none: never another one (ca.md 10.3, 17)."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import cast

from structlog.testing import capture_logs

from ambientd.ca.authority import Public
from ambientd.ca.keeping import Keeper
from ambientd.ca.secrets import Conflict, Data, Secret, Secrets
from ambientd.security import Security


class Stored:
    """Secrets of a namespace, without an API server."""

    def __init__(self) -> None:
        self.held: dict[str, Secret] = {}
        self.created = 0

    def source(self, name: str) -> str:
        return f"Secret istio-system/{name}"

    async def read(self, name: str) -> Secret | None:
        return self.held.get(name)

    async def create(self, name: str, kind: str, data: Data) -> None:
        if name in self.held:
            raise Conflict(f"{name} is there")
        self.created += 1
        self.held[name] = Secret(name, data, "1")


async def test_a_secret_that_was_deleted_is_not_made_again_while_the_server_runs(tmp_path: Path) -> None:
    stored, heard = Stored(), list[Public]()
    security = Security(ca_dir=str(tmp_path / "none"), root_check_s=None)
    keeper = Keeper(security, cast("Secrets", stored), trust_domain=lambda: "cluster.local", changed=heard.append)
    with capture_logs() as logs:
        await keeper.start()
        running = asyncio.create_task(keeper.run())
        gone = stored.held.pop("istio-ca-secret")
        assert keeper.signer.pid is not None
        os.kill(keeper.signer.pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            while not any("has no authority" in entry["event"] for entry in logs):
                await asyncio.sleep(0.005)
            assert not keeper.signer.is_ready
            stored.held["istio-ca-secret"] = gone
            while not keeper.signer.is_ready:
                await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.wait([running])
    assert stored.created == 1
    assert len({public.roots for public in heard}) == 1
