"""The feed: one sequence of commits over the views of all types, and what streams take from it. A commit is staged in
steps, shown at once, and settled in steps; full states and rounds are jobs. Streams tell their cursors, so that nothing
is remembered longer than somebody needs it. Must not know gRPC or the clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from itertools import chain

from msgspec import Struct

from ambientd.index.rendered import RenderedAddress, RenderedPolicy
from ambientd.push.directory import Directory, Found
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.push.full import Buckets
from ambientd.push.moves import (
    AddressMove,
    Claims,
    Cut,
    Moves,
    changed_addresses,
    changed_policies,
    claimed_addresses,
    claimed_policies,
    listed_at,
    since,
)
from ambientd.push.ondemand import Interest
from ambientd.push.rounds import Job, Maker, Round, Steps, arrange, encode, split
from ambientd.push.views import Changes, Entry, R, Seq, View

_SHARED_ROUNDS = 8
"""Rounds that are kept for other streams at the same position."""


class Staged(Struct):
    """A commit that nobody sees yet."""

    seq: Seq
    addresses: dict[str, Entry[RenderedAddress]]
    policies: dict[str, Entry[RenderedPolicy]]
    nodes: set[str]
    """Nodes that get a new workload; their clients are served first."""
    buckets: dict[str, set[int]]
    """By type, the buckets that hold what changes."""

    @property
    def is_empty(self) -> bool:
        return not self.addresses and not self.policies


class Feed:
    """All views under one sequence."""

    def __init__(
        self, new_nonce: Callable[[], str], *, most_tombstones: int = 50_000, most_recent: int = 50_000
    ) -> None:
        self._maker = Maker(new_nonce)
        self.addresses: View[RenderedAddress] = View(ADDRESS, most_tombstones=most_tombstones, most_recent=most_recent)
        self.policies: View[RenderedPolicy] = View(
            AUTHORIZATION, most_tombstones=most_tombstones, most_recent=most_recent
        )
        self.head: Seq = 0
        self._buckets = {ADDRESS: Buckets(), AUTHORIZATION: Buckets()}
        self._cursors: dict[int, Seq] = {}
        self._rounds: OrderedDict[tuple[Seq, Seq, Seq], Job[Round]] = OrderedDict()
        self._directory: Directory | None = None
        self._building: Job[None]
        self._is_settled = True

    # Committing.

    @property
    def is_settled(self) -> bool:
        """The last commit is folded in."""
        return self._is_settled

    @property
    def directory(self) -> Directory | None:
        """Where on-demand clients' keys are looked up; None while nobody has asked for one, or it is being built."""
        return self._directory if self._directory is not None and self._building.is_done else None

    def stage(self, address_changes: Changes[RenderedAddress], policy_changes: Changes[RenderedPolicy]) -> Job[Staged]:
        """Prepares the next commit. The former one must be settled. A name that one source drops and another one takes
        over in the same commit is taken over."""
        assert self._is_settled
        return Job(self._stage(address_changes, policy_changes))

    def _stage(
        self, address_changes: Changes[RenderedAddress], policy_changes: Changes[RenderedPolicy]
    ) -> Generator[None, None, Staged]:
        seq, floor = self.head + 1, self.oldest_cursor()
        staged = Staged(seq, {}, {}, set(), {ADDRESS: set(), AUTHORIZATION: set()})
        for entry in _stage_view(self.addresses, address_changes, seq, floor, staged.addresses, staged.buckets):
            if entry is not None and entry.rendered is not None and entry.rendered.node and entry.since == seq:
                staged.nodes.add(entry.rendered.node)
            yield
        for _ in _stage_view(self.policies, policy_changes, seq, floor, staged.policies, staged.buckets):
            yield
        return staged

    def commit(self, staged: Staged) -> None:
        """Shows a staged commit to everybody, at once."""
        assert staged.seq == self.head + 1
        self.addresses.commit(staged.addresses)
        self.policies.commit(staged.policies)
        for type_url, buckets in staged.buckets.items():
            self._buckets[type_url].touch(buckets, staged.seq)
        self.head = staged.seq
        self._rounds.clear()  # nobody will ask for them again; who is writing one has its parts
        self._is_settled = False

    def settle(self) -> Job[None]:
        """Folds the last commit into the tables."""
        return Job(self._settle())

    def _settle(self) -> Generator[None, None, None]:
        floor = self.oldest_cursor()
        yield from self.addresses.settle(floor, self._settled_address)
        yield from self.policies.settle(floor)
        self._is_settled = True

    def _settled_address(self, old: RenderedAddress | None, new: RenderedAddress | None) -> None:
        if self._directory is not None:
            self._directory.update(old, new)

    # Cursors.

    def at(self, stream: int, cursor: Seq) -> None:
        """This stream still needs what happened after `cursor`."""
        self._cursors[stream] = cursor

    def left(self, stream: int) -> None:
        self._cursors.pop(stream, None)

    def oldest_cursor(self) -> Seq:
        return min(self._cursors.values(), default=self.head)

    # What streams take. Each job leads every type that the client was told of before (`cursors`) to one commit, so that
    # a client never holds addresses of one commit and policies of another.

    def full(self, type_url: str, cursors: Mapping[str, Seq], interest: Interest | None = None) -> Job[Round]:
        """The whole state of a type as one message, for a client that tells nothing of what it holds; before it, what
        changed of the other type."""
        return Job(self._full(type_url, cursors, interest))

    def _full(self, type_url: str, cursors: Mapping[str, Seq], interest: Interest | None) -> Steps[Round]:
        directory = None if interest is None else (yield from self._settled_directory())
        to, cut = self.head, self._cut(cursors)
        entries = (self.addresses if type_url == ADDRESS else self.policies).entries()
        moves = yield from self._moves(cut, cursors, to, interest, directory)
        changed = yield from self._arranged(moves, to)
        whole = yield from self._buckets[type_url].part(type_url, entries, self._maker, to)
        return Round(to, (*changed.parts, whole))

    def first(
        self,
        claims: Mapping[str, Claims],
        cursors: Mapping[str, Seq],
        interest: Interest | None = None,
        asked: Collection[str] | None = None,
    ) -> Job[Round]:
        """The first answers of the types in `claims`, for a client that tells what it holds of them: what it lacks, and
        at least one message of each type (xds.md 19.1). `interest`: that of an on-demand client; `asked`: what it asks
        for now, None: nothing."""
        if interest is None:
            return Job(self._first(claims, cursors))
        return Job(self._on_demand(interest, asked, claims, cursors, tuple(claims)))

    def _first(self, claims: Mapping[str, Claims], cursors: Mapping[str, Seq]) -> Steps[Round]:
        to, cut = self.head, self._cut(cursors, claims)
        addresses = self.addresses.entries() if ADDRESS in claims else []
        moves = yield from self._moves(cut, cursors, to)
        moves.owed = tuple(claims)
        if AUTHORIZATION in claims:
            yield from claimed_policies(moves, claims[AUTHORIZATION], self.policies, cut.all_policies)
        if ADDRESS in claims:
            yield from claimed_addresses(moves, claims[ADDRESS], self.addresses, addresses)
        return (yield from self._arranged(moves, to))

    def nothing(self, type_url: str) -> Job[Round]:
        """An empty answer for a type that is not served."""
        return Job(self._arranged(Moves(owed=(type_url,)), self.head))

    def named(
        self, type_url: str, names: Collection[str], cursors: Mapping[str, Seq], interest: Interest | None = None
    ) -> Job[Round]:
        """The answer to a client that has a wildcard for this type and asks for some names: what stands under them, and
        those under which nothing does as removed. `interest`: in addresses, of an on-demand client."""
        return Job(self._named(type_url, names, cursors, interest))

    def _named(
        self, type_url: str, names: Collection[str], cursors: Mapping[str, Seq], interest: Interest | None
    ) -> Steps[Round]:
        directory = yield from self._settled_directory()
        asked = names if type_url == ADDRESS else ()
        to, cut, found = yield from self._at_once(cursors, lambda: directory.standing(asked, self.addresses))
        policies = {} if type_url == ADDRESS else {name: self.policies.get(name) for name in names}
        moves = yield from self._moves(cut, cursors, to, interest, directory)
        moves.owed = (type_url,)
        told = {move.name for move in moves.addresses} | moves.rendered.keys()
        for name, entry in found.entries.items():
            if name not in told:
                moves.addresses.append(AddressMove(name, entry.rendered, listed_at(entry, to)))
        moves.absent.extend((ADDRESS, key) for key in found.missed)
        for name, policy in policies.items():
            if policy is None or policy.rendered is None:
                moves.absent.append((AUTHORIZATION, name))
            elif name not in told:
                moves.resent.append(policy.rendered)
        return (yield from self._arranged(moves, to))

    def round(self, cursors: Mapping[str, Seq]) -> Job[Round]:
        """What changed after these cursors, for a wildcard client of the types in `cursors`. Raises BelowFloor. Streams
        at the same position share one job."""
        position = (cursors.get(ADDRESS, -1), cursors.get(AUTHORIZATION, -1), self.head)
        job = self._rounds.get(position)
        if job is None:
            # The cut is taken now, not when the first of the sharing streams comes to work on it.
            job = self._rounds[position] = Job(self._round(self._cut(cursors), cursors, self.head))
            if len(self._rounds) > _SHARED_ROUNDS:
                self._rounds.popitem(last=False)
        return job

    def _round(self, cut: Cut, cursors: Mapping[str, Seq], to: Seq) -> Steps[Round]:
        moves = yield from self._moves(cut, cursors, to)
        return (yield from self._arranged(moves, to))

    # On demand.

    def ask(
        self,
        interest: Interest,
        asked: Collection[str],
        claims: Claims,
        cursors: Mapping[str, Seq],
        *,
        forgotten: Collection[str] = (),
        is_owed: bool = True,
    ) -> Job[Round]:
        """The answer to a later request for these keys; `claims`: what the client holds of them; `forgotten`: what it
        unsubscribes from. Where nothing is asked for, so that none `is_owed`, there is one only if anything differs."""
        return Job(self._ask(interest, asked, claims, cursors, forgotten, is_owed))

    def _ask(
        self,
        interest: Interest,
        asked: Collection[str],
        claims: Claims,
        cursors: Mapping[str, Seq],
        forgotten: Collection[str],
        is_owed: bool,
    ) -> Steps[Round]:
        new = yield from interest.unknown(claims)
        has_forgotten = yield from interest.unsubscribe(forgotten, self.addresses)
        if not (is_owed or has_forgotten or new):
            return (yield from self._on_demand(interest, None, {}, cursors, ()))
        keys = dict.fromkeys(chain(asked, new))
        return (yield from self._on_demand(interest, keys, {ADDRESS: claims}, cursors, (ADDRESS,)))

    def interesting(self, interest: Interest, cursors: Mapping[str, Seq]) -> Job[Round]:
        """What changed after these cursors and concerns an on-demand client. Raises BelowFloor when it is stepped."""
        return Job(self._on_demand(interest, None, {}, cursors, ()))

    def _on_demand(
        self,
        interest: Interest,
        asked: Collection[str] | None,
        claims: Mapping[str, Claims],
        cursors: Mapping[str, Seq],
        owed: tuple[str, ...],
    ) -> Steps[Round]:
        directory = yield from self._settled_directory()
        if asked is None:
            to, cut, found = self.head, self._cut(cursors, claims), Found()
        else:
            keys = asked
            to, cut, found = yield from self._at_once(
                cursors, lambda: interest.find(keys, directory, self.addresses), claims
            )
        moves = yield from self._moves(cut, cursors, to, interest, directory, found, claims.get(ADDRESS, {}))
        moves.owed = owed
        if AUTHORIZATION in claims:
            yield from claimed_policies(moves, claims[AUTHORIZATION], self.policies, cut.all_policies)
        return (yield from self._arranged(moves, to))

    # How jobs are made.

    def _cut(self, cursors: Mapping[str, Seq], claims: Mapping[str, Claims] | None = None) -> Cut:
        cut = since(self.addresses, self.policies, cursors)
        if claims is not None and AUTHORIZATION in claims and not cut.all_policies:
            return Cut(cut.addresses, cut.policies, self.policies.entries())
        return cut

    def _at_once(
        self,
        cursors: Mapping[str, Seq],
        find: Callable[[], Generator[None, None, Found]],
        claims: Mapping[str, Claims] | None = None,
    ) -> Steps[tuple[Seq, Cut, Found]]:
        """A cut, and what is found in the directory at the same commit. Where a commit comes in between, it is looked
        up again, in one piece."""
        to, cut = self.head, self._cut(cursors, claims)
        found = yield from find()
        if self.head != to:
            yield from self._settled_directory()
            to, cut = self.head, self._cut(cursors, claims)
            found = Job(find()).run()
        return to, cut, found

    def _moves(
        self,
        cut: Cut,
        cursors: Mapping[str, Seq],
        to: Seq,
        interest: Interest | None = None,
        directory: Directory | None = None,
        found: Found | None = None,
        claims: Claims | None = None,
    ) -> Generator[None, None, Moves]:
        """What a client at these cursors lacks of a cut; an on-demand client also of what it asked for."""
        yield
        moves = Moves(all_policies=cut.all_policies, has_aliases=interest is not None)
        if AUTHORIZATION in cursors:
            changed_policies(moves, cut.policies, cursors[AUTHORIZATION])
        if interest is not None:
            assert directory is not None
            cursor = cursors.get(ADDRESS)
            yield from interest.moves(
                moves, cut.addresses, found or Found(), claims or {}, cursor, to, directory, self.addresses
            )
        elif ADDRESS in cursors:
            yield from changed_addresses(moves, cut.addresses, cursors[ADDRESS])
        return moves

    def _arranged(self, moves: Moves, to: Seq) -> Generator[None, None, Round]:
        messages = yield from arrange(moves)
        parts = yield from encode(split(messages), self._maker, to)
        return Round(to, parts)

    def _settled_directory(self) -> Steps[Directory]:
        """The directory, at a moment at which it is true of `head`. The first who needs it builds it; who comes
        meanwhile helps, so that it is finished whoever gives up."""
        if self._directory is None:
            self._directory = Directory()
            self._building = Job(self._directory.build(self.addresses))
        while not self._building.step(lambda: True):
            yield False
        while not self._is_settled:
            yield True
        return self._directory


def _stage_view(
    view: View[R],
    changes: Changes[R],
    seq: Seq,
    floor: Seq,
    entries: dict[str, Entry[R]],
    buckets: dict[str, set[int]],
) -> Iterator[Entry[R] | None]:
    """Stages the changes of one view, one at a time; what each of them makes, if anything."""
    touched = buckets[view.type_url]
    for name, rendered in view.amended(changes):
        if rendered is None and name in entries:
            continue
        entry = view.staged(name, rendered, seq, floor)
        if entry is not None:
            entries[name] = entry
            touched.add(Buckets.of(name))
        yield entry
