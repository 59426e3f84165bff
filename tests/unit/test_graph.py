"""The rules of the graph, one by one."""

from __future__ import annotations

import pytest

from ambientd.index.declarations import Derived, Index, Reader, Source, derive, derive_over_index, on_demand
from ambientd.index.graph import DerivationFailed, Graph

NUMBERS: Source[str, int] = Source("numbers")
FACTORS: Source[str, int] = Source("factors")


def _product(value: int, read: Reader) -> int | None:
    factor = read.get(FACTORS, "all")
    return None if factor is None else value * factor


PRODUCTS: Derived[str, int] = derive("products", NUMBERS, _product)
BY_PARITY: Index[int, int] = Index("products by parity", PRODUCTS, lambda value: (value % 2,))


def _parity_sum(parity: int, members: tuple[int, ...], read: Reader) -> int:
    return sum(members)


SUMS: Derived[int, int] = derive_over_index("sums", BY_PARITY, _parity_sum)


def test_members_come_in_the_order_of_their_keys_and_not_of_their_arrival() -> None:
    graph = Graph((NUMBERS, FACTORS, PRODUCTS, BY_PARITY, SUMS))
    graph.apply([(FACTORS, "all", 2), (NUMBERS, "b", 1), (NUMBERS, "c", 3), (NUMBERS, "a", 2)])
    assert graph.under(BY_PARITY, 0) == (4, 2, 6)
    assert graph.get(SUMS, 0) == 12


def test_the_last_of_several_changes_of_a_key_counts() -> None:
    graph = Graph((NUMBERS, FACTORS, PRODUCTS))
    graph.apply([(FACTORS, "all", 2), (NUMBERS, "a", 1), (NUMBERS, "a", None), (NUMBERS, "a", 5)])
    assert dict(graph.items(PRODUCTS)) == {"a": 10}


def test_a_value_that_comes_out_equal_stops_there() -> None:
    seen: list[int] = []

    def parity(value: int, read: Reader) -> int:
        return value % 2

    def watch(value: int, read: Reader) -> int:
        seen.append(value)
        return value

    parities: Derived[str, int] = derive("parities", NUMBERS, parity)
    watched: Derived[str, int] = derive("watched", parities, watch)
    graph = Graph((NUMBERS, parities, watched))
    graph.apply([(NUMBERS, "a", 1)])
    graph.apply([(NUMBERS, "a", 3)])
    graph.apply([(NUMBERS, "a", 4)])
    assert seen == [1, 0]


def test_an_equal_key_is_not_rendered_again() -> None:
    rendered: list[int] = []

    def half(value: int, read: Reader) -> int:
        return value // 2

    def render(key: int) -> str:
        rendered.append(key)
        return f"<{key}>"

    halves: Derived[str, str] = derive("halves", NUMBERS, half, render)
    graph = Graph((NUMBERS, halves))
    graph.apply([(NUMBERS, "a", 2)])
    graph.apply([(NUMBERS, "a", 3)])
    graph.apply([(NUMBERS, "a", 4)])
    assert rendered == [1, 2]
    assert graph.get(halves, "a") == "<2>"


def test_a_change_reaches_those_who_read_that_key_and_nobody_else() -> None:
    seen: list[str] = []

    def look(value: int, read: Reader) -> int:
        seen.append(f"{value}")
        return value + (read.get(FACTORS, "odd" if value % 2 else "even") or 0)

    looks: Derived[str, int] = derive("looks", NUMBERS, look)
    graph = Graph((NUMBERS, FACTORS, looks))
    graph.apply([(NUMBERS, "a", 1), (NUMBERS, "b", 2), (NUMBERS, "c", 3)])
    seen.clear()
    # Nobody has found the key so far, but that is what was read: that it is not there.
    graph.apply([(FACTORS, "odd", 10)])
    assert sorted(seen) == ["1", "3"]
    assert graph.reads(looks, "b") == (("factors", "even"),)


