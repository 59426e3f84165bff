"""The feed: commits that are shown at once, and jobs that are cut at one of them, whatever happens while they are
done."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ambientd.index.rendered import RenderedAddress, RenderedPolicy
from ambientd.push.feed import Feed
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.push.ondemand import Interest
from ambientd.push.rounds import Job, Round
from ambientd.push.views import BelowFloor
from tests.unit.conversation import Mesh, Rendered, Response, decoded, pod, policy, service, uid

BOTH = {ADDRESS: 1, AUTHORIZATION: 1}


def _responses(job: Job[Round]) -> list[Response]:
    return [decoded(part.response) for part in job.run().parts]


def _versions(response: Response) -> dict[str, str]:
    return {name: resource.version for name, resource in response.resources.items()}


# Commits.


def test_a_staged_commit_is_seen_by_nobody_and_a_shown_one_by_everybody() -> None:
    mesh = Mesh()
    staging = mesh.feed.stage([(uid("a/one"), pod("a/one"))], [])
    staged = staging.run()
    assert _responses(mesh.feed.full(ADDRESS, {}))[0].names == []
    mesh.feed.commit(staged)
    assert mesh.feed.head == 1
    assert _responses(mesh.feed.full(ADDRESS, {}))[0].names == [uid("a/one")]
    mesh.feed.settle().run()
    assert _responses(mesh.feed.full(ADDRESS, {}))[0].names == [uid("a/one")]


@pytest.mark.parametrize("is_dropped_first", [True, False])
def test_a_name_that_one_source_drops_and_another_takes_over_is_taken_over(is_dropped_first: bool) -> None:
    mesh = Mesh()
    mesh.change(pod("a/one"), policy("a/p"))
    taken: list[tuple[str, RenderedAddress | None]] = [(uid("a/one"), None), (uid("a/one"), pod("a/one", revision="2"))]
    policies: list[tuple[str, RenderedPolicy | None]] = [("a/p", None), ("a/p", policy("a/p", port=2))]
    if not is_dropped_first:
        taken.reverse()
        policies.reverse()
    mesh.feed.commit(mesh.feed.stage(taken, policies).run())
    told = _responses(mesh.feed.round(BOTH))
    assert sorted((response.names, response.removed) for response in told) == [([uid("a/one")], ()), (["a/p"], ())]


def test_a_commit_names_the_nodes_that_get_a_new_workload() -> None:
    mesh = Mesh()
    mesh.change(pod("a/old", node="n1"))
    changes = [pod("a/old", node="n1", revision="2"), pod("a/new", node="n2"), pod("a/nowhere")]
    staged = mesh.feed.stage([(rendered.name, rendered) for rendered in changes], []).run()
    assert staged.nodes == {"n2"}


def test_a_commit_of_nothing_is_empty() -> None:
    assert Mesh().feed.stage([(uid("a/none"), None)], []).run().is_empty


def test_the_oldest_cursor_is_that_of_the_slowest_stream_and_of_nobody_the_head() -> None:
    mesh = Mesh()
    mesh.change(pod("a/one"))
    feed = mesh.feed
    assert feed.oldest_cursor() == 1
    feed.at(1, 0)
    feed.at(2, 1)
    assert feed.oldest_cursor() == 0
    feed.left(1)
    feed.left(1)
    assert feed.oldest_cursor() == 1


# Sharing.


def test_a_full_state_is_shared_while_somebody_holds_it() -> None:
    mesh = Mesh()
    mesh.change(pod("a/one"))
    first = mesh.feed.full(ADDRESS, {}).run().parts[0]
    assert mesh.feed.full(ADDRESS, {}).run().parts[0] is first
    nonce = first.nonce
    del first
    gc.collect()
    assert mesh.feed.full(ADDRESS, {}).run().parts[0].nonce != nonce


def test_a_full_state_is_not_shared_after_a_commit() -> None:
    mesh = Mesh()
    mesh.change(pod("a/one"))
    first = mesh.feed.full(ADDRESS, {}).run().parts[0]
    mesh.change(policy("a/p"))
    second = mesh.feed.full(ADDRESS, {}).run()
    assert second.to == 2
    assert second.parts[0] is not first


def test_streams_at_one_position_share_a_round_until_the_next_commit() -> None:
    mesh = Mesh()
    mesh.change(pod("a/one"))
    mesh.change(pod("a/two"))
    job = mesh.feed.round(BOTH)
    assert mesh.feed.round(dict(BOTH)) is job
    assert mesh.feed.round({ADDRESS: 1}) is not job
    mesh.change(pod("a/three"))
    assert mesh.feed.round(BOTH) is not job
    assert [response.names for response in _responses(job)] == [[uid("a/two")]]


def test_who_is_below_the_floor_is_told_so_each_time() -> None:
    mesh = Mesh(most_tombstones=1)
    mesh.feed.at(1, 0)
    mesh.change(pod("a/one"), pod("a/two"), pod("a/three"))
    for name in ("a/one", "a/two", "a/three"):
        mesh.change(gone=[uid(name)])
    for _ in range(2):
        with pytest.raises(BelowFloor):
            mesh.feed.round(BOTH)
        with pytest.raises(BelowFloor):
            mesh.feed.interesting(Interest("", wakes_by_removal=True), BOTH).run()


def test_a_directory_that_nobody_finished_is_finished_by_who_comes_next() -> None:
    mesh = Mesh()
    mesh.change(*(pod(f"a/{number}", ip=f"10.0.{number // 250}.{number % 250}") for number in range(600)))
    given_up = mesh.feed.ask(Interest("", wakes_by_removal=False), ("/10.0.2.1",), {}, {ADDRESS: 1})
    assert not given_up.step(lambda: True)
    del given_up
    mesh.change(pod("a/late", ip="10.1.0.1"), gone=[uid("a/0")])
    for key, names in (("/10.0.2.1", [uid("a/501")]), ("/10.1.0.1", [uid("a/late")]), ("/10.0.0.0", [])):
        interest = Interest("", wakes_by_removal=False)
        assert [response.names for response in _responses(mesh.feed.ask(interest, (key,), {}, {ADDRESS: 2}))] == [names]


def test_a_job_that_needs_a_settled_feed_waits_without_working() -> None:
    mesh = Mesh()
    mesh.change(pod("a/one"))
    mesh.show(pod("a/two"))
    job = mesh.feed.ask(Interest("", wakes_by_removal=False), (uid("a/two"),), {}, {ADDRESS: 1})
    for _ in range(3):
        assert not job.step(lambda: False)
    mesh.feed.settle().run()
    assert [response.names for response in _responses(job)] == [[uid("a/two")]]


# Requests of any size.


class _Counted(Mapping[str, str]):
    """Many names that nobody knows, and how many of them were looked at."""

    def __init__(self) -> None:
        self.seen = 0

    def __iter__(self) -> Iterator[str]:
        for number in range(len(self)):
            self.seen += 1
            yield f"/10.200.{number // 250}.{number % 250}"

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, name: str) -> str:
        return "f00"


@pytest.mark.parametrize("what", ["forgotten", "claimed"])
def test_the_names_of_a_request_are_looked_at_in_slices(what: str) -> None:
    mesh, names = Mesh(), _Counted()
    mesh.change(pod("a/one"))
    given: dict[str, Mapping[str, str]] = {"forgotten": {}, "claimed": {}, what: names}
    interest = Interest("", wakes_by_removal=False)
    job = mesh.feed.ask(interest, (), given["claimed"], {ADDRESS: 1}, forgotten=given["forgotten"], is_owed=False)
    before, is_done = 0, False
    while not is_done:
        is_done = job.step(lambda: True)
        assert names.seen - before <= 256
        before = names.seen
    assert names.seen in (len(names), 2 * len(names))
    assert sum(part.removed for part in job.result.parts) == (0 if what == "forgotten" else len(names))


def test_very_many_names_that_are_gone_are_told_of_in_several_messages() -> None:
    mesh, names = Mesh(), tuple(f"/10.{n // 62_500}.{n // 250 % 250}.{n % 250}" for n in range(70_000))
    mesh.change(pod("a/one", ip="10.255.0.1"))
    told = _responses(mesh.feed.named(ADDRESS, (*names, uid("a/one")), {ADDRESS: 1}))
    assert [name for response in told for name in response.removed] == list(names)
    assert max(len(response.removed) for response in told) < 35_000
    assert [name for response in told for name in response.names] == [uid("a/one")]
    (policies,) = _responses(mesh.feed.named(AUTHORIZATION, names, {AUTHORIZATION: 1}))
    assert len(policies.removed) == len(names)


# Every job is cut at one commit.

_NAMES = tuple(f"a/{number}" for number in range(6))
_POLICIES = ("a/p", "a/q")
_VIP = "a/vip.local"

_changes = st.dictionaries(st.sampled_from((*_NAMES, *_POLICIES, _VIP)), st.none() | st.integers(1, 3), min_size=1)


def _apply(mesh: Mesh, changes: Mapping[str, int | None], *, folds: bool = True) -> None:
    put: list[Rendered] = []
    gone: list[str] = []
    for name, value in changes.items():
        full_name = uid(name) if name in _NAMES else name
        if value is not None:
            put.append(_rendered(name, value))
        elif full_name in mesh.served[ADDRESS] or full_name in mesh.served[AUTHORIZATION]:
            gone.append(full_name)
    mesh.show(*put, gone=gone)
    if folds:
        mesh.feed.settle().run()


def _rendered(name: str, value: int) -> Rendered:
    if name in _POLICIES:
        return policy(name, port=value)
    if name == _VIP:
        return service(name, port=value)
    return pod(name, ip=f"10.0.0.{value}", services=[_VIP] if value == 1 else ())


@settings(max_examples=100, deadline=None)
@given(st.lists(_changes, max_size=8))
def test_the_full_state_is_what_is_served_after_any_history(history: list[dict[str, int | None]]) -> None:
    mesh = Mesh()
    for changes in history:
        _apply(mesh, changes)
        for url in (ADDRESS, AUTHORIZATION):
            (part,) = mesh.feed.full(url, {}).run().parts
            response = decoded(part.response)
            assert _versions(response) == mesh.versions(url)
            assert (part.resources, part.removed) == (len(response.resources), 0)


_MakeJob = Callable[[Feed, int], Job[Round]]


def _everything() -> Interest:
    return Interest("", wakes_by_removal=False)


_JOBS: dict[str, _MakeJob] = {
    "full": lambda feed, cursor: feed.full(ADDRESS, {AUTHORIZATION: cursor}),
    "full policies": lambda feed, cursor: feed.full(AUTHORIZATION, {ADDRESS: cursor}),
    "round": lambda feed, cursor: feed.round({ADDRESS: cursor, AUTHORIZATION: cursor}),
    "first": lambda feed, cursor: feed.first({ADDRESS: {uid("a/0"): "x"}, AUTHORIZATION: {}}, {}),
    "named": lambda feed, cursor: feed.named(
        ADDRESS, tuple(map(uid, _NAMES)), {ADDRESS: cursor, AUTHORIZATION: cursor}
    ),
    "first on demand": lambda feed, cursor: feed.first(
        {ADDRESS: {}, AUTHORIZATION: {}}, {}, _everything(), (*map(uid, _NAMES), _VIP)
    ),
    "ask": lambda feed, cursor: feed.ask(
        _everything(), (_VIP, uid("a/0")), {}, {ADDRESS: cursor, AUTHORIZATION: cursor}
    ),
}


@settings(max_examples=60, deadline=None)
@given(st.lists(_changes, min_size=2, max_size=6), st.integers(0, 5), st.lists(st.integers(0, 4), max_size=5))
@pytest.mark.parametrize("kind", _JOBS)
def test_a_job_shows_nothing_that_is_newer_than_its_cut(
    kind: str, history: list[dict[str, int | None]], back: int, pauses: list[int]
) -> None:
    mesh = Mesh()
    mesh.feed.at(1, 0)
    served: list[dict[str, str]] = [{}]

    def commit(changes: Mapping[str, int | None], *, folds: bool) -> None:
        _apply(mesh, changes, folds=folds)
        served.append({**mesh.versions(ADDRESS), **mesh.versions(AUTHORIZATION)})

    half = len(history) // 2
    for changes in history[:half]:
        commit(changes, folds=True)
    job = _JOBS[kind](mesh.feed, max(0, mesh.feed.head - back))
    is_done = False
    for changes, pause in zip(history[half:], [*pauses, *[1] * len(history)], strict=False):
        for _ in range(pause):
            is_done = is_done or job.step(lambda: True)
        commit(changes, folds=False)
        is_done = is_done or job.step(lambda: True)
        mesh.feed.settle().run()
    result = job.run()
    for part in result.parts:
        response = decoded(part.response)
        now = served[result.to]
        assert {name: version for name, version in _versions(response).items() if now.get(name) != version} == {}
        assert [name for name in response.removed if name in now] == []


@settings(max_examples=100, deadline=None)
@given(st.lists(_changes, min_size=1, max_size=6), st.integers(0, 6))
def test_a_round_brings_any_cursor_to_the_head(history: list[dict[str, int | None]], cursor: int) -> None:
    mesh = Mesh()
    mesh.feed.at(1, 0)
    served: list[dict[str, str]] = [{}]
    for changes in history:
        _apply(mesh, changes)
        served.append({**mesh.versions(ADDRESS), **mesh.versions(AUTHORIZATION)})
    cursor = min(cursor, mesh.feed.head)
    held = dict(served[cursor])
    for part in mesh.feed.round({ADDRESS: cursor, AUTHORIZATION: cursor}).run().parts:
        response = decoded(part.response)
        held.update(_versions(response))
        for name in response.removed:
            held.pop(name, None)
    assert held == served[-1]


def test_a_mesh_wide_change_is_sent_in_pieces_and_policies_in_one() -> None:
    mesh = Mesh()
    mesh.change(pod("a/one"), policy("a/p"))
    mesh.feed.at(1, 1)
    pods = [pod(f"a/{number}") for number in range(5_000)]
    policies = [policy(f"a/p{number}", "NAMESPACE") for number in range(5_000)]
    mesh.change(*pods, *policies, gone=[uid("a/one"), "a/p"])
    told = _responses(mesh.feed.round(BOTH))
    sizes = [(response.type_url, len(response.resources)) for response in told]
    assert [size for url, size in sizes if url == ADDRESS and size] == [4096, 904]
    assert [size for url, size in sizes if url == AUTHORIZATION and size] == [5_000]
    assert {name for response in told for name in response.removed} == {uid("a/one"), "a/p"}
