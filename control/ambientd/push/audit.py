"""The self-audit of a feed: goes round its views and its directory, compares them with the outputs of the index, and
has differences repaired by the next commit. Must not judge the outputs themselves (`index.audit` does), and must not
run while a commit is under way."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from ambientd.index.audit import Finding
from ambientd.index.declarations import Derived
from ambientd.index.graph import Graph
from ambientd.index.rendered import Rendered
from ambientd.push.feed import Feed
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.push.views import View

Outputs = Sequence[Derived[Any, Any]]


class FeedAudit:
    """Rounds over one feed, without end."""

    def __init__(self, feed: Feed, graph: Graph, *, addresses: Outputs, policies: Outputs) -> None:
        """`addresses`, `policies`: the collections whose values the views show."""
        self._feed = feed
        self._graph = graph
        self._outputs: dict[str, Outputs] = {ADDRESS: addresses, AUTHORIZATION: policies}
        self._work = self._round()
        self._found: list[Finding] = []
        self.checked = 0
        """Entries that were compared so far."""
        self.rounds = 0
        """Rounds that were completed so far."""

    def step(self, enough: Callable[[], bool]) -> list[Finding]:
        """Looks on until `enough()`, or to the end of the round. Between commits only."""
        assert self._graph.is_idle, "what is shown is in motion while a transaction is under way"
        assert self._feed.is_settled, "what is shown is in motion while a commit is folded in"
        for _ in self._work:
            if enough():
                break
        else:
            self.rounds += 1
            self._work = self._round()
        found, self._found = self._found, []
        return found

    def _round(self) -> Generator[None, None, None]:
        yield from self._view(ADDRESS, self._feed.addresses)
        yield from self._view(AUTHORIZATION, self._feed.policies)
        yield from self._directory()

    def _view(self, type_url: str, view: View[Any]) -> Generator[None, None, None]:
        # Names first: one that is shown now and that no output gives hereafter is left over, unless it came anew.
        names = view.names()
        given: set[str] = set()
        for output in self._outputs[type_url]:
            for key in self._graph.keys(output):
                rendered = self._graph.get(output, key)
                if rendered is not None:
                    given.add(rendered.name)
                    self._check(type_url, rendered.name, view.rendered(rendered.name), rendered)
                yield
        for name in names:
            if name not in given:
                self._check(type_url, name, view.rendered(name), self._given(type_url, name))
            yield

    def _given(self, type_url: str, name: str) -> Rendered | None:
        """What the outputs give under a name; a scan, for the few whose entry may be wrong."""
        items = (item for output in self._outputs[type_url] for _, item in self._graph.items(output))
        return next((item for item in items if item.name == name), None)

    def _check(self, type_url: str, name: str, held: Rendered | None, wanted: Rendered | None) -> None:
        self.checked += 1
        if held is not wanted and held != wanted:
            self._found.append(Finding(type_url, name, held, wanted))
            self._feed.amend(type_url, name, wanted)

    def _directory(self) -> Generator[None, None, None]:
        view, directory = self._feed.addresses, self._feed.directory
        if directory is None:
            return
        for name in view.names():
            rendered = view.rendered(name)
            if rendered is not None:
                self.checked += 1
                if not directory.lists(rendered):
                    self._misfiled(name, rendered, is_held=False)
                    directory.update(None, rendered)
            yield
        for stray in directory.strays(view):
            self.checked += 1
            if stray is not None:
                _, name = stray
                self._misfiled(name, view.rendered(name), is_held=True)
            yield

    def _misfiled(self, name: str, rendered: Rendered | None, *, is_held: bool) -> None:
        """Told to on-demand clients by showing the address again: they were answered from the directory."""
        self._found.append(Finding("directory", name, is_held, not is_held, "member"))
        self._feed.amend(ADDRESS, name, rendered)
