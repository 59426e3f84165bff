"""What the self-audit finds of what can go wrong, and that the repair puts it right. Random histories are played in
tests/property/test_audit.py."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import structlog

from ambientd.auditing import Auditor, audit
from ambientd.debug.metrics import Metrics
from ambientd.index.audit import Audit, Finding
from ambientd.index.declarations import Derived, Index, Reader, Source, derive, expand, on_demand
from ambientd.index.graph import Graph
from ambientd.index.pod_workloads import POD_WORKLOADS
from ambientd.index.rules import Rules
from ambientd.index.tables import IndexTable
from ambientd.index.world import World
from ambientd.pump import Pump, stage_outputs
from ambientd.push.feed import Feed
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.push.ondemand import Interest
from ambientd.push.views import Entry
from ambientd.resources.events import Event, Synced
from ambientd.resources.kinds import KINDS
from tests.unit.worlds import CLUSTER, events, ref

# The graph by itself: families of numbers, and what is asked of them.

NUMBERS: Source[str, int] = Source("numbers")
BY_PARITY: Index[int, int] = Index("numbers by parity", NUMBERS, lambda number: (number % 2,))
DIGITS: Derived[str, int] = expand(
    "digits", NUMBERS, lambda number, read: {f"{number}:{at}": int(digit) for at, digit in enumerate(str(number))}
)
TOTALS: Derived[int, int] = on_demand("totals", lambda parity, read: sum(read.under(BY_PARITY, parity)))


def _share(number: int, read: Reader) -> int:
    return (read.get(TOTALS, number % 2) or 0) - number


SHARES: Derived[str, str] = derive("shares", NUMBERS, _share, str)
OF_GRAPH = (NUMBERS, BY_PARITY, DIGITS, TOTALS, SHARES)
CHANGES = [(NUMBERS, "a", 10), (NUMBERS, "b", 21), (NUMBERS, "c", 33), (NUMBERS, "d", 40)]


@pytest.fixture
def graph() -> Graph:
    made = Graph(OF_GRAPH, is_strict=True)
    made.apply(CHANGES)
    return made


def node_of(graph: Graph, declaration: object) -> Any:
    return graph._nodes[declaration]


def found(graph: Graph) -> list[Finding]:
    """What one round finds, after its repairs were committed; then nothing may be left."""
    audit = Audit(graph)
    findings = audit.step(lambda: False)
    graph.apply([])
    assert not audit.step(lambda: False)
    fresh = Graph(OF_GRAPH)
    fresh.apply([(NUMBERS, key, value) for key, value in graph.items(NUMBERS)])
    derived: tuple[Derived[Any, Any], ...] = (DIGITS, TOTALS, SHARES)
    for collection in derived:
        assert dict(graph.items(collection)) == dict(fresh.items(collection))
    assert graph.sizes() == fresh.sizes()
    return findings


def test_a_right_graph_is_right(graph: Graph) -> None:
    assert found(graph) == []


def test_a_wrong_value_is_found_and_those_who_followed_it_are_put_right(graph: Graph) -> None:
    node_of(graph, TOTALS).cells[0].value = 7
    assert found(graph) == [Finding("totals", 0, 7, 50)]


def test_a_missing_value_is_found(graph: Graph) -> None:
    cell = node_of(graph, SHARES).cells["a"]
    graph._subscribe(cell, ())
    del node_of(graph, SHARES).cells["a"]
    assert found(graph) == [Finding("shares", "a", None, "40")]


def test_a_value_that_was_not_rendered_from_what_it_holds_is_found(graph: Graph) -> None:
    node_of(graph, SHARES).cells["b"].value = "wrong"
    assert found(graph) == [Finding("shares", "b", "wrong", "33")]


def test_a_value_of_an_object_that_is_gone_is_found(graph: Graph) -> None:
    graph.suppressed = frozenset({"shares", "digits"})
    graph.apply([(NUMBERS, "a", None)])
    graph.suppressed = frozenset()
    assert found(graph) == [
        Finding("digits", "a", ("10:0", "10:1"), ()),
        Finding("shares", "a", "40", None),
        Finding("shares", "d", "10", "0"),
    ]


def test_a_member_that_left_its_index_is_found_and_not_what_followed_from_it(graph: Graph) -> None:
    node_of(graph, BY_PARITY).base[1] = ("b",)
    assert found(graph) == [Finding("numbers by parity", (1, "c"), False, True, "member")]


def test_a_stranger_in_an_index_is_found(graph: Graph) -> None:
    node_of(graph, BY_PARITY).base[1] = ("a", "b", "c")
    assert found(graph) == [Finding("numbers by parity", (1, "a"), True, False, "member")]


def test_a_member_that_left_in_the_middle_of_a_round_makes_no_right_value_wrong(graph: Graph) -> None:
    audit = Audit(graph)
    index: IndexTable = node_of(graph, BY_PARITY)
    while audit.checked < len(CHANGES) * 2:
        assert audit.step(lambda: True) == []
    index.base[0] = ("a",)
    assert audit.step(lambda: False) == [Finding("numbers by parity", (0, "d"), False, True, "member")]
    graph.apply([])
    assert dict(graph.items(TOTALS)) == {0: 50, 1: 54}
    assert dict(graph.items(SHARES)) == {"a": "40", "b": "33", "c": "21", "d": "10"}


def test_a_read_that_nobody_would_hear_of_is_found_before_it_matters(graph: Graph) -> None:
    del graph._dependents[(node_of(graph, BY_PARITY).number, 0)]
    assert found(graph) == [Finding("totals", 0, (), (("numbers by parity", 0),), "reads")]
    graph.apply([(NUMBERS, "e", 2)])
    assert graph.get(TOTALS, 0) == 52


def test_a_value_that_nobody_reads_any_more_is_found(graph: Graph) -> None:
    graph.suppressed = frozenset({"shares"})
    graph.apply([(NUMBERS, "b", None), (NUMBERS, "c", None)])
    graph.suppressed = frozenset()
    for key in ("b", "c"):
        cell = node_of(graph, SHARES).cells.pop(key)
        graph._subscribe(cell, ())
    node_of(graph, TOTALS).unread.clear()
    assert found(graph) == [Finding("totals", 1, "held", "read by nobody", "readers")]


def test_a_wrong_child_and_one_of_nobody_are_found(graph: Graph) -> None:
    digits = node_of(graph, DIGITS)
    digits.cells["10:1"].value = 9
    node_of(graph, DIGITS).parents["d"].value = ("40:0",)
    assert found(graph) == [Finding("digits", "d", ("40:0",), ("40:0", "40:1")), Finding("digits", "10:1", 9, 0)]
    digits.cells["nobody's"] = type(digits.cells["10:1"])(digits, "nobody's", (), 5, 5)
    assert found(graph) == [Finding("digits", "nobody's", 5, None)]


def test_no_slice_runs_while_a_transaction_is_under_way(graph: Graph) -> None:
    transaction = graph.begin([(NUMBERS, "a", 12)])
    with pytest.raises(AssertionError, match="in motion"):
        Audit(graph).step(lambda: False)
    transaction.step(lambda: False)


def test_a_round_goes_on_over_commits_that_come_in_between(graph: Graph) -> None:
    audit = Audit(graph)
    for number in itertools.count(50):
        assert audit.step(lambda: True) == []
        if audit.rounds:
            break
        graph.apply([(NUMBERS, "a", number), (NUMBERS, f"n{number}", number), (NUMBERS, f"n{number - 3}", None)])
    assert audit.checked > len(CHANGES)


# The whole server, without a socket.

SHOP = """
kind: Namespace
metadata: {name: shop}
---
kind: Service
metadata: {namespace: shop, name: cart}
spec: {clusterIPs: [10.8.0.1], selector: {app: cart}, ports: [{port: 80}]}
---
kind: Pod
metadata: {namespace: shop, name: cart-0, uid: u-0, labels: {app: cart}}
spec: {nodeName: n1, serviceAccountName: cart}
status: {phase: Running, podIP: 10.1.0.7, conditions: [{type: Ready, status: "True"}]}
---
kind: AuthorizationPolicy
metadata: {namespace: shop, name: deny-all}
spec: {}
"""
POD = "Kubernetes//Pod/shop/cart-0"


class Shop:
    """Index and feed, committed to by hand."""

    def __init__(self) -> None:
        numbers = itertools.count(1)
        self.world = World(Rules(), is_strict=True)
        self.feed = Feed(lambda: f"n{next(numbers)}")
        self.metrics = Metrics()
        self.auditor = Auditor(self.world, self.feed, self.metrics)
        self.commit(events(SHOP))

    def commit(self, batch: Sequence[Event]) -> None:
        transaction = self.world.begin(batch)
        transaction.step(lambda: False)
        staged = stage_outputs(transaction, self.feed).run()
        transaction.commit()
        self.feed.commit(staged)
        transaction.settle(lambda: False)
        self.feed.settle().run()

    def differences(self) -> dict[str, float]:
        """What one round over everything finds, by collection, as the metric tells it; then nothing may be left."""
        for count in (1, 2):
            before = {labels: value for labels, value in self.metrics._differences.values.items()}
            while self.auditor.rounds < count:
                self.auditor.slice(lambda: False)
            self.commit([])
        assert self.metrics._differences.values == before
        return {labels[0]: value for labels, value in before.items()}


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_a_right_server_has_no_differences(shop: Shop) -> None:
    head = shop.feed.head
    assert shop.differences() == {}
    assert shop.metrics._audited.values[()] > 20
    assert not shop.feed.addresses.changed_since(head)


def test_a_stale_entry_of_a_view_is_found_and_shown_again(shop: Shop) -> None:
    table = shop.feed.addresses._table
    right = table[POD]
    stale = table["shop/cart.shop.svc.cluster.local"].rendered
    table[POD] = Entry(POD, stale, right.seq, right.since)
    cursor = shop.feed.head
    assert shop.differences() == {ADDRESS: 1}
    changed = shop.feed.addresses.changed_since(cursor)
    assert [(entry.name, entry.rendered) for entry in changed] == [(POD, right.rendered)]


def test_a_missing_entry_of_a_view_is_found_and_shown(shop: Shop) -> None:
    cursor = shop.feed.head
    del shop.feed.policies._table["shop/deny-all"]
    assert shop.differences() == {AUTHORIZATION: 1}
    assert [entry.name for entry in shop.feed.policies.changed_since(cursor)] == ["shop/deny-all"]


def test_an_entry_that_no_object_stands_for_is_found_and_removed(shop: Shop) -> None:
    cursor = shop.feed.head
    shop.feed.at(1, cursor)
    rendered = shop.feed.addresses._table[POD].rendered
    shop.feed.addresses._table["Kubernetes//Pod/shop/old"] = Entry("Kubernetes//Pod/shop/old", rendered, cursor, cursor)
    assert shop.differences() == {ADDRESS: 1}
    removed = shop.feed.addresses.changed_since(cursor)
    assert [(entry.name, entry.rendered) for entry in removed] == [("Kubernetes//Pod/shop/old", None)]


def test_a_repair_gives_way_to_a_change_of_the_same_commit(shop: Shop) -> None:
    shop.feed.addresses._table.pop(POD)
    shop.feed.addresses.amend(POD, shop.world.addresses()[POD])
    shop.commit(events(SHOP.replace("10.1.0.7", "10.1.0.8")))
    entry = shop.feed.addresses.get(POD)
    assert entry is not None
    assert entry.rendered == shop.world.addresses()[POD]


@pytest.mark.parametrize("table", ["_workloads_by_alias", "_services_by_alias", "_members", "_by_node"])
@pytest.mark.parametrize("plant", ["lacks", "keeps"])
def test_a_directory_that_lacks_or_keeps_too_much_is_put_right(shop: Shop, table: str, plant: str) -> None:
    shop.feed.ask(Interest("", wakes_by_removal=False), ["/10.1.0.7"], {}, {}).run()
    assert shop.feed.directory is not None
    held: dict[str, set[str]] = getattr(shop.feed.directory, table)
    right = {key: set(names) for key, names in held.items()}
    assert right
    key = min(right)
    if plant == "lacks":
        del held[key]
    else:
        held["elsewhere"] = set(right[key])
    assert shop.differences() == {"directory": 1}
    assert held == right


def test_a_difference_is_told_with_its_key(shop: Shop) -> None:
    shop.world.graph.suppressed = frozenset({POD_WORKLOADS.name})
    shop.commit(events(SHOP.replace("10.1.0.7", "10.1.0.8")))
    shop.world.graph.suppressed = frozenset()
    with structlog.testing.capture_logs() as logs:
        assert shop.differences() == {"pod workloads": 1}
    pod = ref("Pod", "shop", "cart-0")
    assert [(line["collection"], line["key"], line["differs"]) for line in logs] == [
        ("pod workloads", str(pod), "value")
    ]
    text = shop.metrics.text(workloads=1, services=1, policies=1, problems=0).decode()
    assert 'ambientd_audit_differences{collection="pod workloads"} 1\n' in text
    assert "ambientd_audit_checked " in text


class Nobody:
    """Whom a pump and an auditor tell."""

    def __init__(self) -> None:
        self.repaired = asyncio.Event()

    def committed(self, seq: int, changed: int, took_s: float, events: int) -> None:
        if not events and changed:
            self.repaired.set()

    def audited(self, checked: int, different: Iterable[str]) -> None: ...


async def test_the_running_server_repairs_without_a_change_from_outside() -> None:
    nobody = Nobody()
    world, feed = World(Rules()), Feed(lambda: "n")
    pump = Pump(world, feed, cluster=CLUSTER, announce=lambda nodes: None, watcher=nobody)
    tasks = [
        asyncio.create_task(pump.run()),
        asyncio.create_task(audit(Auditor(world, feed, nobody), pump, 0.001)),
    ]
    try:
        pump.emit([*events(SHOP), *(Synced(CLUSTER, kind) for kind in KINDS)])
        await pump.ready()
        while not pump.is_idle:
            await asyncio.sleep(0)
        del feed.addresses._table[POD]
        await asyncio.wait_for(nobody.repaired.wait(), 30)
        assert feed.addresses.get(POD) is not None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
