"""The longest piece of work that holds the event loop while a mesh-wide policy changes at 50,000 pods, with the real
pump and a real stream on loopback that takes everything; and how long the change takes to arrive there."""

from __future__ import annotations

import asyncio
import gc
import sys
import time

import grpc.aio

from ambientd.debug.metrics import Metrics
from ambientd.index.rules import Rules
from ambientd.index.world import World
from ambientd.pump import Pump
from ambientd.push.feed import Feed
from ambientd.resources.decode import decode
from ambientd.resources.events import Event, Put, Synced
from ambientd.resources.kinds import KINDS
from ambientd.xds.connections import Registry
from ambientd.xds.service import Service
from tests.bench import mesh
from tests.bench.report import put, report

PODS = 50_000
CHANGES = 6


class Rig:
    """Pump, feed and service on a loopback port, in this loop."""

    def __init__(self) -> None:
        self.world = World(Rules())
        numbers = iter(range(1 << 62))
        self.feed = Feed(lambda: str(next(numbers)))
        self.registry = Registry()
        self.metrics = Metrics()
        self.pump = Pump(
            self.world, self.feed, cluster="Kubernetes", announce=self.registry.announce, watcher=self.metrics
        )
        service = Service(
            self.feed, self.registry, self.metrics, is_ready=lambda: self.pump.is_ready, cluster_aliases={}
        )
        self.server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
        self.server.add_generic_rpc_handlers((service.handlers(),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    async def start(self, pods: int) -> None:
        """Loads a mesh and opens the port."""
        self.running = asyncio.create_task(self.pump.run())
        events: list[Event] = []
        for kind, raw in mesh.objects(pods):
            value, faults = decode(raw, kind, "Kubernetes")
            events.append(Put(value, faults=faults))
        events.extend(Synced("Kubernetes", kind) for kind in KINDS)
        self.pump.emit(events)
        del events
        await self.pump.ready()
        await self.server.start()
        gc.collect()
        gc.freeze()

    async def stop(self) -> None:
        self.running.cancel()
        await self.server.stop(0)


class Lateness:
    """How late the loop runs what is due, as one who waits feels it; and how much processor time this thread used
    meanwhile, which is what remains on a machine that others use too."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.longest_s = self.longest_cpu_s = 0.0

    async def watch(self) -> None:
        while True:
            before_s, before_cpu_s = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            self.longest_s = max(self.longest_s, time.perf_counter() - before_s - 0.001)
            self.longest_cpu_s = max(self.longest_cpu_s, time.thread_time() - before_cpu_s)


async def measure() -> None:
    rig = Rig()
    await rig.start(PODS)
    clients = await start_clients(rig, 1)
    lateness = Lateness()
    watching = asyncio.create_task(lateness.watch())
    await asyncio.sleep(1)
    for number in range(CHANGES):
        lateness.reset()
        seq = rig.feed.head
        started_s = time.perf_counter()
        rig.pump.emit([put(mesh.peer_authentication("istio-system", ("STRICT", "PERMISSIVE")[number % 2]))])
        while rig.feed.head == seq:
            await asyncio.sleep(0.005)
        committed_s = time.perf_counter() - started_s
        await asyncio.sleep(3)
        report(
            "a mesh-wide policy changes",
            pods=PODS,
            longest_stall_ms=lateness.longest_s * 1e3,
            longest_stall_cpu_ms=lateness.longest_cpu_s * 1e3,
            committed_after_s=committed_s,
        )
    watching.cancel()
    clients.kill()
    await clients.wait()
    await rig.stop()


async def start_clients(rig: Rig, streams: int) -> asyncio.subprocess.Process:
    """A process with so many clients, when all of them hold the full state."""
    clients = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.clients", str(rig.port), str(streams)), stdout=asyncio.subprocess.PIPE
    )
    assert clients.stdout is not None
    await clients.stdout.readline()
    return clients


if __name__ == "__main__":
    asyncio.run(measure())
