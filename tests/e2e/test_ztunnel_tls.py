"""An unmodified ztunnel that has nothing but the TLS port, the root and a token: it gets its mesh and the certificates
of what runs on its node, and of nothing else."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from tests.conftest import require
from tests.e2e.ztunnel import Ztunnel, held_by_simulation, held_by_ztunnel
from tests.kube.processes import free_port
from tests.wire.process import ServerProcess, WireClient, eventually, eventually_equal, serving

POD = """\
apiVersion: v1
kind: Pod
metadata:
  {{name: {name}, namespace: {namespace}, uid: uid-{name}, annotations: {{ambient.istio.io/redirection: enabled}}}}
spec: {{nodeName: {node}, serviceAccountName: {account}}}
status: {{phase: Running, podIP: {ip}, conditions: [{{type: Ready, status: "True"}}]}}
"""
TOKENS = (
    "tokens: [{token: of-node-a, namespace: istio-system, serviceAccount: ztunnel, pod: ztunnel-a, "
    "uid: uid-ztunnel-a, node: node-a}]"
)

pytestmark = pytest.mark.peer


@pytest.fixture
def binary() -> Path:
    return require("ztunnel")


def write_pod(folder: Path, name: str, ip: str, node: str, account: str, namespace: str = "shop") -> None:
    text = POD.format(name=name, namespace=namespace, node=node, account=account, ip=ip)
    (folder / f"{name}.yaml").write_text(text)


@pytest.fixture
def server(binary: Path, tmp_path: Path) -> Iterator[tuple[ServerProcess, int]]:
    folder = tmp_path / "mesh"
    folder.mkdir()
    write_pod(folder, "ztunnel-a", "10.1.0.1", "node-a", "ztunnel", "istio-system")
    write_pod(folder, "cart-0", "10.1.0.2", "node-a", "cart")
    write_pod(folder, "till-0", "10.1.0.3", "node-b", "till")
    (tmp_path / "tokens.yaml").write_text(TOKENS)
    port = free_port()
    flags = ("--secure-grpc-addr", f"127.0.0.1:{port}", "--token-review", f"static:{tmp_path / 'tokens.yaml'}")
    variables = {"CA_TRUSTED_NODE_ACCOUNTS": "istio-system/ztunnel", "ROOT_CA_DIR": str(tmp_path / "none")}
    with serving(folder, tmp_path / "log", *flags, **variables) as server:
        yield server, port


def issued(dump: dict[str, Any]) -> dict[str, str]:
    """State of each certificate that a ztunnel has, by identity."""
    return {held["identity"]: held["state"] for held in dump.get("certificates", ())}


def test_a_real_ztunnel_needs_no_plaintext(binary: Path, server: tuple[ServerProcess, int], tmp_path: Path) -> None:
    process, port = server
    with urllib.request.urlopen(f"http://127.0.0.1:{process.http_port}/debug/ca", timeout=5) as answer:
        roots = json.load(answer)["authority"]["roots"]
    root = tmp_path / "root-cert.pem"
    root.write_text(roots)
    client = WireClient(process.grpc_port)
    ztunnel = Ztunnel(binary, f"localhost:{port}", root, tmp_path, "node-a", token="of-node-a")
    try:
        eventually(lambda: client.ztunnel.is_ready, "the first answers")

        def both() -> tuple[object, object]:
            return held_by_ztunnel(ztunnel.dump()), held_by_simulation(client.ztunnel)

        eventually_equal(both, "the real one holds the same, over TLS")
        cart, late = (f"spiffe://cluster.local/ns/shop/sa/{account}" for account in ("cart", "late"))
        eventually(lambda: issued(ztunnel.dump()).get(cart) == "Available", "the certificate of a pod on its node")

        write_pod(process.folder, "late-0", "10.1.0.9", "node-a", "late")
        eventually(lambda: issued(ztunnel.dump()).get(late) == "Available", "the certificate of a new pod")
        held = {each["identity"]: each for each in ztunnel.dump()["certificates"]}
        assert "spiffe://cluster.local/ns/shop/sa/till" not in held
        assert x509.load_pem_x509_certificate(roots.encode()).subject.rfc4514_string() == "O=cluster.local"
    finally:
        client.close()
        ztunnel.stop()
