"""Collections, indices and derived collections that follow their recorded reads. Knows nothing of meshes.

A *source* is set by a transaction. A *derived* collection is declared by a function that gathers one value through a
`Reader`; each read is recorded, and a change dirties exactly the values whose recorded reads it touches. A value that
comes out equal stops there. Where a `render` stands beside `gather`, what was gathered is the whole key of what is
rendered: equal key, nothing is rendered.

Collections are ranked by their declaration order, and a gather may read lower ranks only, so that one pass over the
ranks settles everything and nobody sees half of a change. A transaction derives into a layer in steps; readers outside
see the committed state alone; `commit` shows the layer at once, and `settle` folds it into the tables in steps
afterwards. One transaction at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, cast

from ambientd.index.declarations import Change, Collection, Derived, Index, K, Read, Source, U, V
from ambientd.index.tables import GONE, MISSING, Cell, DerivedTable, Gone, IndexTable, Shared, SourceTable, Table


class DerivationFailed(Exception):
    """A gather or render raised; the former value stays in force."""


class _Recorder:
    """The reader of one gather; remembers what was asked, each question once."""

    def __init__(self, graph: Graph, rank: int) -> None:
        self._graph = graph
        self._rank = rank
        self.reads: dict[Read, None] = {}

    def get(self, collection: Collection[K, V], key: K) -> V | None:
        node = self._graph._nodes[collection]
        assert node.rank < self._rank, f"rank {self._rank} reads {node.name}, which is not settled before it"
        self.reads[(node.number, key)] = None
        if isinstance(node, DerivedTable) and node.is_on_demand:
            return cast("V | None", self._graph._demand(node, key))
        return cast("V | None", cast("SourceTable | DerivedTable", node).current(key))

    def under(self, index: Index[U, V], value: U) -> tuple[V, ...]:
        node = cast("IndexTable", self._graph._nodes[index])
        assert node.rank < self._rank, f"rank {self._rank} reads {node.name}, which is not settled before it"
        self.reads[(node.number, value)] = None
        return node.members(value)


class Graph:
    """The state of all collections. `declarations` in an order in which each reads only earlier ones."""

    def __init__(
        self, declarations: Iterable[Collection[Any, Any] | Index[Any, Any]], *, is_strict: bool = False
    ) -> None:
        self._is_strict = is_strict
        self._nodes: dict[Any, Table] = {}
        self._numbered: list[Table] = []
        self._derived: list[DerivedTable] = []
        self._dependents: dict[Read, Cell | Shared] = {}
        self._is_committed = True
        self._transaction: Transaction | None = None
        self.failures: dict[tuple[str, Any], Exception] = {}
        """Derivations that raised, by collection and key: faults of ours, whose former value stays in force."""
        self.suppressed: frozenset[str] = frozenset()
        """Names of collections whose values do not notice that something they follow or read has changed: a planted
        fault, for tests of the tests."""
        for declaration in declarations:
            self._declare(declaration)

    def _declare(self, declaration: Collection[Any, Any] | Index[Any, Any]) -> None:
        if declaration in self._nodes:
            return
        if isinstance(declaration, Index | Derived) and declaration.over is not None:
            self._declare(declaration.over)
        node: Table
        number = len(self._numbered)
        if isinstance(declaration, Source):
            node = SourceTable(number, declaration)
        elif isinstance(declaration, Index):
            over = cast("SourceTable | DerivedTable", self._nodes[declaration.over])
            node = IndexTable(number, declaration, over)
            over.indices.append(node)
        else:
            derived = cast("Derived[Any, Any]", declaration)
            node = DerivedTable(number, derived, rank=len(self._derived))
            if derived.over is not None:
                node.base = self._nodes[derived.over]
                node.base.followers.append(node)
            self._derived.append(node)
        self._nodes[declaration] = node
        self._numbered.append(node)

    # What outside readers see: the last commit.

    def get(self, collection: Collection[K, V], key: K) -> V | None:
        node = cast("SourceTable | DerivedTable", self._nodes[collection])
        return cast("V | None", node.current(key) if self._is_committed else node.committed(key))

    def under(self, index: Index[U, V], value: U) -> tuple[V, ...]:
        node = cast("IndexTable", self._nodes[index])
        return node.members(value) if self._is_committed else node.committed_members(value)

    def items(self, collection: Collection[K, V]) -> Iterator[tuple[K, V]]:
        """All values, in no order; the collection must not change while this is read."""
        node = cast("SourceTable | DerivedTable", self._nodes[collection])
        layer = node.layer if self._is_committed else {}
        for key in node.committed_keys():
            if key not in layer:
                yield key, node.committed(key)
        for key, value in layer.items():
            if value is not GONE:
                yield key, value

    def keys(self, collection: Collection[K, V]) -> list[K]:
        """A copy of all keys that are folded in, with those that have no value now."""
        node = cast("SourceTable | DerivedTable", self._nodes[collection])
        return list(node.base if isinstance(node, SourceTable) else node.cells)

    def reads(self, collection: Derived[K, V], key: K) -> tuple[tuple[str, Any], ...]:
        """What a value was gathered from: names of collections or indices, and keys."""
        node = cast("DerivedTable", self._nodes[collection])
        cell = node.cells.get(key)
        reads = () if cell is None else cell.reads
        return tuple((self._numbered[number].name, asked) for number, asked in reads)

    def sizes(self) -> dict[str, int]:
        """How many values each collection, and how many buckets each index holds; `reads`: distinct recorded ones."""
        sizes = {node.name: node.size() for node in self._numbered}
        sizes["reads"] = len(self._dependents)
        return sizes

    def gathers(self) -> dict[str, int]:
        """How often each derived collection has gathered a value so far."""
        return {node.name: node.gathers for node in self._derived}

    @property
    def is_idle(self) -> bool:
        """No transaction is under way: everything that is shown is folded in."""
        return self._transaction is None

    # Changes.

    def begin(self, changes: Iterable[Change]) -> Transaction:
        """Starts a transaction; of several changes of one key, the last counts. The former one must be settled."""
        assert self._transaction is None, "one transaction at a time"
        self._transaction = Transaction(self, changes)
        return self._transaction

    def apply(self, changes: Iterable[Change]) -> None:
        """A whole transaction in one call."""
        transaction = self.begin(changes)
        transaction.step(_never)
        transaction.commit()
        transaction.settle(_never)

    # Repairs, between transactions; the next one carries them out.

    def recheck(self, collection: Derived[K, V], key: K) -> None:
        """Has a value derived anew, or for an expanded collection the values of one key of `over`, whatever is held of
        it and of its reads."""
        node = cast("DerivedTable", self._nodes[collection])
        if node.is_on_demand and (node.number, key) not in self._dependents:
            node.unread[key] = None
            return
        cell = (node.parents if node.declaration.is_expanded else node.cells).get(key)
        if cell is not None:
            self._subscribe(cell, ())
            held = (cell.value or ()) if node.declaration.is_expanded else (key,)
            for each in filter(None, map(node.cells.get, held)):
                each.gathered = MISSING  # equal to nothing that is gathered
        node.pending[key] = None

    def disown(self, collection: Derived[K, V], child: K) -> None:
        """Drops a value of an expanded collection that no key of `over` yields."""
        node = cast("DerivedTable", self._nodes[collection])
        nobody = Gone()  # as a key of `over`: one that is gone, and takes what it yielded with it
        node.parents[nobody] = Cell(node, nobody, value=(child,))
        node.pending[nobody] = None

    def refile(self, index: Index[U, Any], value: U, key: Any) -> None:
        """Puts a member into one bucket of an index, or takes it out, as what is held says."""
        node = cast("IndexTable", self._nodes[index])
        held = node.over.current(key)
        bucket = {*node.bucket(value)} - {key}
        if held is not None and value in node.by(held):
            bucket.add(key)
        node.layer[value] = bucket
        for _ in node.fold():
            pass
        self._follow(node.followers, value)
        self._touch((node.number, value))

    def _set(self, node: SourceTable | DerivedTable, key: Any, old: Any, new: Any) -> None:
        node.layer[key] = GONE if new is None else new
        for index in node.indices:
            for value in index.move(key, old, new):
                self._follow(index.followers, value)
                self._touch((index.number, value))
        self._follow(node.followers, key)
        self._touch((node.number, key))

    def _follow(self, followers: list[DerivedTable], key: Any) -> None:
        for follower in followers:
            if follower.name not in self.suppressed or not (key in follower.cells or key in follower.parents):
                follower.pending[key] = None

    def _touch(self, read: Read) -> None:
        entry = self._dependents.get(read)
        if entry is None:
            return
        for cell in entry.cells if isinstance(entry, Shared) else (entry,):
            if cell.node.name not in self.suppressed:
                cell.node.pending[cell.key] = None

    def _demand(self, node: DerivedTable, key: Any) -> Any:
        if key not in node.cells:
            self._derive_cell(node, key)
        return node.current(key)

    def _gather(self, node: DerivedTable, arguments: tuple[Any, ...], cell: Cell) -> Any:
        """What the declaration gathers, its reads moved to the cell; `MISSING` when it raised."""
        recorder = _Recorder(self, node.rank)
        node.gathers += 1
        try:
            gathered = node.declaration.gather(*arguments, recorder)
        except Exception as error:  # a fault of ours must not stop the others' changes
            self._fail(node, cell.key, error)
            # What it read before, and what it read now: either may be what mends it.
            self._subscribe(cell, tuple({**dict.fromkeys(cell.reads), **recorder.reads}))
            return MISSING
        self.failures.pop((node.name, cell.key), None)
        self._subscribe(cell, tuple(recorder.reads))
        return gathered

    def _fail(self, node: DerivedTable, key: Any, error: Exception) -> None:
        if self._is_strict:
            raise DerivationFailed(f"{node.name} of {key}") from error
        self.failures[(node.name, key)] = error

    def _derive(self, node: DerivedTable, key: Any) -> None:
        if node.declaration.is_expanded:
            self._derive_children(node, key)
        elif node.is_on_demand and key not in node.cells:
            return  # dropped earlier in this transaction
        else:
            self._derive_cell(node, key)

    def _derive_cell(self, node: DerivedTable, key: Any) -> None:
        arguments = self._arguments(node, key)
        cell = node.cells.get(key)
        if arguments is None:
            if cell is not None:
                self._drop(node, cell)
            return
        is_new = cell is None
        if cell is None:
            cell = node.cells[key] = Cell(node, key)
        gathered = self._gather(node, arguments, cell)
        if gathered is MISSING:
            return
        if not is_new and (gathered is cell.gathered or gathered == cell.gathered) and key not in node.layer:
            return
        self._render_and_set(node, key, cell.value, gathered)
        if gathered is None and not cell.reads and not node.is_on_demand and key not in node.layer:
            del node.cells[key]

    def _arguments(self, node: DerivedTable, key: Any) -> tuple[Any, ...] | None:
        """What a gather is called with; None when the value that it is over is gone."""
        base = node.base
        if base is None:
            return (key,)
        if isinstance(base, IndexTable):
            members = base.members(key)
            return (key, members) if members else None
        value = base.current(key)
        return None if value is None else (value,)

    def _render_and_set(self, node: DerivedTable, key: Any, old: Any, gathered: Any) -> None:
        new = gathered
        if node.declaration.render is not None and gathered is not None:
            try:
                new = node.declaration.render(gathered)
            except Exception as error:  # as above: the former value stays in force
                self._fail(node, key, error)
                return
        if new is old or new == old:
            cell = node.cells.get(key)
            if cell is not None:
                # Equal bytes from another key. The committed pair (key, value) stays true of the new key as well.
                cell.gathered = gathered
            return
        node.gathered[key] = gathered
        self._set(node, key, old, new)

    def _derive_children(self, node: DerivedTable, key: Any) -> None:
        arguments = self._arguments(node, key)
        parent = node.parents.get(key)
        if arguments is None:
            if parent is not None:
                self._subscribe(parent, ())
                for child in parent.value or ():
                    self._set_child(node, child, None)
                del node.parents[key]
            return
        if parent is None:
            parent = node.parents[key] = Cell(node, key)
        gathered = self._gather(node, arguments, parent)
        if gathered is MISSING:
            return
        for child in parent.value or ():
            if child not in gathered:
                self._set_child(node, child, None)
        for child, child_gathered in gathered.items():
            self._set_child(node, child, child_gathered)
        parent.value = tuple(gathered)
        if not gathered and not parent.reads:
            del node.parents[key]

    def _set_child(self, node: DerivedTable, child: Any, gathered: Any) -> None:
        cell = node.cells.get(child)
        if cell is not None and child not in node.layer and gathered == cell.gathered:
            return
        self._render_and_set(node, child, None if cell is None else cell.value, gathered)

    def _drop(self, node: DerivedTable, cell: Cell) -> None:
        self._subscribe(cell, ())
        self.failures.pop((node.name, cell.key), None)
        if cell.value is not None:
            self._set(node, cell.key, cell.value, None)
        elif cell.key not in node.layer:
            del node.cells[cell.key]

    def _forget(self, node: DerivedTable, cell: Cell) -> None:
        """Drops an on-demand value that nobody reads any more; outside readers see it until the commit."""
        self._subscribe(cell, ())
        self.failures.pop((node.name, cell.key), None)
        for index in node.indices:
            index.move(cell.key, node.current(cell.key), None)
        node.layer[cell.key] = GONE
        node.gathered.pop(cell.key, None)
        node.forgotten.add(cell.key)

    def _subscribe(self, cell: Cell, reads: tuple[Read, ...]) -> None:
        if reads == cell.reads:
            return
        before, after = set(cell.reads), set(reads)
        for read in before - after:
            self._unlisten(read, cell)
        cell.reads = tuple(self._listen(read, cell) if read not in before else read for read in reads)

    def _listen(self, read: Read, cell: Cell) -> Read:
        """Returns the tuple to hold for this read, one for all who made it: at 100,000 pods that is most of them."""
        entry = self._dependents.get(read)
        if entry is None:
            self._dependents[read] = cell
            return read
        if isinstance(entry, Shared):
            entry.cells.add(cell)
            return entry.read
        shared = next((held for held in entry.reads if held == read), read)
        self._dependents[shared] = Shared(shared, {entry, cell})
        return shared

    def _unlisten(self, read: Read, cell: Cell) -> None:
        entry = self._dependents.get(read)
        if isinstance(entry, Shared):
            entry.cells.discard(cell)
            if entry.cells:
                return
        elif entry is not cell:
            return
        del self._dependents[read]
        node = self._numbered[read[0]]
        if isinstance(node, DerivedTable) and node.is_on_demand:
            node.unread[read[1]] = None


class Transaction:
    """A batch of changes on its way. `step` until it says True, then `commit`, then `settle` until it says True."""

    def __init__(self, graph: Graph, changes: Iterable[Change]) -> None:
        self._graph = graph
        self._work: Generator[None, None, None] = self._run(changes)
        self._is_derived = False
        graph._is_committed = False

    def step(self, enough: Callable[[], bool]) -> bool:
        """Derives until nothing is left or `enough()`; True: nothing is left."""
        for _ in self._work:
            if enough():
                return False
        self._is_derived = True
        return True

    def changed(self, collection: Derived[K, V]) -> Iterator[tuple[K, V | None, V | None]]:
        """Key, committed value and new value of everything that changes; between the last step and `settle`."""
        node = cast("DerivedTable", self._graph._nodes[collection])
        for key, value in node.layer.items():
            cell = node.cells.get(key)
            old = None if cell is None else cell.value
            new = None if value is GONE else value
            if old is not None or new is not None:
                yield key, old, new

    def count(self, collection: Derived[Any, Any]) -> int:
        """How many values of the collection change, at most."""
        return len(cast("DerivedTable", self._graph._nodes[collection]).layer)

    def commit(self) -> None:
        """Shows the new state to everybody, at once."""
        assert self._is_derived
        self._graph._is_committed = True
        self._work = self._settling()

    def settle(self, enough: Callable[[], bool]) -> bool:
        """Folds the new state into the tables; True: done, and the next transaction may begin."""
        assert self._graph._is_committed
        for _ in self._work:
            if enough():
                return False
        self._graph._transaction = None
        return True

    def _run(self, changes: Iterable[Change]) -> Generator[None, None, None]:
        graph = self._graph
        last: dict[tuple[Any, Any], Any] = {(source, key): value for source, key, value in changes}
        for (source, key), value in last.items():
            node = cast("SourceTable", graph._nodes[source])
            old = node.base.get(key)
            if old is not value and old != value:
                graph._set(node, key, old, value)
            yield
        for derived in graph._derived:
            # Nobody of this rank can add to what is pending at it, so the batch is whole.
            batch, derived.pending = derived.pending, {}
            for key in batch:
                graph._derive(derived, key)
                yield
        for derived in reversed(graph._derived):
            while derived.unread:
                key, _ = derived.unread.popitem()
                cell = derived.cells.get(key)
                if cell is not None and (derived.number, key) not in graph._dependents:
                    graph._forget(derived, cell)
                yield

    def _settling(self) -> Generator[None, None, None]:
        for node in self._graph._numbered:
            for _ in node.fold():
                yield


def _never() -> bool:
    return False
