"""A real API server for the tests of this folder: one for all of them, in a folder of its own. Tests keep apart by
namespaces; one that changes what others rely on (custom kinds, the past) puts it right or starts its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conftest import PEERS, lacks, require
from tests.kube.apiserver import ApiServer, running
from tests.kube.client import Client
from tests.kube.proxy import ChaosProxy

_HACK_KUBE = Path(__file__).parents[2] / "hack" / "kube"


def find_executables() -> tuple[Path, Path]:
    """Paths of etcd and kube-apiserver: by their variables where one is set (`require`), else as `hack/kube` finds
    them. Nothing is built here. Skips the calling test, or fails it where the run requires either, with the reason."""
    if any(os.environ.get(PEERS[peer]) for peer in ("etcd", "kube-apiserver")):
        return require("etcd"), require("kube-apiserver")
    check = subprocess.run([_HACK_KUBE, "--check"], capture_output=True, text=True, check=False)
    if check.returncode == 0:
        folder = Path(check.stdout.strip())
        return folder / "etcd", folder / "kube-apiserver"
    reason = f"needs a real kube-apiserver and etcd; {check.stderr.strip()}"
    if os.environ.get("KUBEBUILDER_ASSETS"):
        # Somebody meant the test to run.
        pytest.fail(reason, pytrace=False)
    lacks(reason, "kube-apiserver", "etcd")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def api_server() -> AsyncIterator[ApiServer]:
    """Runs for the whole session. Has the custom kinds that we read."""
    async with running(*find_executables(), "ambientd-kube-") as server:
        yield server


@pytest_asyncio.fixture
async def client(api_server: ApiServer) -> AsyncIterator[Client]:
    """An administrator's client, in the test's own loop."""
    async with api_server.client() as client:
        yield client


@pytest_asyncio.fixture
async def proxy(api_server: ApiServer) -> AsyncIterator[ChaosProxy]:
    """A proxy before the API server, without faults yet."""
    async with ChaosProxy(api_server) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def namespace(client: Client) -> str:
    """The name of a new namespace. It stays: without controllers nothing would empty it."""
    made = await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-"}})
    return str(made["metadata"]["name"])
