"""The state of a graph's collections: what is committed, and over it the layer of the transaction under way, which is
folded in by steps. Must not derive anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec import Struct

from ambientd.index.declarations import Derived, Index, Read, Source


class Gone:
    """Marks a deleted key in a layer."""


GONE: Final = Gone()
MISSING: Final = Gone()


class Cell(Struct, eq=False, gc=False):
    """One derived value: committed value, what it was gathered into, and what that read."""

    node: DerivedTable
    key: Any
    reads: tuple[Read, ...] = ()
    gathered: Any = None
    value: Any = None


class Shared(Struct, eq=False):
    """Several cells that made the same read; `read` is the one tuple that they all hold."""

    read: Read
    cells: set[Cell]


class SourceTable:
    def __init__(self, number: int, declaration: Source[Any, Any]) -> None:
        self.number = number
        self.name = declaration.name
        self.rank = -1
        self.base: dict[Any, Any] = {}
        self.layer: dict[Any, Any] = {}
        self.indices: list[IndexTable] = []
        self.followers: list[DerivedTable] = []

    def current(self, key: Any) -> Any:
        value = self.layer.get(key, MISSING)
        if value is MISSING:
            return self.base.get(key)
        return None if value is GONE else value

    def committed(self, key: Any) -> Any:
        return self.base.get(key)

    def committed_keys(self) -> Iterable[Any]:
        return self.base

    def fold(self) -> Iterator[None]:
        yield from _fold(self.base, self.layer)

    def size(self) -> int:
        return len(self.base)


class DerivedTable:
    def __init__(self, number: int, declaration: Derived[Any, Any], rank: int) -> None:
        self.number = number
        self.declaration = declaration
        self.name = declaration.name
        self.rank = rank
        self.is_on_demand = declaration.over is None
        self.base: SourceTable | DerivedTable | IndexTable | None = None
        self.cells: dict[Any, Cell] = {}
        self.parents: dict[Any, Cell] = {}
        """For an expanded collection: reads and child keys of each value of `over`."""
        self.layer: dict[Any, Any] = {}
        self.gathered: dict[Any, Any] = {}
        """What the layer's values were gathered into."""
        self.indices: list[IndexTable] = []
        self.followers: list[DerivedTable] = []
        self.pending: dict[Any, None] = {}
        self.unread: dict[Any, None] = {}
        """On-demand keys that may have lost their last reader."""
        self.forgotten: set[Any] = set()
        """On-demand keys that did, and go with the next fold."""
        self.gathers = 0

    def current(self, key: Any) -> Any:
        value = self.layer.get(key, MISSING)
        if value is MISSING:
            cell = self.cells.get(key)
            return None if cell is None else cell.value
        return None if value is GONE else value

    def committed(self, key: Any) -> Any:
        cell = self.cells.get(key)
        return None if cell is None else cell.value

    def committed_keys(self) -> Iterable[Any]:
        return (key for key, cell in self.cells.items() if cell.value is not None)

    def fold(self) -> Iterator[None]:
        cells = self.cells
        while self.layer:
            key, value = self.layer.popitem()
            gathered = self.gathered.pop(key, None)
            if value is GONE:
                cell = cells.get(key)
                if cell is not None:
                    if cell.reads or (self.is_on_demand and key not in self.forgotten):
                        cell.value = cell.gathered = None  # it still reads, and may come to yield a value
                    else:
                        del cells[key]
                        self.forgotten.discard(key)
            else:
                cell = cells.get(key)
                if cell is None:
                    cell = cells[key] = Cell(self, key)
                cell.value = value
                cell.gathered = gathered
            yield

    def size(self) -> int:
        return len(self.cells) + len(self.parents)


class IndexTable:
    """Buckets of keys by index value: a tuple while small, for memory; a layer holds whole new buckets."""

    _SMALL: Final = 8

    def __init__(self, number: int, declaration: Index[Any, Any], over: SourceTable | DerivedTable) -> None:
        self.number = number
        self.name = declaration.name
        self.rank = over.rank
        self.declaration = declaration
        self.by = declaration.by
        self.over = over
        self.base: dict[Any, tuple[Any, ...] | set[Any]] = {}
        self.layer: dict[Any, tuple[Any, ...] | set[Any]] = {}
        self.followers: list[DerivedTable] = []

    def bucket(self, value: Any) -> Iterable[Any]:
        held = self.layer.get(value)
        return self.base.get(value, ()) if held is None else held

    def move(self, key: Any, old: Any, new: Any) -> set[Any]:
        """Puts a changed member where it belongs, and returns the index values whose answer changed."""
        before = set(self.by(old)) if old is not None else set()
        after = set(self.by(new)) if new is not None else set()
        for value in before - after:
            bucket = self._own(value)
            if isinstance(bucket, set):
                bucket.discard(key)
            else:
                self.layer[value] = tuple(member for member in bucket if member != key)
        for value in after - before:
            bucket = self._own(value)
            if isinstance(bucket, set):
                bucket.add(key)
            elif len(bucket) < self._SMALL:
                self.layer[value] = (*bucket, key)
            else:
                self.layer[value] = {*bucket, key}
        return before | after

    def _own(self, value: Any) -> tuple[Any, ...] | set[Any]:
        """The bucket as this transaction may change it: a tuple, or the layer's own copy of a set."""
        bucket = self.layer.get(value)
        if bucket is None:
            bucket = self.base.get(value, ())
            if isinstance(bucket, set):
                bucket = self.layer[value] = set(bucket)
        return bucket

    def members(self, value: Any) -> tuple[Any, ...]:
        keys = self.bucket(value)
        current = self.over.current
        return tuple(current(key) for key in sorted(keys))

    def committed_members(self, value: Any) -> tuple[Any, ...]:
        return tuple(self.over.committed(key) for key in sorted(self.base.get(value, ())))

    def fold(self) -> Iterator[None]:
        while self.layer:
            value, bucket = self.layer.popitem()
            if bucket:
                self.base[value] = tuple(bucket) if len(bucket) <= self._SMALL else bucket
            else:
                self.base.pop(value, None)
            yield

    def size(self) -> int:
        return len(self.base)


Table = SourceTable | DerivedTable | IndexTable


def _fold(base: dict[Any, Any], layer: dict[Any, Any]) -> Iterator[None]:
    while layer:
        key, value = layer.popitem()
        if value is GONE:
            base.pop(key, None)
        else:
            base[key] = value
        yield
