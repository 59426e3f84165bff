"""Roots kept in and given to a real cluster: one secret whichever replica comes first, a ConfigMap in every namespace
(ca.md 10.3, 13.3)."""

from __future__ import annotations

import asyncio
import base64
import datetime
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from cryptography import x509

from ambientd.ca.authority import Public
from ambientd.ca.distribution import ROOT_KEY, Distributor, Wanted
from ambientd.ca.keeping import Keeper
from ambientd.ca.making import create_self_signed
from ambientd.ca.roots import SELF_SIGNED_SECRET, secret_data
from ambientd.ca.secrets import Secrets
from ambientd.kube.access import find_origin
from ambientd.kube.api import Api
from ambientd.kube.credentials import Credentials
from ambientd.resources.core import Namespace
from ambientd.resources.events import Put
from ambientd.resources.mesh import LabelSelector
from ambientd.resources.ref import Ref
from ambientd.security import Security
from tests.kube.apiserver import ApiServer
from tests.kube.client import Client, Manifest, Refused

pytestmark = [pytest.mark.peer, pytest.mark.slow]

PATIENCE_S = 60.0
ROOTS = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
OTHER_ROOTS = ROOTS.replace("AAAA", "BBBB")


@asynccontextmanager
async def api_to(server: ApiServer) -> AsyncIterator[Api]:
    async with Api(Credentials(find_origin(str(server.kubeconfig()), {}), {})) as api:
        yield api


@pytest_asyncio.fixture
async def api(api_server: ApiServer) -> AsyncIterator[Api]:
    async with api_to(api_server) as api:
        yield api


async def until(claim: Callable[[], Any], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await claim():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not in time: {what}") from None


def found(name: str, **labels: str) -> Put:
    return Put(Namespace(Ref("Kubernetes", "Namespace", "", name), tuple(sorted(labels.items())), ()))


async def make_namespaces(client: Client, prefix: str, count: int) -> list[str]:
    names = [f"{prefix}-{number}" for number in range(count)]
    for start in range(0, count, 20):
        await asyncio.gather(
            *(
                client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
                for name in names[start : start + 20]
            )
        )
    return names


async def config_maps(client: Client, name: str) -> dict[str, Manifest]:
    listed = await client.list("v1", "ConfigMap", fieldSelector=f"metadata.name={name}")
    return {item["metadata"]["namespace"]: item for item in listed["items"]}


class Distributing:
    """A distributor that runs until it is stopped."""

    def __init__(self, api: Api, name: str, selectors: tuple[LabelSelector, ...] = ()) -> None:
        self.name = name
        self.selectors = selectors
        self.foreign = 0
        self.distributor = Distributor(
            api, selectors=lambda: self.selectors, on_foreign=self._met, dice=random.Random(1)
        )
        self._task = asyncio.create_task(self.distributor.run([name]))

    def _met(self) -> None:
        self.foreign += 1

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@asynccontextmanager
async def distributing(api: Api, name: str, selectors: tuple[LabelSelector, ...] = ()) -> AsyncIterator[Distributing]:
    running = Distributing(api, name, selectors)
    try:
        yield running
    finally:
        await running.stop()


def holds(manifest: Manifest | None, roots: str) -> bool:
    return manifest is not None and manifest.get("data", {}).get(ROOT_KEY) == roots


async def test_200_namespaces_get_the_root_and_then_another(api: Api, client: Client, namespace: str) -> None:
    name = f"roots-{namespace}"
    names = await make_namespaces(client, namespace, 200)
    async with distributing(api, name) as running:
        running.distributor.apply([found(each) for each in (*names, "kube-public", "kube-system")])
        for roots in (ROOTS, OTHER_ROOTS):
            running.distributor.want(name, Wanted(ROOT_KEY, roots))

            async def all_hold(roots: str = roots) -> bool:
                held = await config_maps(client, name)
                return all(holds(held.get(each), roots) for each in (*names, "kube-system"))

            await until(all_hold, "every namespace has the root")
        held = await config_maps(client, name)
        assert set(held) == {*names, "kube-system"}
        assert held[names[0]]["metadata"]["labels"] == {"istio.io/config": "true"}
        assert running.distributor.missing() == 0


async def test_what_a_person_does_is_put_right_and_what_is_not_ours_stays(
    api: Api, client: Client, namespace: str
) -> None:
    name = f"roots-{namespace}"
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}
    labels = {"owner": "somebody"}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    await client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"other": "x"}})
    async with distributing(api, name) as running:
        running.distributor.apply([found(namespace)])
        running.distributor.want(name, Wanted(ROOT_KEY, ROOTS))

        async def is_right() -> bool:
            return holds((await config_maps(client, name)).get(namespace), ROOTS)

        await until(is_right, "the field is added")
        held = (await config_maps(client, name))[namespace]
        assert held["data"] == {"other": "x", ROOT_KEY: ROOTS}
        assert held["metadata"]["labels"] == labels

        await client.patch(manifest, {"data": {ROOT_KEY: "edited"}})
        await until(is_right, "an edit is put right")
        await client.delete(manifest)
        await until(is_right, "it is made again")


