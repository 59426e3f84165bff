"""Cold start on a real API server: from the start of the process to ready, its peak and its settled memory, and what an
idle server costs; and how its parts share the time, one after another on the same objects. Sizes in pods as arguments
(10000 without). Needs the programs that `hack/kube` gives."""

from __future__ import annotations

import asyncio
import copy
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from ambientd.kube.access import find_origin
from ambientd.kube.api import Api
from ambientd.kube.credentials import Credentials
from ambientd.kube.errors import NotFound
from ambientd.kube.resources import Resource, resources
from ambientd.kube.turns import Urgency
from ambientd.kube.wire import Page, decode_page
from ambientd.sources.reflector import PAGE_OBJECTS
from tests.bench import mesh
from tests.bench.report import Bench, report
from tests.kube.apiserver import ApiServer, running
from tests.kube.client import Client
from tests.kube.processes import free_port

WRITERS = 24
SETTLE_S = 20.0
_FOLDER = Path(__file__).parents[2]


def programs() -> Path:
    """The folder with etcd and kube-apiserver; built now, if they never were."""
    found = subprocess.run([_FOLDER / "hack" / "kube"], check=True, capture_output=True, text=True)
    return Path(found.stdout.strip())


def manifests(pods: int) -> Iterable[list[dict[str, Any]]]:
    """The objects of a mesh in groups, each of which needs the ones before it."""
    nodes, namespaces = -(-pods // mesh.PODS_PER_NODE), -(-pods // mesh.PODS_PER_NAMESPACE)
    yield [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "istio-system"}}]
    yield [mesh.namespace(number) for number in range(namespaces)]
    yield [mesh.node(number) for number in range(nodes)]
    yield [mesh.policy(f"ns-{number}", "base", None, "8080") for number in range(namespaces)] + [
        _without_addresses(mesh.service(number, app)) for number in range(namespaces) for app in range(3)
    ]
    yield [_accepted(mesh.pod(number)) for number in range(pods)]


def _without_addresses(service: dict[str, Any]) -> dict[str, Any]:
    service = copy.deepcopy(service)
    for field in ("clusterIP", "clusterIPs", "ipFamilies"):
        del service["spec"][field]
    return service


def _accepted(pod: dict[str, Any]) -> dict[str, Any]:
    pod = copy.deepcopy(pod)
    for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
        del pod["metadata"][field]
    pod["spec"]["containers"][0]["volumeMounts"] = []
    pod["status"].pop("containerStatuses")
    return pod


async def write(server: ApiServer, pods: int) -> None:
    """Writes a mesh, with several writers at once."""
    for group in manifests(pods):
        waiting = iter(group)

        async def writer(client: Client, left: Any = waiting) -> None:
            for manifest in left:
                await client.create(manifest)

        async with server.client() as client:
            await asyncio.gather(*(writer(client) for _ in range(WRITERS)))


class Process:
    """`ambientd serve` on an API server."""

    def __init__(self, kubeconfig: Path) -> None:
        self.http_port = free_port()
        flags = [
            *("--kubeconfig", str(kubeconfig), "--secure-grpc-addr", "", "--monitoring-addr", ""),
            *("--http-addr", f"127.0.0.1:{self.http_port}", "--grpc-addr", f"127.0.0.1:{free_port()}"),
        ]
        program = "import sys; from ambientd.cli import main; sys.exit(main())"
        self.started_s = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, "serve", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def wait_ready(self) -> float:
        """Seconds from the start to ready."""
        while self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/ready", timeout=5):
                    return time.perf_counter() - self.started_s
            except OSError:
                time.sleep(0.02)
        raise SystemExit("the server has ended")

    def memory_bytes(self, what: str) -> int:
        """`VmHWM` (peak) or `VmRSS` (now)."""
        with open(f"/proc/{self._process.pid}/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith(what))

    def cpu_s(self) -> float:
        with open(f"/proc/{self._process.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


async def read_pages(api: Api, resource: Resource) -> AsyncIterator[Page]:
    """The list of a kind, as a reflector asks for it; nothing of a kind that is not there."""
    parameters = {"limit": str(PAGE_OBJECTS)}
    while True:
        try:
            raw = await api.get(resource.path(resource.versions[0]), parameters, urgency=Urgency.WATCH)
        except NotFound:
            return
        page = decode_page(raw)
        yield page
        if not page.after:
            return
        parameters["continue"] = page.after


async def measure_parts(server: ApiServer, pods: int) -> None:
    """What a start is made of. Bodies and versions of resources are encoded within the index; `encode` is what turns
    them into the answers of a first client."""
    started_s = time.perf_counter()
    raws: list[tuple[str, bytes]] = []
    async with Api(Credentials(find_origin(str(server.kubeconfig()), {}), {}), per_s=1e6) as api:
        for resource in resources("istio-system", "istio"):
            async for page in read_pages(api, resource):
                raws.extend((resource.kind, bytes(item)) for item in page.items)
    list_s = time.perf_counter() - started_s
    bench = Bench(pods, raws)
    report(
        "cold start, parts",
        pods=pods,
        objects=bench.objects,
        list_s=list_s,
        decode_s=bench.decode_s,
        index_s=bench.index_s,
        encode_s=bench.encode(),
    )


async def measure(programs: Path, pods: int) -> None:
    async with running(programs / "etcd", programs / "kube-apiserver", "ambientd-bench-") as server:
        await write(server, pods)
        for _ in range(3):
            process = Process(server.kubeconfig())
            try:
                ready_s = await asyncio.to_thread(process.wait_ready)
                cpu_s = process.cpu_s()
                await asyncio.sleep(SETTLE_S)
                idle_from_s = process.cpu_s()
                await asyncio.sleep(SETTLE_S)
                report(
                    "cold start",
                    pods=pods,
                    ready_s=ready_s,
                    cpu_s=cpu_s,
                    peak_bytes=process.memory_bytes("VmHWM"),
                    settled_bytes=process.memory_bytes("VmRSS"),
                    idle_cpu_share=(process.cpu_s() - idle_from_s) / SETTLE_S,
                )
            finally:
                process.stop()
        await measure_parts(server, pods)


def main() -> None:
    for pods in map(int, sys.argv[1:] or ["10000"]):
        asyncio.run(measure(programs(), pods))


if __name__ == "__main__":
    main()
