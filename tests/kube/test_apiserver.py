"""That the rig itself works: a real API server that tests start, write to, restart, rewind and compact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kube import crds
from tests.kube.apiserver import NOBODY_TOKEN, ApiServer
from tests.kube.client import Client, Refused

pytestmark = [pytest.mark.peer, pytest.mark.slow]

RUNNING = {"phase": "Running", "podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}]}


def pod(namespace: str, name: str = "till") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": "till"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "till"}]},
    }


async def first_event(events: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    async with asyncio.timeout(30):
        return await anext(events)


async def test_a_pod_and_its_status_are_stored_as_written(client: Client, namespace: str) -> None:
    created = await client.create(pod(namespace) | {"status": RUNNING})
    assert created["spec"]["nodeName"] == "n1"
    assert created["status"]["podIP"] == "10.0.0.7"
    assert await client.get("v1", "Pod", "till", namespace) == created


async def test_a_watch_sees_a_change_of_status(client: Client, namespace: str) -> None:
    created = await client.create(pod(namespace))
    events = client.watch("v1", "Pod", created["metadata"]["resourceVersion"], namespace)
    await client.patch_status(created, RUNNING)
    event = await first_event(events)
    assert (event["type"], event["object"]["status"]["podIP"]) == ("MODIFIED", "10.0.0.7")


async def test_a_deleted_pod_is_gone_at_once_unless_a_grace_is_given(client: Client, namespace: str) -> None:
    await client.create(pod(namespace))
    await client.delete(pod(namespace), grace_s=30)
    assert "deletionTimestamp" in (await client.get("v1", "Pod", "till", namespace))["metadata"]
    await client.delete(pod(namespace))
    with pytest.raises(Refused, match="404 NotFound"):
        await client.get("v1", "Pod", "till", namespace)


async def test_a_deleted_namespace_is_gone_without_controllers(client: Client, namespace: str) -> None:
    await client.delete({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    with pytest.raises(Refused, match="404 NotFound"):
        await client.get("v1", "Namespace", namespace)


async def test_a_service_gets_addresses_of_both_families(client: Client, namespace: str) -> None:
    service = await client.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"namespace": namespace, "name": "till"},
            "spec": {"ipFamilyPolicy": "RequireDualStack", "ports": [{"port": 80}], "selector": {"app": "till"}},
        }
    )
    four, six = service["spec"]["clusterIPs"]
    assert four.startswith("10.")
    assert six.startswith("fd00:")


@pytest.mark.parametrize(
    ("group", "kind", "versions", "has_namespace"),
    [(group, kind, versions, has) for group, kind, _, versions, has in crds.KINDS],
)
async def test_a_custom_kind_is_served_in_all_its_versions(
    client: Client, namespace: str, group: str, kind: str, versions: tuple[str, ...], has_namespace: bool
) -> None:
    await client.create(
        {
            "apiVersion": f"{group}/{versions[-1]}",
            "kind": kind,
            "metadata": {"name": namespace} | ({"namespace": namespace} if has_namespace else {}),
            "spec": {"any": ["thing", 1]},
            "status": {"conditions": []},
        }
    )
    for version in versions:
        read = await client.get(f"{group}/{version}", kind, namespace, namespace)
        assert (read["spec"], read["status"]) == ({"any": ["thing", 1]}, {"conditions": []})


async def test_a_server_side_apply_owns_its_fields(client: Client, namespace: str) -> None:
    def annotated(value: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"namespace": namespace, "name": "mesh"},
            "data": {"mesh": value},
        }

    await client.apply(annotated("one"), manager="first")
    with pytest.raises(Refused, match="409 Conflict"):
        await client.apply(annotated("two"), manager="second")
    taken = await client.apply(annotated("two"), manager="second", force=True)
    assert taken["data"] == {"mesh": "two"}


async def test_who_was_granted_nothing_may_read_nothing(api_server: ApiServer, namespace: str) -> None:
    async with api_server.client(token=NOBODY_TOKEN) as nobody:
        with pytest.raises(Refused, match="403 Forbidden"):
            await nobody.list("v1", "Pod", namespace)


async def test_a_token_of_a_bound_pod_is_reviewed_as_that_pods(client: Client, namespace: str) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": namespace, "name": "till"}}
    await client.create(account)
    with_account = pod(namespace)
    with_account["spec"]["serviceAccountName"] = "till"
    created = await client.create(with_account)
    token = await client.token(namespace, "till", pod=created)
    review = await client.create(
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "metadata": {},
            "spec": {"token": token, "audiences": ["istio-ca"]},
        }
    )
    user = review["status"]["user"]
    assert user["username"] == f"system:serviceaccount:{namespace}:till"
    assert user["extra"]["authentication.kubernetes.io/pod-name"] == ["till"]


async def test_a_restart_keeps_objects_and_addresses(api_server: ApiServer, namespace: str) -> None:
    async with api_server.client() as client:
        created = await client.create(pod(namespace))
        url = api_server.url
        await api_server.restart()
        assert await client.get("v1", "Pod", "till", namespace) == created
        assert api_server.url == url


async def test_a_version_from_before_a_compaction_and_a_restart_is_gone(api_server: ApiServer, client: Client) -> None:
    listed = (await client.list("v1", "Node"))["metadata"]["resourceVersion"]
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "compacted"}}
    await client.create(node)
    await client.delete(node)
    await api_server.compact()
    await api_server.restart()
    event = await first_event(client.watch("v1", "Node", listed))
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_a_list_is_not_continued_past_a_compaction(api_server: ApiServer, client: Client, namespace: str) -> None:
    for name in ("a", "b"):
        await client.create(pod(namespace, name))
    page = await client.list("v1", "Pod", namespace, limit=1)
    await client.create(pod(namespace, "c"))
    await api_server.compact()
    await api_server.restart()
    with pytest.raises(Refused, match="410 Expired"):
        await client.list("v1", "Pod", namespace, limit=1, continue_=page["metadata"]["continue"])


async def test_a_restored_snapshot_rewinds_objects_and_versions(
    api_server: ApiServer, client: Client, namespace: str
) -> None:
    before = await client.create(pod(namespace, "before"))
    snapshot = await api_server.etcd_snapshot()
    after = await client.create(pod(namespace, "after"))
    await api_server.etcd_restore(snapshot)
    names = [item["metadata"]["name"] for item in (await client.list("v1", "Pod", namespace))["items"]]
    assert names == ["before"]
    assert snapshot.revision >= int(before["metadata"]["resourceVersion"])
    assert snapshot.revision < int(after["metadata"]["resourceVersion"])
