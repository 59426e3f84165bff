"""From the Ready write of a new pod to its first answered call, and to the first call that it answers, where only
mutual TLS is let through: a real API server, our server over it, and two real ztunnels (`ZTUNNEL_BIN`) in network
namespaces. Needs root, and the programs that `hack/kube` gives. Argument: number of pods of each kind (20 without)."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.cold_start import programs
from tests.bench.report import report
from tests.dataplane.cluster import NAMESPACE, Cluster, cluster
from tests.dataplane.held import reaches
from tests.dataplane.namespaces import missing
from tests.dataplane.rig import PORT, Pod, Rig
from tests.dataplane.traffic import call

_STRICT = {
    "apiVersion": "security.istio.io/v1",
    "kind": "PeerAuthentication",
    "metadata": {"namespace": NAMESPACE, "name": "default"},
    "spec": {"mtls": {"mode": "STRICT"}},
}
_WITHIN_S = 10.0


def answered_at(caller: Pod, target: Pod) -> float:
    """Asks again and again; when the first answer came."""
    deadline_s = time.perf_counter() + _WITHIN_S
    while time.perf_counter() < deadline_s:
        try:
            if call(caller.inside, target.address, PORT, _WITHIN_S) == target.name:
                return time.perf_counter()
        except OSError:
            time.sleep(0.001)
    raise SystemExit(f"no answer from {target.name} to {caller.name} within {_WITHIN_S:g} s")


async def measure(running: Cluster, pods: int) -> None:
    node_a, node_b = running.rig.nodes["node-a"], running.rig.nodes["node-b"]
    await running.client.create(_STRICT)
    cart = await running.add_pod(node_a, "cart", "10.1.0.1")
    till = await running.add_pod(node_b, "till", "10.1.0.2")
    for pod in (cart, till):
        await running.make_ready(pod)
    while not await asyncio.to_thread(reaches, cart, till):
        pass
    outbound_s: list[float] = []
    inbound_s: list[float] = []
    for number in range(pods):
        caller = await running.add_pod(node_a, f"caller-{number}", f"10.2.0.{number + 1}")
        server = await running.add_pod(node_b, f"server-{number}", f"10.3.0.{number + 1}")
        for new, asking, asked, taken_s in ((caller, caller, till, outbound_s), (server, cart, server, inbound_s)):
            await asyncio.sleep(0.3)
            started_s = time.perf_counter()
            answered = asyncio.get_running_loop().run_in_executor(None, answered_at, asking, asked)
            await running.make_ready(new)
            taken_s.append(await answered - started_s)
    for what, taken_s in (("new caller", outbound_s), ("new server", inbound_s)):
        report(
            "first call",
            pod=what,
            p50_ms=statistics.median(taken_s) * 1e3,
            min_ms=min(taken_s) * 1e3,
            max_ms=max(taken_s) * 1e3,
            samples=len(taken_s),
        )


async def main(binary: Path, pods: int) -> None:
    with tempfile.TemporaryDirectory(prefix="ambientd-rig-") as name, Rig(Path(name)) as rig:
        found = programs()
        async with cluster(rig, Path(name), binary, (found / "etcd", found / "kube-apiserver")) as running:
            await measure(running, pods)


if __name__ == "__main__":
    if reason := missing():
        raise SystemExit(f"no network namespaces: {reason}")
    if not os.environ.get("ZTUNNEL_BIN"):
        raise SystemExit("ZTUNNEL_BIN must be the path of a ztunnel")
    asyncio.run(main(Path(os.environ["ZTUNNEL_BIN"]), int(sys.argv[1]) if len(sys.argv) > 1 else 20))
