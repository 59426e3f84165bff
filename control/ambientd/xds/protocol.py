"""The delta protocol of one stream (xds.md 5 to 8), as a state machine: what happened goes in, what to do comes out. No
I/O, no clock, no chance; whoever drives it does the commands in their order.

A stream has a watch per type. A first request is answered with the full state, or with what is missing from what the
client says it holds; then rounds follow whenever the feed has advanced. One thing is on its way at a time: a job, then
its parts, each written before the next thing is looked at, so that a round is written to its end. Requests go before
rounds. A first request that says what the client holds comes from a node with traffic: it waits a moment for the one of
the other type, because policies must arrive before the addresses that they guard.

A client looks up the workload of a new connection first, and the policies a moment later. Two messages that take effect
in between would have it judged by the old workload and the new policies, which is no state of ours: a policy that
replaces another would not be listed yet, and the other one be gone. So policies that follow addresses wait until the
client has answered these, and a moment more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto

from msgspec import Struct

from ambientd.push.feed import Feed
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.push.moves import Claims
from ambientd.push.ondemand import Interest
from ambientd.push.rounds import Job, Part, Round
from ambientd.push.views import BelowFloor, Seq
from ambientd.xds.node import BadNode, Node, parse_node
from ambientd.xds.requests import Request

HOLD_FIRST_S = 0.05
"""How long a first answer waits for the request of the other type, seconds."""
ANSWER_S = 1.0
"""How long policies wait for the answer to the addresses before them, seconds. A client that is slow takes both in this
order anyhow; only one that answers nothing is waited for in vain."""
SETTLE_S = 0.025
"""How long they wait after that answer, seconds: what a client that is busy may take to judge one connection."""

_HEALTH = ("istio.v1.HealthInformation", "type.googleapis.com/istio.v1.HealthInformation")
_SERVED = (ADDRESS, AUTHORIZATION)
_QUEUE_LIMIT, _QUEUE_LIMIT_BYTES = 100, 1 << 20
"""Requests that may stay unanswered while policies wait for the client, and their size: with so many, no more are read
until these are answered, so that a flood waits in the client."""
_ASKED_AT_ONCE = 4096
"""Names of a request that are answered together. What is found under names has to be found again when a commit comes in
between, in one piece."""
_POLICIES_LIMIT = 100_000
"""Names and versions in a request for policies, which are compared in one piece. No mesh has so many policies."""
_TYPES_LIMIT = 100
"""Types that one stream may name: each is remembered, and a real client names a dozen at most."""
COME_BACK = "transport is closing; connect again"
"""In the text of a status UNAVAILABLE: a ztunnel takes it for an ordinary end and comes back at once. After any other
text it waits, twice as long each time, up to 15 s, and a connection that works in between does not shorten that."""
_OVERTAKEN = f"this stream fell too far behind: {COME_BACK}"


class Code(Enum):
    """The status codes that end a stream."""

    INVALID_ARGUMENT = auto()
    PERMISSION_DENIED = auto()
    UNKNOWN = auto()
    UNAVAILABLE = auto()


# What happened.


class Requested(Struct, frozen=True):
    """The client sent a request."""

    request: Request


class Advanced(Struct, frozen=True):
    """The feed has a new head."""


class Done(Struct, frozen=True):
    """The job of the last `Work` is done."""


class Overtaken(Struct, frozen=True):
    """The job of the last `Work` found that what this stream has seen is older than what is remembered."""


class Written(Struct, frozen=True):
    """The part of the last `Send` was written."""


class Woke(Struct, frozen=True):
    """The time of the `Wake` with this nonce is over."""

    nonce: str = ""


class HalfClosed(Struct, frozen=True):
    """The client will send nothing more: there is nothing to wait for."""


Event = Requested | Advanced | Done | Overtaken | Written | Woke | HalfClosed

# What to do.


class Work(Struct, frozen=True):
    """Step this job to its end, then say `Done`."""

    job: Job[Round]


class Send(Struct, frozen=True):
    """Write this part, then say `Written`."""

    part: Part
    is_first: bool
    """It belongs to a first answer, so it may be large."""


class Wake(Struct, frozen=True):
    """Say `Woke` with this nonce after this time."""

    after_s: float
    nonce: str = ""
    """The part whose answer is waited for; empty: the first request of the other type is."""


class End(Struct, frozen=True):
    """End the stream with this status."""

    code: Code
    message: str


class Note(Struct, frozen=True):
    """Log and count this."""

    what: str
    type_url: str
    detail: str = ""


Command = Work | Send | Wake | End | Note


class Watch:
    """The subscription to one type."""

    def __init__(self, type_url: str, interest: Interest | None) -> None:
        self.type_url = type_url
        self.interest = interest
        """None: wildcard."""
        self.cursor: Seq | None = None
        """The commit up to which the client was told; None before the first answer."""
        self.nonce_sent = ""
        self.nonce_acked = ""
        self.unsettled = ""
        """Nonce of the last part that the client was sent, while what follows it may have to wait. A client that begins
        is not waited for: it has nothing that the answer could be mixed with."""
        self.is_answered = True
        """The client has acknowledged or rejected that part."""
        self.last_error = ""
        self.unacknowledged: set[str] = set()
        """Nonces of earlier parts of the last answer or round: acknowledging them late is no surprise."""


class _Answer(Struct, frozen=True):
    """A job that is wanted. It is given the cursors of the types that the client was told of, and leads them all, and
    the types that it answers for the first time, to one commit."""

    make: Callable[[dict[str, Seq]], Job[Round]]
    firsts: tuple[str, ...] = ()
    has_cursors: bool = True
    is_fresh: bool = False
    """It is for a client that says that it holds nothing."""
    goes_on: bool = False
    """It is a further piece of the answer before it."""
    size_bytes: int = 0
    """Of the request."""


class Stream:
    """One client's stream. `ident` tells it from all others in this process."""

    def __init__(
        self,
        ident: int,
        feed: Feed,
        *,
        cluster_aliases: Mapping[str, str] | None = None,
        serves_ztunnels: bool = True,
        mismatch: Callable[[Node], str | None] = lambda _: None,
    ) -> None:
        """`mismatch`: why a node is not that of whoever opened the stream, as the client is told; None: it may be."""
        self.node: Node | None = None
        self.watches: dict[str, Watch] = {}
        self._ident = ident
        self._feed = feed
        self._aliases = cluster_aliases or {}
        self._serves_ztunnels = serves_ztunnels
        self._mismatch = mismatch
        self._answers: deque[_Answer] = deque()
        self._held: dict[str, _Waiting] = {}
        """First requests that wait for the one of the other type."""
        self._working: tuple[Job[Round], _Answer, tuple[str, ...]] | None = None
        """The job, what it is for, and the types whose cursors it sets."""
        self._outbox: deque[tuple[Part, _Answer]] = deque()
        self._batch: set[str] = set()
        """Nonces of the parts of the last job that were sent."""
        self._awaited = ""
        """Nonce of the part whose answer the next part waits for."""
        self._is_writing = False
        self._is_half_closed = False
        self._has_ended = False

    @property
    def is_at_rest(self) -> bool:
        """Nothing is on its way to the client, and nothing waits to be."""
        return not self._outbox and self._working is None and not self._is_writing

    @property
    def is_full(self) -> bool:
        """So many requests wait that no other should be read until some are answered."""
        size_bytes = sum(answer.size_bytes for answer in self._answers)
        requests = sum(not answer.goes_on for answer in self._answers)
        return requests >= _QUEUE_LIMIT or size_bytes >= _QUEUE_LIMIT_BYTES

    def handle(self, event: Event) -> list[Command]:
        """The only door. After an `End` nothing is answered any more."""
        if self._has_ended:
            return []
        commands: list[Command] = []
        match event:
            case Requested():
                commands = self._requested(event.request)
            case Woke(nonce=""):
                self._release()
            case Woke():
                self._settled(event.nonce)
            case HalfClosed():
                self._is_half_closed = True
                self._release()
            case Written():
                self._is_writing = False
            case Done():
                self._done()
            case Overtaken():
                return [self._end(Code.UNAVAILABLE, _OVERTAKEN)]
            case Advanced():
                pass
        if not self._has_ended:
            commands.extend(self._next())
        return commands

    def close(self) -> None:
        """The stream is over; the feed need not remember anything for it."""
        self._has_ended = True
        self._feed.left(self._ident)

    # Requests (xds.md 6.3).

    def _requested(self, request: Request) -> list[Command]:
        if request.type_url in _HEALTH:
            return []
        if self.node is None:
            try:
                self.node = parse_node(request.node, self._aliases)
            except BadNode as error:
                return [self._end(Code.INVALID_ARGUMENT, str(error))]
            if self.node.type == "ztunnel" and not self._serves_ztunnels:
                return [self._end(Code.UNKNOWN, "ztunnel requires PILOT_ENABLE_AMBIENT=true")]
            mismatch = self._mismatch(self.node)
            if mismatch is not None:
                return [self._end(Code.PERMISSION_DENIED, mismatch)]
        if request.type_url == AUTHORIZATION and len(request.subscribe) + len(request.claims) > _POLICIES_LIMIT:
            return [self._end(Code.INVALID_ARGUMENT, f"a request may name at most {_POLICIES_LIMIT} policies")]
        watch = self.watches.get(request.type_url)
        if watch is None:
            if request.error is not None:
                return [Note("rejection of a type that is not watched", request.type_url, request.error)]
            return self._initial(request)
        commands = self._answered(watch, request.nonce)
        if request.error is not None:
            watch.last_error = request.error or "rejected without a message"
            return [*commands, Note("rejected", request.type_url, request.error)]
        if request.nonce:
            if request.nonce == watch.nonce_sent:
                watch.last_error = ""
                watch.nonce_acked = request.nonce
                watch.unacknowledged.clear()
            elif request.nonce in watch.unacknowledged:
                watch.unacknowledged.discard(request.nonce)
            else:
                commands.append(Note("expired nonce", request.type_url))
        if request.type_url in self._held:
            self._release()  # a client that goes on asking does not wait for an order
        self._changed(watch, request)
        return commands

    def _answered(self, watch: Watch, nonce: str) -> list[Command]:
        """The client has taken or rejected a part, and all before it."""
        if watch.is_answered or watch.unsettled != nonce:
            return []
        watch.is_answered = True
        return [Wake(SETTLE_S, nonce)] if self._awaited == nonce else []

    def _settled(self, nonce: str) -> None:
        """What waited for the answer to this part of addresses waits no longer."""
        if self._awaited == nonce and self.watches[ADDRESS].unsettled == nonce:
            self.watches[ADDRESS].unsettled = ""

    def _initial(self, request: Request) -> list[Command]:
        type_url = request.type_url
        if type_url not in _SERVED:
            if len(self.watches) >= _TYPES_LIMIT:
                return [self._end(Code.INVALID_ARGUMENT, f"a stream may name at most {_TYPES_LIMIT} types")]
            self.watches[type_url] = Watch(type_url, None)
            self._answers.append(_Answer(lambda _: self._feed.nothing(type_url), has_cursors=False))
            return [Note("unknown type", type_url)]
        claims = request.claims
        if type_url == AUTHORIZATION or not request.subscribe or _asks_for_all(request):
            interest, asked = None, _asked(request)
            if asked:
                claims = {**dict.fromkeys(asked, ""), **claims}  # a name that is asked for is answered, present or not
        else:
            interest, asked = self._interest(), _asked(request, claims)
        self.watches[type_url] = Watch(type_url, interest)
        self._held[type_url] = _Waiting(asked, claims, interest)
        if not claims or any(other in self.watches for other in _SERVED if other != type_url):
            self._release()
            return []
        return [Wake(HOLD_FIRST_S)]

    def _interest(self) -> Interest:
        assert self.node is not None
        return Interest(self.node.node_name, wakes_by_removal=self.node.type == "ztunnel")

    def _release(self) -> None:
        """Answers the first requests that waited, together where that gives a safe order."""
        held, self._held = self._held, {}
        claims: dict[str, Claims] = {type_url: waiting.claims for type_url, waiting in held.items()}
        holds_something = any(claims.values())
        demand = held.get(ADDRESS)
        if demand is not None and demand.interest is not None:
            interest = demand.interest
            # A client that holds something is given all in one answer: after a part of it, old addresses would be under
            # new policies.
            first, *others = [demand.asked] if holds_something else _pieces(demand.asked)
            self._answers.append(
                _Answer(
                    lambda cursors: self._feed.first(claims, cursors, interest, first),
                    tuple(claims),
                    is_fresh=not holds_something,
                )
            )
            for piece in others:
                self._go_on(interest, piece)
        elif holds_something:
            self._answers.append(
                _Answer(lambda cursors: self._feed.first(claims, cursors, self._interest_at(cursors)), tuple(claims))
            )
        else:
            for type_url in claims:
                self._answer_full(type_url)

    def _answer_full(self, type_url: str) -> None:
        self._answers.append(
            _Answer(
                lambda cursors: self._feed.full(type_url, cursors, self._interest_at(cursors)),
                (type_url,),
                is_fresh=True,
            )
        )

    def _interest_at(self, cursors: Mapping[str, Seq]) -> Interest | None:
        """What an on-demand client wants to know, once it was answered."""
        return self.watches[ADDRESS].interest if ADDRESS in cursors else None

    def _changed(self, watch: Watch, request: Request) -> None:
        """What a later request subscribes to and unsubscribes from; everything that it asks for by name is answered."""
        if watch.type_url not in _SERVED:
            return
        asked = _asked(request)
        if watch.interest is not None:
            self._changed_on_demand(watch.interest, asked, request)
            return
        if asked:
            first, *others = _pieces(asked)
            self._named(watch.type_url, first, size_bytes=request.size_bytes)
            for piece in others:
                self._named(watch.type_url, piece, goes_on=True)

    def _named(self, type_url: str, names: Collection[str], *, goes_on: bool = False, size_bytes: int = 0) -> None:
        self._answers.append(
            _Answer(
                lambda cursors: self._feed.named(type_url, names, cursors, self._interest_at(cursors)),
                goes_on=goes_on,
                size_bytes=size_bytes,
            )
        )

    def _changed_on_demand(self, interest: Interest, asked: Collection[str], request: Request) -> None:
        is_owed = bool(asked) or "*" in request.subscribe
        if not (is_owed or request.unsubscribe or request.claims):
            return
        first, *others = [asked] if request.claims else _pieces(asked)
        self._answers.append(
            _Answer(
                lambda cursors: self._feed.ask(
                    interest, first, request.claims, cursors, forgotten=request.unsubscribe, is_owed=is_owed
                ),
                size_bytes=request.size_bytes,
            )
        )
        for piece in others:
            self._go_on(interest, piece)

    def _go_on(self, interest: Interest, keys: Collection[str]) -> None:
        self._answers.append(_Answer(lambda cursors: self._feed.ask(interest, keys, {}, cursors), goes_on=True))

    # What comes next.

    def _next(self) -> list[Command]:
        if self._is_writing or self._working is not None:
            return []
        if self._outbox:
            if self._must_wait(self._outbox[0][0]):
                return self._wait()
            part, answer_of = self._outbox.popleft()
            self._is_writing = True
            self._sent(part, answer_of)
            return [Send(part, bool(answer_of.firsts))]
        answer = self._answers.popleft() if self._answers else self._round()
        if answer is None:
            return []
        cursors = self._cursors() if answer.has_cursors else {}
        if answer.firsts and not cursors:
            # From now on the feed must remember what happens, not only from when the job is done.
            self._feed.at(self._ident, self._feed.head)
        try:
            job = answer.make(cursors)
        except BelowFloor:
            return [self._end(Code.UNAVAILABLE, _OVERTAKEN)]
        self._working = (job, answer, (*answer.firsts, *cursors))
        return [Work(job)]

    def _must_wait(self, part: Part) -> bool:
        """Policies, while the addresses before them have not settled."""
        addresses = self.watches.get(ADDRESS)
        is_after = part.type_url == AUTHORIZATION and addresses is not None and addresses.unsettled != ""
        return is_after and not self._is_half_closed

    def _wait(self) -> list[Command]:
        addresses = self.watches[ADDRESS]
        if self._awaited == addresses.unsettled:
            return []
        self._awaited = addresses.unsettled
        # How long ago an answer came is not known here, so that it counts from now.
        return [Wake(SETTLE_S if addresses.is_answered else ANSWER_S, self._awaited)]

    def _sent(self, part: Part, answer: _Answer) -> None:
        watch = self.watches[part.type_url]
        watch.unsettled, watch.is_answered = ("", True) if answer.is_fresh else (part.nonce, False)
        if watch.nonce_sent in self._batch:
            watch.unacknowledged.add(watch.nonce_sent)
        watch.nonce_sent = part.nonce
        self._batch.add(part.nonce)

    def _done(self) -> None:
        assert self._working is not None
        (job, answer, types), self._working = self._working, None
        for type_url in types:
            self.watches[type_url].cursor = job.result.to
        cursors = self._cursors()
        if cursors:
            self._feed.at(self._ident, min(cursors.values()))
        if not answer.goes_on:
            self._batch.clear()
            for watch in self.watches.values():
                watch.unacknowledged.clear()
        self._outbox.extend((part, answer) for part in job.result.parts)

    def _cursors(self) -> dict[str, Seq]:
        return {url: watch.cursor for url, watch in self.watches.items() if watch.cursor is not None}

    def _round(self) -> _Answer | None:
        """The next round, when the feed is ahead of this client."""
        cursors = self._cursors()
        if not cursors or min(cursors.values()) >= self._feed.head:
            return None
        interest = self._interest_at(cursors)
        if interest is not None:
            known = interest
            return _Answer(lambda cursors: self._feed.interesting(known, cursors))
        return _Answer(lambda cursors: self._feed.round(cursors))

    def _end(self, code: Code, message: str) -> End:
        self.close()
        return End(code, message)


class _Waiting(Struct, frozen=True):
    """A first request, before it is answered."""

    asked: Collection[str]
    claims: Claims
    interest: Interest | None


def _asks_for_all(request: Request) -> bool:
    return ("*" in request.subscribe or "*" in request.claims) and "*" not in request.unsubscribe


def _asked(request: Request, claimed: Collection[str] = ()) -> Collection[str]:
    """What a request asks for by name, once each and in its order, with what the client holds where that counts too.
    What it takes back in the same breath is not asked for."""
    if not (claimed or request.unsubscribe or "*" in request.subscribe):
        return request.subscribe
    names = {**dict.fromkeys(request.subscribe), **dict.fromkeys(claimed)}
    for name in ("*", *request.unsubscribe):
        names.pop(name, None)
    return names.keys()


def _pieces(names: Collection[str]) -> list[Collection[str]]:
    """Names that are answered one piece after the other; at least one, if only an empty one."""
    if len(names) <= _ASKED_AT_ONCE:
        return [names]
    all_names = tuple(names)
    return [all_names[start : start + _ASKED_AT_ONCE] for start in range(0, len(all_names), _ASKED_AT_ONCE)]
