"""Rounds: everything that changed for a client, cut at one number, as messages in an order that is safe after each of
them (design, Order of a round; transitions.py). The cut is synchronous and takes entries that never change; arranging
and encoding them is a job that is done in steps. Must not know streams or who acknowledged what."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ambientd.index.rendered import RenderedAddress, RenderedPolicy, version_of
from ambientd.push.frames import ADDRESS, AUTHORIZATION, encode_frame, encode_response, listing
from ambientd.push.moves import AddressMove, Moves, namespace_of
from ambientd.push.transitions import Judge, Plan, When, extra_listing, plan_policies
from ambientd.push.views import PolicyState, Seq
from ambientd_api.security_pb2 import DENY, GLOBAL, WORKLOAD_SELECTOR, Authorization, Group

T = TypeVar("T")

Steps = Generator[bool | None, None, T]
"""Work in steps; one that yields True cannot go on before others have worked."""

HOLD = "istio-system/ambientd_hold"
"""The policy that a workload lists while no order of messages is safe for it: it denies everything. An underscore
cannot stand in a Kubernetes name, so it clashes with nobody's."""

_HOLD_BODY = Authorization(
    name="ambientd_hold",
    namespace="istio-system",
    scope=WORKLOAD_SELECTOR,
    action=DENY,
    groups=[Group()],
).SerializeToString(deterministic=True)

_FRAMES_PER_MESSAGE = 4096
"""Upper bound of resources in one message of a round, so that a mesh-wide change is joined and written in pieces."""

_REMOVED_PER_MESSAGE = 32_768

_YIELD_EVERY = 64


class Part(Struct, frozen=True, weakref=True):
    """One message, ready to be written; every stream at the same position shares it, its nonce included."""

    type_url: str
    nonce: str
    response: bytes
    resources: int
    removed: int


class Round(Struct, frozen=True):
    """What brings a client to the commit `to`, already in the safe order."""

    to: Seq
    parts: tuple[Part, ...]


class Job(Generic[T]):
    """Work that is done in steps."""

    def __init__(self, work: Steps[T]) -> None:
        self._work = work
        self._result: list[T] = []

    def step(self, enough: Callable[[], bool]) -> bool:
        """Works until done, `enough()`, or it must wait for others; True: done."""
        while not self._result:
            try:
                must_wait = next(self._work)
            except StopIteration as stop:
                self._result.append(stop.value)
            else:
                if must_wait or enough():
                    return False
        return True

    @property
    def is_done(self) -> bool:
        return bool(self._result)

    @property
    def result(self) -> T:
        return self._result[0]

    def run(self) -> T:
        """All steps at once, where there is nobody to wait for."""
        self.step(lambda: False)
        return self.result


class Maker:
    """Makes parts: numbers them and frames what they carry."""

    def __init__(self, new_nonce: Callable[[], str]) -> None:
        self._new_nonce = new_nonce

    def part(
        self, type_url: str, frames: Sequence[bytes], removed: Sequence[str], to: Seq, *, count: int | None = None
    ) -> Part:
        """`count`: how many resources stand in the frames, where one piece of bytes holds several."""
        nonce = self._new_nonce()
        response = encode_response(type_url, frames, removed, nonce, str(to))
        return Part(type_url, nonce, response, len(frames) if count is None else count, len(removed))


class Message(Struct):
    """A message before it is encoded."""

    type_url: str
    frames: list[bytes]
    removed: list[str]


