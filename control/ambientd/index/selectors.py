"""Whose selector matches given labels. Records with a selector are filed under its first pair: whoever has all pairs
has the first one, so nobody else need be looked at. Must not know what the records are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

from ambientd.index.declarations import Index, Reader
from ambientd.resources.ref import Labels

Pair = tuple[str, str]


class Selecting(Protocol):
    """A record that selects workloads of its namespace, or of every namespace if that is the root namespace."""

    @property
    def namespace(self) -> str: ...

    @property
    def selector(self) -> Labels:
        """In order of the keys; empty: it selects nothing."""
        ...


S = TypeVar("S", bound=Selecting)


def by_first_pair(record: Selecting) -> tuple[tuple[str, Pair], ...]:
    """Where an index files a record: by its namespace and the first pair of its selector."""
    return ((record.namespace, record.selector[0]),) if record.selector else ()


def selecting(index: Index[tuple[str, Pair], S], namespace: str, labels: Labels, read: Reader) -> Iterator[S]:
    """The records of a namespace that select a workload with these labels; `index` is one `by_first_pair`."""
    held = frozenset(labels)
    for pair in labels:
        for record in read.under(index, (namespace, pair)):
            if held.issuperset(record.selector):
                yield record
