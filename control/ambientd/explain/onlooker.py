"""How explanations read the index. Must not record anything, so that looking changes nothing."""

from __future__ import annotations

from ambientd.index.declarations import Collection, Derived, Index, K, U, V
from ambientd.index.graph import Graph


class Onlooker:
    """A `graph.Reader` of the last commit. What exists only while somebody reads it is computed where nobody does, by
    the same rule."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def get(self, collection: Collection[K, V], key: K) -> V | None:
        value = self._graph.get(collection, key)
        if value is None and isinstance(collection, Derived) and collection.over is None:
            computed: V | None = collection.gather(key, self)
            return computed
        return value

    def under(self, index: Index[U, V], value: U) -> tuple[V, ...]:
        return self._graph.under(index, value)
