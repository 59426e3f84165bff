"""How an object is named, and the small values that every object shares. Must not import anything of ours."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from msgspec import Struct

ClusterId = str
Labels = tuple[tuple[str, str], ...]
"""Label pairs in order of their keys. Equal label sets are one object (`intern_labels`), since replicas share them."""


class Ref(Struct, frozen=True, order=True, gc=False, cache_hash=True):
    """The name of one object: cluster, kind, namespace (empty for cluster kinds), name; one total order everywhere."""

    cluster: ClusterId
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


_interned: dict[Labels, Labels] = {}
_INTERNED_LABELS_LIMIT = 1 << 17


def intern_labels(labels: Mapping[str, str] | Iterable[tuple[str, str]]) -> Labels:
    """The labels as sorted pairs; the same object for equal labels, while fewer than 131,072 sets are in use."""
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    ordered: Labels = tuple(sorted((sys.intern(key), sys.intern(value)) for key, value in pairs))
    if len(_interned) >= _INTERNED_LABELS_LIMIT:
        # A bound instead of a count of uses: sharing saves memory only, so starting over is always right.
        _interned.clear()
    return _interned.setdefault(ordered, ordered)


def label(labels: Labels, key: str) -> str | None:
    """The value of a label, None when the key is absent (an empty value is present)."""
    for name, value in labels:
        if name == key:
            return value
    return None
