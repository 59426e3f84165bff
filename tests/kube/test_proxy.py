"""That the proxy fails as it was told to, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.kube.apiserver import ApiServer
from tests.kube.client import Client, Refused
from tests.kube.proxy import Answer, ChaosProxy, Cut, Delay, Hangup, Seen, Stall, Truncate

pytestmark = [pytest.mark.peer, pytest.mark.slow]


def config_map(namespace: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name}}


def is_watch(seen: Seen) -> bool:
    return seen.is_watch


@pytest.fixture
async def through(api_server: ApiServer, proxy: ChaosProxy) -> AsyncIterator[Client]:
    """A client that has only the proxy."""
    async with api_server.client(server=proxy.url) as client:
        yield client


@pytest.fixture
async def version(client: Client, namespace: str) -> str:
    """A version after which two ConfigMaps were written, `one` and `two`."""
    listed = await client.list("v1", "ConfigMap", namespace)
    for name in ("one", "two"):
        await client.create(config_map(namespace, name))
    return str(listed["metadata"]["resourceVersion"])


async def items(client: Client, namespace: str) -> Any:
    """What a list holds, without its version: the server itself writes between any two."""
    found = (await client.list("v1", "ConfigMap", namespace))["items"]
    assert found
    return found


async def watched(through: Client, namespace: str, version: str, into: list[bytes]) -> None:
    """Fills a list with the lines of a watch, until it ends or fails."""
    async with asyncio.timeout(30):
        async for line in through.watch_lines("v1", "ConfigMap", version, namespace, timeoutSeconds=60):
            into.append(line)


async def take(events: AsyncIterator[dict[str, Any]]) -> str:
    """The name in the next event."""
    return str((await anext(events))["object"]["metadata"]["name"])


async def drain(events: AsyncIterator[dict[str, Any]]) -> None:
    async for _ in events:
        pass


async def test_without_faults_the_proxy_is_the_server(
    client: Client, through: Client, proxy: ChaosProxy, namespace: str, version: str
) -> None:
    assert await items(through, namespace) == await items(client, namespace)
    events = through.watch("v1", "ConfigMap", version, namespace)
    assert [await take(events), await take(events)] == ["one", "two"]
    await through.delete(config_map(namespace, "one"))
    assert (await anext(events))["type"] == "DELETED"
    assert [(seen.method, seen.is_watch) for seen in proxy.requests] == [
        ("GET", False),
        ("GET", True),
        ("DELETE", False),
    ]


async def test_a_long_list_passes_whole(client: Client, through: Client, namespace: str) -> None:
    for name in ("a", "b", "c"):
        await client.create(config_map(namespace, name) | {"data": {"text": "x" * 900_000}})
    assert await items(through, namespace) == await items(client, namespace)


async def test_an_answer_comes_as_often_as_was_ordered(through: Client, proxy: ChaosProxy, namespace: str) -> None:
    storm = proxy.inject(Answer(429, "TooManyRequests", retry_after_s=1), times=2)
    for _ in range(2):
        with pytest.raises(Refused, match="429 TooManyRequests"):
            await through.list("v1", "ConfigMap", namespace)
    await through.list("v1", "ConfigMap", namespace)
    assert storm.hits == 2


async def test_a_fault_meets_only_the_requests_it_is_meant_for(
    through: Client, proxy: ChaosProxy, namespace: str, version: str
) -> None:
    storm = proxy.inject(Answer(500), where=is_watch, times=None)
    await through.list("v1", "ConfigMap", namespace)
    with pytest.raises(Refused, match="500"):
        await watched(through, namespace, version, [])
    storm.cancel()
    assert (await anext(through.watch("v1", "ConfigMap", version, namespace)))["type"] == "ADDED"


async def test_a_cut_ends_in_the_middle_of_an_event(
    through: Client, proxy: ChaosProxy, namespace: str, version: str
) -> None:
    proxy.inject(Cut(after_events=1), where=is_watch)
    lines: list[bytes] = []
    with pytest.raises(aiohttp.ClientError):
        await watched(through, namespace, version, lines)
    assert [line.endswith(b"\n") for line in lines] == [True]


async def test_a_cut_before_the_answer_leaves_none(through: Client, proxy: ChaosProxy, namespace: str) -> None:
    proxy.inject(Cut(after_events=None))
    with pytest.raises(aiohttp.ClientError):
        await through.create(config_map(namespace, "one"))


async def test_a_truncated_body_ends_in_the_middle_of_an_event_as_if_it_were_whole(
    through: Client, proxy: ChaosProxy, namespace: str, version: str
) -> None:
    proxy.inject(Truncate(after_events=1), where=is_watch)
    lines: list[bytes] = []
    await watched(through, namespace, version, lines)
    assert [line.endswith(b"\n") for line in lines] == [True, False]


@pytest.mark.parametrize("events", [0, 1])
async def test_a_hangup_ends_the_body_between_events(
    through: Client, proxy: ChaosProxy, namespace: str, version: str, events: int
) -> None:
    proxy.inject(Hangup(after_events=events), where=is_watch)
    lines: list[bytes] = []
    await watched(through, namespace, version, lines)
    assert [line.endswith(b"\n") for line in lines] == [True] * events


async def test_a_stalled_watch_is_silent_and_connected_until_it_is_cut(
    through: Client, proxy: ChaosProxy, namespace: str, version: str
) -> None:
    proxy.inject(Stall(after_events=1), where=is_watch)
    stalled = through.watch("v1", "ConfigMap", version, namespace)
    assert await take(stalled) == "one"
    waiting = asyncio.create_task(take(stalled))
    # One that is not stalled has both events: this one had as long.
    follower = through.watch("v1", "ConfigMap", version, namespace)
    assert [await take(follower), await take(follower)] == ["one", "two"]
    assert not waiting.done()
    await proxy.cut_all()
    with pytest.raises(aiohttp.ClientError):
        await waiting


async def test_a_stall_before_the_answer_ends_with_the_clients_patience(
    through: Client, proxy: ChaosProxy, namespace: str
) -> None:
    stalled = proxy.inject(Stall())
    task = asyncio.create_task(through.list("v1", "ConfigMap", namespace))
    await stalled.hit.wait()
    await proxy.seen(lambda seen: seen.is_list)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await through.list("v1", "ConfigMap", namespace)


async def test_a_delayed_answer_is_whole(client: Client, through: Client, proxy: ChaosProxy, namespace: str) -> None:
    await client.create(config_map(namespace, "one"))
    delayed = proxy.inject(Delay(0.05))
    assert await items(through, namespace) == await items(client, namespace)
    assert delayed.hits == 1


async def test_a_silent_proxy_goes_on_where_it_was(
    client: Client, through: Client, proxy: ChaosProxy, namespace: str, version: str
) -> None:
    events = through.watch("v1", "ConfigMap", version, namespace)
    assert [await take(events), await take(events)] == ["one", "two"]
    proxy.go_silent()
    await client.create(config_map(namespace, "three"))
    follower = asyncio.create_task(take(events))
    listing = asyncio.create_task(through.list("v1", "ConfigMap", namespace))
    # Another watch has it, so this one would, were the proxy not silent.
    seen = client.watch("v1", "ConfigMap", version, namespace)
    assert [await take(seen), await take(seen), await take(seen)] == ["one", "two", "three"]
    assert (follower.done(), listing.done()) == (False, False)
    proxy.speak()
    assert await follower == "three"
    assert len((await listing)["items"]) == 3


async def test_a_refusing_proxy_resets_what_is_there_and_listens_again_at_the_same_port(
    through: Client, proxy: ChaosProxy, namespace: str, version: str
) -> None:
    events = through.watch("v1", "ConfigMap", version, namespace)
    await anext(events)
    port = proxy.port
    await proxy.refuse()
    with pytest.raises(aiohttp.ClientError):
        await drain(events)
    with pytest.raises(aiohttp.ClientConnectorError):
        await through.list("v1", "ConfigMap", namespace)
    await proxy.accept()
    assert proxy.port == port
    await through.list("v1", "ConfigMap", namespace)


async def test_the_proxy_survives_a_restart_of_the_server(
    api_server: ApiServer, through: Client, namespace: str, version: str
) -> None:
    events = through.watch("v1", "ConfigMap", version, namespace)
    await anext(events)
    await api_server.restart()
    with pytest.raises(aiohttp.ClientError):
        await drain(events)
    assert len((await through.list("v1", "ConfigMap", namespace))["items"]) == 2
