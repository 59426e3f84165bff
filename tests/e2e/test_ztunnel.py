"""An unmodified ztunnel against the real server process: it holds what a simulated one holds, while files change, and
after the server was killed."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.e2e.tls_front import TlsFront
from tests.e2e.ztunnel import Ztunnel, held_by_simulation, held_by_ztunnel
from tests.wire.process import ServerProcess, WireClient, eventually, eventually_equal, serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "shop"

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: late-0, namespace: shop, labels: {app: cart}}
spec: {nodeName: node-b}
status: {phase: Running, podIP: 10.244.9.9, conditions: [{type: Ready, status: "%s"}]}
"""
POLICY = """\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: late, namespace: shop}
spec: {selector: {matchLabels: {app: cart}}, action: DENY, rules: [{to: [{operation: {ports: ["81", "82"]}}]}]}
"""

pytestmark = pytest.mark.peer


@pytest.fixture
def binary() -> Path:
    return require("ztunnel")


@pytest.fixture
def server(binary: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    folder = tmp_path / "mesh"
    shutil.copytree(EXAMPLE, folder)
    with serving(folder, tmp_path / "log") as server:
        yield server


def test_a_real_ztunnel_holds_what_a_simulated_one_holds(binary: Path, server: ServerProcess, tmp_path: Path) -> None:
    front = TlsFront(server.grpc_port, tmp_path)
    ztunnel = Ztunnel(binary, f"localhost:{front.port}", front.root, tmp_path, "node-a")
    client = WireClient(server.grpc_port)
    try:
        eventually(lambda: client.ztunnel.is_ready, "the first answers")

        def both() -> tuple[object, object]:
            return held_by_ztunnel(ztunnel.dump()), held_by_simulation(client.ztunnel)

        eventually_equal(both, "the real one holds the same")
        assert len(client.ztunnel.workloads) > 3

        late = "Kubernetes//Pod/shop/late-0"
        (server.folder / "late.yaml").write_text(POD % "False" + "---\n" + POLICY)
        eventually(lambda: late in client.ztunnel.workloads, "a new pod")
        eventually_equal(both, "both have the new pod and its policy")

        (server.folder / "late.yaml").write_text(POD % "True")
        eventually(lambda: "shop/late" not in client.ztunnel.policies, "the policy is gone")
        eventually_equal(both, "both have the change")

        server.stop(signal.SIGKILL)
        (server.folder / "late.yaml").unlink()
        server.start()
        again = WireClient(server.grpc_port, client.ztunnel)
        eventually(lambda: late not in client.ztunnel.workloads, "the removal after a restart")
        eventually_equal(both, "both are as the files are after a restart")
        again.close()
    finally:
        client.close()
        ztunnel.stop()
        front.close()
