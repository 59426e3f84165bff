"""Certificates per second through the whole service, and the CPU of each: 1, 4 and 16 callers on one connection each,
P-256 requests by impersonation, a self-signed RSA-2048 authority. Authentication is a look-up, so a TokenReview is not
in it. Then the time from an event to its arrival on a stream, idle and while 16 callers ask. Run:
`python -m tests.bench.ca [seconds per figure]`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import structlog
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse

from ambientd.ca.authority import Authority
from ambientd.ca.signing import Signer
from ambientd.push.frames import ADDRESS
from ambientd_api.ca_pb2 import IstioCertificateRequest
from tests.bench import mesh
from tests.bench.clients import METHOD as STREAM
from tests.bench.report import put, report, spread
from tests.bench.stall import Rig
from tests.unit.authorities import ID, lasting
from tests.unit.certificate_server import CSR, METHOD, A, Served, Z
from tests.unit.worlds import CLUSTER

PODS = 2_000
CHANGES = 300

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _cpu_s(pid: int) -> float:
    """CPU time of a process so far, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


async def _call(port: int, until_s: float) -> list[float]:
    """One caller after the other on a connection of its own; seconds of each request."""
    request = IstioCertificateRequest(csr=CSR, validity_duration=86_400)
    request.metadata.update({"ImpersonatedIdentity": ID})
    raw = request.SerializeToString()
    metadata = (("authorization", "Bearer token-of-z"), ("clusterid", CLUSTER))
    took_s: list[float] = []
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        method = channel.unary_unary(METHOD, None, None)
        while time.perf_counter() < until_s:
            started_s = time.perf_counter()
            await method(raw, metadata=metadata)
            took_s.append(time.perf_counter() - started_s)
    return took_s


async def _callers(port: int, callers: int, for_s: float) -> list[float]:
    until_s = time.perf_counter() + for_s
    return [each for one in await asyncio.gather(*(_call(port, until_s) for _ in range(callers))) for each in one]


def _client(port: int, callers: int, for_s: float) -> None:
    """In a process of its own, so that its CPU is not counted as the server's. It yields to the server, since callers
    would be on other machines."""
    os.nice(10)
    print(*asyncio.run(_callers(port, callers, for_s)))


async def _measure(port: int, signer: Signer, callers: int, for_s: float) -> None:
    assert signer.pid is not None
    pids = (os.getpid(), signer.pid)
    before = [_cpu_s(pid) for pid in pids]
    command: Sequence[str] = (sys.executable, "-m", "tests.bench.ca", "--client", str(port), str(callers), str(for_s))
    client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await client.communicate()
    server_s, signer_s = (_cpu_s(pid) - start for pid, start in zip(pids, before, strict=True))
    took_s = [float(each) for each in out.split()]
    report(
        "certificates",
        callers=callers,
        per_s=len(took_s) / for_s,
        cpu_ms_each=1000 * (server_s + signer_s) / len(took_s),
        of_that_signer_ms=1000 * signer_s / len(took_s),
        **spread(took_s),
    )


async def _follow(port: int) -> None:
    """Prints the time of each response of a stream with a wildcard, as the clock of this machine has it."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.stream_stream(STREAM, None, None)
        call = method()
        node = Node(id="ztunnel~10.0.0.1~ztunnel-0.istio-system~istio-system.svc.cluster.local")
        await call.write(DeltaDiscoveryRequest(node=node, type_url=ADDRESS).SerializeToString())
        while isinstance(raw := await call.read(), bytes):
            print(time.monotonic(), flush=True)
            nonce = DeltaDiscoveryResponse.FromString(raw).nonce
            await call.write(DeltaDiscoveryRequest(type_url=ADDRESS, response_nonce=nonce).SerializeToString())


async def _arrivals(rig: Rig, arrived: asyncio.StreamReader, first: int) -> list[float]:
    """Seconds from an event to its arrival at the client, one event after the other."""
    taken_s: list[float] = []
    for number in range(first, first + CHANGES):
        event = put(mesh.pod(number % 50, ready=number // 50 % 2 == 1))
        started_s = time.monotonic()
        rig.pump.emit([event])
        taken_s.append(float(await arrived.readline()) - started_s)
        await asyncio.sleep(0.005)
    return taken_s


async def _latency(signer: Signer, served: Served) -> None:
    rig = Rig()
    rig.server.add_generic_rpc_handlers((served.service.handlers(),))
    await rig.start(PODS)
    command = (sys.executable, "-m", "tests.bench.ca")
    pipe = asyncio.subprocess.PIPE
    client = await asyncio.create_subprocess_exec(*command, "--stream", str(rig.port), stdout=pipe)
    assert client.stdout is not None
    await client.stdout.readline()
    first = 0
    for state, callers in (("idle", 0), ("saturated", 16)):
        asking = None
        if callers:
            asking = await asyncio.create_subprocess_exec(
                *command, "--client", str(rig.port), str(callers), "600", stdout=asyncio.subprocess.DEVNULL
            )
            while signer.queued < 2:
                await asyncio.sleep(0.01)
        taken_s = await _arrivals(rig, client.stdout, first)
        first += CHANGES
        report("event to stream beside certificates", pods=PODS, state=state, callers=callers, **spread(taken_s))
        if asking is not None:
            asking.kill()
            await asking.wait()
    client.kill()
    await client.wait()
    await rig.stop()


async def main(for_s: float) -> None:
    """One line for each number of callers."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())

    async def load() -> Authority:
        return lasting()

    signer = Signer(load)
    await signer.start()
    served = Served(signer, wait_s=2.0)
    served.emit([*Z, *A])
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((served.service.handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for callers in (1, 4, 16):
        await _measure(port, signer, callers, for_s)
    await server.stop(None)
    await _latency(signer, served)
    await signer.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--client", port, callers, for_s]:
            _client(int(port), int(callers), float(for_s))
        case ["--stream", port]:
            asyncio.run(_follow(int(port)))
        case [for_s]:
            asyncio.run(main(float(for_s)))
        case _:
            asyncio.run(main(5.0))
