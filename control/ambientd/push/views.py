"""What is served of one type: a table ordered by last change, so that it is its own log. Removed names stay as
tombstones until every live cursor has passed them. Must not know who reads it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from msgspec import Struct

from ambientd.index.rendered import RenderedAddress, RenderedPolicy

Seq = int
"""The number of a commit, one sequence for all types; 0 is before the first."""

R = TypeVar("R", RenderedAddress, RenderedPolicy)


Changes = Iterable[tuple[str, R | None]]
"""Primary names with what is served under them now; None: nothing."""


class PolicyState(Struct, frozen=True, gc=False):
    """What a policy does, as far as verdicts depend on it."""

    scope: int
    action: int
    is_dry_run: bool
    rules: str
    """Equal where action and rules are equal."""


State = tuple[str, ...] | PolicyState
"""What verdicts depend on: of an address the policies that it lists, of a policy what it does."""


class Entry(Struct, Generic[R], frozen=True, gc=False):
    """A name as of its last change. `past` tells what it was before, as far back as some cursor may need it."""

    name: str
    rendered: R | None
    """None: a tombstone."""
    seq: Seq
    since: Seq
    """Since when its state is what it is now."""
    past: tuple[tuple[Seq, State | None], ...] = ()
    """Former states, newest first, each with the commit from which it held; None: it did not exist."""

    def state(self) -> State | None:
        return None if self.rendered is None else state_of(self.rendered)

    def state_at(self, cursor: Seq) -> State | None:
        """What a client at this cursor holds; None: nothing of this name."""
        if self.since <= cursor:
            return self.state()
        return next((state for since, state in self.past if since <= cursor), None)


def state_of(rendered: RenderedAddress | RenderedPolicy) -> State:
    if isinstance(rendered, RenderedAddress):
        return rendered.policies
    return PolicyState(rendered.scope, rendered.action, rendered.is_dry_run, rendered.rules)


class BelowFloor(Exception):
    """A cursor is older than what is remembered: the stream must start over with its versions."""


class View(Generic[R]):
    """The table of one type. A commit lays a layer of new entries over it at once; `settle` folds that in by steps."""

    _MOST_PAST = 16

    def __init__(self, type_url: str, *, most_tombstones: int = 50_000, most_recent: int = 50_000) -> None:
        self.type_url = type_url
        self.floor: Seq = 0
        self._next_floor: Seq = 0
        """What the floor becomes with the commit that is being staged."""
        self._table: dict[str, Entry[R]] = {}
        self._layer: dict[str, Entry[R]] = {}
        self._tombstones: deque[tuple[Seq, str]] = deque()
        self._most_tombstones = most_tombstones
        self._recent: OrderedDict[tuple[str, str], State] = OrderedDict()
        self._most_recent = most_recent
        self._amendments: dict[str, R | None] = {}
        """What the next commit corrects beside what changed."""
        self.served = 0
        """How many names are served now."""

    # Reading.

    def get(self, name: str) -> Entry[R] | None:
        return self._layer.get(name) or self._table.get(name)

    def rendered(self, name: str) -> R | None:
        """What is served under a name; None: nothing."""
        entry = self.get(name)
        return None if entry is None else entry.rendered

    def entries(self) -> list[Entry[R]]:
        """Every entry, tombstones included; a copy, so that it can be worked through in steps."""
        if not self._layer:
            return list(self._table.values())
        settled: list[Entry[R]] = [entry for name, entry in self._table.items() if name not in self._layer]
        return settled + list(self._layer.values())

    def names(self) -> list[str]:
        """Every settled name, tombstones included; a copy."""
        return list(self._table)

    def changed_since(self, cursor: Seq) -> list[Entry[R]]:
        """What changed after `cursor`, in no order. Raises BelowFloor."""
        if cursor < self.floor:
            raise BelowFloor(f"cursor {cursor} of {self.type_url} is below {self.floor}")
        layer = self._layer
        # A layer is of one commit: all of it, or nothing, is new to the cursor.
        changed = list(layer.values()) if layer and next(iter(layer.values())).seq > cursor else []
        for entry in reversed(self._table.values()):
            if entry.seq <= cursor:
                break
            if entry.name not in layer:
                changed.append(entry)
        return changed

    def recent_state(self, name: str, version: str) -> State | None:
        """What a version means that is served, or was until not long ago; None when that is forgotten."""
        for table in (self._layer, self._table):  # what the layer replaces is remembered only when it is folded in
            entry = table.get(name)
            if entry is not None and entry.rendered is not None and entry.rendered.version == version:
                return state_of(entry.rendered)
        return self._recent.get((name, version))

    # Changing.

    def amend(self, name: str, rendered: R | None) -> None:
        """Has the next commit show this under a name, unless it changes the name itself: a repair (audit)."""
        self._amendments[name] = rendered

    def amended(self, changes: Changes[R]) -> Changes[R]:
        """The changes, and after them the amendments."""
        for name, rendered in changes:
            self._amendments.pop(name, None)
            yield name, rendered
        while self._amendments:
            yield self._amendments.popitem()

    def staged(self, name: str, rendered: R | None, seq: Seq, floor: Seq) -> Entry[R] | None:
        """The entry that this change makes; None when there is nothing to remove. `floor`: the oldest live cursor."""
        before = self._table.get(name)
        if before is None:
            return None if rendered is None else Entry(name, rendered, seq, seq)
        state = None if rendered is None else state_of(rendered)
        if state == before.state():
            return Entry(name, rendered, seq, before.since, before.past)
        latest: tuple[tuple[Seq, State | None], ...] = ((before.since, before.state()),)
        past = latest + before.past
        needed = 1 + next((at for at, (then, _) in enumerate(past) if then <= floor), len(past))
        kept = past[: min(needed, self._MOST_PAST)]
        if needed > self._MOST_PAST:
            # Older states of this name are forgotten, so who is older must start over.
            self._next_floor = max(self._next_floor, kept[-1][0])
        return Entry(name, rendered, seq, seq, kept)

    def commit(self, layer: dict[str, Entry[R]]) -> None:
        """Shows the new entries, at once. The former layer must be settled."""
        assert not self._layer
        self._layer = layer
        self.floor = max(self.floor, self._next_floor)

    def settle(self, floor: Seq, tell: Callable[[R | None, R | None], None] | None = None) -> Iterator[None]:
        """Folds the layer in; `floor`: the oldest live cursor, below which nothing need be remembered; `tell` is called
        with what was and what is served of each name."""
        table, layer = self._table, self._layer
        while layer:
            name, entry = layer.popitem()
            before = table.pop(name, None)
            table[name] = entry
            self.served += (entry.rendered is not None) - (before is not None and before.rendered is not None)
            if before is not None and before.rendered is not None:
                self._remember(name, before.rendered)
            if entry.rendered is None:
                self._tombstones.append((entry.seq, name))
            if tell is not None:
                tell(None if before is None else before.rendered, entry.rendered)
            yield
        yield from self._bury(floor)

    def _remember(self, name: str, rendered: R) -> None:
        self._recent[name, rendered.version] = state_of(rendered)
        if len(self._recent) > self._most_recent:
            self._recent.popitem(last=False)

    def _bury(self, floor: Seq) -> Iterator[None]:
        while self._tombstones:
            seq, name = self._tombstones[0]
            is_too_many = len(self._tombstones) > self._most_tombstones
            if seq > floor and not is_too_many:
                return
            self._tombstones.popleft()
            entry = self._table.get(name)
            if entry is not None and entry.rendered is None and entry.seq == seq:
                del self._table[name]
                if seq > floor:
                    self.floor = max(self.floor, seq)
            yield


def live(entries: Iterable[Entry[R]]) -> Iterator[tuple[Entry[R], R]]:
    """The entries that are served, each with what is served."""
    for entry in entries:
        if entry.rendered is not None:
            yield entry, entry.rendered