def test_a_value_on_demand_lives_as_long_as_a_reader_that_is_derived() -> None:
    squares: Derived[int, int] = on_demand("squares", lambda key, read: key * key)
    asked: Derived[str, int] = derive("asked", NUMBERS, lambda value, read: read.get(squares, value))
    graph = Graph((NUMBERS, squares, asked))
    graph.apply([(NUMBERS, "a", 3), (NUMBERS, "b", 3)])
    assert dict(graph.items(squares)) == {3: 9}
    graph.apply([(NUMBERS, "a", 4)])
    assert dict(graph.items(squares)) == {3: 9, 4: 16}
    graph.apply([(NUMBERS, "b", None)])
    assert dict(graph.items(squares)) == {4: 16}
    # A reader from outside sees it, and does not make one.
    assert graph.get(squares, 5) is None


def _failing(bad: int) -> Derived[str, int]:
    def gather(value: int, read: Reader) -> int:
        if value + (read.get(FACTORS, "all") or 0) == bad:
            raise ValueError("planted")
        return value

    return derive("failing", NUMBERS, gather)


def test_a_gather_that_raises_keeps_its_former_value_and_stops_nobody() -> None:
    failing = _failing(13)
    graph = Graph((NUMBERS, FACTORS, failing))
    graph.apply([(NUMBERS, "a", 1), (NUMBERS, "b", 2)])
    graph.apply([(NUMBERS, "a", 13), (NUMBERS, "b", 3)])
    assert dict(graph.items(failing)) == {"a": 1, "b": 3}
    assert [key for _, key in graph.failures] == ["a"]


def test_what_a_failed_gather_read_is_what_mends_it() -> None:
    failing = _failing(13)
    graph = Graph((NUMBERS, FACTORS, failing))
    graph.apply([(NUMBERS, "a", 13)])
    assert graph.get(failing, "a") is None
    graph.apply([(FACTORS, "all", 1)])
    assert graph.get(failing, "a") == 13
    assert not graph.failures


def test_a_failure_ends_with_its_object() -> None:
    failing = _failing(13)
    graph = Graph((NUMBERS, FACTORS, failing))
    graph.apply([(NUMBERS, "a", 13)])
    graph.apply([(NUMBERS, "a", None)])
    assert not graph.failures
    assert not any(graph.sizes().values())


def test_a_render_that_raises_keeps_the_former_value() -> None:
    def render(key: int) -> str:
        if key == 13:
            raise ValueError("planted")
        return f"<{key}>"

    rendered: Derived[str, str] = derive("rendered", NUMBERS, lambda value, read: value, render)
    graph = Graph((NUMBERS, rendered))
    graph.apply([(NUMBERS, "a", 1)])
    graph.apply([(NUMBERS, "a", 13), (NUMBERS, "b", 2)])
    assert dict(graph.items(rendered)) == {"a": "<1>", "b": "<2>"}
    graph.apply([(NUMBERS, "a", 14)])
    assert graph.get(rendered, "a") == "<14>"
    assert not graph.failures


def test_a_strict_graph_does_not_go_on_after_a_failure() -> None:
    graph = Graph((NUMBERS, FACTORS, _failing(13)), is_strict=True)
    with pytest.raises(DerivationFailed, match="failing of a"):
        graph.apply([(NUMBERS, "a", 13)])


def test_a_gather_cannot_read_what_is_not_settled_before_it() -> None:
    late: Derived[str, int] = derive("late", NUMBERS, lambda value, read: value)
    early: Derived[str, int] = derive("early", NUMBERS, lambda value, read: read.get(late, "a"))
    graph = Graph((NUMBERS, early, late), is_strict=True)
    with pytest.raises(DerivationFailed):
        graph.apply([(NUMBERS, "a", 1)])


def test_transactions_do_not_overlap() -> None:
    graph = Graph((NUMBERS,))
    graph.begin([(NUMBERS, "a", 1)])
    with pytest.raises(AssertionError, match="one transaction at a time"):
        graph.begin([(NUMBERS, "b", 1)])
