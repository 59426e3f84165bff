"""The self-audit over random histories: it finds nothing where nothing is planted, and what is planted it finds and has
repaired, so that index and clients end as the naive model says."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ambientd.auditing import Auditor, Difference
from ambientd.index.declarations import Derived, Index
from ambientd.index.tables import IndexTable
from ambientd.index.world import DECLARATIONS
from tests.property.oracle import Oracle

READERS = sorted({item.name for item in DECLARATIONS if isinstance(item, Derived)})
INDICES = sorted({item.name for item in DECLARATIONS if isinstance(item, Index)})


class Told:
    """Whom an auditor tells."""

    def __init__(self) -> None:
        self.checked = 0
        self.different: list[str] = []

    def audited(self, checked: int, different: Iterable[str]) -> None:
        self.checked += checked
        self.different += different


def audited(oracle: Oracle, *, is_strict: bool = False) -> Told:
    """Two rounds over everything, and the commits that repair what they find."""
    told = Told()
    auditor = Auditor(oracle.world, oracle.feed, told, is_strict=is_strict)
    while auditor.rounds < 2:
        if auditor.slice(lambda: False):
            oracle._commit([])
    return told


@pytest.mark.parametrize("seed", range(20))
def test_an_audit_finds_nothing_where_nothing_is_planted(seed: int) -> None:
    oracle = Oracle(seed)
    checked = 0
    for _ in range(40):
        oracle.step()
        checked += audited(oracle, is_strict=True).checked
    assert checked > 1_000


def test_a_difference_is_fatal_where_that_is_asked_for() -> None:
    oracle = Oracle(1)
    oracle.world.graph.suppressed = frozenset(READERS)
    for _ in range(40):
        oracle.step()
    with pytest.raises(Difference):
        audited(oracle, is_strict=True)


@pytest.mark.parametrize("name", READERS)
def test_a_dropped_invalidation_is_found_and_repaired(name: str) -> None:
    found: list[str] = []
    for seed in range(100):
        oracle = Oracle(seed)
        graph = oracle.world.graph
        graph._is_strict = False  # what is stale may make others fail
        for _ in range(6):
            graph.suppressed = frozenset([name])
            for _ in range(10):
                oracle.step()
            oracle.settle_watches()
            graph.suppressed = frozenset()
            found += audited(oracle).different
            left = oracle.differences()
            assert not left, "\n".join(left[:10])
            if name in found:
                return
    pytest.fail(f"of all histories, no audit found that {name} had missed something")


@pytest.mark.parametrize("name", INDICES)
def test_a_dropped_index_entry_is_found_and_repaired(name: str) -> None:
    for seed in range(100):
        oracle = Oracle(seed)
        graph = oracle.world.graph
        graph._is_strict = False  # what is stale may make others fail
        for _ in range(30):
            oracle.step()
        index = next(node for node in graph._numbered if node.name == name)
        assert isinstance(index, IndexTable)
        if not index.base:
            continue
        value = min(index.base)
        index.base[value] = tuple(index.base[value])[1:]
        for _ in range(5):
            oracle.step()
        oracle.settle_watches()
        found = audited(oracle).different
        left = oracle.differences()
        assert not left, "\n".join(left[:10])
        if name in found:
            return
    pytest.fail(f"of all histories, no audit found that {name} lacked an entry")
