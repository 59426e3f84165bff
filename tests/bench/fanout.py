"""One change to many streams on loopback: processor time of the server per change and stream. The clients run in a
process of their own; 10,000 pods."""

from __future__ import annotations

import asyncio
import time

from tests.bench import mesh
from tests.bench.report import put, report, spread
from tests.bench.stall import Rig, start_clients

PODS = 10_000
CHANGES = 100


async def measure(streams: int) -> None:
    rig = Rig()
    await rig.start(PODS)
    clients = await start_clients(rig, streams)
    await asyncio.sleep(1)
    taken: list[float] = []
    cpu_s = time.process_time()
    for number in range(CHANGES):
        which, is_ready = number * 7 % 50, number // 50 % 2 == 1
        event = put(mesh.pod(which, ready=is_ready))
        seq = rig.feed.head
        started_s = time.perf_counter()
        rig.pump.emit([event])
        while rig.feed.head == seq:
            await asyncio.sleep(0)
        taken.append(time.perf_counter() - started_s)
        await asyncio.sleep(0.02 + streams * 0.0005)  # all have acknowledged by then; asking would cost more than that
    cpu_s = time.process_time() - cpu_s
    assert _all_acknowledged(rig)
    report(
        "one change to many streams",
        pods=PODS,
        streams=streams,
        cpu_us_per_change_and_stream=cpu_s / CHANGES / streams * 1e6,
        **{f"committed_{key}": value for key, value in spread(taken).items()},
    )
    clients.kill()
    await clients.wait()
    await rig.stop()


def _all_acknowledged(rig: Rig) -> bool:
    return all(
        status.nonce_sent == status.nonce_acked
        for connection in rig.registry.connections()
        for status in connection.types.values()
    )


async def main() -> None:
    for streams in (1, 50, 500):
        await measure(streams)


if __name__ == "__main__":
    asyncio.run(main())
