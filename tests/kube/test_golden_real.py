"""The golden cases through a real API server and the real server process. Left out are cases that an API server cannot
hold, and those that need objects from before the start of the server."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cases.loader import NAMESPACES, Case, Cluster, Served, Step, differences, expected_failures, golden, load
from tests.cases.loader import case_ids as all_case_ids
from tests.kube.apiserver import ApiServer
from tests.kube.client import Client, Refused
from tests.kube.mesh import READ, patiently
from tests.model.manifests import Manifest, dig
from tests.wire.process import ServerProcess, WireClient, serving

pytestmark = [pytest.mark.peer, pytest.mark.slow]

PATIENCE_S = 60.0
_VERSIONS = {kind: version for version, kind in READ}
CLUSTER_KINDS = ("Namespace", "Node", "GatewayClass")


def _is_possible(case_id: str) -> bool:
    """Whether an API server could hold these objects while our server runs."""
    case = load(case_id)
    if case_id in expected_failures("product") or case.exists_at_start or "admission" in case.fields:
        return False
    if any("lookups" in step.fields for step in case.steps):
        return False
    manifests = [manifest for step in case.steps for manifest in step.apply]
    # A pod that is being deleted waits for a kubelet, which there is none of; the API server's own Service is its own.
    return not any(
        dig(manifest, "metadata", "deletionTimestamp") or dig(manifest, "metadata", "name") == "kubernetes"
        for manifest in manifests
    )


class Servers:
    """A server process for each environment that cases need, with a client of it."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._stack = ExitStack()
        self._running: dict[frozenset[tuple[str, str]], WireClient] = {}

    def client_of(self, environment: Mapping[str, str]) -> WireClient:
        key = frozenset(environment.items())
        if key not in self._running:
            log = self._folder / f"log-{len(self._running)}"
            server: ServerProcess = self._stack.enter_context(
                serving(self._kubeconfig, log, "--secure-grpc-addr", "", **dict(environment))
            )
            self._running[key] = self._stack.enter_context(_closing(WireClient(server.grpc_port)))
        return self._running[key]

    def close(self) -> None:
        self._stack.close()


