"""What a client lacks: the difference between what it holds, known by its cursors or by what it claims, and what is
served at one commit. Everything here is read from entries that never change, so it can be done in steps after the cut.
Must not know in which order it is sent."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping

from msgspec import Struct

from ambientd.index.rendered import RenderedAddress, RenderedPolicy
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.push.transitions import UNKNOWN, Content, Listed, PolicyChange
from ambientd.push.views import Entry, PolicyState, Seq, View, live, state_of

_YIELD_EVERY = 64

Claims = Mapping[str, str]
"""What a client says that it holds: version by name (`initial_resource_versions`)."""


class AddressMove(Struct, frozen=True, gc=False):
    """An address that the client does not hold as it is now, or that it asked for."""

    name: str
    rendered: RenderedAddress | None
    old: Listed


class Moves(Struct):
    """All that differs between what a client holds and what is served, and what it is told besides."""

    all_policies: list[Entry[RenderedPolicy]] = []
    """Every policy that is served at the cut; needed only where policies change."""
    addresses: list[AddressMove] = []
    policies: list[PolicyChange] = []
    rendered: dict[str, RenderedPolicy] = {}
    """The changed policies that are served."""
    resent: list[RenderedPolicy] = []
    """Policies that the client may hold as they are, and gets again."""
    absent: list[tuple[str, str]] = []
    """Types and names that are listed as removed because they were asked for; the client holds nothing of them."""
    owed: tuple[str, ...] = ()
    """Types of which a message is sent in any case, if only an empty one."""
    has_aliases: bool = False
    """Addresses go with their aliases."""


class Cut(Struct, frozen=True):
    """What changed after a client's cursors, as it is at one moment."""

    addresses: list[Entry[RenderedAddress]]
    policies: list[Entry[RenderedPolicy]]
    all_policies: list[Entry[RenderedPolicy]]
    """Empty where no policy changed."""


def since(addresses: View[RenderedAddress], policies: View[RenderedPolicy], cursors: Mapping[str, Seq]) -> Cut:
    """The cut of a round, of the types in `cursors`. Raises BelowFloor."""
    addresses_then = addresses.changed_since(cursors[ADDRESS]) if ADDRESS in cursors else []
    policies_then = policies.changed_since(cursors[AUTHORIZATION]) if AUTHORIZATION in cursors else []
    return Cut(addresses_then, policies_then, policies.entries() if policies_then else [])


def namespace_of(policy_name: str) -> str:
    return policy_name.partition("/")[0]


def changed_policies(moves: Moves, entries: Iterable[Entry[RenderedPolicy]], cursor: Seq) -> None:
    """Adds what the policies of a cut mean to a client at this cursor."""
    for entry in entries:
        old, new = entry.state_at(cursor), entry.state()
        assert not isinstance(old, tuple)
        assert not isinstance(new, tuple)
        if old != new:
            moves.policies.append(PolicyChange(entry.name, namespace_of(entry.name), old, new))
            if entry.rendered is not None:
                moves.rendered[entry.name] = entry.rendered


def changed_addresses(
    moves: Moves, entries: Iterable[Entry[RenderedAddress]], cursor: Seq
) -> Generator[None, None, None]:
    """Adds what the addresses of a cut mean to a wildcard client at this cursor."""
    for at, entry in enumerate(entries):
        if at % _YIELD_EVERY == 0:
            yield
        held = listed_at(entry, cursor)
        if held is not None or entry.rendered is not None:
            moves.addresses.append(AddressMove(entry.name, entry.rendered, held))


def listed_at(entry: Entry[RenderedAddress], cursor: Seq) -> Listed:
    """What a client at this cursor that holds this name has listed there."""
    held = entry.state_at(cursor)
    assert not isinstance(held, PolicyState)
    return held


def claimed_policies(
    moves: Moves, claims: Claims, view: View[RenderedPolicy], served: Iterable[Entry[RenderedPolicy]]
) -> Generator[None, None, None]:
    """Adds what differs between the policies that a client claims and those that are served at the cut."""
    left = dict(claims)
    for at, (_, rendered) in enumerate(live(served)):
        if at % _YIELD_EVERY == 0:
            yield
        claimed = left.pop(rendered.name, None)
        if claimed == rendered.version:
            continue
        if claimed == "":
            # A server that gives policies no versions sent it last. Most likely it says what it says here.
            moves.resent.append(rendered)
            continue
        old = None if claimed is None else _content(view, rendered.name, claimed)
        state = state_of(rendered)
        assert isinstance(state, PolicyState)
        moves.policies.append(PolicyChange(rendered.name, rendered.namespace, old, state))
        moves.rendered[rendered.name] = rendered
    for at, (name, claimed) in enumerate(left.items()):
        if at % _YIELD_EVERY == 0:
            yield
        moves.policies.append(PolicyChange(name, namespace_of(name), _content(view, name, claimed), None))


def _content(view: View[RenderedPolicy], name: str, version: str) -> Content:
    state = view.recent_state(name, version)
    assert not isinstance(state, tuple)
    return UNKNOWN if state is None else state


def claimed_addresses(
    moves: Moves, claims: Claims, view: View[RenderedAddress], served: Iterable[Entry[RenderedAddress]]
) -> Generator[None, None, None]:
    """Adds what differs between the addresses that a wildcard client claims and those that are served at the cut."""
    left = dict(claims)
    yield
    for at, (_, rendered) in enumerate(live(served)):
        if at % _YIELD_EVERY == 0:
            yield
        claimed = left.pop(rendered.name, None)
        if claimed != rendered.version:
            old = None if claimed is None else listed_then(view, rendered.name, claimed)
            moves.addresses.append(AddressMove(rendered.name, rendered, old))
    for at, name in enumerate(left):
        if at % _YIELD_EVERY == 0:
            yield
        moves.addresses.append(AddressMove(name, None, UNKNOWN))


def listed_then(view: View[RenderedAddress], name: str, version: str) -> Listed:
    """What a client that holds this version of a name has listed there."""
    state = view.recent_state(name, version)
    assert not isinstance(state, PolicyState)
    return UNKNOWN if state is None else state
