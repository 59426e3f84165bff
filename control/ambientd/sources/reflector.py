"""One kind of one API server, reflected as events: one function per lifetime, from a page to for ever. What an answer
means is said in `mirror.py`. Must not let one bad object, a silent connection or an angry server do more harm than a
delay, and must not take a failure to read for absence."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Never

import structlog
from msgspec import Struct

from ambientd.kube.api import Api
from ambientd.kube.backoff import Backoff
from ambientd.kube.errors import ApiError, Garbled, Gone, NotDefined, NotFound
from ambientd.kube.resources import CRDS, Resource
from ambientd.kube.turns import Urgency
from ambientd.kube.wire import Lines, Page, decode_definition, decode_line, decode_page
from ambientd.resources.events import Absent, Emit, Event, Synced
from ambientd.resources.kinds import POLICY_KINDS
from ambientd.slices import new_slice
from ambientd.sources.mirror import Listing, Mirror, Relist, Why, is_older
from ambientd.sources.watches import State, Watch

log = structlog.get_logger("kube")

Sleep = Callable[[float], Awaitable[None]]
"""Waits so many seconds."""

PAGE_OBJECTS = 500
_DECODED_AT_ONCE = 64
_EMITTED_AT_ONCE = 2_000


class Pace(Struct, frozen=True):
    """How patient a reflector is, in seconds."""

    first_s: float = 0.5
    """After one failure."""
    ceiling_s: float = 30.0
    """After many."""
    healthy_s: float = 20.0
    """A watch that lasted for so long was a good one, and the next failure is a first one again."""
    watch_s: float = 300.0
    """The server is asked to end a watch after so long, up to twice: a watch that nobody ends may be dead."""
    heartbeat_s: float = 180.0
    """A server that sends bookmarks does so about every minute; silence for so long means that the connection is dead,
    whatever the kernel says."""
    grace_s: float = 30.0
    """How much later than asked the end of a watch may come."""
    overlap_s: float = 10.0
    """A watch that is to repeat what was seen last does so at once; if not within this time, the server cannot."""
    absent_s: float = 30.0
    """How long one wait for an absent kind is, and how often it is asked for where waiting is of no use."""
    consistency_s: float = 3600.0
    """Everything is listed and compared so often, up to twice, as the last line of defence. 100,000 pods take some ten
    seconds of work for it."""


class Reflector:
    """The reflection of one kind. `watch` tells how it is doing."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        mirror: Mirror,
        emit: Emit,
        pace: Pace,
        *,
        dice: random.Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._api = api
        self._resource = resource
        self._mirror = mirror
        self._emit = emit
        self._pace = pace
        self._dice = dice
        self._sleep = sleep
        self._now_s = time.monotonic
        self.watch = Watch(mirror.cluster, resource.kind, self._now_s())
        self._version = "" if resource.is_custom else resource.versions[0]
        """API version in which it is read; empty: it must be found out."""
        self._relist: Why | None = Why.START
        self._list_again_s = 0.0
        self._watched_s: float | None = None
        """When the present watch was accepted."""
        self._is_doubtful = False
        """The last watch did not end as it should."""
        self._is_paged = True
        self._log = log.bind(cluster=mirror.cluster, kind=resource.kind)

    async def run(self) -> Never:
        """For ever: finds the kind, lists it, watches it, and waits after failures."""
        backoff = Backoff(self._pace.first_s, self._pace.ceiling_s, self._dice.random)
        while True:
            self._watched_s = None
            failure: Exception | None = None
            try:
                if not self._version and not await self._find():
                    await self._await_definition(backoff)
                    continue
                await self._list_and_watch()
            except (Relist, ApiError) as error:
                failure = error
            # Only the watch counts: a long list before a watch that fails at once is no good sign.
            lasted_s = 0.0 if self._watched_s is None else self._now_s() - self._watched_s
            if lasted_s >= self._pace.healthy_s:
                backoff.reset()
                if failure is None:
                    continue
            wait_s = backoff.next_s(failure.retry_after_s if isinstance(failure, ApiError) else 0.0)
            self._note(failure, lasted_s, wait_s)
            await self._sleep(wait_s)

    def _note(self, failure: Exception | None, lasted_s: float, wait_s: float) -> None:
        """Remembers what an end of a watch means for the next one."""
        now_s = self._now_s()
        self._is_doubtful = True
        match failure:
            case None:
                self.watch.interrupted(now_s, "the watch ended at once", wait_s)
            case Relist():
                self._relist = failure.why
                self.watch.interrupted(now_s, str(failure), wait_s)
                self._log.warning(
                    "watch starts over from a list", reason=str(failure), last_version=self._mirror.version
                )
            case _:
                if isinstance(failure, NotFound) and self._resource.is_custom:
                    # Perhaps it is gone, perhaps served in another version; only the definition tells.
                    self._version = ""
                    self._relist = self._relist or Why.APPEARED
                if self.watch.failed(now_s, str(failure), wait_s):
                    self._log.warning(
                        "watch failed and is tried again",
                        reason=str(failure),
                        lasted_s=round(lasted_s, 1),
                        next_try_s=round(wait_s, 1),
                        is_listed=self.watch.is_listed,
                    )

    async def _find(self) -> bool:
        """Looks up in which version the kind is served; False: in none that we read, and that is dealt with. Raises
        ApiError when it cannot be told: absence is never guessed."""
        resource = self._resource
        try:
            raw = await self._api.get(f"{CRDS}/{resource.definition}", urgency=Urgency.WATCH)
        except NotDefined:
            self._absent()
            return False
        except NotFound as error:
            raise Garbled(f"{error}; definitions of kinds must be readable") from error
        definition = decode_definition(raw)
        versions = [version for version in resource.versions if version.rpartition("/")[2] in definition.served]
        if not versions:
            self._unsupported(definition.served)
            return False
        if not definition.is_established:
            raise Garbled(f"{resource.definition} is defined and not yet established")
        self._version = versions[0]
        if self.watch.is_listed:
            self._log.info("kind appeared", version=self._version)
            self._relist = Why.APPEARED
        return True

    def _absent(self) -> None:
        """There is no definition, so there are no objects either."""
        if self.watch.state is State.ABSENT:
            return
        self._log.info("kind is absent", definition=self._resource.definition)
        self._relist = Why.START
        self.watch.absent(State.ABSENT, f"no CustomResourceDefinition {self._resource.definition}")
        self._emit([*self._mirror.clear(self._now_s()), Absent(self._mirror.cluster, self._mirror.kind)])
        self.watch.objects = 0

    def _unsupported(self, served: tuple[str, ...]) -> None:
        """It exists where we cannot read it. Policies among it would not be enforced, so for their kinds that is as bad
        as any failure; other kinds are left out, and what was read of them before stays."""
        reason = (
            f"{self._resource.definition} is served in {', '.join(served) or 'no version'}; "
            f"{' or '.join(self._resource.versions)} is needed"
        )
        if self._resource.kind in POLICY_KINDS:
            raise Garbled(reason)
        if self.watch.state is State.UNSUPPORTED:
            return
        self._log.warning("kind is served in no version that is read, and left out", reason=reason)
        was_listed = self.watch.is_listed
        self.watch.absent(State.UNSUPPORTED, reason)
        if not was_listed:
            self._emit([Absent(self._mirror.cluster, self._mirror.kind)])

    async def _await_definition(self, backoff: Backoff) -> None:
        """Returns when it is worth looking for the kind again: at once when its definition comes."""
        started_s = self._now_s()
        parameters = {
            "watch": "true",
            "fieldSelector": f"metadata.name={self._resource.definition}",
            "timeoutSeconds": str(max(1, int(self._pace.absent_s))),
        }
        wait_s = self._pace.absent_s * (0.75 + 0.5 * self._dice.random())
        # A definition that is there and of no use to us would be told of again and again.
        if self.watch.state is State.ABSENT:
            try:
                lines = Lines()
                async with self._api.stream(CRDS, parameters) as read:
                    while chunk := await read(self._pace.absent_s + self._pace.grace_s):
                        if any(decode_line(line).type == "ADDED" for line in lines.feed(chunk)):
                            break
                wait_s = 0.0
            except ApiError as error:
                self._log.debug("a definition cannot be waited for, and is asked for", reason=str(error))
        if self._now_s() >= started_s + self._pace.healthy_s:
            backoff.reset()
        # An answer that comes at once each time must not make us ask at once each time.
        await self._sleep(max(wait_s, backoff.next_s()))

    async def _list_and_watch(self) -> None:
        """One watch to its end, after a list if one is due. Raises Relist and ApiError."""
        why = self._relist
        if why is None and self._now_s() >= self._list_again_s:
            why = Why.CONSISTENCY
        if why is None and self._is_doubtful:
            why = Why.RECONNECT
        since = self._mirror.version if why is None else await self._list(why)
        self._relist, self._is_doubtful = None, False
        await self._watch(since)

    async def _list(self, why: Why) -> str:
        """The whole list, emitted as the difference to what was held; the version from which to watch. After a broken
        connection a list of several pages is not made, if the watch can prove that nothing was missed."""
        self.watch.state, self.watch.api_version = State.LISTING, self._version
        if why is Why.RECONNECT and len(self._mirror) > PAGE_OBJECTS and (since := self._mirror.overlap()):
            return since
        page = await self._page("")
        if is_older(page.version, self._mirror.version):
            why = Why.WENT_BACK
            self._log.warning("the API server went back", version=page.version, last_version=self._mirror.version)
        if why is Why.RECONNECT and not page.after:
            # An equal version is no proof of an equal object, and to read a page again costs a few milliseconds.
            self._mirror.distrust()
        listing = self._mirror.begin(page.version)
        await self._take_all(page, listing)
        events = self._mirror.replace(listing)
        is_first = not self.watch.is_listed
        now_s = self._now_s()
        self.watch.listed(now_s, why.value)
        self._count()
        self._list_again_s = now_s + self._pace.consistency_s * (1 + self._dice.random())
        if is_first:
            # Nothing of a kind is shown before it is synced, so the first list need not be one batch.
            for start in range(0, len(events), _EMITTED_AT_ONCE):
                self._emit(events[start : start + _EMITTED_AT_ONCE])
                await asyncio.sleep(0)
            events = []
        if why in (Why.START, Why.APPEARED):
            events.append(Synced(self._mirror.cluster, self._mirror.kind))
        if events:
            self._emit(events)
        return self._mirror.version

    async def _take_all(self, page: Page, listing: Listing) -> None:
        """The list that begins with this page. Raises ApiError."""
        while True:
            await self._take(page, listing)
            if not page.after:
                self._is_paged = True
                return
            try:
                following = await self._page(page.after)
            except Gone:
                # So large a list outlives its own snapshot: the next attempt asks for all of it at once.
                self._is_paged = False
                raise
            if following.after == page.after or following.version != page.version:
                raise Garbled("the pages of a list do not belong together")
            page = following

    async def _page(self, after: str) -> Page:
        """One page of a consistent list: never with resourceVersion=0, which a server answers with the past."""
        parameters = self._selectors()
        if self._is_paged:
            parameters["limit"] = str(PAGE_OBJECTS)
        if after:
            parameters["continue"] = after
        raw = await self._api.get(self._resource.path(self._version), parameters, urgency=Urgency.WATCH)
        self.watch.heard(self._now_s(), len(raw), 0)
        return decode_page(raw)

    async def _take(self, page: Page, listing: Listing) -> None:
        """Decodes a page in slices."""
        seen_s = self._now_s()
        enough = new_slice()
        for start in range(0, len(page.items), _DECODED_AT_ONCE):
            listing.take(map(bytes, page.items[start : start + _DECODED_AT_ONCE]), seen_s)
            if enough():
                await asyncio.sleep(0)
                enough = new_slice()

    async def _watch(self, since: str) -> None:
        """One watch from a version. Returns at its end; raises Relist and ApiError."""
        limit_s = self._pace.watch_s * (1 + self._dice.random())
        parameters = {
            **self._selectors(),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(max(1, int(limit_s))),
        }
        lines = Lines()
        bookmarks = self._mirror.bookmarks
        try:
            async with self._api.stream(self._resource.path(self._version), parameters) as read:
                self._watched_s = started_s = self._now_s()
                self.watch.watched(started_s)
                while True:
                    left_s = max(0.0, started_s + limit_s - self._now_s()) + self._pace.grace_s
                    if self._mirror.is_expecting:
                        left_s = self._pace.overlap_s
                    elif self._mirror.bookmarks > bookmarks:
                        left_s = min(left_s, self._pace.heartbeat_s)
                    chunk = await read(left_s)
                    if not chunk:
                        # An end that we asked for leaves no doubt; any other may be the end of the server.
                        self._is_doubtful = self._now_s() < started_s + int(limit_s) - 1
                        return
                    await self._follow(lines.feed(chunk), len(chunk))
        except ApiError as error:
            if self._mirror.is_expecting and self._watched_s is not None:
                raise self._mirror.went_back(f"the watch did not repeat what was seen last: {error}") from error
            raise self._mirror.relist_for(error) or error from error

    async def _follow(self, lines: list[bytes], received_bytes: int) -> None:
        """Emits what lines that came together mean, as one batch if that is quick."""
        seen_s = self._now_s()
        events: list[Event] = []
        bookmarks = self._mirror.bookmarks
        enough = new_slice()
        try:
            for line in lines:
                event = self._mirror.follow(line, seen_s)
                if event is not None:
                    events.append(event)
                if enough():
                    self._flush(events)
                    events = []
                    await asyncio.sleep(0)
                    enough = new_slice()
        finally:
            # What came before a line that ends the watch did happen.
            self._flush(events)
            self.watch.heard(seen_s, received_bytes, len(lines) - (self._mirror.bookmarks - bookmarks))

    def _flush(self, events: list[Event]) -> None:
        self._count()
        if events:
            self._emit(events)

    def _count(self) -> None:
        self.watch.objects = len(self._mirror)
        self.watch.version = self._mirror.version
        self.watch.nameless = self._mirror.nameless

    def _selectors(self) -> dict[str, str]:
        selector = self._resource.field_selector
        return {"fieldSelector": selector} if selector else {}
