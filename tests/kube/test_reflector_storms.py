"""A reflector against a server that is angry, and kinds that come and go: how often it asks, what it takes for absence,
and what it keeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ambientd.resources.events import Put
from ambientd.sources.watches import State
from tests.kube.following import Following
from tests.kube.playing import agrees, follow
from tests.kube.scripted import ScriptedServer, fails, says

KIND = "AuthorizationPolicy"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


# Storms.


class Waits:
    """Waits that are noted and take no time."""

    def __init__(self) -> None:
        self.noted: list[float] = []

    async def __call__(self, wait_s: float) -> None:
        self.noted.append(wait_s)
        await asyncio.sleep(0)

    def are_steps(self, *steps_s: float) -> bool:
        """Each of the first waits is half of its step or more, and no more than it."""
        pairs = zip(self.noted, steps_s, strict=False)
        return len(self.noted) >= len(steps_s) and all(step / 2 <= wait <= step for wait, step in pairs)


STEPS = (0.5, 1, 2, 4, 8, 16, 30, 30, 30)


async def test_a_watch_that_ends_at_once_is_no_hot_loop(server: ScriptedServer, tmp_path: Path) -> None:
    server.script("Pod", "watch", forever=says())
    waits = Waits()
    async with follow(server, tmp_path, sleep=waits, first_s=0.5, ceiling_s=30.0) as follower:
        await follower.reader.until(lambda: len(waits.noted) >= len(STEPS))
        assert waits.are_steps(*STEPS), waits.noted


async def test_a_410_on_every_watch_is_no_storm_of_lists(server: ScriptedServer, tmp_path: Path) -> None:
    server.script("Pod", "watch", forever=fails(410, "Expired"))
    waits = Waits()
    async with follow(server, tmp_path, sleep=waits, first_s=0.5, ceiling_s=30.0) as follower:
        await follower.reader.until(lambda: len(waits.noted) >= len(STEPS))
        assert waits.are_steps(*STEPS), waits.noted
        server.calm()
        await server.put("Pod", "a")
        await agrees(server, follower)


async def fails_once_more(server: ScriptedServer, follower: Following) -> None:
    before = follower.watch("Pod").failures
    await server.end_watches()
    await follower.reader.until(lambda: follower.watch("Pod").failures > before)


async def test_a_watch_that_lasted_makes_the_next_failure_a_first_one(server: ScriptedServer, tmp_path: Path) -> None:
    waits = Waits()
    async with follow(server, tmp_path, sleep=waits, first_s=0.5, ceiling_s=30.0, healthy_s=0.0) as follower:
        await follower.until_listed()
        for _ in range(4):
            server.script("Pod", "watch", fails(500), None)
            await follower.reader.until(lambda: follower.watch("Pod").state is State.WATCHING)
            await fails_once_more(server, follower)
        assert waits.are_steps(0.5, 0.5, 0.5, 0.5), waits.noted


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
async def test_a_storm_of_errors_delays_and_loses_nothing(server: ScriptedServer, tmp_path: Path, code: int) -> None:
    await server.put("Pod", "a")
    async with follow(server, tmp_path) as follower:
        await follower.until_listed()
        for what in ("list", "watch"):
            server.script("Pod", what, *[fails(code)] * 5)
        server.compact()
        await server.delete("Pod", "a")
        await server.put("Pod", "b")
        server.compact()
        await server.end_watches()
        await agrees(server, follower)


async def test_the_server_is_not_asked_before_the_time_it_names(server: ScriptedServer, tmp_path: Path) -> None:
    server.script("Pod", "list", fails(429, "TooManyRequests", retry_after="7"))
    waits = Waits()
    async with follow(server, tmp_path, sleep=waits) as follower:
        await follower.until_listed()
    assert 7 <= waits.noted[0] <= 1.2 * 7


# Kinds that come and go.


async def test_a_missing_kind_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    async with ScriptedServer(custom_kinds=()) as server, follow(server, tmp_path) as follower:
        await follower.until_listed()
        assert follower.reader.absent == {
            "AuthorizationPolicy",
            "PeerAuthentication",
            "ServiceEntry",
            "WorkloadEntry",
            "Gateway",
            "GatewayClass",
        }
        assert follower.watch(KIND).state is State.ABSENT
        assert server.asked(KIND, "list") == []


async def test_a_kind_that_appears_is_read_at_once(server: ScriptedServer, tmp_path: Path) -> None:
    await server.define(KIND)
    async with follow(server, tmp_path, absent_s=60.0) as follower:
        await follower.until_listed()
        assert follower.reader.absent == {KIND}
        await server.put(KIND, "till")
        await server.define(KIND, "v1")
        await agrees(server, follower, KIND)
        assert follower.reader.absent == set()


async def test_a_kind_that_appears_is_noticed_where_definitions_cannot_be_watched(
    server: ScriptedServer, tmp_path: Path
) -> None:
    await server.define(KIND)
    server.refuse_definition_watches = True
    async with follow(server, tmp_path, absent_s=0.05) as follower:
        await follower.until_listed()
        await server.define(KIND, "v1")
        await server.put(KIND, "till")
        await agrees(server, follower, KIND)


async def test_a_kind_that_disappears_takes_its_objects_along_and_may_come_back(
    server: ScriptedServer, tmp_path: Path
) -> None:
    await server.put(KIND, "till")
    async with follow(server, tmp_path) as follower:
        await agrees(server, follower, KIND)
        for _ in range(2):
            await server.define(KIND)
            await follower.reader.until(lambda: follower.reader.absent == {KIND})
            assert follower.reader.names(KIND) == []
            await server.put(KIND, "other")
            await server.define(KIND, "v1")
            await agrees(server, follower, KIND)
            await follower.reader.until(lambda: follower.reader.absent == set())


async def test_a_404_alone_never_makes_a_kind_absent(server: ScriptedServer, tmp_path: Path) -> None:
    """As of a server that has just started and does not serve its custom kinds yet."""
    await server.put(KIND, "till")
    async with follow(server, tmp_path) as follower:
        await agrees(server, follower, KIND)
        nothing = fails(404, "NotFound", "the server could not find the requested resource")
        for what in ("list", "watch"):
            server.script(KIND, what, *[nothing] * 3)
        await server.end_watches()
        await follower.reader.until(lambda: follower.watch(KIND).failures >= 3)
        assert follower.reader.names(KIND) == ["till"]
        await server.put(KIND, "other")
        await agrees(server, follower, KIND)
        assert follower.reader.absent == set()


@pytest.mark.parametrize(
    "answer",
    [
        fails(403, "Forbidden"),
        fails(500),
        fails(503),
        fails(404, "", "404 page not found"),
        says(b"{}"),
        says(b"<html>"),
    ],
)
async def test_a_failed_discovery_is_not_absence(server: ScriptedServer, tmp_path: Path, answer: Any) -> None:
    server.script(KIND, "definition", forever=answer)
    async with follow(server, tmp_path) as follower:
        watch = follower.watch(KIND)
        await follower.reader.until(lambda: watch.failures >= 2)
        assert KIND not in follower.reader.listed | follower.reader.absent
        assert (watch.is_listed, watch.reason != "") == (False, True)
        server.calm()
        await follower.until_listed()


async def test_a_kind_that_is_forbidden_keeps_the_server_waiting_and_says_so(
    server: ScriptedServer, tmp_path: Path
) -> None:
    message = 'pods is forbidden: User "x" cannot list resource "pods" in API group "" at the cluster scope'
    server.script("Pod", "list", forever=fails(403, "Forbidden", message))
    async with follow(server, tmp_path) as follower:
        others = {*server.objects} - {"Pod"}
        await follower.reader.until(lambda: follower.reader.listed == others and follower.watch("Pod").failures >= 2)
        plain = follower.watch("Pod").plain(0.0)
        assert (plain["isListed"], message in plain["reason"]) == (False, True)


async def test_a_gateway_kind_in_no_version_that_is_read_is_left_out(server: ScriptedServer, tmp_path: Path) -> None:
    server.served["Gateway"] = ("v1alpha2",)
    async with follow(server, tmp_path) as follower:
        await follower.until_listed()
        watch = follower.watch("Gateway")
        assert watch.state is State.UNSUPPORTED
        assert watch.reason.startswith("gateways.gateway.networking.k8s.io is served in v1alpha2; ")
        assert server.asked("Gateway", "list") == []


async def test_a_policy_kind_in_no_version_that_is_read_keeps_the_server_waiting(
    server: ScriptedServer, tmp_path: Path
) -> None:
    server.served[KIND] = ("v2",)
    async with follow(server, tmp_path) as follower:
        await follower.reader.until(lambda: follower.watch(KIND).failures >= 2)
        assert KIND not in follower.reader.listed | follower.reader.absent


async def test_policies_stay_in_force_when_their_kind_leaves_every_version_that_is_read(
    server: ScriptedServer, tmp_path: Path
) -> None:
    await server.put(KIND, "till")
    async with follow(server, tmp_path) as follower:
        await agrees(server, follower, KIND)
        await server.define(KIND, "v2")
        await follower.reader.until(lambda: follower.watch(KIND).failures >= 2)
        assert follower.reader.names(KIND) == ["till"]


# Size.


async def test_only_names_and_versions_are_kept_of_what_was_seen(server: ScriptedServer, tmp_path: Path) -> None:
    fields = [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}] * 100
    await server.put("Pod", "a", metadata={"managedFields": fields, "annotations": {"note": "x" * 10_000}})
    async with follow(server, tmp_path) as follower:
        await agrees(server, follower)
        (put,) = [event for batch in follower.reader.batches for event in batch if isinstance(event, Put)]
        assert len(repr(put)) < 1_000
        assert "managed" not in repr(put)


async def test_pods_that_come_and_go_leave_nothing_behind(server: ScriptedServer, tmp_path: Path) -> None:
    async with follow(server, tmp_path) as follower:
        await follower.until_listed()
        for round in range(5):
            for number in range(100):
                await server.put("Pod", f"p{round}-{number}")
            for number in range(100):
                await server.delete("Pod", f"p{round}-{number}")
        await server.put("Pod", "last")
        await agrees(server, follower)
        assert follower.watch("Pod").objects == 1


async def test_the_panel_counts_what_happened(server: ScriptedServer, tmp_path: Path) -> None:
    server.script("Pod", "list", fails(500, message="etcdserver: no leader"))
    async with follow(server, tmp_path) as follower:
        await follower.until_listed()
        await server.put("Pod", "a")
        await server.put("Pod", "a")
        await agrees(server, follower)
        watch = follower.watch("Pod")
        await follower.reader.until(lambda: watch.events == 2)
        plain = json.loads(json.dumps(watch.plain(watch.last_event_s or 0.0)))
        assert plain["bytes"] > 100
        chosen = ("kind", "apiVersion", "state", "isCurrent", "objects", "failures", "lists", "lastEventAgoSeconds")
        assert [plain[name] for name in chosen] == ["Pod", "v1", "watching", True, 1, 1, {"start": 1}, 0.0]
