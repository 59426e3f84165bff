"""What the pages need of the server, and nothing more; the composition root provides it, tests provide their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from ambientd.debug.metrics import Metrics
from ambientd.explain.describe import Description
from ambientd.index.conditions import Conditions
from ambientd.push.feed import Feed
from ambientd.resources.ref import Ref
from ambientd.settings import Settings
from ambientd.sources.watches import Watch
from ambientd.xds.connections import ConnectionInfo


class Problem(Protocol):
    """What is wrong with one object or file."""

    @property
    def object(self) -> Ref: ...

    @property
    def faults(self) -> tuple[str, ...]: ...

    @property
    def is_served(self) -> bool:
        """Some version of the object is in force."""
        ...


class World(Protocol):
    def problems(self) -> Sequence[Problem]: ...

    def problem_counts(self) -> Mapping[str, int]:
        """By kind."""
        ...

    def conditions(self) -> Mapping[Ref, Conditions]: ...

    def unbound(self) -> Mapping[tuple[str, str], int]:
        """By kind and reason: objects that do not get the waypoint that they ask for."""
        ...

    def verdicts(self) -> Mapping[str, int]: ...


class Registry(Protocol):
    def connections(self) -> list[ConnectionInfo]: ...

    def held_names(self, connection_id: str, type_url: str) -> Collection[str] | None:
        """None: everything."""
        ...


class DebugState(Protocol):
    """The server as it is now. Everything must be there from the start on, empty or not."""

    @property
    def feed(self) -> Feed: ...

    @property
    def world(self) -> World: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def metrics(self) -> Metrics: ...

    def watches(self) -> Sequence[Watch]:
        """Of each kind that is read from an API server; none where there is none."""
        ...

    def authority(self) -> Mapping[str, object]:
        """The certificate authority, and the last refusals; nothing of a key or a token."""
        ...

    def refresh(self) -> None:
        """Before the metrics are read: what is measured by looking."""
        ...

    def describe(self, kind: str, namespace: str, name: str) -> Description:
        """Raises NoSuchKind."""
        ...

    def is_ready(self) -> bool:
        """Caches are listed, and the first commit was made (operations.md 3.3)."""
        ...
