"""The way from a real API server to a client, while the server and the network do what they do on a bad day. Each time
the client ends with what the model makes of the server's objects, what was there all the time was never taken away, and
nobody goes on listing."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec import structs

from ambientd.sources.watches import State
from tests.kube.apiserver import ApiServer
from tests.kube.client import Client, Manifest
from tests.kube.mesh import REAL_PACE, Mesh, mesh, patiently
from tests.kube.proxy import Answer, ChaosProxy, Cut, Delay, Fault, Hangup, Seen, Stall, Truncate

pytestmark = [pytest.mark.peer, pytest.mark.slow]


def pod(namespace: str, name: str, ip: str, **labels: str) -> Manifest:
    running = {
        "phase": "Running",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": "till", **labels}},
        "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "till"}]},
        "status": running,
    }


def policy(namespace: str, name: str) -> Manifest:
    return {
        "apiVersion": "security.istio.io/v1",
        "kind": "AuthorizationPolicy",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "selector": {"matchLabels": {"app": "till"}},
            "action": "DENY",
            "rules": [{"from": [{"source": {"namespaces": ["other"]}}]}],
        },
    }


def workload_entry(namespace: str, name: str, ip: str) -> Manifest:
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "WorkloadEntry",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"address": ip, "labels": {"app": "till"}},
    }


class Shop:
    """A namespace with two pods and a policy that stay, and changes on demand."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.keeps = [f"Kubernetes//Pod/{namespace}/{name}" for name in ("stays-1", "stays-2")]
        self.keeps.append(f"{namespace}/stays")
        self._number = 0

    async def open(self) -> None:
        # An address may be another test's too, which the model knows about as well; but a client should see one each.
        self._network = f"10.{int(self.namespace[-2:], 36) % 200}.{int(self.namespace[-4:-2], 36) % 250}"
        await self.client.create(pod(self.namespace, "stays-1", f"{self._network}.1"))
        await self.client.create(pod(self.namespace, "stays-2", f"{self._network}.2"))
        await self.client.create(policy(self.namespace, "stays"))
        await self.change()

    async def change(self) -> None:
        """A pod comes, and the one of the last time goes; so does a policy."""
        self._number += 1
        new, old = self._number, self._number - 1
        await patiently(lambda: self.client.create(pod(self.namespace, f"moves-{new}", f"{self._network}.{10 + new}")))
        await patiently(lambda: self.client.create(policy(self.namespace, f"moves-{new}")))
        if old:
            await patiently(lambda: self.client.delete(pod(self.namespace, f"moves-{old}", "")))
            await patiently(lambda: self.client.delete(policy(self.namespace, f"moves-{old}")))


def stored(manifest: Manifest) -> dict[str, Any]:
    """A write of a custom object as the API server stores one, past the API server."""
    metadata = manifest["metadata"]
    key = f"/registry/networking.istio.io/workloadentries/{metadata['namespace']}/{metadata['name']}"
    created = {"uid": metadata["name"], "creationTimestamp": "2026-01-01T00:00:00Z"}
    content = json.dumps({**manifest, "metadata": {**metadata, **created}})
    return {"requestPut": {"key": in_base64(key), "value": in_base64(content)}}


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class Crowd:
    """Many WorkloadEntries of one namespace, written into etcd itself, and deleted in one moment."""

    def __init__(self, api_server: ApiServer, namespace: str) -> None:
        self._server = api_server
        self._namespace = namespace

    async def comes(self, count: int) -> None:
        entries = [
            workload_entry(self._namespace, f"vm-{number}", f"11.0.{number // 250}.{number % 250}")
            for number in range(count)
        ]
        for start in range(0, count, 100):
            await self._server.etcd("kv/txn", {"success": [stored(each) for each in entries[start : start + 100]]})

    async def goes(self) -> None:
        prefix = f"/registry/networking.istio.io/workloadentries/{self._namespace}"
        await self._server.etcd(
            "kv/deleterange", {"key": in_base64(f"{prefix}/"), "range_end": in_base64(f"{prefix}0")}
        )


@pytest.fixture
async def crowd(api_server: ApiServer, namespace: str) -> AsyncIterator[Crowd]:
    crowd = Crowd(api_server, namespace)
    yield crowd
    await crowd.goes()


def entries_of(served: Mesh, namespace: str) -> int:
    return sum(f"/WorkloadEntry/{namespace}/" in uid for uid in served.ztunnel.workloads)


@pytest.fixture
async def shop(client: Client, namespace: str) -> Shop:
    shop = Shop(client, namespace)
    await shop.open()
    return shop


@pytest.fixture
async def served(proxy: ChaosProxy, shop: Shop) -> AsyncIterator[Mesh]:
    async with mesh(proxy.kubeconfig()) as served:
        await served.agrees(shop.client)
        yield served


