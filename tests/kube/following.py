"""A reader of an API server's objects, as a test sees it: what it holds, and whether anything was ever taken away from
it that was there. Must not know how events come about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from ambientd.kube.access import find_origin
from ambientd.kube.api import Api
from ambientd.kube.credentials import Credentials
from ambientd.resources.events import Absent, Delete, Event, Invalid, Put, Replace, Synced
from ambientd.resources.ref import Ref
from ambientd.sources.kubernetes import Cluster
from ambientd.sources.reflector import Pace, Sleep
from ambientd.sources.watches import Watch

PATIENCE_S = 60.0
"""After which a test has failed, however slow the machine is."""

QUICK = Pace(first_s=0.002, ceiling_s=0.02, healthy_s=5.0, watch_s=60.0, heartbeat_s=60.0, grace_s=30.0, absent_s=1.0)
"""For tests that wait for what follows, and not for time."""


class Reader:
    """Takes events. `versions` are the resource versions of what it holds."""

    def __init__(self, exists: Callable[[Ref], bool] = lambda _: False) -> None:
        """`exists`: whether an object is there now; a deletion of it is a wrong one."""
        self._exists = exists
        self.versions: dict[Ref, str] = {}
        self.invalid: dict[Ref, Invalid] = {}
        self.listed: set[str] = set()
        self.absent: set[str] = set()
        self.batches: list[list[Event]] = []
        self.wrongly_removed: list[Ref] = []
        self._came = asyncio.Event()

    def emit(self, events: list[Event]) -> None:
        self.batches.append(events)
        for event in events:
            self._take(event)
        self._came.set()

    def _take(self, event: Event) -> None:
        match event:
            case Put():
                ref = event.object.ref
                self.versions[ref] = event.resource_version
                self.invalid.pop(ref, None)
            case Invalid():
                self.invalid[event.ref] = event
            case Delete():
                if self._exists(event.ref):
                    self.wrongly_removed.append(event.ref)
                self.versions.pop(event.ref, None)
                self.invalid.pop(event.ref, None)
            case Synced():
                self.listed.add(event.kind)
                self.absent.discard(event.kind)
            case Absent():
                self.absent.add(event.kind)
            case Replace():
                raise AssertionError("an API server is followed by differences")

    async def until(self, claim: Callable[[], bool]) -> None:
        """Returns as soon as it holds; looks after each batch, and now and then. Fails when it never does."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not claim():
            assert time.monotonic() < deadline_s, "this never came true"
            self._came.clear()
            try:
                async with asyncio.timeout(0.02):
                    await self._came.wait()
            except TimeoutError:
                pass

    def names(self, kind: str) -> list[str]:
        return sorted(ref.name for ref in self.versions if ref.kind == kind)


class Following:
    """A running source and its reader."""

    def __init__(self, reader: Reader, cluster: Cluster) -> None:
        self.reader = reader
        self.cluster = cluster

    def watch(self, kind: str) -> Watch:
        return next(watch for watch in self.cluster.watches if watch.kind == kind)

    async def until_listed(self) -> None:
        await self.reader.until(lambda: all(watch.is_listed for watch in self.cluster.watches))


@asynccontextmanager
async def following(
    kubeconfig: Path,
    *,
    pace: Pace = QUICK,
    exists: Callable[[Ref], bool] = lambda _: False,
    sleep: Sleep = asyncio.sleep,
) -> AsyncIterator[Following]:
    """Follows an API server while the block runs; a failure of the source fails the block."""
    reader = Reader(exists)
    api = Api(Credentials(find_origin(str(kubeconfig), {}), {}), per_s=10_000, burst=10_000)
    cluster = Cluster(
        api,
        "c1",
        reader.emit,
        namespace="istio-system",
        mesh_config_map="istio",
        pace=pace,
        dice=Random(1),
        sleep=sleep,
    )
    async with api, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(cluster.run())
        try:
            yield Following(reader, cluster)
        finally:
            running.cancel()
