"""A server process that is killed while objects change, again and again: its client ends with what the model makes
of the objects, and one that comes back is sent only what changed."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ambientd.ctl.ztunnel import SimulatedZtunnel
from tests.cases.loader import Served, differences, golden
from tests.kube.apiserver import ApiServer
from tests.kube.client import Client
from tests.kube.mesh import everything, patiently
from tests.kube.test_reflector_real import pod, policy
from tests.model.model import expected
from tests.wire.process import ServerProcess, WireClient, serving

pytestmark = [pytest.mark.peer, pytest.mark.slow]

KILLS = 5
PATIENCE_S = 40.0


class Churn:
    """Pods and policies that come, change and go without a pause."""

    def __init__(self, client: Client, namespace: str, dice: Random) -> None:
        self._client = client
        self._namespace = namespace
        self._dice = dice
        self._pods: set[int] = set()

    async def run(self) -> None:
        while True:
            await self.change()

    async def change(self) -> None:
        number = self._dice.randrange(20)
        manifest = pod(self._namespace, f"p-{number}", f"10.77.0.{number + 1}")
        if number not in self._pods:
            self._pods.add(number)
            await patiently(lambda: self._client.create(manifest))
        elif self._dice.random() < 0.5:
            ready = self._dice.choice(["True", "False"])
            status = {"conditions": [{"type": "Ready", "status": ready}]}
            await patiently(lambda: self._client.patch_status(manifest, status))
        else:
            self._pods.discard(number)
            await patiently(lambda: self._client.delete(manifest))


async def test_a_client_of_a_server_that_is_killed_ends_as_the_model_says(
    api_server: ApiServer, client: Client, namespace: str, tmp_path: Path
) -> None:
    dice = Random(20)
    await client.create(policy(namespace, "stays"))
    churn = Churn(client, namespace, dice)
    ztunnel = SimulatedZtunnel()

    with ExitStack() as stack:
        running = serving(api_server.kubeconfig(), tmp_path / "log", "--namespace", namespace, "--secure-grpc-addr", "")
        server: ServerProcess = await asyncio.to_thread(stack.enter_context, running)
        wire = WireClient(server.grpc_port, ztunnel)
        changing = asyncio.create_task(churn.run())
        for _ in range(KILLS):
            await asyncio.sleep(dice.uniform(0.1, 1.5))
            server.stop(signal.SIGKILL)
            wire.close()
            await asyncio.to_thread(server.start)
            wire = WireClient(server.grpc_port, ztunnel)
        changing.cancel()
        await asyncio.wait([changing])
        await _agrees(client, ztunnel)

        server.stop(signal.SIGKILL)
        wire.close()
        await churn.change()
        await asyncio.to_thread(server.start)
        wire = WireClient(server.grpc_port, ztunnel)
        await _agrees(client, ztunnel)
        async with asyncio.timeout(PATIENCE_S):
            while len(wire.responses) < 2:
                await asyncio.sleep(0.02)
        sent = [resource.name for response in wire.responses for resource in response.resources]
        assert len(sent) <= 1, sent
        wire.close()


async def _agrees(client: Client, ztunnel: SimulatedZtunnel) -> None:
    world = expected(await everything(client))
    expect = {"address": world.addresses, "authorization": world.authorizations}
    found: list[str] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            while found := differences(_held(ztunnel), expect):
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError("\n".join(found[:20])) from None


def _held(ztunnel: SimulatedZtunnel) -> Served:
    address: dict[str, Any] = {name: {"workload": golden(each)} for name, each in list(ztunnel.workloads.items())}
    address |= {name: {"service": golden(each)} for name, each in list(ztunnel.services.items())}
    return Served(address, {name: golden(each) for name, each in list(ztunnel.policies.items())})
