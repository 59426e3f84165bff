"""How each watch is doing, as data for metrics, pages and `ambientctl check`. Told by the reflectors; must not decide
anything, nor look at a clock."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from ambientd.resources.ref import ClusterId

_TELL_AGAIN_S = 60.0


class State(StrEnum):
    STARTING = "starting"
    LISTING = "listing"
    WATCHING = "watching"
    WAITING = "waiting"
    """To try again after a failure."""
    ABSENT = "absent"
    """The kind is not defined in this cluster, and that is certain."""
    UNSUPPORTED = "unsupported"
    """The kind is defined only in versions that are not read."""


class Watch:
    """What is known of the watch of one kind. Times are seconds of the reflector's clock."""

    def __init__(self, cluster: ClusterId, kind: str, now_s: float) -> None:
        self.cluster = cluster
        self.kind = kind
        self.api_version = ""
        self.state = State.STARTING
        self.is_listed = False
        """It was listed once, or is certainly absent: nothing waits for it."""
        self.waiting_since_s: float | None = now_s
        """Since when what is held may be out of date; None: it is current."""
        self.reason = ""
        """Why it is not watched just now."""
        self.next_try_s: float | None = None
        self.last_event_s: float | None = None
        self.last_heard_s: float | None = None
        """Also bookmarks and lists."""
        self.version = ""
        self.objects = 0
        self.nameless = 0
        self.events = 0
        self.bytes = 0
        self.failures = 0
        self.lists: dict[str, int] = {}
        """By why they were made."""
        self._told_s = float("-inf")
        self._told = ""

    @property
    def is_current(self) -> bool:
        """What is held is what the server has, but for what is on its way."""
        return self.waiting_since_s is None

    @property
    def expired(self) -> int:
        """How often the server no longer knew the version from which to go on."""
        return self.lists.get("410", 0)

    def heard(self, now_s: float, received_bytes: int, events: int) -> None:
        """Something came on the watch."""
        self.last_heard_s = now_s
        self.bytes += received_bytes
        self.events += events
        if events:
            self.last_event_s = now_s

    def watched(self, now_s: float) -> None:
        """The server accepted the watch."""
        self.state, self.waiting_since_s, self.reason, self.next_try_s = State.WATCHING, None, "", None
        self.last_heard_s = now_s

    def listed(self, now_s: float, why: str) -> None:
        self.is_listed = True
        self.lists[why] = self.lists.get(why, 0) + 1
        self.last_heard_s = now_s

    def absent(self, state: State, reason: str) -> None:
        self.is_listed = True
        self.state, self.waiting_since_s, self.reason, self.next_try_s = state, None, reason, None
        self.api_version, self.version = "", ""

    def failed(self, now_s: float, reason: str, wait_s: float) -> bool:
        """Something went wrong, and is tried again after a wait; whether it is worth a line in the log. The same again
        and again is told once a minute."""
        self.failures += 1
        self.interrupted(now_s, reason, wait_s)
        if reason == self._told and now_s < self._told_s + _TELL_AGAIN_S:
            return False
        self._told, self._told_s = reason, now_s
        return True

    def interrupted(self, now_s: float, reason: str, wait_s: float) -> None:
        """There is no watch for a while."""
        self.state, self.reason, self.next_try_s = State.WAITING, reason, now_s + wait_s
        if self.waiting_since_s is None:
            self.waiting_since_s = now_s

    def plain(self, now_s: float) -> dict[str, Any]:
        """For a page; ages in seconds."""

        def age(at_s: float | None) -> float | None:
            return None if at_s is None else round(max(0.0, now_s - at_s), 3)

        return {
            "cluster": self.cluster,
            "kind": self.kind,
            "apiVersion": self.api_version,
            "state": self.state.value,
            "isListed": self.is_listed,
            "isCurrent": self.is_current,
            "reason": self.reason,
            "outdatedForSeconds": age(self.waiting_since_s),
            "nextTryInSeconds": None if self.next_try_s is None else round(max(0.0, self.next_try_s - now_s), 3),
            "lastEventAgoSeconds": age(self.last_event_s),
            "lastHeardAgoSeconds": age(self.last_heard_s),
            "resourceVersion": self.version,
            "objects": self.objects,
            "events": self.events,
            "bytes": self.bytes,
            "failures": self.failures,
            "lists": dict(sorted(self.lists.items())),
            "expired": self.expired,
            "nameless": self.nameless,
        }
