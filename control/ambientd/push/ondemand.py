"""What one on-demand client holds and wants to know: the keys that it asked for, and what was sent to it (xds.md 8.5,
with its corrections). Must not know nonces or acknowledgements."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable

from ambientd.index.rendered import RenderedAddress
from ambientd.push.directory import Directory, Found, base_address, canonical_key
from ambientd.push.frames import ADDRESS
from ambientd.push.moves import AddressMove, Claims, Moves, listed_at, listed_then
from ambientd.push.transitions import UNKNOWN, Listed
from ambientd.push.views import Entry, Seq, View

_YIELD_EVERY = 256


class Interest:
    """The subscriptions of one on-demand stream."""

    def __init__(self, node: str, *, wakes_by_removal: bool) -> None:
        self.node = node
        self._wakes_by_removal = wakes_by_removal
        """The client waits for its very key: a hit by alias also lists the key as removed (xds.md 19.20 a)."""
        self._keys: dict[str, None] = {}
        """What was asked for, in canonical form."""
        self.held: set[str] = set()
        """Primary names that were sent, and whose changes are sent."""

    def subscriptions(self) -> list[str]:
        return sorted({*self._keys, *self.held})

    def knows(self, name: str) -> bool:
        """Whether it is among the subscriptions."""
        return name in self._keys or name in self.held

    def unknown(self, names: Iterable[str]) -> Generator[None, None, list[str]]:
        """Those that are not among the subscriptions, and are names."""
        found = []
        for at, name in enumerate(names):
            if at % _YIELD_EVERY == 0:
                yield
            if name != "*" and not self.knows(name):
                found.append(name)
        return found

    def unsubscribe(self, names: Collection[str], view: View[RenderedAddress]) -> Generator[None, None, bool]:
        """Forgets names and keys; never an object that another key still stands for. Whether there were any."""
        has_changed = False
        for at, name in enumerate(names):
            if at % _YIELD_EVERY == 0:
                yield
            key = canonical_key(name)
            if key in self._keys:
                del self._keys[key]
                has_changed = has_changed or key not in self.held
        for at, name in enumerate(names):
            if at % _YIELD_EVERY == 0:
                yield
            if name in self.held and not self._has_key_of(view.rendered(name)):
                self.held.remove(name)
                has_changed = has_changed or name not in self._keys
        return has_changed

    def find(
        self, asked: Collection[str], directory: Directory, view: View[RenderedAddress]
    ) -> Generator[None, None, Found]:
        """What stands under these keys, with what belongs to the client's node and what all this refers to. No commit
        may come in between; if one does, it can be done again."""
        found = Found()
        names: dict[str, None] = {}
        for key in asked:
            yield
            standing = directory.find(key, view)
            self._keys[canonical_key(key)] = None
            names.update(dict.fromkeys(standing))
            if not standing or (self._wakes_by_removal and key not in standing and view.rendered(key) is None):
                found.missed.append(key)
        if self.node:
            names.update(dict.fromkeys(name for name in directory.on_node(self.node) if name not in self.held))
        names.update(dict.fromkeys(self._referenced(names, directory, view)))
        for name in names:
            entry = view.get(name)
            if entry is not None and entry.rendered is not None:
                found.entries[name] = entry
        return found

    def moves(
        self,
        moves: Moves,
        changed: Iterable[Entry[RenderedAddress]],
        found: Found,
        claims: Claims,
        cursor: Seq | None,
        to: Seq,
        directory: Directory,
        view: View[RenderedAddress],
    ) -> Generator[None, None, None]:
        """Adds what this client must learn: which of the changed entries concern it, and what they bring with them, and
        what was found. `cursor`: the commit that it holds; None: it holds what it claims."""
        told: dict[str, AddressMove] = {}
        brought: dict[str, None] = {}
        for at, entry in enumerate(changed):
            if at % _YIELD_EVERY == 0:
                yield
            if not self._concerns(entry):
                continue
            old = self._old(entry, claims, cursor, view)
            if entry.rendered is None:
                if old is not None:
                    told[entry.name] = AddressMove(entry.name, None, old)
                continue
            told[entry.name] = AddressMove(entry.name, entry.rendered, old)
            brought.update(dict.fromkeys(self._referenced([entry.name], directory, view)))
            if entry.name not in self.held and not entry.rendered.is_workload:
                brought.update(dict.fromkeys(directory.members(entry.name)))
            self.held.add(entry.name)
        for at, (name, entry) in enumerate(found.entries.items()):
            if at % _YIELD_EVERY == 0:
                yield
            assert entry.rendered is not None
            if name not in told and (name in self.held or claims.get(name) != entry.rendered.version):
                told[name] = AddressMove(name, entry.rendered, self._old(entry, claims, cursor, view))
            self.held.add(name)
        for at, key in enumerate(found.missed):
            if at % _YIELD_EVERY == 0:
                yield
            if claims.get(key):
                told[key] = AddressMove(key, None, UNKNOWN)
            else:
                moves.absent.append((ADDRESS, key))
        for name in brought:
            known = view.get(name)
            if name in self.held or known is None or known.rendered is None:
                continue
            if known.seq > to:
                self._keys[name] = None  # it changed since the cut, so the next round brings it
            else:
                self.held.add(name)
                told[name] = AddressMove(name, known.rendered, None)
        moves.addresses.extend(told.values())

    def _old(
        self, entry: Entry[RenderedAddress], claims: Claims, cursor: Seq | None, view: View[RenderedAddress]
    ) -> Listed:
        if cursor is not None and entry.name in self.held:
            return listed_at(entry, cursor)
        claimed = claims.get(entry.name)
        return None if claimed is None else listed_then(view, entry.name, claimed)

    def _concerns(self, entry: Entry[RenderedAddress]) -> bool:
        if entry.name in self.held or entry.name in self._keys:
            return True
        rendered = entry.rendered
        if rendered is None:
            return False
        if self.node and rendered.node == self.node:
            return True
        return any(service in self.held for service in rendered.services) or self._has_key_of(rendered)

    def _has_key_of(self, rendered: RenderedAddress | None) -> bool:
        """Something was asked for that stands for this, other than its name."""
        if rendered is None:
            return False
        aliases = rendered.aliases if rendered.is_workload else map(base_address, rendered.aliases)
        return any(alias in self._keys for alias in aliases)

    def _referenced(self, names: Iterable[str], directory: Directory, view: View[RenderedAddress]) -> Iterable[str]:
        """Waypoints and gateways that these name, with all that their keys stand for, transitively (xds.md 8.5.7)."""
        seen = dict.fromkeys(names)
        waiting = list(seen)
        found: dict[str, None] = {}
        while waiting:
            rendered = view.rendered(waiting.pop())
            for reference in () if rendered is None else rendered.references:
                self._keys[canonical_key(reference)] = None
                for name in directory.find(reference, view):
                    if name not in seen:
                        seen[name] = found[name] = None
                        waiting.append(name)
        return found