def of(plural: str, *, watches: bool = True, lists: bool = True) -> Callable[[Seen], bool]:
    def is_meant(seen: Seen) -> bool:
        return seen.path.endswith(f"/{plural}") and (watches if seen.is_watch else lists)

    return is_meant


async def settles(served: Mesh, shop: Shop, proxy: ChaosProxy) -> None:
    """One more change arrives, the client agrees with the model, and nobody goes on listing."""
    await shop.change()
    await served.agrees(shop.client, keeps=shop.keeps)
    await served.comes_to_rest(proxy)


async def test_changes_reach_the_client(served: Mesh, shop: Shop, proxy: ChaosProxy) -> None:
    for _ in range(3):
        await shop.change()
        await served.agrees(shop.client, keeps=shop.keeps)
    await settles(served, shop, proxy)


@pytest.mark.parametrize(
    "fault", [Cut(0), Cut(1), Cut(None), Truncate(0), Truncate(1), Hangup(0), Hangup(1), Delay(0.1)], ids=repr
)
async def test_a_broken_watch_loses_nothing(served: Mesh, shop: Shop, proxy: ChaosProxy, fault: Fault) -> None:
    pods = proxy.inject(fault, where=of("pods", lists=False))
    policies = proxy.inject(fault, where=of("authorizationpolicies", lists=False))
    await proxy.cut_all()
    await served.until(lambda: pods.hits > 0 and policies.hits > 0)
    await shop.change()
    await shop.change()
    await settles(served, shop, proxy)


@pytest.mark.parametrize("fault", [Cut(0), Cut(None), Truncate(0), Delay(0.2), Answer(200, body=b"{}")], ids=repr)
async def test_a_broken_list_removes_nothing(shop: Shop, proxy: ChaosProxy, fault: Fault) -> None:
    async with mesh(proxy.kubeconfig(), structs.replace(REAL_PACE, consistency_s=0.0)) as served:
        await served.agrees(shop.client)
        injected = proxy.inject(fault, where=of("pods", watches=False), times=3)
        await proxy.cut_all()
        # A list that only comes late is a good one.
        await served.until(lambda: injected.hits >= (1 if isinstance(fault, Delay) else 3))
        await shop.change()
        await served.agrees(shop.client, keeps=shop.keeps)


@pytest.mark.parametrize("last", ["pods", "namespaces", "services", "authorizationpolicies"])
async def test_the_order_in_which_kinds_arrive_does_not_matter(shop: Shop, proxy: ChaosProxy, last: str) -> None:
    late = proxy.inject(Delay(0.4), where=of(last), times=None)
    async with mesh(proxy.kubeconfig()) as served:
        await served.agrees(shop.client)
        for _ in range(3):
            await shop.change()
            await served.agrees(shop.client, keeps=shop.keeps)
    assert late.hits > 1


@pytest.mark.parametrize("after_events", [0, 1])
async def test_a_stalled_watch_is_given_up(shop: Shop, proxy: ChaosProxy, after_events: int) -> None:
    async with mesh(proxy.kubeconfig(), structs.replace(REAL_PACE, watch_s=1.0, grace_s=0.5)) as served:
        await served.agrees(shop.client)
        injected = proxy.inject(Stall(1), where=of("pods", lists=False), times=1 + after_events)
        await proxy.cut_all()
        await served.until(lambda: injected.hits > 0)
        await shop.change()
        await served.agrees(shop.client, keeps=shop.keeps)


async def test_a_half_open_connection_is_given_up(shop: Shop, proxy: ChaosProxy) -> None:
    async with mesh(proxy.kubeconfig(), structs.replace(REAL_PACE, watch_s=1.0, grace_s=0.5)) as served:
        await served.agrees(shop.client)
        proxy.go_silent()
        await shop.change()
        await served.until(lambda: all(not watch.is_current for watch in served.cluster.watches))
        assert set(shop.keeps) <= {*served.ztunnel.workloads, *served.ztunnel.policies}
        proxy.speak()
        await shop.change()
        await served.agrees(shop.client, keeps=shop.keeps)


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_a_storm_of_errors_is_waited_out(served: Mesh, shop: Shop, proxy: ChaosProxy, code: int) -> None:
    storm = proxy.inject(Answer(code), times=60)
    await proxy.cut_all()
    await shop.change()
    await served.until(lambda: storm.is_spent)
    await settles(served, shop, proxy)


async def test_a_server_that_is_killed_and_comes_back_is_followed_on(
    served: Mesh, shop: Shop, proxy: ChaosProxy, api_server: ApiServer
) -> None:
    api_server.kill()
    await served.until(lambda: all(watch.state is State.WAITING for watch in served.cluster.watches))
    await api_server.restart()
    await settles(served, shop, proxy)


