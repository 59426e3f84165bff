"""The self-audit of a feed: goes round its views and its directory, compares them with the outputs of the index, and
has differences repaired by the next commit. Must not judge the outputs themselves (`index.audit` does), and must not
run while a commit is under way."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from ambientd.index.audit import Finding
from ambientd.index.declarations import Derived
from ambientd.index.graph import Graph
from ambientd.index.rendered import RenderedAddress, RenderedPolicy
from ambientd.push.feed import Feed
from ambientd.push.views import R, View


class FeedAudit:
    """Rounds over one feed, without end."""

    def __init__(
        self,
        feed: Feed,
        graph: Graph,
        *,
        addresses: Sequence[Derived[Any, RenderedAddress]],
        policies: Sequence[Derived[Any, RenderedPolicy]],
    ) -> None:
        """`addresses`, `policies`: the collections whose values the views show."""
        self._feed = feed
        self._graph = graph
        self._addresses = addresses
        self._policies = policies
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
        yield from self._view(self._feed.addresses, self._addresses)
        yield from self._view(self._feed.policies, self._policies)
        yield from self._directory()

    def _view(self, view: View[R], outputs: Sequence[Derived[Any, R]]) -> Generator[None, None, None]:
        # Names first: one that is shown now and that no output gives hereafter is left over, unless it came anew.
        names = view.names()
        given: set[str] = set()
        for output in outputs:
            for key in self._graph.keys(output):
                rendered = self._graph.get(output, key)
                if rendered is not None:
                    given.add(rendered.name)
                    self._check(view, rendered.name, rendered)
                yield
        for name in names:
            if name not in given:
                self._check(view, name, self._given(outputs, name))
            yield

    def _given(self, outputs: Sequence[Derived[Any, R]], name: str) -> R | None:
        """What the outputs give under a name; a scan, for the few whose entry may be wrong."""
        items = (item for output in outputs for _, item in self._graph.items(output))
        return next((item for item in items if item.name == name), None)

    def _check(self, view: View[R], name: str, wanted: R | None) -> None:
        held = view.rendered(name)
        self.checked += 1
        if held is not wanted and held != wanted:
            self._found.append(Finding(view.type_url, name, held, wanted))
            view.amend(name, wanted)

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

    def _misfiled(self, name: str, rendered: RenderedAddress | None, *, is_held: bool) -> None:
        """Told to on-demand clients by showing the address again: they were answered from the directory."""
        self._found.append(Finding("directory", name, is_held, not is_held, "member"))
        self._feed.addresses.amend(name, rendered)
