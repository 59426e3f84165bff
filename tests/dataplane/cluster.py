"""The real server over a real API server, on a rig with real ztunnels: everything is as in a cluster, but that this
module is kubelet and istio-cni. No test stands here."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.dataplane.rig import CONTROL_PLANE, Node, Pod, Rig
from tests.kube.apiserver import ApiServer
from tests.kube.client import Client, Manifest, Refused
from tests.kube.test_tokens import make_account
from tests.wire.process import ServerProcess, eventually

NAMESPACE = "shop"
ROOT_NAMESPACE = "istio-system"

_WITHIN_S = 30.0


class Cluster:
    """Nodes with ztunnels, and pods as a test adds them. The calling thread is where the control plane is."""

    def __init__(self, rig: Rig, folder: Path, binary: Path, server: ApiServer, client: Client) -> None:
        self.rig = rig
        self.client = client
        self._folder = folder
        self._binary = binary
        self._api_server = server
        self._control_plane: ServerProcess | None = None

    async def start(self, **variables: str) -> None:
        """Starts the control plane with these environment variables, and two nodes."""
        for namespace in (ROOT_NAMESPACE, NAMESPACE):
            await self.client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        flags = ("--secure-grpc-addr", f"{CONTROL_PLANE}:15012")
        variables = {
            **self.rig.environment(),
            "ROOT_CA_DIR": str(self._folder / "none"),
            "HOME": os.environ.get("HOME", "/"),
            **variables,
        }
        # From the main thread, as every program here: see `Program`.
        self._control_plane = ServerProcess(self._api_server.kubeconfig(), self._folder / "log", *flags, **variables)
        await make_account(self.client, ROOT_NAMESPACE, "ztunnel")
        for name in ("node-a", "node-b"):
            await self._start_node(name)

    async def _start_node(self, name: str) -> None:
        node = self.rig.add_node(name)
        await self.client.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        pod = await self.client.create(_accepted(node.proxy.manifest()))
        token = await self.client.token(ROOT_NAMESPACE, "ztunnel", pod=pod)
        # In a folder by itself, as a volume is: a ztunnel watches that, and connects anew whenever something changes.
        root = node.folder / "roots" / "root-cert.pem"
        root.parent.mkdir()
        root.write_text(await self.root(ROOT_NAMESPACE))
        node.start(self._binary, root, token)
        await until(node.is_ready, f"the ztunnel of {name}")

    async def root(self, namespace: str) -> str:
        """What is distributed to a namespace, as soon as it is there."""
        for _ in range(200):
            try:
                found = await self.client.get("v1", "ConfigMap", "istio-ca-root-cert", namespace)
                return str(found["data"]["root-cert.pem"])
            except Refused:
                await asyncio.sleep(_WITHIN_S / 200)
        raise AssertionError(f"no root in namespace {namespace}")

    async def add_pod(self, node: Node, name: str, address: str) -> Pod:
        """A pod with an account of its own name that is scheduled, has been enrolled, and is not ready yet."""
        await make_account(self.client, NAMESPACE, name)
        pod = self.rig.add_pod(node, name, address, name, NAMESPACE)
        self.rig.enrol(pod)
        manifest = _accepted(pod.manifest())
        del manifest["status"]
        await self.client.create(manifest)
        return pod

    async def make_ready(self, pod: Pod) -> None:
        """What a kubelet writes when the pod runs and is ready."""
        manifest = pod.manifest()
        await self.client.patch_status(manifest, manifest["status"])

    def close(self) -> None:
        if self._control_plane is not None:
            self._control_plane.stop(signal.SIGKILL)


def _accepted(manifest: Manifest) -> Manifest:
    """Without what the API server gives, and without a token that a controller would have to make."""
    manifest = json.loads(json.dumps(manifest))
    del manifest["metadata"]["uid"]
    manifest["spec"]["automountServiceAccountToken"] = False
    return manifest


async def until(holds: Callable[[], bool], what: str) -> None:
    """As `eventually`, in a thread."""
    await asyncio.to_thread(eventually, holds, what, _WITHIN_S)


@asynccontextmanager
async def cluster(
    rig: Rig, folder: Path, binary: Path, programs: tuple[Path, Path], **variables: str
) -> AsyncIterator[Cluster]:
    """Runs while the block does. `programs`: etcd and kube-apiserver; `variables`: environment of the control plane.
    To be entered in the main thread."""
    async with AsyncExitStack() as stack:
        stack.enter_context(rig.control_plane.entered())
        # There is no default route from which it could tell its own address.
        server = ApiServer(*programs, folder, flags=[f"--advertise-address={CONTROL_PLANE}"])
        stack.callback(server.kill)
        await server.start()
        client = await stack.enter_async_context(server.client())
        await client.install_crds()
        made = Cluster(rig, folder, binary, server, client)
        try:
            await made.start(**variables)
            yield made
        finally:
            made.close()
