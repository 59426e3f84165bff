"""Who calls: a bearer token becomes a service account and the pod that holds it (xds.md 3.2, ca.md 4), for streams, for
the certificate service and for the debug pages. Somebody else reviews tokens; here is which token of a call counts, for
how long an answer is believed, and how long one is waited for. A token is never logged, nor kept: what is remembered is
its hash. Must not decide what a caller may do, but for the one rule on streams (xds.md 3.4)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Protocol

import msgspec
from cachetools import TLRUCache
from msgspec import Struct

from ambientd.ca.caller import Caller, CannotTell, Metadata, Unauthenticated, cluster_named
from ambientd.xds.node import Node

BELIEVED_S = 5.0
"""How long a positive answer counts, seconds; also bounded by the token's own end. A ztunnel asks for eight
certificates at a time, and the API server believes its own answers for ten seconds."""
DISBELIEVED_S = 1.0
"""How long a refusal counts: a client that comes back at once is not worth a question, a mended one is."""
DEADLINE_S = 8.0
"""How long a review may take, its wait for a turn included; the whole call has ten seconds."""
_REMEMBERED = 10_000
_AT_ONCE = 2_000
"""Reviews under way or waiting for their turn: more would only wait past their deadline."""


class Refusal(Enum):
    """Why a caller is not known. For the log and a metric; the caller learns nothing of it."""

    NO_TOKEN = "no bearer token"
    UNKNOWN_CLUSTER = "unknown cluster"
    EXPIRED = "the token has expired"
    REFUSED = "the token is refused"
    NO_ACCOUNT = "the token is not of a service account"


class Denied(Exception):
    """A token that is not accepted."""

    def __init__(self, refusal: Refusal, detail: str = "") -> None:
        super().__init__(f"{refusal.value}: {detail}" if detail else refusal.value)
        self.refusal = refusal


class Reviewed(Struct, frozen=True):
    """Whose a token is."""

    namespace: str
    account: str
    pod_name: str = ""
    """Empty, as the two below: the token is not bound to a pod, or its issuer does not tell."""
    pod_uid: str = ""
    node: str = ""


class Reviewer(Protocol):
    """Who knows tokens."""

    async def review(self, token: str) -> Reviewed:
        """Raises Denied, and CannotTell when nobody could be asked."""
        ...


class Observer(Protocol):
    def authenticated(self, outcome: str) -> None:
        """`ok`, `remembered`, `cannot_tell`, or the name of a Refusal in lower case."""
        ...


class Authenticator:
    """Knows callers by their tokens."""

    def __init__(
        self,
        reviewer: Reviewer,
        observer: Observer,
        *,
        cluster_id: str,
        cluster_aliases: Mapping[str, str],
        trust_domain: Callable[[], str],
        now_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """`trust_domain`: that of the mesh as it is now. `now_s`, `wall_s`: a monotonic clock, and Unix time."""
        self._reviewer = reviewer
        self._observer = observer
        self._cluster_id = cluster_id
        self._aliases = cluster_aliases
        self._trust_domain = trust_domain
        self._wall_s = wall_s
        self._deadline_s = deadline_s
        self._answers: TLRUCache[bytes, _Answer] = TLRUCache(_REMEMBERED, ttu=_good_until, timer=now_s)
        self._under_way: dict[bytes, asyncio.Task[_Answer]] = {}

    async def authenticate(self, metadata: Metadata, *, prefixes: Sequence[str] = ("Bearer ",)) -> Caller:
        """Raises Unauthenticated and CannotTell. `prefixes`: what a value of `authorization` that counts begins with
        (ca.md 4.5)."""
        try:
            found = await self._reviewed(tuple(metadata), prefixes)
        except Denied as denied:
            self._observer.authenticated(denied.refusal.name.lower())
            raise Unauthenticated(str(denied)) from None
        except CannotTell:
            self._observer.authenticated("cannot_tell")
            raise
        return Caller(
            namespace=found.namespace,
            account=found.account,
            trust_domain=self._trust_domain(),
            pod_name=found.pod_name,
            pod_uid=found.pod_uid,
            node=found.node,
        )

    async def _reviewed(self, metadata: tuple[tuple[str, str | bytes], ...], prefixes: Sequence[str]) -> Reviewed:
        token = bearer_token(metadata, prefixes)
        self._check_cluster(cluster_named(metadata))
        key = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        answer = self._answers.get(key)
        outcome = "remembered"
        if answer is None:
            outcome = "ok"
            answer = await self._ask(key, token)
        if isinstance(answer.result, Reviewed):
            self._observer.authenticated(outcome)
            return answer.result
        # Made anew: an exception that is raised twice would gather the frames of both.
        if isinstance(answer.result, Denied):
            raise Denied(answer.result.refusal, answer.detail)
        raise CannotTell(answer.detail)

    def _check_cluster(self, named: str) -> None:
        if named and named != self._cluster_id and self._aliases.get(named) != self._cluster_id:
            raise Denied(Refusal.UNKNOWN_CLUSTER, f"{named[:100]!r} is not {self._cluster_id!r}, nor an alias of it")

    async def _ask(self, key: bytes, token: str) -> _Answer:
        """Callers with one token share one review; whoever goes away leaves it to the others."""
        task = self._under_way.get(key)
        if task is None:
            if len(self._under_way) >= _AT_ONCE:
                raise CannotTell(f"{_AT_ONCE} reviews of tokens are under way already")
            task = asyncio.create_task(self._review(token), name="token review")
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._reviewed_once(key, done))
        return await asyncio.shield(task)

    def _reviewed_once(self, key: bytes, task: asyncio.Task[_Answer]) -> None:
        self._under_way.pop(key, None)
        if not task.cancelled() and task.exception() is None and task.result().keep_s > 0:
            self._answers[key] = task.result()

    async def _review(self, token: str) -> _Answer:
        ends_s = _expiry_s(token)
        left_s = float("inf") if ends_s is None else ends_s - self._wall_s()
        try:
            async with asyncio.timeout(self._deadline_s):
                reviewed = await self._reviewer.review(token)
                return _Answer(reviewed, BELIEVED_S if ends_s is None else min(BELIEVED_S, ends_s - self._wall_s()))
        except TimeoutError:
            detail = f"no review of the token within {self._deadline_s:g} s"
            return _Answer(CannotTell(detail), 0.0, detail)
        except CannotTell as error:
            return _Answer(error, 0.0, str(error))
        except Denied as denied:
            detail = str(denied).partition(": ")[2]
            if denied.refusal is Refusal.REFUSED and left_s <= 0:
                denied = Denied(Refusal.EXPIRED)
                detail = f"{-left_s:.0f} s ago; {detail}"
            return _Answer(denied, DISBELIEVED_S, detail)


class _Answer(Struct, frozen=True):
    """What a review gave, and for how many seconds it counts."""

    result: Reviewed | Denied | CannotTell
    keep_s: float
    detail: str = ""


def _good_until(_: bytes, answer: _Answer, now_s: float) -> float:
    return now_s + answer.keep_s


def bearer_token(metadata: Metadata, prefixes: Sequence[str]) -> str:
    """The token of the first `authorization` that begins as one should; what follows is final, good or not (ca.md 4.5).
    Raises Denied."""
    for name, value in metadata:
        if name != "authorization" or not isinstance(value, str):
            continue
        for prefix in prefixes:
            if value.startswith(prefix):
                token = value[len(prefix) :]
                if not token.strip():
                    raise Denied(Refusal.NO_TOKEN, "it is empty")
                return token
    raise Denied(Refusal.NO_TOKEN)


class _Claims(Struct):
    exp: float | None = None


_CLAIMS = msgspec.json.Decoder(_Claims)


def _expiry_s(token: str) -> float | None:
    """When a JSON web token says that it ends, Unix time, unverified; None: it is none, or does not say."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        return _CLAIMS.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))).exp
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None


def mismatch(caller: Caller | None, node: Node) -> str | None:
    """Why a stream's node is not its caller's, as the client is told; None: it may be, or nobody is known (xds.md
    3.4)."""
    if caller is None:
        return None
    is_same_namespace = not node.namespace or node.namespace == caller.namespace
    is_same_account = "SERVICE_ACCOUNT" not in node.metadata or node.service_account == caller.account
    if is_same_namespace and is_same_account:
        return None
    claimed = f"{node.namespace}/{node.service_account}"
    return f"authorization failed: no identities ([{caller.identity}]) matched {claimed}"
