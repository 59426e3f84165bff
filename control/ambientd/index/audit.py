"""The self-audit of a graph: goes round everything that it derives, compares what is held with what is derived now, and
has differences repaired. Must not change a value itself, and must not run while a transaction does.

Each value is compared with a fresh gather and render over what is held below it, its recorded reads with those of that
gather, and each bucket of an index with the members' own values. A graph whose every place passes is the graph that is
derived from the sources alone, since each rank then follows from those below it; and a place costs microseconds, so
that the audit gets round on a server that commits all the time. Where a value differs, what it read is doubted first,
index buckets by a scan of the whole collection: of a right value over a wrong input, the input is repaired. A friend of
`graph`: it looks into its tables."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, Literal, cast

from msgspec import Struct

from ambientd.index.declarations import Collection, Index, K, Read, U, V
from ambientd.index.graph import Graph
from ambientd.index.tables import MISSING, Cell, DerivedTable, IndexTable, Shared, SourceTable

What = Literal["value", "reads", "member", "readers"]


class Finding(Struct, frozen=True):
    """A place where what is held differs from what is derived now."""

    collection: str
    """Name of the collection or index."""
    key: Any
    """Of the value; in an index, the index value and the member's key."""
    held: Any
    wanted: Any
    what: What = "value"
    """What differs: the value; what it is recorded to read; whether a member stands in a bucket; whether anybody reads
    an on-demand value."""


