"""Who runs where, now: pods by name, and by account and node. Updated when an event arrives, before any derivation, so
that a certificate request never loses the race against a push. Must not read the graph, and must not wait."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ambientd.resources.core import Namespace, Pod
from ambientd.resources.events import Absent, Delete, Event, Put, Replace
from ambientd.resources.ref import ClusterId, Labels, Ref

_FINISHED = frozenset({"Succeeded", "Failed"})


class AccountRef(Struct, frozen=True, order=True, gc=False):
    """A service account."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Placement(Struct, frozen=True, gc=False):
    """An account on a node."""

    account: AccountRef
    node: str


def is_finished(pod: Pod) -> bool:
    """In a terminal phase: nothing runs in it, and nothing will again. One that is terminating still runs (ca.md 5.5,
    decisions)."""
    return pod.phase in _FINISHED


def placement_of(pod: Pod) -> Placement | None:
    """What a pod makes run where; None: nothing, since it is finished, on no node yet, or has no account (ca.md
    5.5)."""
    if is_finished(pod) or not pod.node or not pod.service_account:
        return None
    return Placement(AccountRef(pod.ref.namespace, pod.service_account), pod.node)


class PodIndex:
    """The pods of one cluster. Pods of other clusters are not seen: identities are decided where their node is."""

    def __init__(self, cluster: ClusterId) -> None:
        self.cluster = cluster
        # Pods and their refs are the same objects that the graph holds, so an entry here costs no more than its place.
        self._pods: dict[Ref, Pod] = {}
        self._running: dict[tuple[str, str, str], int] = {}
        self._labels_by_namespace: dict[str, Labels] = {}

    def __len__(self) -> int:
        return len(self._pods)

    @property
    def placements(self) -> int:
        """Pairs of account and node that have a pod."""
        return len(self._running)

    @property
    def namespaces(self) -> int:
        return len(self._labels_by_namespace)

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name, in whatever phase."""
        return self._pods.get(Ref(self.cluster, "Pod", namespace, name))

    def runs(self, account: AccountRef, node: str) -> bool:
        """Whether a pod of this account that is neither gone nor finished is on this node. Nothing is on the node
        without a name."""
        return (account.namespace, account.name, node) in self._running

    def namespace_labels(self, namespace: str) -> Labels | None:
        """None: the namespace is not known."""
        return self._labels_by_namespace.get(namespace)

    def apply(self, events: Iterable[Event]) -> tuple[Placement, ...]:
        """Takes what a source saw, and tells what runs now where it did not before. An object that cannot be read
        stays as it was, as everywhere."""
        appeared: list[Placement] = []
        for event in events:
            match event:
                case Put(object=Pod() as pod) if pod.ref.cluster == self.cluster:
                    self._put(pod, appeared)
                case Put(object=Namespace() as namespace) if namespace.ref.cluster == self.cluster:
                    self._labels_by_namespace[namespace.ref.name] = namespace.labels
                case Delete(ref=ref) if ref.cluster == self.cluster:
                    self._delete(ref)
                case Replace(cluster=self.cluster, kind="Pod" | "Namespace"):
                    self._replace(event, appeared)
                case Absent(cluster=self.cluster, kind="Pod" | "Namespace" as kind):
                    self._replace(Replace(self.cluster, kind, ()), appeared)
        # What appeared and was gone again within the same events runs nowhere.
        return tuple(placement for placement in appeared if self.runs(placement.account, placement.node))

    def _put(self, pod: Pod, appeared: list[Placement]) -> None:
        before = self._pods.get(pod.ref)
        self._pods[pod.ref] = pod
        old = None if before is None else placement_of(before)
        new = placement_of(pod)
        if old == new:
            return
        # First in, then out: a pod that moves within one account and node never leaves a gap.
        if new is not None and self._enter(new):
            appeared.append(new)
        if old is not None:
            self._leave(old)

    def _delete(self, ref: Ref) -> None:
        if ref.kind == "Namespace":
            self._labels_by_namespace.pop(ref.name, None)
        elif ref.kind == "Pod":
            gone = self._pods.pop(ref, None)
            if gone is not None and (placement := placement_of(gone)) is not None:
                self._leave(placement)

    def _replace(self, event: Replace, appeared: list[Placement]) -> None:
        kept: set[Ref] = set()
        for item in event.objects:
            kept.add(item.ref)
            if isinstance(item, Put):
                if isinstance(item.object, Pod):
                    self._put(item.object, appeared)
                elif isinstance(item.object, Namespace):
                    self._labels_by_namespace[item.ref.name] = item.object.labels
        if event.kind == "Pod":
            held = list(self._pods)
        else:
            held = [Ref(self.cluster, "Namespace", "", name) for name in self._labels_by_namespace]
        for ref in held:
            if ref not in kept:
                self._delete(ref)

    def _enter(self, placement: Placement) -> bool:
        key = (placement.account.namespace, placement.account.name, placement.node)
        count = self._running.get(key, 0)
        self._running[key] = count + 1
        return count == 0

    def _leave(self, placement: Placement) -> None:
        key = (placement.account.namespace, placement.account.name, placement.node)
        count = self._running[key] - 1
        if count:
            self._running[key] = count
        else:
            del self._running[key]
