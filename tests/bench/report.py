"""One JSON line per figure: what was measured, on which size, and its spread. Absolute times differ between machines;
compare ratios."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Sequence
from typing import Any

from ambientd.index.rules import Rules
from ambientd.index.world import World
from ambientd.pump import stage_outputs
from ambientd.push.feed import Feed
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.push.rounds import Part
from ambientd.resources.decode import decode
from ambientd.resources.events import Event, Put
from tests.bench import mesh


def report(figure: str, **fields: Any) -> None:
    """Prints one line."""
    rounded = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in fields.items()}
    print(json.dumps({"figure": figure, **rounded}), flush=True)


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """p50, p99, maximum and count of some durations in seconds, in microseconds."""
    ordered = sorted(samples)
    return {
        "p50_us": ordered[len(ordered) // 2] * 1e6,
        "p99_us": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e6,
        "max_us": ordered[-1] * 1e6,
        "samples": len(ordered),
    }


def rss_bytes() -> int:
    """Resident memory of this process, after a full collection."""
    gc.collect()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def put(manifest: dict[str, Any]) -> Put:
    """A manifest as the event of a source, through the decoder."""
    raw = json.dumps(manifest).encode()
    value, faults = decode(raw, manifest["kind"], "Kubernetes")
    return Put(value, faults=faults)


class Bench:
    """Index and feed of a mesh, without a server around them."""

    def __init__(self, pods: int, raws: list[tuple[str, bytes]] | None = None) -> None:
        """A synthetic mesh of that size; with `raws`, these objects, each with its kind."""
        self.world = World(Rules())
        numbers = iter(range(1 << 62))
        self.feed = Feed(lambda: str(next(numbers)))
        raws = list(mesh.objects(pods)) if raws is None else raws
        started_s = time.perf_counter()
        events: list[Event] = []
        for kind, raw in raws:
            value, faults = decode(raw, kind, "Kubernetes")
            events.append(Put(value, faults=faults))
        self.decode_s = time.perf_counter() - started_s
        self.objects = len(raws)
        del raws
        started_s = time.perf_counter()
        self.commit(events)
        self.index_s = time.perf_counter() - started_s
        del events
        gc.collect()
        gc.freeze()

    def encode(self) -> float:
        """Seconds that it takes to encode what the first client without any state is sent."""
        started_s = time.perf_counter()
        for type_url in (ADDRESS, AUTHORIZATION):
            self.feed.full(type_url, {}).run()
        return time.perf_counter() - started_s

    def commit(self, events: Sequence[Event], cursor: int | None = None) -> tuple[Part, ...]:
        """One commit, from events to a settled feed; with `cursor`, what clients there are sent."""
        transaction = self.world.begin(events)
        transaction.step(_never)
        staged = stage_outputs(transaction, self.feed).run()
        transaction.commit()
        self.feed.commit(staged)
        parts: tuple[Part, ...] = ()
        if cursor is not None:
            parts = self.feed.round({ADDRESS: cursor, AUTHORIZATION: cursor}).run().parts
        transaction.settle(_never)
        self.feed.settle().run()
        return parts


def _never() -> bool:
    return False
