"""Plays histories of a mesh to clients and judges every message: nothing may be let through that neither the state
before its round nor the state after it lets through (design, Order of a round). No test stands here.

Two gaps are accepted. Policies that a client claims with an empty version (they come from a server that gives policies
none) are taken to say what they say here; no history here has any. Policies that are gone and whose content the server
does not remember are removed last, so until then they still have their say: `forgets`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.push.rounds import HOLD
from ambientd.xds.protocol import Advanced, Code, Requested
from ambientd.xds.requests import Request
from tests.property.worlds import (
    CONNECTIONS,
    NOTHING,
    WORKLOADS,
    Edit,
    State,
    World,
    admitted,
    as_served,
    commit,
    edit,
    edited,
    in_words,
)
from tests.unit.conversation import Mesh, Peer, Resource, Response, uid


class Watched:
    """A client whose every message is judged, once it was told everything."""

    def __init__(self, mesh: Mesh, history: Sequence[State], *, is_on_demand: bool, forgets: bool = False) -> None:
        self.peer = Peer(mesh, is_on_demand=is_on_demand)
        self.messages = 0
        self.rounds_with_hold = 0
        self.workloads_sent_twice = 0
        self._forgets = forgets
        self._history = history
        """What was served after each commit."""
        self._answered: set[str] = set()
        self._story: list[str] = []
        self._seen: set[tuple[int, str]] = set()
        self._ask_first()

    def _ask_first(self) -> None:
        if not self.peer.held[ADDRESS]:
            # It is as good as new: it has nothing to protect, and its first answers come as asked.
            self._answered.clear()
        for request in self.peer.first_requests():
            self.peer.take(Requested(request))

    @property
    def is_live(self) -> bool:
        return len(self._answered) == 2

    def reconnect(self) -> None:
        self.peer.reconnect()
        self._story.append("reconnects")
        self._ask_first()

    def ask(self, key: str) -> None:
        if self.peer.is_on_demand:
            self.peer.keys[key] = None
            self.peer.take(Requested(Request(ADDRESS, subscribe=(key,))))
            self._story.append(f"asks for {key}")

    def advance(self, *, parts: int = 1_000_000, steps: int | None = None) -> None:
        """Receives so many messages, if there are, and works so many steps on a job."""
        if self.peer.is_idle:
            self.peer.take(Advanced())
        for _ in range(parts):
            responses = self.peer.proceed(parts=1, steps=steps)
            if not responses:
                break
            self._judge(responses[0])
        if parts == 0:
            self.peer.proceed(parts=0, steps=steps)
        if self.peer.end is not None:
            assert self.peer.end.code is Code.UNAVAILABLE, self.peer.end
            self.reconnect()

    def _judge(self, response: Response) -> None:
        self._story.append(f"to {self.peer.to}: {_told(response)}")
        self._count(response)
        if self.is_live:
            after_state = self._history[self.peer.to]
            before_state = _state(self.peer.held_before)
            allowed = [admitted(before_state), admitted(after_state)]
            if self._forgets:
                allowed.append(admitted((after_state[0], {**_state(self.peer.held)[1], **after_state[1]})))
            for name, connections in admitted(_state(self.peer.held)).items():
                excess = connections
                for state in allowed:
                    excess &= ~state.get(name, 0)
                if excess:
                    through = [CONNECTIONS[at] for at in range(len(CONNECTIONS)) if excess >> at & 1]
                    raise AssertionError(
                        f"{name} lets {through} through, which it neither did nor will\n"
                        + "\n".join(self._story)
                        + f"\nbefore: {in_words(before_state)}\nafter: {in_words(after_state)}"
                    )
        if self.peer.round_parts == 0 or not self.is_live:
            self._answered.add(response.type_url)

    def _count(self, response: Response) -> None:
        self.messages += 1
        if response.type_url == ADDRESS:
            names = {(self.peer.to, name) for name in response.resources}
            self.workloads_sent_twice += len(self._seen & names)
            self._seen |= names
        elif HOLD in response.resources:
            self.rounds_with_hold += 1


def _state(held: Mapping[str, Mapping[str, Resource]]) -> State:
    return (
        {name: resource.body for name, resource in held[ADDRESS].items()},
        {name: resource.body for name, resource in held[AUTHORIZATION].items()},
    )


def _told(response: Response) -> str:
    bodies = {name: resource.body for name, resource in response.resources.items()}
    state: State = (bodies, {}) if response.type_url == ADDRESS else ({}, bodies)
    kind = "addresses" if response.type_url == ADDRESS else "policies"
    return f"{kind}: {in_words(state)} gone: {list(response.removed)}"


@dataclass(frozen=True)
class Turn:
    """What one client does after a commit."""

    client: int
    parts: int
    steps: int | None
    asks: str | None
    reconnects: bool


@dataclass(frozen=True)
class Act:
    """One commit, and what the clients do before it is folded in, and after."""

    edits: list[Edit]
    early: list[Turn]
    turns: list[Turn]


_turn = st.builds(
    Turn,
    client=st.integers(0, 1),
    parts=st.integers(0, 6),
    steps=st.none() | st.integers(1, 3),
    asks=st.none() | st.sampled_from([uid(name) for name in WORKLOADS]),
    reconnects=st.sampled_from((False, False, False, True)),
)
_edits = st.lists(edit, min_size=1, max_size=5)
acts = st.lists(
    st.builds(Act, _edits, st.lists(_turn, max_size=2), st.lists(_turn, max_size=4)), min_size=1, max_size=5
)


def play(start: World, acts: Sequence[Act], *, is_on_demand: bool, forgets: bool = False) -> list[Watched]:
    """Plays a history to two clients. `forgets`: the server remembers next to nothing. Raises AssertionError with the
    story of the client that was told something unsafe, or that holds something else at the end than what is served."""
    mesh = Mesh(most_recent=0, most_tombstones=1) if forgets else Mesh()
    history: list[State] = [({}, {})]
    world = start
    commit(mesh, NOTHING, world)
    history.append(as_served(world))
    clients = [Watched(mesh, history, is_on_demand=is_on_demand, forgets=forgets) for _ in range(2)]
    for client in clients:
        client.advance()
        assert client.is_live
        for name in WORKLOADS:
            client.ask(uid(name))
        client.advance()
    for act in acts:
        before, world = world, edited(world, act.edits)
        history.append(as_served(world))
        commit(mesh, before, world, folds=False)
        _take_turns(clients, act.early, steps=8)
        mesh.feed.settle().run()
        _take_turns(clients, act.turns)
    for client in clients:
        client.advance()
        client.advance()
        client.peer.assert_holds_what_is_served()
        client.peer.stream.close()
    return clients


def _take_turns(clients: Sequence[Watched], turns: Sequence[Turn], *, steps: int | None = None) -> None:
    for turn in turns:
        client = clients[turn.client]
        if turn.reconnects:
            client.reconnect()
        if turn.asks is not None:
            client.ask(turn.asks)
        client.advance(parts=turn.parts, steps=steps if turn.steps is None else turn.steps)
