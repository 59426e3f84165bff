"""The TLS port of a real server process on a folder: so many connections that open at once, each until it holds the
full state; and the time of an answer on an xDS stream: with nothing else to do, beside processes that keep the
processors busy, and while 16 callers ask for certificates as fast as they can. What the processes cost is what the
system's scheduler does where more wants to run than can, so compare the last figure with both. The callers yield to the
server, since theirs would be other machines. Run: `python -m tests.bench.tls [connections]`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import grpc.aio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest

from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd_api.ca_pb2 import IstioCertificateRequest
from tests.bench.clients import METHOD, tail
from tests.bench.report import report, spread
from tests.kube.processes import free_port
from tests.unit.certificate_server import CSR
from tests.unit.certificate_server import METHOD as CREATE
from tests.wire.process import serving

POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: istio-system, uid: uid-{name}}}
spec: {{nodeName: node-a, serviceAccountName: {account}}}
status: {{phase: Running, podIP: 10.1.{high}.{low}}}
---
"""
TOKENS = (
    "tokens: [{token: of-node-a, namespace: istio-system, serviceAccount: ztunnel, pod: ztunnel-a, "
    "uid: uid-ztunnel-a, node: node-a}]"
)
METADATA = (("authorization", "Bearer of-node-a"), ("clusterid", "Kubernetes"))
PODS = 200
CALLERS = 16
YIELD = 10
"""What is added to the nice value of what would run elsewhere."""
ASKED = 1000


def channel_to(port: int, root: bytes, number: int) -> grpc.aio.Channel:
    options = [("grpc.use_local_subchannel_pool", 1), ("bench.number", number)]
    return grpc.aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(root), options=options)


class Stream:
    """One client that holds the full state."""

    def __init__(self, channel: grpc.aio.Channel, number: int) -> None:
        self._call = channel.stream_stream(METHOD, None, None)(metadata=METADATA)  # type: ignore[call-arg]
        self._node = Node(id=f"ztunnel~10.0.0.1~z-{number}.istio-system~istio-system.svc.cluster.local")

    async def open(self) -> None:
        for type_url in (ADDRESS, AUTHORIZATION):
            request = DeltaDiscoveryRequest(node=self._node, type_url=type_url)
            await self._call.write(request.SerializeToString())
        for _ in range(2):
            await self._read()

    async def ask(self, name: str) -> None:
        """Asks for one resource by name, and takes the answer."""
        request = DeltaDiscoveryRequest(type_url=ADDRESS, resource_names_subscribe=[name])
        await self._call.write(request.SerializeToString())
        await self._read()

    async def _read(self) -> None:
        raw = await self._call.read()
        assert isinstance(raw, bytes)
        type_url, nonce = tail(raw)
        await self._call.write(DeltaDiscoveryRequest(type_url=type_url, response_nonce=nonce).SerializeToString())


async def connect_at_once(port: int, root: bytes, connections: int) -> None:
    channels = [channel_to(port, root, number) for number in range(connections)]
    took_s: list[float] = []
    started_s = time.perf_counter()

    async def one(number: int, channel: grpc.aio.Channel) -> None:
        await Stream(channel, number).open()
        took_s.append(time.perf_counter() - started_s)

    await asyncio.gather(*(one(number, channel) for number, channel in enumerate(channels)))
    report("TLS connections at once, each until it holds the full state", connections=connections, **spread(took_s))
    await asyncio.gather(*(channel.close(None) for channel in channels))


async def answers(port: int, root: bytes, figure: str) -> None:
    async with channel_to(port, root, -1) as channel:
        stream = Stream(channel, 0)
        await stream.open()
        took_s: list[float] = []
        for _ in range(ASKED):
            started_s = time.perf_counter()
            await stream.ask("Kubernetes//Pod/istio-system/app-1")
            took_s.append(time.perf_counter() - started_s)
            await asyncio.sleep(0.002)
    report(figure, **spread(took_s))


@contextmanager
def busy() -> Iterator[None]:
    """Every processor is wanted by somebody else, as by the signing process and the callers."""
    processes = [
        subprocess.Popen([sys.executable, "-c", f"import os\nos.nice({nice})\nwhile True: pass"])
        for nice in ([5] + [YIELD] * (os.cpu_count() or 1))
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def call_for(port: int, root: bytes, for_s: float) -> None:
    """Certificates as fast as the callers can, and how many."""
    request = IstioCertificateRequest(csr=CSR, validity_duration=86_400)
    request.metadata.update({"ImpersonatedIdentity": "spiffe://cluster.local/ns/istio-system/sa/app"})
    raw = request.SerializeToString()
    os.nice(YIELD)
    until_s = time.perf_counter() + for_s

    async def one(number: int) -> int:
        count = 0
        async with channel_to(port, root, number) as channel:
            method = channel.unary_unary(CREATE, None, None)
            while time.perf_counter() < until_s:
                await method(raw, metadata=METADATA)
                count += 1
        return count

    print(sum(await asyncio.gather(*map(one, range(CALLERS)))))


def main(connections: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder = scratch / "mesh"
        folder.mkdir()
        pods = [POD.format(name="ztunnel-a", account="ztunnel", high=0, low=1)]
        pods += [POD.format(name=f"app-{i}", account="app", high=i // 250 + 1, low=i % 250) for i in range(PODS)]
        (folder / "pods.yaml").write_text("".join(pods))
        (scratch / "tokens.yaml").write_text(TOKENS)
        port = free_port()
        flags = ("--secure-grpc-addr", f"127.0.0.1:{port}", "--token-review", f"static:{scratch / 'tokens.yaml'}")
        variables = {"CA_TRUSTED_NODE_ACCOUNTS": "istio-system/ztunnel", "ROOT_CA_DIR": str(scratch / "none")}
        with serving(folder, scratch / "log", *flags, **variables) as server:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/debug/ca", timeout=5) as answer:
                root: str = json.load(answer)["authority"]["roots"]
            (scratch / "root.pem").write_text(root)
            asyncio.run(connect_at_once(port, root.encode(), connections))
            asyncio.run(answers(port, root.encode(), "answer on an xDS stream, idle"))
            with busy():
                asyncio.run(answers(port, root.encode(), "answer on an xDS stream, beside busy processes"))
            for_s = 8.0
            arguments = [sys.executable, "-m", "tests.bench.tls", "callers", str(port), name, str(for_s)]
            with subprocess.Popen(arguments, stdout=subprocess.PIPE) as callers:
                time.sleep(2.0)
                figure = f"answer on an xDS stream, while {CALLERS} callers ask for certificates"
                asyncio.run(answers(port, root.encode(), figure))
                issued = int(callers.communicate()[0])
            report("certificates meanwhile", per_s=issued / for_s, callers=CALLERS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["callers"]:
        asyncio.run(call_for(int(sys.argv[2]), (Path(sys.argv[3]) / "root.pem").read_bytes(), float(sys.argv[4])))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