class Audit:
    """Rounds over one graph, without end."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._work = self._round()
        self._found: list[Finding] = []
        self._scanned: dict[Read, set[Any]] = {}
        """What scans found in this step."""
        self.checked = 0
        """Values and memberships that were compared so far."""
        self.rounds = 0
        """Rounds that were completed so far."""

    def step(self, enough: Callable[[], bool]) -> list[Finding]:
        """Looks on until `enough()`, or to the end of the round. What it finds is repaired by the next transaction.
        Between transactions only."""
        assert self._graph.is_idle, "what is held is in motion while a transaction is under way"
        self._scanned.clear()
        for _ in self._work:
            if enough():
                break
        else:
            self.rounds += 1
            self._work = self._round()
        found, self._found = self._found, []
        return found

    def _round(self) -> Generator[None, None, None]:
        # Lists of keys are copies, since commits come in between; what is new by then is seen in the next round.
        for node in self._graph._numbered:
            if isinstance(node, IndexTable):
                yield from self._members(node)
            elif isinstance(node, DerivedTable) and node.declaration.is_expanded:
                yield from self._families(node)
            elif isinstance(node, DerivedTable):
                yield from self._values(node)

    def _find(self, node: DerivedTable | IndexTable, key: Any, held: Any, wanted: Any, what: What = "value") -> None:
        self._found.append(Finding(node.name, key, held, wanted, what))

    # Values: at most one per key of `over`, or on demand.

    def _values(self, node: DerivedTable) -> Generator[None, None, None]:
        for key in list(node.cells):
            self._check_value(node, key)
            yield
        for key in list(_keys(node.base)):
            if key not in node.cells:
                self._check_value(node, key)
            yield

    def _check_value(self, node: DerivedTable, key: Any) -> bool:
        """Whether a value is as it should be; if not, it is told and repaired."""
        cell = node.cells.get(key)
        if key in node.pending or (cell is None and node.is_on_demand):
            return True
        self.checked += 1
        held = None if cell is None else cell.value
        arguments = self._graph._arguments(node, key)
        if arguments is None:
            return cell is None or self._differs(node, key, (), held, None)
        if node.is_on_demand and (node.number, key) not in self._graph._dependents:
            return self._differs(node, key, (), "held", "read by nobody", "readers")
        fresh = _Fresh(self._graph)
        try:
            gathered = node.declaration.gather(*arguments, fresh)
            wanted = _rendered(node, gathered)
        except Exception as error:  # a fault of ours that transactions report; here only that they should have
            is_known = (node.name, key) in self._graph.failures
            return is_known or self._differs(node, key, fresh.reads, held, error)
        is_failed = (node.name, key) in self._graph.failures
        if is_failed or wanted != held or (cell is not None and held is not None and gathered != cell.gathered):
            return self._differs(node, key, fresh.reads, held, wanted)
        return self._check_reads(node, key, cell, fresh)

    # Families: any number of values per key of `over`.

    def _families(self, node: DerivedTable) -> Generator[None, None, None]:
        children = list(node.cells)
        owned: set[Any] = set()
        for key in list(node.parents):
            self._check_family(node, key)
            parent = node.parents.get(key)
            owned.update(() if parent is None else parent.value or ())
            yield
        for key in list(_keys(node.base)):
            if key not in node.parents:
                self._check_family(node, key)
            yield
        for child in children:
            self._check_child(node, child, child in owned)
            yield

    def _check_family(self, node: DerivedTable, key: Any) -> bool:
        """The keys of a family, and what its values were gathered into; what they were rendered into is looked at
        child by child, since a family can be large."""
        if key in node.pending:
            return True
        self.checked += 1
        parent = node.parents.get(key)
        held = () if parent is None else parent.value or ()
        arguments = self._graph._arguments(node, key)
        if arguments is None:
            return parent is None or self._differs(node, key, (), held, ())
        fresh = _Fresh(self._graph)
        try:
            family = node.declaration.gather(*arguments, fresh)
        except Exception as error:  # as above
            return (node.name, key) in self._graph.failures or self._differs(node, key, fresh.reads, held, error)
        if (node.name, key) in self._graph.failures or tuple(family) != held:
            return self._differs(node, key, fresh.reads, held, tuple(family))
        for child, gathered in family.items():
            cell = node.cells.get(child)
            if (node.name, child) in self._graph.failures:
                continue
            if cell is None and _rendered(node, gathered) is not None:
                return self._differs(node, key, fresh.reads, (child, None), (child, gathered))
            if cell is not None and cell.gathered != gathered:
                return self._differs(node, key, fresh.reads, (child, cell.gathered), (child, gathered))
        return self._check_reads(node, key, parent, fresh)

    def _check_child(self, node: DerivedTable, child: Any, is_owned: bool) -> None:
        cell = node.cells.get(child)
        if cell is None or cell.value is None or cell.gathered is MISSING:
            return
        self.checked += 1
        wanted = _rendered(node, cell.gathered)
        if (is_owned and wanted == cell.value) or (node.name, child) in self._graph.failures:
            return
        # Only now whose child it is, since that is a scan; a commit may have made it anew in this round.
        owner = next((key for key, parent in node.parents.items() if child in (parent.value or ())), None)
        if owner is None:
            if not node.pending:  # else a family on its way may claim it
                self._find(node, child, cell.value, None)
                self._graph.disown(node.declaration, child)
        elif wanted != cell.value:
            self._find(node, child, cell.value, wanted)
            self._graph.recheck(node.declaration, owner)

    # What both kinds share.

    def _check_reads(self, node: DerivedTable, key: Any, cell: Cell | None, fresh: _Fresh) -> bool:
        """Whether a change of what a value follows from would reach it."""
        reads, held = tuple(fresh.reads), () if cell is None else cell.reads
        if reads != held:
            return self._differs(node, key, reads, self._named(held), self._named(reads), "reads")
        deaf = tuple(read for read in held if cell is not None and not _is_heard(self._graph, read, cell))
        if deaf or fresh.lacking:
            without = tuple(read for read in held if read not in deaf and read not in fresh.lacking)
            return self._differs(node, key, reads, self._named(without), self._named(reads), "reads")
        return True

    def _differs(
        self, node: DerivedTable, key: Any, reads: Iterable[Read], held: Any, wanted: Any, what: What = "value"
    ) -> Literal[False]:
        if self._are_right(reads) and self._are_right(_base_reads(node, key)):
            self._find(node, key, held, wanted, what)
            self._graph.recheck(node.declaration, key)
        return False

    def _are_right(self, reads: Iterable[Read]) -> bool:
        """Whether what was read is as it should be; if not, that is told and repaired, and its readers follow."""
        right = True
        for number, asked in list(reads):
            node = self._graph._numbered[number]
            if isinstance(node, IndexTable):
                right &= self._check_bucket(node, asked)
            elif isinstance(node, DerivedTable) and not node.declaration.is_expanded:
                right &= asked not in node.pending and self._check_value(node, asked)
        return right

    def _named(self, reads: Iterable[Read]) -> tuple[tuple[str, Any], ...]:
        return tuple((self._graph._numbered[number].name, asked) for number, asked in reads)

    # Indices.

    def _members(self, index: IndexTable) -> Generator[None, None, None]:
        for key in list(_keys(index.over)):
            self._check_member(index, key)
            yield
        for value in list(index.base):
            for key in list(index.base.get(value, ())):
                self.checked += 1
                if not _belongs(index, value, key) and key in index.bucket(value):
                    self._misfiled(index, value, key)
                yield

    def _check_member(self, index: IndexTable, key: Any) -> None:
        held = index.over.current(key)
        if held is None:
            return
        for value in set(index.by(held)):
            self.checked += 1
            if key not in index.bucket(value):
                self._misfiled(index, value, key)

    def _check_bucket(self, index: IndexTable, value: Any) -> bool:
        """Whether a bucket is what a scan of the whole collection finds."""
        read = (index.number, value)
        if read not in self._scanned:
            self._scanned[read] = {key for key in list(_keys(index.over)) if _belongs(index, value, key)}
        wrong = self._scanned[read].symmetric_difference(index.bucket(value))
        for key in wrong:
            self._misfiled(index, value, key)
        return not wrong

    def _misfiled(self, index: IndexTable, value: Any, key: Any) -> None:
        is_wanted = _belongs(index, value, key)
        self._find(index, (value, key), not is_wanted, is_wanted, "member")
        self._graph.refile(index.declaration, value, key)


class _Fresh:
    """The reader of the audit: answers from what is held, and makes nothing that is not there."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.reads: dict[Read, None] = {}
        self.lacking: list[Read] = []
        """On-demand values that were asked for and are not held."""

    def get(self, collection: Collection[K, V], key: K) -> V | None:
        node = cast("SourceTable | DerivedTable", self._graph._nodes[collection])
        read = (node.number, key)
        self.reads[read] = None
        if isinstance(node, DerivedTable) and node.is_on_demand and key not in node.cells:
            self.lacking.append(read)
            return cast("V | None", node.declaration.gather(key, _Fresh(self._graph)))
        return cast("V | None", node.current(key))

    def under(self, index: Index[U, V], value: U) -> tuple[V, ...]:
        node = cast("IndexTable", self._graph._nodes[index])
        self.reads[(node.number, value)] = None
        return node.members(value)


def _rendered(node: DerivedTable, gathered: Any) -> Any:
    render = node.declaration.render
    return gathered if render is None or gathered is None else render(gathered)


def _keys(node: SourceTable | DerivedTable | IndexTable | None) -> Iterable[Any]:
    if node is None:
        return ()
    return node.cells if isinstance(node, DerivedTable) else node.base


def _base_reads(node: DerivedTable, key: Any) -> tuple[Read, ...]:
    """What a value is over, as if it had been read."""
    return () if node.base is None else ((node.base.number, key),)


def _belongs(index: IndexTable, value: Any, key: Any) -> bool:
    held = index.over.current(key)
    return held is not None and value in index.by(held)


def _is_heard(graph: Graph, read: Read, cell: Cell) -> bool:
    entry = graph._dependents.get(read)
    return cell in entry.cells if isinstance(entry, Shared) else entry is cell
