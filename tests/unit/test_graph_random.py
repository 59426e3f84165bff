"""Random graphs against a recomputation from scratch that knows no records of reads. Every value is a pair of its own
key and a small number, so that any collection can stand on any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ambientd.index.declarations import Derived, Index, Reader, Source, derive, derive_over_index, expand, on_demand
from ambientd.index.graph import Graph

Value = tuple[int, int]
Values = dict[int, Value]
Batch = list[tuple[int, int, int | None]]
"""Number of a source, key, and the new number; None deletes."""


def _is_none(number: int) -> bool:
    return number == 3


def _buckets(value: Value) -> tuple[int, ...]:
    """Index values: none, one, or two."""
    number = value[1]
    return () if number == 5 else (number % 3,) if number % 2 else (number % 3, 3)


@dataclass(frozen=True)
class Layer:
    """One collection that follows from earlier ones; numbers choose among what there is."""

    kind: str
    over: int
    gets: tuple[tuple[int, int], ...]
    unders: tuple[int, ...]
    is_rendered: bool


layers = st.builds(
    Layer,
    kind=st.sampled_from(("derive", "derive_over_index", "expand", "on_demand")),
    over=st.integers(0, 9),
    gets=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=3).map(tuple),
    unders=st.lists(st.integers(0, 9), max_size=2).map(tuple),
    is_rendered=st.booleans(),
)
changes = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 5), st.one_of(st.none(), st.integers(0, 6))), min_size=1, max_size=6
)


def _render(gathered: Value) -> Value | None:
    # Two keys for one value, and some that yield nothing, so that both ways to stop are taken.
    return None if gathered[1] == 6 else (gathered[0], gathered[1] // 2)


class Naive:
    """The same graph, from scratch: a reader that looks everything up, and forgets."""

    def __init__(self, plan: Plan, sources: Mapping[int, Values]) -> None:
        self._plan = plan
        self.values: dict[Any, Values] = {plan.collections[number]: dict(sources[number]) for number in (0, 1)}
        for layer, collection in zip(plan.layers, plan.collections[2:], strict=True):
            self.values[collection] = {}
            if layer.kind != "on_demand":
                self.values[collection] = dict(self._derived(layer, collection))

    def get(self, collection: Any, key: int) -> Value | None:
        values: Values = self.values[collection]
        if _is_on_demand(collection) and key not in values:
            made: Value | None = collection.gather(key, self)
            if made is None:
                return None
            values[key] = made
        return values.get(key)

    def under(self, index: Any, value: int) -> tuple[Value, ...]:
        members = self.values[index.over]
        return tuple(members[key] for key in sorted(members) if value in _buckets(members[key]))

    def _derived(self, layer: Layer, collection: Any) -> Iterator[tuple[int, Value]]:
        for key, gathered in self._gathered(layer, collection):
            if gathered is not None:
                value = _render(gathered) if layer.is_rendered else gathered
                if value is not None:
                    yield key, value

    def _gathered(self, layer: Layer, collection: Any) -> Iterator[tuple[int, Value | None]]:
        if isinstance(collection.over, Index):
            for bucket in range(4):
                members = self.under(collection.over, bucket)
                if members:
                    yield bucket, collection.gather(bucket, members, self)
            return
        for key, value in self.values[collection.over].items():
            gathered = collection.gather(value, self)
            if layer.kind == "expand":
                yield from gathered.items()
            else:
                yield key, gathered


@dataclass
class Plan:
    """Declarations made from layers."""

    layers: list[Layer]
    collections: list[Any] = field(default_factory=list)
    indices: list[Index[int, Value]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number in (0, 1):
            self._add(Source(f"source {number}"))
        for number, layer in enumerate(self.layers):
            self._add(self._declare(f"{layer.kind} {number}", layer))

    def _add(self, collection: Any) -> None:
        self.collections.append(collection)
        # What is on demand comes and goes with those who ask, so there is nothing to look up or to stand on.
        if not _is_on_demand(collection):
            self.indices.append(Index(f"{collection.name}, indexed", collection, _buckets))

    def _declare(self, name: str, layer: Layer) -> Derived[int, Value]:
        number = self._number(layer)
        render = _render if layer.is_rendered else None
        if layer.kind == "on_demand":
            return on_demand(name, lambda key, read: number((key, key % 7), read))
        if layer.kind == "derive_over_index":
            index = self.indices[layer.over % len(self.indices)]
            return derive_over_index(
                name, index, lambda value, members, read: number((value, sum(m[1] for m in members) % 7), read), render
            )
        standing = [collection for collection in self.collections if not _is_on_demand(collection)]
        over = standing[layer.over % len(standing)]
        if layer.kind == "expand":
            return expand(name, over, lambda value, read: dict(_children(number(value, read))), render)
        return derive(name, over, number, render)

    def _number(self, layer: Layer) -> Callable[[Value, Reader], Value | None]:
        gets = [(self.collections[which % len(self.collections)], times) for which, times in layer.gets]
        unders = [self.indices[which % len(self.indices)] for which in layer.unders]

        def gather(value: Value, read: Reader) -> Value | None:
            total = value[1]
            for collection, times in gets:
                # Later reads depend on earlier ones, so what is read changes with what was found.
                found = read.get(collection, (value[0] * times + total) % 7)
                total += 1 if found is None else found[1] * 2
            for index in unders:
                for place, member in enumerate(read.under(index, total % 4)):
                    total += member[1] * (place + 1)
            return None if _is_none(total % 7) else (value[0], total % 7)

        return gather

    def graph(self, **settings_: bool) -> Graph:
        return Graph((*self.collections, *self.indices), **settings_)


def _is_on_demand(collection: Any) -> bool:
    return isinstance(collection, Derived) and collection.over is None


def _children(value: Value | None) -> Iterator[tuple[int, Value]]:
    if value is not None:
        for child in range(value[1] % 3):
            yield value[0] * 3 + child, (value[0] * 3 + child, (value[1] + child) % 7)


def _snapshot(plan: Plan, graph: Graph) -> dict[str, Any]:
    """Everything that a reader outside can see."""
    seen: dict[str, Any] = {}
    for collection in plan.collections:
        items = dict(graph.items(collection))
        assert items == {key: graph.get(collection, key) for key in items}
        seen[collection.name] = items
    for index in plan.indices:
        seen[index.name] = {value: graph.under(index, value) for value in range(4)}
    return seen


def _expected(plan: Plan, sources: Mapping[int, Values]) -> dict[str, Any]:
    naive = Naive(plan, sources)
    seen: dict[str, Any] = {}
    for collection in plan.collections:
        seen[collection.name] = naive.values[collection]
    for index in plan.indices:
        seen[index.name] = {value: naive.under(index, value) for value in range(4)}
    return seen


def _apply(sources: dict[int, Values], batch: Batch, plan: Plan) -> list[Any]:
    """The batch as the graph takes it; `sources` become what it leaves."""
    for number, key, value in batch:
        if value is None:
            sources[number].pop(key, None)
        else:
            sources[number][key] = (key, value)
    return [(plan.collections[number], key, None if value is None else (key, value)) for number, key, value in batch]


@settings(deadline=None, max_examples=150)
@given(st.lists(layers, min_size=1, max_size=6), st.lists(changes, min_size=1, max_size=6))
def test_a_graph_holds_what_a_recomputation_gives(shape: list[Layer], history: list[Batch]) -> None:
    plan = Plan([layer for layer in shape if _is_sound(layer)])
    graph = plan.graph(is_strict=True)
    sources: dict[int, Values] = {0: {}, 1: {}}
    for batch in history:
        graph.apply(_apply(sources, batch, plan))
        assert _without_demand(plan, _snapshot(plan, graph)) == _without_demand(plan, _expected(plan, sources))
        _check_demand(plan, graph, sources)
    everything: Batch = [(number, key, None) for number in (0, 1) for key in range(6)]
    graph.apply(_apply(sources, everything, plan))
    assert not any(graph.sizes().values())


@settings(deadline=None, max_examples=75)
@given(st.lists(layers, min_size=1, max_size=5), st.lists(changes, min_size=2, max_size=4))
def test_readers_outside_see_the_state_before_or_the_state_after(shape: list[Layer], history: list[Batch]) -> None:
    plan = Plan([layer for layer in shape if _is_sound(layer)])
    graph = plan.graph(is_strict=True)
    sources: dict[int, Values] = {0: {}, 1: {}}
    for batch in history:
        before = _without_demand(plan, _snapshot(plan, graph))
        transaction = graph.begin(_apply(sources, batch, plan))
        while not transaction.step(lambda: True):
            assert _without_demand(plan, _snapshot(plan, graph)) == before
        assert _without_demand(plan, _snapshot(plan, graph)) == before
        changed = {
            collection.name: {key: (old, new) for key, old, new in transaction.changed(collection)}
            for collection in plan.collections[2:]
            if not _is_on_demand(collection)
        }
        transaction.commit()
        after = _without_demand(plan, _snapshot(plan, graph))
        while not transaction.settle(lambda: True):
            assert _without_demand(plan, _snapshot(plan, graph)) == after
        assert _without_demand(plan, _snapshot(plan, graph)) == after
        assert after == _without_demand(plan, _expected(plan, sources))
        for name, moves in changed.items():
            for key in {*before[name], *after[name]}:
                old, new = before[name].get(key), after[name].get(key)
                assert old == new or moves.get(key) == (old, new)


def _is_sound(layer: Layer) -> bool:
    # A value on demand has no render, and only it has no collection below.
    return not (layer.kind == "on_demand" and layer.is_rendered)


def _without_demand(plan: Plan, seen: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in plan.collections if _is_on_demand(item)}
    return {name: held for name, held in seen.items() if name not in names}


def _check_demand(plan: Plan, graph: Graph, sources: Mapping[int, Values]) -> None:
    """What is there because somebody asks is right, and nothing else is there."""
    naive = Naive(plan, sources)
    for collection in filter(_is_on_demand, plan.collections):
        assert dict(graph.items(collection)) == naive.values[collection]


def test_suppressed_invalidation_is_noticed() -> None:
    """The comparison above would find a graph that forgets to dirty one collection, whichever it is."""
    shape = [
        Layer("on_demand", 0, ((1, 1),), (), False),
        Layer("derive", 0, ((2, 0), (1, 2)), (), False),
        Layer("expand", 0, ((3, 0),), (1,), False),
        Layer("derive_over_index", 3, ((1, 1),), (3,), True),
    ]
    for number in range(len(shape)):
        assert any(_differs(shape, number, seed) for seed in range(20)), shape[number].kind


def _differs(shape: list[Layer], suppressed: int, seed: int) -> bool:
    plan = Plan(shape)
    graph = plan.graph()
    graph.suppressed = frozenset({plan.collections[2 + suppressed].name})
    sources: dict[int, Values] = {0: {}, 1: {}}
    first: Batch = [(0, key, (key + seed) % 7) for key in range(6)]
    graph.apply(_apply(sources, first, plan))
    for key in range(6):
        graph.apply(_apply(sources, [(1, key, (key * 2 + seed) % 7)], plan))
    return _without_demand(plan, _snapshot(plan, graph)) != _without_demand(plan, _expected(plan, sources))
