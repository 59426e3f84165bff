"""After every single message, a client lets nothing through that neither the state before nor the state after lets
through (design, Order of a round)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ambientd.push import feed
from ambientd.push.moves import Moves
from ambientd.push.rounds import Message, arrange
from tests.property.safety import Act, Turn, acts, play
from tests.property.worlds import (
    ALLOW,
    DENY,
    NAMESPACE,
    NOTHING,
    SELECTOR,
    Edit,
    Policy,
    Workload,
    World,
    admitted,
    as_served,
    edit,
    edited,
    slow_admitted,
    worlds,
)

_few = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])

_READS = Turn(client=0, parts=100, steps=None, asks=None, reconnects=False)
_COMES_BACK = Turn(client=0, parts=100, steps=None, asks=None, reconnects=True)

# Rules: connections to one port, to another one, and of one account to the first.
_ONE, _OTHER, _PART_OF_ONE = 0, 1, 4
_LISTS_ALL = Workload(frozenset({"a/p0", "a/p1", "root/p3"}))


@_few
@given(worlds, acts)
def test_no_message_of_a_wildcard_client_opens_anything(start: World, acts: Sequence[Act]) -> None:
    play(start, acts, is_on_demand=False)


@_few
@given(worlds, acts)
def test_no_message_of_an_on_demand_client_opens_anything(start: World, acts: Sequence[Act]) -> None:
    play(start, acts, is_on_demand=True)


@_few
@given(worlds, acts)
def test_no_message_opens_anything_when_the_server_remembers_nothing(start: World, acts: Sequence[Act]) -> None:
    play(start, acts, is_on_demand=False, forgets=True)


@_few
@given(worlds, acts)
def test_no_message_opens_anything_on_demand_when_the_server_remembers_nothing(
    start: World, acts: Sequence[Act]
) -> None:
    play(start, acts, is_on_demand=True, forgets=True)


@_few
@given(worlds, edit)
def test_a_change_of_one_object_is_told_once_and_holds_nothing(start: World, change: Edit) -> None:
    for client in play(start, [Act([change], [], [_READS])], is_on_demand=False):
        assert (client.rounds_with_hold, client.workloads_sent_twice) == (0, 0)


# Histories in which the order matters, each with what is needed to make it safe.

_HISTORIES: dict[str, tuple[World, list[Edit], Counter[str]]] = {
    "a new workload with its new policy": (
        World({}, {"a/w1": _LISTS_ALL}),
        [("a/p0", Policy(SELECTOR, DENY, _ONE)), ("a/w0", _LISTS_ALL)],
        Counter(),
    ),
    "a selector policy that takes the place of another": (
        World({"a/p0": Policy(SELECTOR, DENY, _ONE)}, {"a/w0": _LISTS_ALL}),
        [("a/p0", None), ("root/p3", Policy(SELECTOR, DENY, _ONE))],
        Counter(),
    ),
    "a policy that widens to its namespace": (
        World({"a/p0": Policy(SELECTOR, ALLOW, _ONE)}, {"a/w0": _LISTS_ALL}),
        [("a/p0", Policy(NAMESPACE, ALLOW, _ONE))],
        Counter(),
    ),
    "a policy that narrows to a selector": (
        World({"a/p0": Policy(NAMESPACE, DENY, _ONE)}, {"a/w0": _LISTS_ALL}),
        [("a/p0", Policy(SELECTOR, DENY, _ONE))],
        Counter(),
    ),
    "a workload that begins to list a policy whose rules change": (
        World(
            {"a/p0": Policy(SELECTOR, ALLOW, _ONE), "a/p1": Policy(SELECTOR, ALLOW, _OTHER)},
            {"a/w0": Workload(frozenset({"a/p1"}))},
        ),
        [("a/p0", Policy(SELECTOR, ALLOW, _OTHER)), ("a/w0", Workload(frozenset({"a/p0"})))],
        Counter(),
    ),
    "a policy widens with other rules while a new one begins to deny": (
        World({"a/p0": Policy(SELECTOR, ALLOW, _PART_OF_ONE)}, {"a/w0": _LISTS_ALL}),
        [("a/p0", Policy(NAMESPACE, ALLOW, _OTHER)), ("a/p1", Policy(SELECTOR, DENY, _ONE))],
        Counter(twice=1),
    ),
    "one policy opens while another one stops to deny": (
        World({"a/p0": Policy(SELECTOR, ALLOW, _ONE), "root/p3": Policy(SELECTOR, DENY, _ONE)}, {"a/w0": _LISTS_ALL}),
        [("a/p0", Policy(SELECTOR, ALLOW, _OTHER)), ("root/p3", Policy(NAMESPACE, ALLOW, _ONE))],
        Counter(twice=1, held=1),
    ),
}


@pytest.mark.parametrize("history", _HISTORIES)
@pytest.mark.parametrize("turn", [_READS, _COMES_BACK], ids=["stays", "comes back"])
@pytest.mark.parametrize("is_on_demand", [False, True])
def test_a_workload_is_changed_twice_only_where_no_order_is_safe(history: str, turn: Turn, is_on_demand: bool) -> None:
    start, edits, needed = _HISTORIES[history]
    client, _ = play(start, [Act(edits, [], [turn])], is_on_demand=is_on_demand)
    assert Counter(twice=client.workloads_sent_twice, held=client.rounds_with_hold) == needed


@pytest.mark.parametrize("history", _HISTORIES)
def test_the_property_notices_messages_in_the_wrong_order(history: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(moves: Moves) -> Generator[None, None, list[Message]]:
        messages = yield from arrange(moves)
        return messages[::-1]

    monkeypatch.setattr(feed, "arrange", backwards)
    start, edits, _ = _HISTORIES[history]
    with pytest.raises(AssertionError, match="which it neither did nor will"):
        play(start, [Act(edits, [], [_READS])], is_on_demand=False)


@_few
@given(worlds, st.lists(edit, max_size=4))
def test_the_verdicts_of_this_property_are_the_models(start: World, edits: list[Edit]) -> None:
    state = as_served(edited(start, edits))
    assert admitted(state) == {name: slow_admitted(state, name) for name in state[0]}


def test_nothing_reaches_a_workload_that_does_not_exist() -> None:
    assert admitted(as_served(NOTHING)) == {}
