"""Everything at once: a real API server, our server over it, and two unmodified ztunnels with traffic. Accounts, bound
tokens, the distributed root and the secret of the authority are as in a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conftest import require
from tests.dataplane.cluster import NAMESPACE, ROOT_NAMESPACE, Cluster, cluster, until
from tests.dataplane.held import certificates, reaches, until_renewed
from tests.dataplane.rig import PORT, Rig
from tests.dataplane.traffic import Traffic
from tests.kube.conftest import find_executables

pytestmark = [pytest.mark.peer, pytest.mark.slow]

# A self-signed root is renewed at every look, with the key that it has.
ROTATING = {
    "CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL": "3s",
    "CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE": "100",
    "CITADEL_ENABLE_JITTER_FOR_ROOT_CERT_ROTATOR": "false",
}


@pytest_asyncio.fixture
async def running(rig: Rig, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(rig, tmp_path, require("ztunnel"), find_executables(), **ROTATING) as running:
        yield running


async def test_pods_of_a_cluster_talk_through_every_rotation_of_its_root(running: Cluster) -> None:
    nodes = running.rig.nodes
    cart = await running.add_pod(nodes["node-a"], "cart", "10.1.0.1")
    till = await running.add_pod(nodes["node-b"], "till", "10.1.0.2")
    strict = {
        "apiVersion": "security.istio.io/v1",
        "kind": "PeerAuthentication",
        "metadata": {"namespace": NAMESPACE, "name": "default"},
        "spec": {"mtls": {"mode": "STRICT"}},
    }
    await running.client.create(strict)
    for pod in (cart, till):
        await running.make_ready(pod)
    await until(lambda: reaches(cart, till), "the first call")
    for pod in (cart, till):
        assert certificates(pod.node) == {pod.identity: "Available"}

    roots = {await running.root(ROOT_NAMESPACE)}
    with Traffic(cart.inside, till.address, PORT) as traffic:
        await until(lambda: traffic.answered > 10 and traffic.calls > 10, "traffic")
        for _ in range(3):
            await asyncio.to_thread(until_renewed, cart.node, till.node)
            roots.add(await running.root(ROOT_NAMESPACE))
    assert traffic.failures == []
    assert len(roots) == 4
    assert await running.root(NAMESPACE) == await running.root(ROOT_NAMESPACE)
