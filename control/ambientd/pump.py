"""From sources to streams: takes batches of events, derives them in slices, commits index and feed at one moment, and
tells the streams. The first commit waits until every kind was listed, so that a partial state is never shown. Must not
know where events come from, nor what is on the wire."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import structlog

from ambientd.index.declarations import Derived
from ambientd.index.graph import Transaction
from ambientd.index.world import ADDRESS_OUTPUTS, POLICY_OUTPUTS, World
from ambientd.push.feed import Feed, Staged
from ambientd.push.rounds import Job
from ambientd.push.views import Changes, R
from ambientd.resources.events import Absent, Delete, Event, Invalid, Put, Replace, Synced
from ambientd.resources.kinds import KINDS
from ambientd.resources.ref import Ref
from ambientd.slices import in_slices

log = structlog.get_logger("pump")

LONGEST_WINDOW_S = 0.25
"""Upper bound of the time for which changes are gathered under load, seconds."""

_COMPACT_AT = 50_000
"""Waiting events above which those that later ones made pointless are dropped."""

_FREEZE_AFTER = 20_000
"""Changed resources after which the collector is told that what lives now will live long."""


class Watcher(Protocol):
    """Who is told of commits; metrics are behind it."""

    def committed(self, seq: int, changed: int, took_s: float, events: int) -> None: ...


class Pump:
    """The one writer of index and feed."""

    def __init__(
        self,
        world: World,
        feed: Feed,
        *,
        cluster: str,
        announce: Callable[[set[str]], None],
        watcher: Watcher,
    ) -> None:
        self._world = world
        self._feed = feed
        self._announce = announce
        self._watcher = watcher
        self._waiting: deque[Event] = deque()
        self._has_events = asyncio.Event()
        self._unlisted = {(cluster, kind) for kind in KINDS}
        self._ready = asyncio.Event()
        self._since_freeze = 0
        self._compact_at = _COMPACT_AT

    @property
    def is_ready(self) -> bool:
        """The first commit, of everything that was listed, has been made."""
        return self._ready.is_set()

    async def ready(self) -> None:
        await self._ready.wait()

    def missing(self) -> list[str]:
        """Kinds that have not been listed yet."""
        return sorted(kind for _, kind in self._unlisted)

    def emit(self, events: Sequence[Event]) -> None:
        """Takes what a source saw; one batch stays in one commit."""
        self._waiting.extend(events)
        for event in events:
            if isinstance(event, Synced | Absent):
                self._unlisted.discard((event.cluster, event.kind))
        if self._unlisted and not self.is_ready and len(self._waiting) > self._compact_at:
            # While a kind cannot be listed the others go on changing, for as long as that takes.
            self._waiting = deque(compacted(self._waiting))
            self._compact_at = max(_COMPACT_AT, 2 * len(self._waiting))
        self._has_events.set()

    def commit_repairs(self) -> None:
        """Makes a commit even if no event comes: an audit found something to derive or show anew."""
        self._has_events.set()

    @property
    def is_idle(self) -> bool:
        """No commit is under way, and everything that was committed is folded in."""
        return self._world.graph.is_idle and self._feed.is_settled

    async def run(self) -> None:
        """For ever. The first change after a quiet time goes out at once; under load, what comes while a commit is made
        and for as long again as that took is one commit."""
        while True:
            await self._has_events.wait()
            if self._unlisted and not self.is_ready:
                self._has_events.clear()
                continue
            events = list(self._waiting)
            self._waiting.clear()
            self._has_events.clear()
            started_s = time.perf_counter()
            await self._commit(events)
            took_s = time.perf_counter() - started_s
            await asyncio.sleep(min(took_s, LONGEST_WINDOW_S))

    async def _commit(self, events: list[Event]) -> None:
        started_s = time.perf_counter()
        transaction = self._world.begin(events)
        await in_slices(transaction.step)
        stage = stage_outputs(transaction, self._feed)
        await in_slices(stage.step)
        staged = stage.result
        transaction.commit()
        is_new = not staged.is_empty or not self.is_ready
        if is_new:
            self._feed.commit(staged)
            self._ready.set()
            self._announce(staged.nodes)
        changed = len(staged.addresses) + len(staged.policies)
        self._watcher.committed(self._feed.head, changed, time.perf_counter() - started_s, len(events))
        await asyncio.sleep(0)  # streams first: folding the change in can wait
        await in_slices(transaction.settle)
        if is_new:
            await in_slices(self._feed.settle().step)
        self._freeze(changed)

    def _freeze(self, changed: int) -> None:
        self._since_freeze += changed
        if self._since_freeze >= _FREEZE_AFTER:
            # A full collection walks everything that lives; what the index holds need not be walked again and again.
            self._since_freeze = 0
            gc.freeze()


def compacted(events: Iterable[Event]) -> list[Event]:
    """Events with the same result as these, of each object the last good one and what was wrong since. A `Replace` is
    kept where it is, with everything before it."""
    kept: list[Event] = []
    last: dict[Ref, list[Event]] = {}
    for event in events:
        match event:
            case Put() | Delete():
                last[event.ref] = [event]
            case Invalid():
                last[event.ref] = [*(each for each in last.get(event.ref, ()) if not isinstance(each, Invalid)), event]
            case Replace():
                kept.extend(each for held in last.values() for each in held)
                kept.append(event)
                last.clear()
            case Synced() | Absent():
                kept.append(event)
    return [*kept, *(each for held in last.values() for each in held)]


def stage_outputs(transaction: Transaction, feed: Feed) -> Job[Staged]:
    """The commit of a feed that shows what a transaction changes."""
    return feed.stage(
        _changes_of_outputs(transaction, ADDRESS_OUTPUTS), _changes_of_outputs(transaction, POLICY_OUTPUTS)
    )


def _changes_of_outputs(transaction: Transaction, outputs: Sequence[Derived[Any, R]]) -> Changes[R]:
    """What a transaction changes in the outputs, by primary name."""
    for output in outputs:
        for _, old, new in transaction.changed(output):
            rendered = new if new is not None else old
            assert rendered is not None
            if new is not None and old is not None and old.name != new.name:
                yield old.name, None
            yield rendered.name, new
