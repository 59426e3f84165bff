"""Where to find addresses by what on-demand clients ask for: alias, service, node (workloads.md 8.3, services.md 13).
Built when the first such client comes. Must not know clients."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from msgspec import Struct

from ambientd.index.ips import ip_text, parse_ip
from ambientd.index.rendered import RenderedAddress
from ambientd.push.views import Entry, View, live

_YIELD_EVERY = 256


def canonical_key(key: str) -> str:
    """A key whose address part, if it has one, is in canonical text, so that two spellings are one (xds.md 8.5.1)."""
    network, slash, rest = key.partition("/")
    raw = parse_ip(rest) if slash else None
    return key if raw is None else f"{network}/{ip_text(raw)}"


class Found(Struct):
    """What stands under the keys of a request at one commit."""

    entries: dict[str, Entry[RenderedAddress]] = {}
    missed: list[str] = []
    """Keys that are listed as removed."""


class Directory:
    """Names by alias, service and node. Kept up while commits are settled, so it must be read between them."""

    def __init__(self) -> None:
        self._workloads_by_alias: dict[str, set[str]] = {}
        self._services_by_alias: dict[str, set[str]] = {}
        self._members: dict[str, set[str]] = {}
        self._by_node: dict[str, set[str]] = {}

    def build(self, view: View[RenderedAddress]) -> Generator[None, None, None]:
        """Takes in a view that commits may change meanwhile; what they change comes through `update`."""
        for at, (entry, rendered) in enumerate(live(view.entries())):
            if at % _YIELD_EVERY == 0:
                yield
            if view.get(entry.name) is entry:
                self._add(rendered)

    def update(self, old: RenderedAddress | None, new: RenderedAddress | None) -> None:
        if old is not None:
            self._remove(old)
        if new is not None:
            self._add(new)

    def lists(self, rendered: RenderedAddress) -> bool:
        """Whether an address is found under everything that it is found by."""
        return all(rendered.name in table.get(key, ()) for table, key in self._places(rendered))

    def strays(self, view: View[RenderedAddress]) -> Generator[tuple[str, str] | None, None, None]:
        """Key and name of what is found where it does not belong, each taken out at once; None: nothing here. Commits
        may come in between."""
        for table in (self._workloads_by_alias, self._services_by_alias, self._members, self._by_node):
            for key in list(table):
                for name in list(table.get(key, ())):
                    rendered = view.rendered(name)
                    if rendered is not None and any(t is table and k == key for t, k in self._places(rendered)):
                        yield None
                        continue
                    _discard(table, key, name)
                    yield key, name

    def members(self, service: str) -> list[str]:
        return sorted(self._members.get(service, ()))

    def on_node(self, node: str) -> list[str]:
        return sorted(self._by_node.get(node, ()))

    def find(self, key: str, view: View[RenderedAddress]) -> list[str]:
        """Primary names of what a key stands for: a workload by uid; else workloads by network and address; else a
        service by name or address, with all its workloads. Empty: nothing."""
        named = view.rendered(key)
        if named is not None and named.is_workload:
            return [key]
        if "/" not in key:
            return []
        canonical = canonical_key(key)
        workloads = self._workloads_by_alias.get(canonical)
        if workloads:
            return sorted(workloads)
        if named is not None:
            return [key, *self.members(key)]
        services = sorted(
            self._services_by_alias.get(canonical, ()), key=lambda name: (not _is_canonical(view, name), name)
        )
        return [services[0], *self.members(services[0])] if services else []

    def standing(self, keys: Iterable[str], view: View[RenderedAddress]) -> Generator[None, None, Found]:
        """What stands under these keys. No commit may come in between; if one does, it can be done again."""
        found = Found()
        for key in keys:
            yield
            names = self.find(key, view)
            for name in names:
                entry = view.get(name)
                if entry is not None and entry.rendered is not None:
                    found.entries[name] = entry
            if not names:
                found.missed.append(key)
        return found

    def _add(self, rendered: RenderedAddress) -> None:
        for table, key in self._places(rendered):
            table.setdefault(key, set()).add(rendered.name)

    def _remove(self, rendered: RenderedAddress) -> None:
        for table, key in self._places(rendered):
            _discard(table, key, rendered.name)

    def _places(self, rendered: RenderedAddress) -> Iterable[tuple[dict[str, set[str]], str]]:
        aliases = self._workloads_by_alias if rendered.is_workload else self._services_by_alias
        for alias in rendered.aliases:
            # A range is found under its base address only (services.md 13).
            yield aliases, alias if rendered.is_workload else base_address(alias)
        for service in rendered.services:
            yield self._members, service
        if rendered.node:
            yield self._by_node, rendered.node


def _discard(table: dict[str, set[str]], key: str, name: str) -> None:
    names = table.get(key)
    if names is not None:
        names.discard(name)
        if not names:
            del table[key]


def base_address(alias: str) -> str:
    """The alias of the first address of a range; any other alias as it is."""
    network, _, address = alias.partition("/")
    return f"{network}/{address.partition('/')[0]}"


def _is_canonical(view: View[RenderedAddress], name: str) -> bool:
    rendered = view.rendered(name)
    return rendered is not None and rendered.is_canonical
