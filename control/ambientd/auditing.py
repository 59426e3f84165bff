"""The self-audit of the running server: a slice of a few milliseconds now and then, between commits; a difference is a
metric, a log line with the key, and a commit that repairs it. Must not know how anything is compared or repaired."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Never, Protocol

import structlog

from ambientd.index.audit import Audit, Finding
from ambientd.index.world import ADDRESS_OUTPUTS, POLICY_OUTPUTS, World
from ambientd.pump import Pump
from ambientd.push.audit import FeedAudit
from ambientd.push.feed import Feed
from ambientd.slices import new_slice

log = structlog.get_logger("audit")

_WITHIN_S = 0.01
"""How soon a slice that met a commit under way is tried again."""

_LONGEST_TEXT = 200
_LINES_PER_SLICE = 20
"""Differences of one slice that are logged one by one; a fault that hits everything must not flood the log."""


class Difference(AssertionError):
    """Something that is held is not what is derived now, where that is fatal."""


class Teller(Protocol):
    """Who is told of comparisons; metrics are behind it."""

    def audited(self, checked: int, different: Iterable[str]) -> None: ...


class Auditor:
    """The audits of index and feed, one after the other. `is_strict`: a difference is raised, for tests."""

    def __init__(self, world: World, feed: Feed, teller: Teller, *, is_strict: bool = False) -> None:
        self._teller = teller
        self._is_strict = is_strict
        self._audits: tuple[Audit | FeedAudit, ...] = (
            Audit(world.graph),
            FeedAudit(feed, world.graph, addresses=ADDRESS_OUTPUTS, policies=POLICY_OUTPUTS),
        )
        self._at = 0

    @property
    def rounds(self) -> int:
        """How often everything was looked at so far."""
        return min(audit.rounds for audit in self._audits)

    def slice(self, enough: Callable[[], bool]) -> int:
        """Looks on until `enough()` or to the end of one audit's round; how many differences were found. Between
        commits only. Raises Difference if strict."""
        audit = self._audits[self._at]
        checked, rounds = audit.checked, audit.rounds
        found = audit.step(enough)
        if audit.rounds > rounds:
            self._at = (self._at + 1) % len(self._audits)
        self._teller.audited(audit.checked - checked, [finding.collection for finding in found])
        if found and self._is_strict:
            raise Difference("\n".join(map(str, found)))
        for finding in found[:_LINES_PER_SLICE]:
            log.error("what is held is not what is derived; it is repaired", **_fields(finding))
        if len(found) > _LINES_PER_SLICE:
            log.error("more differences in the same slice; they are repaired", count=len(found) - _LINES_PER_SLICE)
        return len(found)


async def audit(auditor: Auditor, pump: Pump, interval_s: float) -> Never:
    """A slice every `interval_s` seconds, once there is a first commit. For ever."""
    await pump.ready()
    while True:
        await asyncio.sleep(interval_s if pump.is_idle else _WITHIN_S)
        if not pump.is_idle:
            continue
        try:
            if auditor.slice(new_slice()):
                pump.commit_repairs()
        except Difference:
            raise
        except Exception:  # a fault of the audit must not end the server that it looks after
            log.exception("the self-audit failed; it goes on with its next round")


def _fields(finding: Finding) -> dict[str, Any]:
    fields = {"held": finding.held, "wanted": finding.wanted}
    texts = {name: _text(value) for name, value in fields.items()}
    return {"collection": finding.collection, "key": _text(finding.key), "differs": finding.what, **texts}


def _text(value: object) -> str:
    version = getattr(value, "version", None)
    text = str(value) if version is None else f"version {version}"
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