class _closing:
    def __init__(self, client: WireClient) -> None:
        self._client = client

    def __enter__(self) -> WireClient:
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def servers(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(api_server.kubeconfig(), tmp_path_factory.mktemp("servers"))
    yield servers
    servers.close()


class Writer:
    """Writes the objects of one case, as whoever recorded it did; the API server gives uids and ages of its own."""

    def __init__(self, client: Client, case: Case) -> None:
        self._client = client
        ages = {dig(manifest, "metadata", "creationTimestamp") for step in case.steps for manifest in step.apply}
        self._has_ages = len(ages - {None}) > 1
        self._uids: dict[str, str] = {}
        self._namespaces = set(NAMESPACES)

    async def step(self, step: Step) -> None:
        """Objects of one age come within one second, those of different ages in different ones, the oldest first: an
        API server tells ages in whole seconds."""
        # A slice names a pod by its uid, which the API server gives.
        objects = sorted(step.apply, key=lambda manifest: manifest["kind"] == "EndpointSlice")
        aged = sorted({age for manifest in objects if (age := dig(manifest, "metadata", "creationTimestamp"))})
        await _within_one_second()
        for manifest in objects:
            if dig(manifest, "metadata", "creationTimestamp") is None:
                await self.put(manifest)
        for age in aged:
            await _within_one_second(a_new_one=self._has_ages)
            for manifest in objects:
                if dig(manifest, "metadata", "creationTimestamp") == age:
                    await self.put(manifest)
        for kind, namespace, name in step.delete:
            metadata = {"namespace": namespace, "name": name}
            if kind not in _VERSIONS:
                continue  # nobody here has made it
            await self._client.delete({"apiVersion": _VERSIONS[kind], "kind": kind, "metadata": metadata})

    async def put(self, manifest: Manifest) -> None:
        wanted = self._prepared(manifest)
        namespace = wanted["metadata"].get("namespace")
        if namespace and namespace not in self._namespaces:
            await self._ensure_namespace(namespace)
        held = await self._held(wanted)
        if held is None:
            written = await patiently(lambda: self._client.create(wanted))
        else:
            metadata = {**wanted["metadata"], "resourceVersion": held["metadata"]["resourceVersion"]}
            replacement = {**wanted, "metadata": metadata, "status": held.get("status", {})}
            written = await patiently(lambda: self._client.replace(replacement))
            if "status" in wanted:
                status = {**dict.fromkeys(held.get("status") or {}), **wanted["status"]}
                await self._client.patch_status(wanted, status)
        given = dig(manifest, "metadata", "uid")
        if given:
            self._uids[given] = written["metadata"]["uid"]
        if wanted["kind"] == "Namespace":
            self._namespaces.add(wanted["metadata"]["name"])

    def _prepared(self, manifest: Manifest) -> dict[str, Any]:
        wanted: dict[str, Any] = _with_uids(copy.deepcopy(dict(manifest)), self._uids)
        for field in ("uid", "creationTimestamp", "generation", "resourceVersion"):
            wanted["metadata"].pop(field, None)
        if wanted["kind"] in CLUSTER_KINDS:
            wanted["metadata"].pop("namespace", None)
        if wanted["kind"] == "Pod":
            _complete(wanted)
        return wanted

    async def _ensure_namespace(self, name: str) -> None:
        self._namespaces.add(name)
        try:
            await self._client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        except Refused as refused:
            if refused.code != 409:
                raise

    async def _held(self, manifest: Manifest) -> Manifest | None:
        metadata = manifest["metadata"]
        try:
            return await self._client.get(
                manifest["apiVersion"], manifest["kind"], metadata["name"], metadata.get("namespace", "")
            )
        except Refused as refused:
            if refused.code != 404:
                raise
            return None


async def _within_one_second(*, a_new_one: bool = False) -> None:
    """Waits for the next second, unless enough is left of this one for a few objects; `a_new_one`: in any case."""
    gone_s = time.time() % 1
    if a_new_one or gone_s > 0.6:
        await asyncio.sleep(1.02 - gone_s)


def _complete(pod: dict[str, Any]) -> None:
    """Fills in what an API server demands of a pod, and no rule reads."""
    spec = pod.setdefault("spec", {})
    containers = spec.setdefault("containers", [])
    if not containers:
        containers.append({"name": "app"})
    for number, container in enumerate([*containers, *spec.get("initContainers", ())]):
        container.setdefault("name", f"c{number}")
        container.setdefault("image", "app")
    for owner in pod["metadata"].get("ownerReferences", ()):
        owner.setdefault("uid", "u")
        owner.setdefault("apiVersion", "apps/v1")


def _with_uids(value: Any, uids: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _with_uids(inner, uids) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_uids(inner, uids) for inner in value]
    return uids.get(value, value) if isinstance(value, str) else value


async def _clear(client: Client) -> None:
    """Everything goes that a case may have written."""
    for version, kind in READ:
        for item in (await patiently(partial(client.list, version, kind)))["items"]:
            manifest = {"apiVersion": version, "kind": kind, **item}
            metadata = manifest["metadata"]
            if kind == "Namespace" and metadata["name"] in NAMESPACES:
                bare = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": metadata["name"]}}
                await client.replace({**bare, "spec": {"finalizers": ["kubernetes"]}})
            elif metadata["name"] != "kubernetes" and (kind != "ConfigMap" or metadata["name"].startswith("istio")):
                await client.delete(manifest)


@pytest.fixture
async def cleared(client: Client) -> AsyncIterator[Client]:
    for name in NAMESPACES:
        try:
            await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        except Refused as refused:
            if refused.code != 409:
                raise
    await _clear(client)
    yield client
    await _clear(client)


@pytest.mark.parametrize("case_id", [case_id for case_id in all_case_ids() if _is_possible(case_id)])
async def test_a_client_holds_what_the_case_expects(case_id: str, cleared: Client, servers: Servers) -> None:
    case = load(case_id)
    wire = await asyncio.to_thread(servers.client_of, case.environment)
    await _until(wire, {"address": {}, "authorization": {}})
    writer = Writer(cleared, case)
    cluster = Cluster(case)
    for number, step in enumerate(case.steps, start=1):
        try:
            await writer.step(step)
            cluster.play(step)
            for change in cluster.written(step):
                if change.manifest is not None:
                    await writer.put(change.manifest)
        except Refused as refused:
            pytest.skip(f"step {number}: the API server refuses it: {refused}")
        await _until(wire, step.expect, f"step {number}")


async def _until(wire: WireClient, expect: Mapping[str, Any], what: str = "before the case") -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while found := differences(_held(wire, expect), expect):
        assert time.monotonic() < deadline_s, f"{what}:\n" + "\n".join(found)
        await asyncio.sleep(0.02)


def _held(wire: WireClient, expect: Mapping[str, Any]) -> Served:
    """What the client holds, but for the API server's own Service, and for the IP families that it has filled in."""
    ztunnel = wire.ztunnel
    address: dict[str, Any] = {name: {"workload": golden(each)} for name, each in list(ztunnel.workloads.items())}
    address |= {name: {"service": golden(each)} for name, each in list(ztunnel.services.items())}
    for name, each in address.items():
        if "ip_families" not in (dig(expect, "address", name, "service") or {}):
            each.get("service", {}).pop("ip_families", None)
    return Served(
        {name: each for name, each in address.items() if not _is_its_own(name)},
        {name: golden(each) for name, each in list(ztunnel.policies.items())},
    )


def _is_its_own(name: str) -> bool:
    return name.startswith("default/kubernetes.") or "/EndpointSlice/default/kubernetes/" in name
