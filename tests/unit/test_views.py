"""The table of a type that is its own log: what changed since, what a cursor holds, what is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ambientd.index.rendered import RenderedAddress, RenderedPolicy
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.push.views import BelowFloor, PolicyState, State, View, live
from tests.unit.conversation import pod, policy, uid

AddressView = View[RenderedAddress]


def _change(view: AddressView, seq: int, floor: int, *put: RenderedAddress, gone: tuple[str, ...] = ()) -> None:
    """One commit of a view, from its first to its last step."""
    _show(view, seq, floor, *put, gone=gone)
    _settle(view, floor)


def _show(view: AddressView, seq: int, floor: int, *put: RenderedAddress, gone: tuple[str, ...] = ()) -> None:
    staged = {rendered.name: view.staged(rendered.name, rendered, seq, floor) for rendered in put}
    staged.update({name: view.staged(name, None, seq, floor) for name in gone})
    view.commit({name: entry for name, entry in staged.items() if entry is not None})


def _settle(view: AddressView, floor: int) -> None:
    for _ in view.settle(floor):
        pass


def _names(view: AddressView, cursor: int) -> list[str]:
    return sorted(entry.name.removeprefix(uid("")) for entry in view.changed_since(cursor))


@pytest.fixture
def view() -> AddressView:
    view: AddressView = View(ADDRESS)
    _change(view, 1, 0, pod("a/one"), pod("a/two"))
    _change(view, 2, 0, pod("a/one", ip="10.0.0.1"))
    _change(view, 3, 0, pod("a/three"), gone=(uid("a/two"),))
    return view


def test_each_cursor_sees_the_names_that_changed_after_it(view: AddressView) -> None:
    assert [_names(view, cursor) for cursor in range(4)] == [
        ["a/one", "a/three", "a/two"],
        ["a/one", "a/three", "a/two"],
        ["a/three", "a/two"],
        [],
    ]
    assert view.served == 2


def test_what_is_shown_and_not_folded_in_is_seen_at_once_by_everybody(view: AddressView) -> None:
    _show(view, 4, 0, pod("a/one"), pod("a/four"))
    settling = view.settle(0)
    for _ in range(3):
        assert _names(view, 3) == ["a/four", "a/one"]
        assert _names(view, 2) == ["a/four", "a/one", "a/three", "a/two"]
        assert sorted(rendered.name for _, rendered in live(view.entries())) == [
            uid("a/four"),
            uid("a/one"),
            uid("a/three"),
        ]
        next(settling, None)
    assert view.served == 3


def test_the_removal_of_what_was_never_there_is_no_change(view: AddressView) -> None:
    assert view.staged(uid("a/none"), None, 4, 0) is None


def test_a_name_that_comes_back_is_no_tombstone(view: AddressView) -> None:
    _change(view, 4, 3, pod("a/two"))
    _change(view, 5, 5)
    entry = view.get(uid("a/two"))
    assert entry is not None
    assert entry.rendered == pod("a/two")


def test_a_tombstone_stays_until_the_last_cursor_has_passed_it(view: AddressView) -> None:
    _change(view, 4, 2, pod("a/x"))
    assert "a/two" in _names(view, 2)
    _change(view, 5, 3, pod("a/y"))
    assert view.get(uid("a/two")) is None
    assert view.floor == 0


def test_more_tombstones_than_allowed_raise_the_floor() -> None:
    view: AddressView = View(ADDRESS, most_tombstones=1)
    _change(view, 1, 0, pod("a/one"), pod("a/two"))
    _change(view, 2, 0, gone=(uid("a/one"),))
    assert view.floor == 0
    _change(view, 3, 0, gone=(uid("a/two"),))
    assert view.floor == 2
    assert _names(view, 2) == ["a/two"]
    with pytest.raises(BelowFloor, match=r"cursor 1 of .* is below 2"):
        view.changed_since(1)


def test_more_former_states_than_remembered_raise_the_floor_with_the_commit_that_forgets_them() -> None:
    view: AddressView = View(ADDRESS)
    for seq in range(1, 18):
        _change(view, seq, 1, pod("a/one", policies=[f"a/{seq}"]))
        entry = view.get(uid("a/one"))
        assert entry is not None
        assert entry.state_at(1) == ("a/1",)
    assert view.floor == 0
    _show(view, 18, 1, pod("a/one", policies=["a/18"]))
    assert view.floor == 2
    with pytest.raises(BelowFloor):
        view.changed_since(1)


def test_only_states_that_some_cursor_needs_are_kept() -> None:
    view: AddressView = View(ADDRESS)
    for seq in range(1, 40):
        _change(view, seq, seq - 1, pod("a/one", policies=[f"a/{seq}"]))
    entry = view.get(uid("a/one"))
    assert entry is not None
    assert entry.past == ((38, ("a/38",)),)
    assert view.floor == 0


def test_a_version_that_was_served_not_long_ago_is_remembered() -> None:
    view: AddressView = View(ADDRESS, most_recent=2)
    versions = [pod("a/one", policies=[f"a/{number}"]) for number in range(5)]
    for seq, rendered in enumerate(versions, 1):
        _change(view, seq, seq - 1, rendered)
    known = [view.recent_state(uid("a/one"), rendered.version) for rendered in versions]
    assert known == [None, None, ("a/2",), ("a/3",), ("a/4",)]
    assert view.recent_state(uid("a/two"), versions[-1].version) is None


def test_what_is_being_replaced_is_known_before_it_is_folded_in() -> None:
    view: AddressView = View(ADDRESS)
    _change(view, 1, 0, pod("a/one", policies=["a/p"]))
    _show(view, 2, 0, gone=(uid("a/one"),))
    assert view.recent_state(uid("a/one"), pod("a/one", policies=["a/p"]).version) == ("a/p",)


def test_the_state_of_a_policy_is_what_verdicts_depend_on() -> None:
    rendered = policy("a/p", "NAMESPACE", "DENY")
    view: View[RenderedPolicy] = View(AUTHORIZATION)
    entry = view.staged("a/p", rendered, 1, 0)
    assert entry is not None
    assert entry.state() == PolicyState(1, 1, False, rendered.rules)


# Against a history that is written down in full.

_NAMES = ("a/x", "a/y", "a/z")
_commits = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(_NAMES), st.none() | st.integers(0, 2), max_size=3),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(_commits)
def test_a_view_tells_what_a_full_history_tells(commits: list[tuple[dict[str, int | None], int, bool]]) -> None:
    view: AddressView = View(ADDRESS, most_tombstones=2)
    history: list[dict[str, int]] = [{}]
    floor = 0
    for seq, (changes, behind, changes_lists) in enumerate(commits, 1):
        state = dict(history[-1])
        put, gone = [], []
        for name, value in changes.items():
            if value is None:
                gone.append(uid(name))
                state.pop(name, None)
            else:
                put.append(_valued(name, value, changes_lists))
                state[name] = value if changes_lists else value + 10
        history.append(state)
        _show(view, seq, floor, *put, gone=tuple(gone))
        _compare(view, history, floor)
        _settle(view, floor)
        _compare(view, history, floor)
        floor = max(floor, seq - behind, view.floor)


def _valued(name: str, value: int, is_listed: bool) -> RenderedAddress:
    return pod(name, policies=[f"a/{value}"]) if is_listed else pod(name, ip=f"10.0.0.{value}")


def _compare(view: AddressView, history: list[dict[str, int]], floor: int) -> None:
    served = {entry.name.removeprefix(uid("")): rendered for entry, rendered in live(view.entries())}
    assert {name: _value(rendered) for name, rendered in served.items()} == history[-1]
    for cursor in range(max(floor, view.floor), len(history)):
        changed = {entry.name.removeprefix(uid("")): entry for entry in view.changed_since(cursor)}
        then, now = history[cursor], history[-1]
        assert {name for name in _NAMES if then.get(name) != now.get(name)} <= changed.keys()
        for name, entry in changed.items():
            assert entry.state_at(cursor) == _state(then.get(name))


def _value(rendered: RenderedAddress) -> int:
    return int(rendered.policies[0].removeprefix("a/")) if rendered.policies else int(rendered.aliases[0][-1]) + 10


def _state(value: int | None) -> State | None:
    return None if value is None else () if value >= 10 else (f"a/{value}",)