async def test_two_replicas_with_the_same_roots_write_once(
    api_server: ApiServer, client: Client, namespace: str
) -> None:
    name = f"roots-{namespace}"
    names = await make_namespaces(client, namespace, 10)
    async with (
        api_to(api_server) as one,
        api_to(api_server) as two,
        distributing(one, name) as first,
        distributing(two, name) as second,
    ):
        for each in (first, second):
            each.distributor.apply([found(each) for each in names])
            each.distributor.want(name, Wanted(ROOT_KEY, ROOTS))

        async def all_hold() -> bool:
            held = await config_maps(client, name)
            return all(holds(held.get(each), ROOTS) for each in names)

        await until(all_hold, "every namespace has the root")
        before = await config_maps(client, name)
        await asyncio.sleep(1.0)
        assert await config_maps(client, name) == before
        assert (first.foreign, second.foreign) == (0, 0)


async def test_with_somebody_who_wants_other_roots_there_is_no_fight(
    api_server: ApiServer, client: Client, namespace: str
) -> None:
    name = f"roots-{namespace}"
    async with (
        api_to(api_server) as one,
        api_to(api_server) as two,
        distributing(one, name) as first,
        distributing(two, name) as second,
    ):
        for each, roots in ((first, ROOTS), (second, OTHER_ROOTS)):
            each.distributor.apply([found(namespace)])
            each.distributor.want(name, Wanted(ROOT_KEY, roots))
        await until_true(lambda: first.foreign > 0 or second.foreign > 0)
        writes = len(await changes_within(client, name, 4.0))
        assert writes <= 8


