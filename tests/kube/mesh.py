"""The whole way from a real API server to a ztunnel: our source, index, push and gRPC around it, and one simulated
client whose state is compared with the model's. Must not know what is done to the API server meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from ambientd.app import App
from ambientd.ctl import connection
from ambientd.ctl.ztunnel import SimulatedZtunnel
from ambientd.kube.access import find_origin
from ambientd.kube.api import Api
from ambientd.kube.credentials import Credentials
from ambientd.settings import load as load_settings
from ambientd.sources.kubernetes import Cluster
from ambientd.sources.reflector import Pace
from ambientd.sources.watches import State, Watch
from tests.cases.loader import Served, differences, golden
from tests.kube.client import Client, Manifest, Refused
from tests.kube.following import PATIENCE_S
from tests.kube.proxy import ChaosProxy, Seen
from tests.model.model import expected

T = TypeVar("T")

READ = (
    ("v1", "Pod"),
    ("v1", "Namespace"),
    ("v1", "Node"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("discovery.k8s.io/v1", "EndpointSlice"),
    ("networking.istio.io/v1", "ServiceEntry"),
    ("networking.istio.io/v1", "WorkloadEntry"),
    ("security.istio.io/v1", "AuthorizationPolicy"),
    ("security.istio.io/v1", "PeerAuthentication"),
    ("gateway.networking.k8s.io/v1", "Gateway"),
    ("gateway.networking.k8s.io/v1", "GatewayClass"),
)

REAL_PACE = Pace(first_s=0.05, ceiling_s=0.5, healthy_s=0.5, watch_s=60.0, heartbeat_s=60.0, grace_s=5.0, absent_s=1.0)


class Mesh:
    """A running server of ours and its client."""

    def __init__(self, app: App, cluster: Cluster, ztunnel: SimulatedZtunnel) -> None:
        self.app = app
        self.cluster = cluster
        self.ztunnel = ztunnel
        self.removed: list[str] = []
        """Everything that was ever taken from the client."""

    def held(self) -> Served:
        ztunnel = self.ztunnel
        address: dict[str, Any] = {name: {"workload": golden(each)} for name, each in ztunnel.workloads.items()}
        address |= {name: {"service": golden(each)} for name, each in ztunnel.services.items()}
        return Served(address, {name: golden(each) for name, each in ztunnel.policies.items()})

    def watch_of(self, kind: str) -> Watch:
        return next(watch for watch in self.cluster.watches if watch.kind == kind)

    def lists(self) -> int:
        return sum(sum(watch.lists.values()) for watch in self.cluster.watches)

    async def until(self, claim: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not claim():
                await asyncio.sleep(0.02)

    async def agrees(self, client: Client, *, keeps: Iterable[str] = ()) -> None:
        """Returns when the client holds what the model makes of what the API server has now. `keeps`: names that were
        to be there all the time, and must not have been taken away in between."""
        wanted = expected(await everything(client))
        expect = {"address": wanted.addresses, "authorization": wanted.authorizations}
        found: list[str] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                while found := differences(self.held(), expect):
                    # Of many objects the comparison itself takes a while, in which nobody else gets anywhere.
                    await asyncio.sleep(0.05 + len(wanted.addresses) / 5_000)
        except TimeoutError:
            states = [watch.plain(0.0) for watch in self.cluster.watches if watch.state is not State.WATCHING]
            raise AssertionError("\n".join([*found[:20], f"{len(found)} in all", *map(str, states)])) from None
        assert not set(keeps) & set(self.removed)

    async def comes_to_rest(self, proxy: ChaosProxy) -> None:
        """Every kind is watched again, and then nobody lists anything for as long as many a back-off would take. A few
        attempts: the API server itself ends a watch now and then, of a custom kind that was defined anew."""
        for _ in range(4):
            await self.until(lambda: all(watch.state is State.WATCHING for watch in self.cluster.watches))
            before = self.lists(), sum(map(_is_whole_list, proxy.requests))
            await asyncio.sleep(4 * REAL_PACE.ceiling_s)
            if (self.lists(), sum(map(_is_whole_list, proxy.requests))) == before:
                return
        raise AssertionError(f"somebody goes on listing: {[(each.kind, each.lists) for each in self.cluster.watches]}")


def _is_whole_list(seen: Seen) -> bool:
    return seen.is_list and "continue" not in seen.query


async def everything(client: Client) -> list[Manifest]:
    """All objects of the kinds that are read, as the API server has them."""
    found: list[Manifest] = []
    for version, kind in READ:
        namespace = "istio-system" if kind == "ConfigMap" else ""
        listed = await patiently(partial(client.list, version, kind, namespace))
        found += [{"apiVersion": version, "kind": kind, **item} for item in listed["items"]]
    return [item for item in found if item.get("status", {}).get("phase") != "Failed"]


async def patiently(request: Callable[[], Awaitable[T]]) -> T:
    """A server that has just started is ready before all its storage is, and says so with 429."""
    for _ in range(100):
        try:
            return await request()
        except Refused as refused:
            if refused.code != 429:
                raise
        await asyncio.sleep(0.1)
    return await request()


@contextlib.asynccontextmanager
async def mesh(kubeconfig: Path, pace: Pace = REAL_PACE) -> AsyncIterator[Mesh]:
    """Runs while the block does. Entered when the client has its first state."""
    flags = {"grpc-addr": "127.0.0.1:0", "kubeconfig": str(kubeconfig)}
    app = App(load_settings(flags, {}, strict=True)[0])
    api = Api(Credentials(find_origin(str(kubeconfig), {}), {}))
    cluster = Cluster(
        api, "Kubernetes", app.pump.emit, namespace="istio-system", mesh_config_map="istio", pace=pace, dice=Random(1)
    )
    running = Mesh(app, cluster, SimulatedZtunnel())

    def tell(happened: connection.Happened) -> None:
        if isinstance(happened, connection.Received):
            running.removed += [change.name for change in happened.applied.changes if change.after is None]

    async with api, asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(cluster.run()), tasks.create_task(app.pump.run())]
        try:
            async with asyncio.timeout(PATIENCE_S):
                await app.pump.ready()
                await app.grpc.open()
                app.is_open = True
                watching = connection.watch(f"127.0.0.1:{app.grpc.port}", running.ztunnel, tell)
                started.append(tasks.create_task(watching))
                while not running.ztunnel.is_ready:
                    await asyncio.sleep(0.02)
            yield running
        finally:
            await app.grpc.close(0)
            for task in started:
                task.cancel()
