"""What a graph is made of: collections that are set, collections that follow from others, indices, and the reader
through which a gather looks at them. Values that say what there is; `graph.py` holds the state. Knows nothing of
meshes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
G = TypeVar("G")
U = TypeVar("U", bound=Hashable)
"""What a value of an index stands under."""
P = TypeVar("P")

Read = tuple[int, Hashable]
"""One recorded read: the number of a collection or index, and the key that was asked."""


class Collection(Generic[K, V]):
    """What `Source` and `Derived` have in common: a name, and values by key."""

    name: str


@dataclass(frozen=True, eq=False)
class Source(Collection[K, V]):
    """Values that are set from outside."""

    name: str


@dataclass(frozen=True, eq=False)
class Index(Generic[U, V]):
    """The values of a collection by something they hold; a value may stand under several index values, or none."""

    name: str
    over: Collection[Any, V]
    by: Callable[[V], Iterable[U]]


class Reader(Protocol):
    """How a gather looks at the rest of the graph; every call is recorded."""

    def get(self, collection: Collection[K, V], key: K) -> V | None: ...

    def under(self, index: Index[U, V], value: U) -> tuple[V, ...]:
        """The members under an index value, in the order of their keys."""
        ...


@dataclass(frozen=True, eq=False)
class Derived(Collection[K, V]):
    """Values that follow from others; made by `derive`, `derive_over_index`, `expand` and `on_demand`."""

    name: str
    over: Collection[Any, Any] | Index[Any, Any] | None
    gather: Callable[..., Any]
    render: Callable[[Any], Any] | None
    is_expanded: bool


def derive(
    name: str,
    over: Collection[K, P],
    gather: Callable[[P, Reader], G | None],
    render: Callable[[G], V | None] | None = None,
) -> Derived[K, V]:
    """At most one value per value of `over`, under the same key. None yields none."""
    return Derived(name, over, gather, render, is_expanded=False)


def derive_over_index(
    name: str,
    over: Index[U, P],
    gather: Callable[[U, tuple[P, ...], Reader], G | None],
    render: Callable[[G], V | None] | None = None,
) -> Derived[U, V]:
    """At most one value per value of an index that has members."""
    return Derived(name, over, gather, render, is_expanded=False)


def expand(
    name: str,
    over: Collection[Any, P],
    gather: Callable[[P, Reader], Mapping[K, G]],
    render: Callable[[G], V | None] | None = None,
) -> Derived[K, V]:
    """Any number of values per value of `over`. Keys must be unique over the whole collection."""
    return Derived(name, over, gather, render, is_expanded=True)


def on_demand(name: str, gather: Callable[[K, Reader], V | None]) -> Derived[K, V]:
    """A value exists while somebody who is derived reads it."""
    return Derived(name, None, gather, None, is_expanded=False)


Change = tuple[Source[Any, Any], Any, Any]
"""A source, a key, and its new value; None deletes."""
