"""The real server process on a folder, a plain client, and files that are edited under it."""

from __future__ import annotations

import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire.process import ServerProcess, WireClient, eventually, serving

SHOP = """\
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {clusterIP: 10.96.0.5, selector: {app: cart}, ports: [{name: http, port: 80, targetPort: 8080}]}
"""

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: shop
  labels: {{app: cart}}
  annotations: {{ambient.istio.io/redirection: enabled}}
spec: {{nodeName: node-1}}
status: {{phase: Running, podIP: {ip}, conditions: [{{type: Ready, status: "True"}}]}}
"""

POLICY = """\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: only-8080, namespace: shop}
spec:
  selector: {matchLabels: {app: cart}}
  action: ALLOW
  rules: [{to: [{operation: {ports: ["8080"]}}]}]
"""

CART = "Kubernetes//Pod/shop/cart-0"
SERVICE = "shop/cart.shop.svc.cluster.local"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mesh"
    folder.mkdir()
    (folder / "shop.yaml").write_text(SHOP)
    (folder / "cart-0.yaml").write_text(POD.format(name="cart-0", ip="10.1.0.7"))
    return folder


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    with serving(folder, tmp_path / "log") as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[WireClient]:
    client = WireClient(server.grpc_port)
    eventually(lambda: client.ztunnel.is_ready, "the first answers")
    yield client
    client.close()


def test_a_client_holds_what_the_files_mean_and_keeps_holding_it(
    server: ServerProcess, client: WireClient, folder: Path
) -> None:
    ztunnel = client.ztunnel
    assert set(ztunnel.workloads) == {CART}
    assert set(ztunnel.services) == {SERVICE}
    assert SERVICE in ztunnel.workloads[CART].services

    (folder / "cart-1.yaml").write_text(POD.format(name="cart-1", ip="10.1.0.8"))
    eventually(lambda: "Kubernetes//Pod/shop/cart-1" in ztunnel.workloads, "a new pod")

    (folder / "policy.yaml").write_text(POLICY)
    eventually(
        lambda: list(ztunnel.workloads[CART].authorization_policies) == ["shop/only-8080"], "the list of the pod"
    )
    assert set(ztunnel.policies) == {"shop/only-8080"}

    (folder / "cart-1.yaml").unlink()
    eventually(lambda: "Kubernetes//Pod/shop/cart-1" not in ztunnel.workloads, "a pod that is gone")


def test_a_broken_file_is_reported_and_takes_nothing_away(
    server: ServerProcess, client: WireClient, folder: Path
) -> None:
    (folder / "cart-0.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: [\n")
    eventually(lambda: "cart-0.yaml" in _problems(server), "the file among the problems")
    assert CART in client.ztunnel.workloads
    assert "line" in _problems(server)
    (folder / "cart-0.yaml").write_text(POD.format(name="cart-0", ip="10.1.0.9"))
    eventually(lambda: "cart-0.yaml" not in _problems(server), "the problem is over")
    eventually(lambda: client.ztunnel.workloads[CART].addresses[0] == bytes((10, 1, 0, 9)), "the mended file")


def _problems(server: ServerProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/debug/problems", timeout=5) as answer:
        return str(answer.read().decode())


def test_after_a_restart_a_client_gets_only_what_changed(
    server: ServerProcess, client: WireClient, folder: Path
) -> None:
    client.close()
    server.stop(signal.SIGKILL)
    (folder / "cart-1.yaml").write_text(POD.format(name="cart-1", ip="10.1.0.8"))
    server.start()
    again = WireClient(server.grpc_port, client.ztunnel)
    eventually(lambda: len(again.responses) >= 2, "an answer for each type")
    sent = [resource.name for response in again.responses for resource in response.resources]
    assert sent == ["Kubernetes//Pod/shop/cart-1"]
    again.close()


def test_pings_every_second_do_not_end_a_connection(client: WireClient) -> None:
    time.sleep(6)
    assert client.ended is None


def test_sigterm_ends_the_server_with_success(server: ServerProcess, client: WireClient) -> None:
    assert server.stop() == 0
    eventually(lambda: client.ended is not None, "the end of the stream")
    assert client.ended is not None
    assert client.ended.name == "UNAVAILABLE"
