"""A reflector against a server that does what a test says: what it asks, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ambientd.resources.events import Delete, Put
from ambientd.sources.reflector import PAGE_OBJECTS
from ambientd.sources.watches import State
from tests.kube.playing import agrees, follow
from tests.kube.scripted import ScriptedServer, bookmark, fails, line, says


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


# Lists.


async def test_every_kind_is_listed_and_watched(server: ScriptedServer, tmp_path: Path) -> None:
    await server.put("Pod", "a")
    async with follow(server, tmp_path) as follower:
        await follower.until_listed()
        assert len(follower.reader.listed) == len(server.objects)
        assert follower.reader.names("Pod") == ["a"]
        await server.put("Pod", "b")
        await agrees(server, follower)
        await follower.reader.until(lambda: {watch.state for watch in follower.cluster.watches} == {State.WATCHING})


async def test_lists_are_consistent_and_never_from_the_past(server: ScriptedServer, tmp_path: Path) -> None:
    async with follow(server, tmp_path) as follower:
        await follower.until_listed()
    assert all("resourceVersion" not in asked.query for asked in server.requests if not asked.is_watch)
    assert server.asked("Pod", "list")[0].query == {"fieldSelector": "status.phase!=Failed", "limit": "500"}
    assert server.asked("ConfigMap", "list")[0].query["fieldSelector"] == "metadata.name=istio"


async def test_a_watch_begins_at_the_version_of_the_list_with_bookmarks_and_an_end(
    server: ScriptedServer, tmp_path: Path
) -> None:
    await server.put("Pod", "a")
    await server.put("Node", "n", "")
    async with follow(server, tmp_path) as follower:
        await follower.until_listed()
        await follower.reader.until(lambda: bool(server.asked("Pod", "watch")))
    query = server.asked("Pod", "watch")[0].query
    assert (query["resourceVersion"], query["allowWatchBookmarks"]) == ("102", "true")
    assert 60 <= int(query["timeoutSeconds"]) <= 120


async def test_a_long_list_comes_in_pages_and_in_one_piece_for_the_reader(
    server: ScriptedServer, tmp_path: Path
) -> None:
    for number in range(1_201):
        await server.put("Pod", f"p{number:04}")
    async with follow(server, tmp_path) as follower:
        await agrees(server, follower)
        assert len([asked for asked in server.requests if "continue" in asked.query]) == 2
        server.compact()
        for number in range(1_201):
            await server.put("Pod", f"p{number:04}")
        await server.end_watches()
        await agrees(server, follower)


async def test_a_list_whose_pages_expire_is_asked_for_in_one_piece(server: ScriptedServer, tmp_path: Path) -> None:
    for number in range(600):
        await server.put("Pod", f"p{number:04}")
    server.script("Pod", "page", fails(410, "Expired", "the provided continue parameter is too old"))
    async with follow(server, tmp_path) as follower:
        await agrees(server, follower)
    assert [asked.query.get("limit") for asked in server.asked("Pod", "list")] == ["500", None]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{",
        b"{}",
        b"<html>please log in</html>",
        b'{"kind":"Status","metadata":{}}',
        b'{"kind":"PodList","items":[]}',
        b'{"kind":"PodList","metadata":{"resourceVersion":"9"},"items":[{"metadata":{"na',
    ],
)
async def test_an_answer_that_is_no_list_is_never_an_empty_one(
    server: ScriptedServer, tmp_path: Path, answer: bytes
) -> None:
    await server.put("Pod", "a")
    async with follow(server, tmp_path) as follower:
        await agrees(server, follower)
        server.script("Pod", "list", says(answer), says(answer))
        server.compact()
        await server.put("Pod", "b")
        server.compact()
        await server.end_watches()
        await follower.reader.until(lambda: follower.watch("Pod").failures >= 2)
        await agrees(server, follower)


async def test_a_relist_after_ready_is_one_batch_of_what_changed(server: ScriptedServer, tmp_path: Path) -> None:
    for name in "abc":
        await server.put("Pod", name)
    async with follow(server, tmp_path, healthy_s=0.0, watch_s=1.0) as follower:
        await follower.until_listed()
        batches = len(follower.reader.batches)
        # Told to nobody, and forgotten.
        server.version += 10
        del server.objects["Pod"]["shop", "a"]
        metadata = {"name": "d", "namespace": "shop", "resourceVersion": str(server.version)}
        server.objects["Pod"]["shop", "d"] = {"metadata": metadata}
        server.compact()
        await server.end_watches()
        await agrees(server, follower)
        (batch,) = follower.reader.batches[batches:]
        assert [type(event) for event in batch] == [Put, Delete]


# Watches.


async def test_a_watch_that_ends_when_it_was_asked_to_goes_on_where_it_was(
    server: ScriptedServer, tmp_path: Path
) -> None:
    async with follow(server, tmp_path, healthy_s=0.0, watch_s=1.0) as follower:
        await follower.until_listed()
        await server.put("Pod", "a")
        await agrees(server, follower)
        for name in "bcd":
            await server.end_watches()
            await server.put("Pod", name)
            await agrees(server, follower)
        assert len(server.asked("Pod", "list")) == 1


async def crowd(server: ScriptedServer) -> None:
    """More pods than one page of a list has."""
    for number in range(PAGE_OBJECTS + 1):
        await server.put("Pod", f"p{number:04}")


@pytest.mark.parametrize("is_crowded", [False, True])
async def test_a_watch_cut_in_the_middle_of_an_event_loses_nothing(
    server: ScriptedServer, tmp_path: Path, is_crowded: bool
) -> None:
    if is_crowded:
        await crowd(server)
    async with follow(server, tmp_path) as follower:
        await follower.until_listed()
        first = await server.put("Pod", "first")
        await agrees(server, follower)
        last = [line("ADDED", await server.put("Pod", name)) for name in "ab"]
        again = line("MODIFIED", first) if is_crowded else b""
        for then in ("cut", "end"):
            server.script("Pod", "watch", says(again + last[0] + last[1][:40], then=then))
        await server.end_watches()
        await agrees(server, follower)
        await follower.reader.until(lambda: len(server.asked("Pod", "watch")) >= 4)
        await server.put("Pod", "c")
        await agrees(server, follower)


async def test_a_long_list_is_not_read_again_when_the_watch_proves_that_nothing_was_missed(
    server: ScriptedServer, tmp_path: Path
) -> None:
    await crowd(server)
    async with follow(server, tmp_path) as follower:
        await follower.until_listed()
        for name in "abc":
            await server.put("Pod", name)
            await agrees(server, follower)
            await server.end_watches()
            await follower.reader.until(lambda: follower.watch("Pod").state is State.WATCHING)
        await server.put("Pod", "d")
        await agrees(server, follower)
        assert follower.watch("Pod").lists == {"start": 1}


async def test_events_that_come_together_are_one_batch(server: ScriptedServer, tmp_path: Path) -> None:
    server.script("Pod", "list", says(b'{"kind":"PodList","metadata":{"resourceVersion":"100"},"items":[]}'))
    lines = b"".join([line("ADDED", await server.put("Pod", f"p{number}")) for number in range(5)])
    server.script("Pod", "watch", says(lines, then="silent"))
    async with follow(server, tmp_path) as follower:
        await agrees(server, follower)
        assert [len(batch) for batch in follower.reader.batches if isinstance(batch[0], Put)] == [5]


async def test_a_line_that_is_no_event_ends_the_watch_and_not_the_reflector(
    server: ScriptedServer, tmp_path: Path
) -> None:
    async with follow(server, tmp_path) as follower:
        await follower.until_listed()
        server.script("Pod", "watch", says(b"<html>gateway timeout</html>\n"), says(b'{"type":"ADDED"}\n'))
        await server.end_watches()
        await follower.reader.until(lambda: follower.watch("Pod").failures >= 2)
        await server.put("Pod", "a")
        await agrees(server, follower)


async def test_an_object_that_does_not_decode_is_invalid_and_the_watch_goes_on(
    server: ScriptedServer, tmp_path: Path
) -> None:
    async with follow(server, tmp_path) as follower:
        await follower.until_listed()
        await server.put("Pod", "wrong", spec={"nodeName": 7})
        await server.put("Pod", "right")
        await follower.reader.until(lambda: follower.reader.names("Pod") == ["right"])
        (invalid,) = follower.reader.invalid.values()
        assert (invalid.ref.name, invalid.faults[0].path) == ("wrong", "spec.nodeName")
        assert follower.watch("Pod").state is State.WATCHING
        await server.put("Pod", "wrong", spec={"nodeName": "n1"})
        await agrees(server, follower)
        assert follower.watch("Pod").failures == 0


async def test_a_half_open_connection_is_given_up_once_bookmarks_stop(server: ScriptedServer, tmp_path: Path) -> None:
    server.script("Pod", "watch", says(bookmark(101), then="silent"))
    async with follow(server, tmp_path, heartbeat_s=0.1) as follower:
        await follower.until_listed()
        server.version = 101
        await server.put("Pod", "a")
        await agrees(server, follower)
        assert follower.watch("Pod").failures == 1


async def test_a_silent_server_without_bookmarks_is_given_up_after_the_end_that_was_asked_for(
    server: ScriptedServer, tmp_path: Path
) -> None:
    server.script("Pod", "watch", says(then="silent"))
    async with follow(server, tmp_path, watch_s=0.05, grace_s=0.05) as follower:
        await follower.until_listed()
        await server.put("Pod", "a")
        await agrees(server, follower)
        assert follower.watch("Pod").failures >= 1


async def test_what_is_silent_is_shown_as_outdated_and_as_current_again(server: ScriptedServer, tmp_path: Path) -> None:
    async with follow(server, tmp_path) as follower:
        await follower.until_listed()
        server.script("Pod", "list", forever=fails(503))
        await server.end_watches()
        watch = follower.watch("Pod")
        await follower.reader.until(lambda: not watch.is_current)
        assert (watch.state, watch.is_listed) == (State.WAITING, True)
        assert "503" in watch.reason or "scripted" in watch.reason
        server.calm()
        await follower.reader.until(lambda: watch.is_current)


# Versions.


async def test_an_expired_version_leads_to_a_list_and_a_watch_from_its_version(
    server: ScriptedServer, tmp_path: Path
) -> None:
    async with follow(server, tmp_path, healthy_s=0.0, watch_s=1.0) as follower:
        await follower.until_listed()
        await server.put("Pod", "a")
        await agrees(server, follower)
        for _ in range(5):
            await server.put("Node", "n", "")
        server.compact()
        await server.put("Pod", "b")
        await server.end_watches()
        await agrees(server, follower)
        await follower.reader.until(lambda: len(server.asked("Pod", "watch")) >= 3)
        versions = [int(asked.query["resourceVersion"]) for asked in server.asked("Pod", "watch")]
        assert versions[-1] == server.version
        assert follower.watch("Pod").lists == {"start": 1, "410": 1}


async def test_an_error_line_of_410_leads_to_a_list(server: ScriptedServer, tmp_path: Path) -> None:
    expired = line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
    server.script("Pod", "watch", says(expired))
    async with follow(server, tmp_path) as follower:
        await follower.reader.until(lambda: follower.watch("Pod").lists == {"start": 1, "410": 1})
        await server.put("Pod", "a")
        await agrees(server, follower)


async def test_too_large_a_version_leads_to_a_list(server: ScriptedServer, tmp_path: Path) -> None:
    ahead = fails(504, "Timeout", "Too large resource version: 900, current: 100")
    server.script("Pod", "watch", ahead)
    async with follow(server, tmp_path) as follower:
        await follower.reader.until(
            lambda: follower.watch("Pod").lists == {"start": 1, "too large resource version": 1}
        )


async def test_a_restored_etcd_is_noticed_although_the_watch_is_accepted(
    server: ScriptedServer, tmp_path: Path
) -> None:
    await server.put("Pod", "a")
    backup = dict(server.objects["Pod"])
    async with follow(server, tmp_path) as follower:
        await follower.until_listed()
        await server.put("Pod", "a", spec={"nodeName": "n1"})
        await server.put("Pod", "b")
        await agrees(server, follower)
        await server.rewind(101, "Pod", backup)
        await agrees(server, follower)
        assert follower.watch("Pod").lists == {"start": 1, "version went back": 1}
        await server.put("Pod", "c")
        await agrees(server, follower)


async def test_after_a_restore_the_same_version_of_another_content_is_read(
    server: ScriptedServer, tmp_path: Path
) -> None:
    backup = dict(server.objects["Pod"])
    async with follow(server, tmp_path) as follower:
        await follower.until_listed()
        await server.put("Pod", "a", spec={"nodeName": "n1"})
        await server.put("Pod", "b")
        await agrees(server, follower)
        await server.rewind(100, "Pod", backup)
        await server.put("Pod", "a", spec={"nodeName": "n2"})

        def last_node() -> str:
            puts = [event for batch in follower.reader.batches for event in batch if isinstance(event, Put)]
            pods = [put.object for put in puts if put.object.ref.kind == "Pod"]
            return getattr(pods[-1], "node", "")

        await follower.reader.until(lambda: last_node() == "n2")
        await agrees(server, follower)


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_restored_etcd_is_noticed_although_its_version_has_caught_up(
    server: ScriptedServer, tmp_path: Path, is_busy: bool
) -> None:
    await crowd(server)
    backup, version = dict(server.objects["Pod"]), server.version
    async with follow(server, tmp_path, overlap_s=0.05) as follower:
        await follower.until_listed()
        await server.put("Pod", "p0007", spec={"nodeName": "n1"})
        await server.put("Pod", "lost")
        await agrees(server, follower)
        await server.rewind(version, "Pod", backup, then=version + 50)
        if is_busy:
            await server.put("Pod", "p0008", spec={"nodeName": "n1"})
        await agrees(server, follower)
        assert follower.watch("Pod").lists == {"start": 1, "version went back": 1}


async def test_everything_is_compared_now_and_then(server: ScriptedServer, tmp_path: Path) -> None:
    async with follow(server, tmp_path, consistency_s=0.0) as follower:
        await follower.until_listed()
        # Nobody was told of this one.
        server.objects["Pod"]["shop", "a"] = {"metadata": {"name": "a", "namespace": "shop", "resourceVersion": "100"}}
        await server.end_watches()
        await agrees(server, follower)
        assert follower.watch("Pod").lists["consistency"] >= 1