async def until_true(claim: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return claim()

    await until(holds, "the replicas meet")


async def changes_within(client: Client, name: str, seconds: float) -> list[Manifest]:
    version = (await client.list("v1", "ConfigMap"))["metadata"]["resourceVersion"]
    seen: list[Manifest] = []
    try:
        async with asyncio.timeout(seconds):
            async for event in client.watch("v1", "ConfigMap", version, fieldSelector=f"metadata.name={name}"):
                seen.append(event)
    except TimeoutError:
        pass
    return seen


async def test_a_namespace_that_is_not_discovered_gets_nothing_and_keeps_what_it_has(
    api: Api, client: Client, namespace: str
) -> None:
    name = f"roots-{namespace}"
    selector = LabelSelector((("mesh", "yes"),))
    ours, other = await make_namespaces(client, namespace, 2)
    async with distributing(api, name, (selector,)) as running:
        running.distributor.apply([found(ours, mesh="yes"), found(other)])
        running.distributor.want(name, Wanted(ROOT_KEY, ROOTS))

        async def only_ours() -> bool:
            return set(await config_maps(client, name)) == {ours}

        await until(only_ours, "the discovered one")
        running.distributor.apply([found(ours), found(other, mesh="yes")])
        running.distributor.want(name, Wanted(ROOT_KEY, OTHER_ROOTS))

        async def other_too() -> bool:
            return holds((await config_maps(client, name)).get(other), OTHER_ROOTS)

        await until(other_too, "one that is discovered now")
        assert holds((await config_maps(client, name))[ours], ROOTS)


# The secret (ca.md 10.3).


class Replica:
    """A keeper over a client of its own."""

    def __init__(self, api: Api, namespace: str, **security: Any) -> None:
        self.heard: list[Public] = []
        self.keeper = Keeper(
            Security(ca_dir="/nonexistent", **security),
            Secrets(api, namespace),
            trust_domain=lambda: "cluster.local",
            changed=self.heard.append,
        )

    @property
    def roots(self) -> str:
        public = self.keeper.signer.public
        assert public is not None
        return public.roots


async def secret_of(client: Client, namespace: str) -> dict[str, bytes]:
    held = await client.get("v1", "Secret", SELF_SIGNED_SECRET, namespace)
    return {key: base64.b64decode(value) for key, value in held["data"].items()}


async def test_ten_replicas_that_start_at_once_share_one_root(
    api_server: ApiServer, client: Client, namespace: str
) -> None:
    async with AsyncExitStack() as apis:
        replicas = [Replica(await apis.enter_async_context(api_to(api_server)), namespace) for _ in range(10)]
        try:
            await asyncio.gather(*(replica.keeper.start() for replica in replicas))
            assert {replica.roots for replica in replicas} == {replicas[0].roots}
            data = await secret_of(client, namespace)
            assert data["ca-cert.pem"].decode() == replicas[0].roots
            assert set(data) == {"ca-cert.pem", "ca-key.pem", "root-cert.pem", "cert-chain.pem", "key.pem"}
            assert (await client.get("v1", "Secret", SELF_SIGNED_SECRET, namespace))["type"] == "istio.io/ca-root"
        finally:
            await asyncio.gather(*(replica.keeper.signer.close() for replica in replicas))


async def make_secret(client: Client, namespace: str, lifetime_s: int = 10_000_000, days_ago: int = 0) -> bytes:
    """As another istiod would have left it."""
    made_at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days_ago)
    authority = create_self_signed("old.domain", made_at, lifetime_s=lifetime_s, source="x")
    data = {key: base64.b64encode(value).decode() for key, value in secret_data(authority).items()}
    metadata = {"name": SELF_SIGNED_SECRET, "namespace": namespace}
    await client.create(
        {"apiVersion": "v1", "kind": "Secret", "type": "istio.io/ca-root", "metadata": metadata, "data": data}
    )
    return authority.certificate.encode()


async def test_an_existing_secret_of_istiod_is_taken_over_as_it_is(api: Api, client: Client, namespace: str) -> None:
    certificate = await make_secret(client, namespace)
    before = await client.get("v1", "Secret", SELF_SIGNED_SECRET, namespace)
    replica = Replica(api, namespace)
    try:
        await replica.keeper.start()
        assert replica.roots.encode() == certificate
        assert await client.get("v1", "Secret", SELF_SIGNED_SECRET, namespace) == before
    finally:
        await replica.keeper.signer.close()


async def test_a_root_near_its_end_is_renewed_by_one_and_taken_by_the_other(
    api_server: ApiServer, client: Client, namespace: str
) -> None:
    old = await make_secret(client, namespace, lifetime_s=100 * 86_400, days_ago=90)
    async with api_to(api_server) as one, api_to(api_server) as two:
        replicas = [Replica(api, namespace, root_check_s=1.0, root_check_jitter=False) for api in (one, two)]
        running: list[asyncio.Task[Any]] = []
        try:
            for replica in replicas:
                await replica.keeper.start()
                assert replica.roots.encode() == old
                running.append(asyncio.create_task(replica.keeper.run()))
            await until_true(lambda: all(replica.roots.encode() != old for replica in replicas))
            await until_true(lambda: replicas[0].roots == replicas[1].roots)
            data = await secret_of(client, namespace)
            assert data["ca-cert.pem"].decode() == replicas[0].roots
            was, now = (x509.load_pem_x509_certificate(each) for each in (old, data["ca-cert.pem"]))
            assert (was.subject, was.public_key()) == (now.subject, now.public_key())
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def test_a_secret_that_goes_while_we_run_is_not_made_again(api: Api, client: Client, namespace: str) -> None:
    replica = Replica(api, namespace, root_check_s=0.2, root_check_jitter=False)
    await replica.keeper.start()
    running = asyncio.create_task(replica.keeper.run())
    try:
        metadata = {"name": SELF_SIGNED_SECRET, "namespace": namespace}
        await client.delete({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
        await until_true(lambda: "it is gone" in replica.keeper.trouble)
        with pytest.raises(Refused):
            await client.get("v1", "Secret", SELF_SIGNED_SECRET, namespace)
        assert replica.keeper.signer.is_ready
    finally:
        running.cancel()
        await asyncio.wait([running])