async def test_a_version_that_was_compacted_away_leads_to_a_list(
    served: Mesh, shop: Shop, proxy: ChaosProxy, api_server: ApiServer, crowd: Crowd
) -> None:
    """Of a kind with more objects than a page, which is not listed again for less."""
    await crowd.comes(600)
    await served.until(lambda: entries_of(served, shop.namespace) == 600)
    # The server ends watches of custom kinds as it likes, and then all may have come in a list.
    await served.until(lambda: served.watch_of("WorkloadEntry").state is State.WATCHING)
    await shop.client.create(workload_entry(shop.namespace, "by-watch", "11.1.0.1"))
    await served.until(lambda: entries_of(served, shop.namespace) == 601)
    await proxy.refuse()
    await crowd.goes()
    await shop.change()
    await api_server.compact()
    await crowd.comes(600)
    await api_server.restart()
    await proxy.accept()
    await settles(served, shop, proxy)
    assert [watch.kind for watch in served.cluster.watches if watch.expired] == ["WorkloadEntry"]


async def test_a_restored_etcd_is_followed_back(
    served: Mesh, shop: Shop, proxy: ChaosProxy, api_server: ApiServer
) -> None:
    snapshot = await api_server.etcd_snapshot()
    await shop.client.create(pod(shop.namespace, "lost", "10.250.0.1"))
    await shop.client.create(policy(shop.namespace, "lost"))
    await served.agrees(shop.client, keeps=shop.keeps)
    await api_server.etcd_restore(snapshot)
    await served.agrees(shop.client, keeps=shop.keeps)
    assert f"{shop.namespace}/lost" not in served.ztunnel.policies
    await settles(served, shop, proxy)
    assert any("version went back" in watch.lists for watch in served.cluster.watches)


async def test_a_definition_that_goes_and_comes_back(served: Mesh, shop: Shop, proxy: ChaosProxy) -> None:
    kinds = ["WorkloadEntry"]
    await shop.client.create(workload_entry(shop.namespace, "vm", "10.251.0.1"))
    await served.agrees(shop.client, keeps=shop.keeps)
    watch = served.watch_of("WorkloadEntry")
    try:
        await shop.client.remove_crds(kinds)
        await served.until(lambda: watch.state is State.ABSENT)
        await served.until(lambda: not any("WorkloadEntry" in uid for uid in served.ztunnel.workloads))
    finally:
        await shop.client.install_crds(kinds)
    await shop.client.create(workload_entry(shop.namespace, "vm", "10.251.0.2"))
    await settles(served, shop, proxy)


async def test_a_kind_is_read_from_the_moment_it_is_defined(shop: Shop, proxy: ChaosProxy) -> None:
    kinds = ["PeerAuthentication", "AuthorizationPolicy"]
    await shop.client.remove_crds(kinds)
    try:
        async with mesh(proxy.kubeconfig(), structs.replace(REAL_PACE, absent_s=30.0)) as served:
            assert {watch.kind for watch in served.cluster.watches if watch.state is State.ABSENT} == set(kinds)
            await shop.client.install_crds(kinds)
            await shop.client.create(policy(shop.namespace, "first"))
            await served.agrees(shop.client)
            assert f"{shop.namespace}/first" in served.ztunnel.policies
    finally:
        await shop.client.install_crds(kinds)


async def test_ten_thousand_objects_that_go_in_one_moment(
    served: Mesh, shop: Shop, proxy: ChaosProxy, crowd: Crowd
) -> None:
    await crowd.comes(10_000)
    await served.until(lambda: entries_of(served, shop.namespace) == 10_000)
    await crowd.goes()
    await settles(served, shop, proxy)
    assert entries_of(served, shop.namespace) == 0


async def in_parallel(calls: list[Any], at_once: int = 32) -> None:
    gate = asyncio.Semaphore(at_once)

    async def one(call: Any) -> None:
        async with gate:
            await call

    await asyncio.gather(*map(one, calls))


async def test_a_namespace_of_many_pods_is_relabelled(served: Mesh, shop: Shop, proxy: ChaosProxy) -> None:
    """The namespace, and then each of its 5,000 pods."""
    many = [pod(shop.namespace, f"many-{number}", f"12.0.{number // 250}.{number % 250}") for number in range(5_000)]

    def have(**fields: str) -> bool:
        workloads = [each for uid, each in served.ztunnel.workloads.items() if "/many-" in uid]
        return len(workloads) == len(many) and all(
            getattr(each, name) == value for each in workloads for name, value in fields.items()
        )

    await in_parallel([shop.client.create(each) for each in many])
    await served.until(lambda: have(canonical_name="till"))
    await in_parallel([shop.client.patch(each, {"metadata": {"labels": {"app": "other"}}}) for each in many])
    await served.until(lambda: have(canonical_name="other"))
    await in_parallel([shop.client.delete(each) for each in many])
    await settles(served, shop, proxy)
