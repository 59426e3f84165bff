"""What of a Namespace matters to the objects in it. Must not know those objects."""

from __future__ import annotations

from msgspec import Struct

from ambientd.index.declarations import Reader, on_demand
from ambientd.index.inputs import NAMESPACES
from ambientd.index.mesh import mesh_of
from ambientd.resources.ref import Labels, Ref


class NamespaceView(Struct, frozen=True, gc=False):
    name: str
    is_discovered: bool
    """False: the objects in it do not exist for us (operations.md 8)."""
    labels: Labels
    """Empty for a Namespace that is not known."""
    annotations: Labels


def _gather_namespace(name: str, read: Reader) -> NamespaceView:
    mesh = mesh_of(read)
    held = read.get(NAMESPACES, Ref(mesh.rules.cluster_id, "Namespace", "", name))
    selectors = mesh.discovery_selectors
    if held is None:
        # With selectors, a Namespace that is not known yet is not discovered yet.
        return NamespaceView(name, is_discovered=not selectors, labels=(), annotations=())
    is_discovered = not selectors or any(selector.matches(held.labels) for selector in selectors)
    return NamespaceView(name, is_discovered, held.labels, held.annotations)


NAMESPACE_VIEWS = on_demand("namespace views", _gather_namespace)
"""By name, whether the Namespace exists or not."""


def _gather_discovered(name: str, read: Reader) -> bool:
    return namespace_of(name, read).is_discovered


_DISCOVERED = on_demand("discovered namespaces", _gather_discovered)


def namespace_of(name: str, read: Reader) -> NamespaceView:
    """The view of a namespace, for rules that read its labels or annotations."""
    return read.get(NAMESPACE_VIEWS, name) or NamespaceView(name, is_discovered=False, labels=(), annotations=())


def is_discovered(name: str, read: Reader) -> bool:
    """Whether objects of this namespace exist for us; other changes of the Namespace do not reach who asks this."""
    found = read.get(_DISCOVERED, name)
    return bool(found)


DECLARATIONS = (NAMESPACES, NAMESPACE_VIEWS, _DISCOVERED)