def arrange(moves: Moves) -> Generator[None, None, list[Message]]:
    """The messages of a round, in order; none of them is empty, except what is owed."""
    plan = plan_policies(moves.policies)
    judge = _judge(moves, plan) if plan.main else None
    before, after = Message(ADDRESS, [], []), Message(ADDRESS, [], [])
    is_held = False
    for at, move in enumerate(moves.addresses):
        if at % _YIELD_EVERY == 0:
            yield
        when = When.AFTER if judge is None else _when(judge, move)
        if move.rendered is None:
            (before if when is When.BEFORE else after).removed.append(move.name)
            continue
        if when is When.BOTH:
            extra = extra_listing(move.old, move.rendered.policies)
            before.frames.append(_address_frame(_listing_more(move.rendered, extra), moves.has_aliases))
        elif when is When.HELD:
            is_held = True
            before.frames.append(_address_frame(_listing_more(move.rendered, (HOLD,)), moves.has_aliases))
        frame = _address_frame(move.rendered, moves.has_aliases)
        (before if when is When.BEFORE else after).frames.append(frame)
    first, main, last = (Message(AUTHORIZATION, [], []) for _ in range(3))
    for message, changes in ((first, plan.first), (main, plan.main), (last, plan.last)):
        for at, change in enumerate(changes):
            if at % _YIELD_EVERY == 0:
                yield
            if change.new is None:
                message.removed.append(change.name)
            else:
                message.frames.append(policy_frame(moves.rendered[change.name]))
    first.frames.extend(policy_frame(rendered) for rendered in moves.resent)
    if is_held:
        first.frames.append(encode_frame(AUTHORIZATION, HOLD, version_of(_HOLD_BODY), _HOLD_BODY))
        if HOLD not in last.removed:
            last.removed.append(HOLD)
    yield from _list_absent(moves, after, last)
    messages: list[Message] = []
    for message in (first, before, main, after, last):
        if messages and messages[-1].type_url == message.type_url:
            messages[-1].frames.extend(message.frames)
            messages[-1].removed.extend(message.removed)
        elif message.frames or message.removed:
            messages.append(message)
    for type_url in moves.owed:
        if not any(message.type_url == type_url for message in messages):
            messages.insert(0, Message(type_url, [], []))
    return messages


def _list_absent(moves: Moves, addresses: Message, policies: Message) -> Generator[None, None, None]:
    if not moves.absent:
        return
    told = {move.name for move in moves.addresses} | {change.name for change in moves.policies}
    for at, (type_url, name) in enumerate(moves.absent):
        if at % _YIELD_EVERY == 0:
            yield
        if name not in told:
            (addresses if type_url == ADDRESS else policies).removed.append(name)


def policy_frame(rendered: RenderedPolicy) -> bytes:
    return encode_frame(AUTHORIZATION, rendered.name, rendered.version, rendered.body)


def _address_frame(rendered: RenderedAddress, has_aliases: bool) -> bytes:
    aliases = rendered.aliases if has_aliases else ()
    return encode_frame(ADDRESS, rendered.name, rendered.version, rendered.body, aliases)


def _listing_more(rendered: RenderedAddress, policies: Iterable[str]) -> RenderedAddress:
    body = rendered.body
    for policy in policies:
        body = listing(body, policy)
    return replace(rendered, body=body, version=version_of(body))


def _judge(moves: Moves, plan: Plan) -> Judge:
    changed = {change.name for change in moves.policies}
    unchanged: dict[str, PolicyState] = {}
    scoped: dict[str, list[tuple[str, PolicyState]]] = {}
    everywhere: list[tuple[str, PolicyState]] = []
    for entry in moves.all_policies:
        state = entry.state()
        if not isinstance(state, PolicyState) or entry.name in changed:
            continue
        unchanged[entry.name] = state
        if state.scope != WORKLOAD_SELECTOR:
            is_global = state.scope == GLOBAL
            (everywhere if is_global else scoped.setdefault(namespace_of(entry.name), [])).append((entry.name, state))
    return Judge(plan, unchanged.get, lambda namespace: everywhere + scoped.get(namespace, []))


def _when(judge: Judge, move: AddressMove) -> When:
    if move.rendered is None:
        return When.BEFORE  # what is gone admits nobody, whatever the policies say meanwhile
    if not move.rendered.is_workload:
        return When.BEFORE if judge.prefers_before else When.AFTER
    return judge.when(move.rendered.namespace, move.old, move.rendered.policies)


def split(messages: Iterable[Message]) -> Iterable[Message]:
    """Large address messages in pieces, what is removed last; a message of policies is never split, since it takes
    effect as one."""
    for message in messages:
        frames, removed = message.frames, message.removed
        if message.type_url != AUTHORIZATION:
            while len(frames) > _FRAMES_PER_MESSAGE:
                yield Message(message.type_url, frames[:_FRAMES_PER_MESSAGE], [])
                frames = frames[_FRAMES_PER_MESSAGE:]
            while len(removed) > _REMOVED_PER_MESSAGE:
                yield Message(message.type_url, frames, removed[:_REMOVED_PER_MESSAGE])
                frames, removed = [], removed[_REMOVED_PER_MESSAGE:]
        yield Message(message.type_url, frames, removed)


def encode(messages: Iterable[Message], maker: Maker, to: Seq) -> Generator[None, None, tuple[Part, ...]]:
    """The messages as parts."""
    parts = []
    for message in messages:
        parts.append(maker.part(message.type_url, message.frames, message.removed, to))
        yield
    return tuple(parts)
