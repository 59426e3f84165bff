"""How the cost of a change grows with the mesh: each change is made again and again in a small and in a large one, from
the decoded event to the bytes of the round, as the running server does it. `python -m tests.bench.growth [--pods 1000
50000] [--only WORD]` prints one JSON line per figure. Times are for reading, not for asserting: what must not grow is
counted in tests/unit/test_growth_counts.py.

`p50_ms`, `p99_ms`, `max_ms`: of all repetitions. `ratio`: the p50 of the last size over that of the first.
`longest_ms`: the longest piece of work between two moments at which others could run, in processor time, so that other
programs do not count; the server's own bound is 20."""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from ambientd.index.rules import Rules
from ambientd.index.world import World
from ambientd.pump import stage_outputs
from ambientd.push.feed import Feed
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.resources.decode import decode
from ambientd.resources.events import Delete, Event, Put
from ambientd.resources.ref import Ref
from ambientd.slices import Step, new_slice
from tests.bench import mesh

CLUSTER = "Kubernetes"


def put(manifest: dict[str, Any]) -> Put:
    return Put(decode(json.dumps(manifest).encode(), manifest["kind"], CLUSTER)[0])


def gone(kind: str, namespace: str, name: str) -> Delete:
    return Delete(Ref(CLUSTER, kind, namespace, name))


def configured(**fields: Any) -> Put:
    return put(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "istio", "namespace": "istio-system"},
            "data": {"mesh": json.dumps(fields)},
        }
    )


class Figure(Struct, frozen=True):
    """One change and the ones that lead back, made in turn."""

    name: str
    turns: tuple[Event, ...]
    repetitions: int
    before: tuple[Event, ...] = ()
    """What is there while it is measured; all of it is deleted afterwards."""


def figures() -> Iterator[Figure]:
    """Those that touch a part of the mesh, and then those that touch all of it."""
    yield Figure("a pod's readiness", (put(mesh.pod(7, ready=False)), put(mesh.pod(7))), 2000)
    other = {"app": "app-7", "version": "v2"}
    yield Figure("a service's selector", (put(mesh.service(0, 7, other)), put(mesh.service(0, 7))), 500)
    yield Figure(
        "a slice of 1,000 endpoints that loses one and gains one",
        (put(mesh.slice_(0, 7, 1000)), put(mesh.slice_(0, 7, 1000, first=1))),
        100,
        (put(mesh.slice_(0, 7, 1000)),),
    )
    yield Figure("a namespace's label", (put(mesh.namespace(0, team="a")), put(mesh.namespace(0))), 500)
    yield Figure("a node's locality", (put(mesh.node(0, "z9")), put(mesh.node(0))), 500)
    yield Figure(
        "a PeerAuthentication of one namespace",
        (put(mesh.peer_authentication("ns-0", "STRICT")), gone("PeerAuthentication", "ns-0", "default")),
        500,
    )
    use = {"istio.io/use-waypoint": "wp"}
    yield Figure(
        "a waypoint that becomes ready",
        (put(mesh.gateway("ns-0", "wp")), put(mesh.gateway("ns-0", "wp", is_ready=False))),
        500,
        (put(mesh.namespace(0, **use)), put(mesh.gateway("ns-0", "wp", is_ready=False))),
    )
    skips = {"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]}
    yield Figure(
        "discovery selectors that leave one namespace out",
        (configured(discoverySelectors=[skips]), configured()),
        20,
        (configured(), put(mesh.namespace(0, skip="yes"))),
    )
    yield Figure(
        "a mesh-wide policy",
        (put(mesh.policy("istio-system", "all", None, "8080")), gone("AuthorizationPolicy", "istio-system", "all")),
        500,
    )
    yield Figure(
        "a mesh-wide PeerAuthentication",
        (
            put(mesh.peer_authentication("istio-system", "STRICT")),
            gone("PeerAuthentication", "istio-system", "default"),
        ),
        20,
    )


class Server:
    """Index, feed, and the position of a client that reads everything at once."""

    def __init__(self, pods: int) -> None:
        nonces = itertools.count()
        self.world = World(Rules())
        self.feed = Feed(lambda: f"n{next(nonces)}")
        self.longest_s = 0.0
        self.commit([Put(decode(raw, kind, CLUSTER)[0]) for kind, raw in mesh.objects(pods)])

    def commit(self, events: Sequence[Event]) -> float:
        """Seconds from the events to the bytes of the round; what is folded in afterwards is not counted."""
        started_s = time.perf_counter()
        cursors = {ADDRESS: self.feed.head, AUTHORIZATION: self.feed.head}
        self.feed.at(1, self.feed.head)
        transaction = self.world.begin(events)
        self._in_slices(transaction.step)
        stage = stage_outputs(transaction, self.feed)
        self._in_slices(stage.step)
        transaction.commit()
        self.feed.commit(stage.result)
        self._in_slices(self.feed.round(cursors).step)
        took_s = time.perf_counter() - started_s
        self._in_slices(transaction.settle)
        self._in_slices(self.feed.settle().step)
        return took_s

    def _in_slices(self, step: Step) -> None:
        is_done = False
        while not is_done:
            started_s = time.thread_time()
            is_done = step(new_slice())
            self.longest_s = max(self.longest_s, time.thread_time() - started_s)


def measured(server: Server, figure: Figure) -> dict[str, float]:
    """One figure in one mesh, in milliseconds."""
    if figure.before:
        server.commit(figure.before)
    for event in figure.turns:
        server.commit([event])
    server.longest_s = 0.0
    turns = itertools.islice(itertools.cycle(figure.turns), figure.repetitions)
    times_s = sorted(server.commit([event]) for event in turns)
    found = {
        "p50_ms": times_s[len(times_s) // 2],
        "p99_ms": times_s[len(times_s) * 99 // 100],
        "max_ms": times_s[-1],
        "longest_ms": server.longest_s,
    }
    _put_back(server, figure)
    return {name: round(seconds * 1000, 3) for name, seconds in found.items()}


def _put_back(server: Server, figure: Figure) -> None:
    refs = {event.object.ref for event in (*figure.before, *figure.turns) if isinstance(event, Put)}
    original = {"Namespace": mesh.namespace(0), "Node": mesh.node(0), "Pod": mesh.pod(7), "Service": mesh.service(0, 7)}
    server.commit([put(original[ref.kind]) if ref.kind in original else Delete(ref) for ref in refs])


def main(arguments: Sequence[str] | None = None, out: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.growth")
    parser.add_argument("--pods", type=int, nargs="+", default=[1_000, 50_000], help="sizes of the mesh, ascending")
    parser.add_argument("--only", default="", help="figures whose name holds this word")
    asked = parser.parse_args(arguments)
    wanted = [figure for figure in figures() if asked.only in figure.name]
    found: dict[str, dict[str, dict[str, float]]] = {figure.name: {} for figure in wanted}
    for pods in asked.pods:
        server = Server(pods)
        gc.collect()
        gc.freeze()  # as the server does after a large commit
        for figure in wanted:
            found[figure.name][str(pods)] = measured(server, figure)
        gc.unfreeze()
    for figure in wanted:
        by_pods = found[figure.name]
        first, last = by_pods[str(asked.pods[0])], by_pods[str(asked.pods[-1])]
        ratio = round(last["p50_ms"] / first["p50_ms"], 2) if first["p50_ms"] else None
        line = {"figure": figure.name, "repetitions": figure.repetitions, "by_pods": by_pods, "ratio": ratio}
        out(json.dumps(line))


if __name__ == "__main__":
    main()
