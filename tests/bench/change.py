"""One pod's change, from its JSON to the encoded response that every stream shares, at several sizes of the mesh."""

from __future__ import annotations

import json
import time

from ambientd.resources.decode import decode
from ambientd.resources.events import Put
from tests.bench import mesh
from tests.bench.report import Bench, report, spread

SIZES = (1_000, 10_000, 50_000, 100_000)
CHANGES = 4_000


def measure(pods: int) -> tuple[float, float]:
    bench = Bench(pods)
    samples = []
    for number in range(CHANGES):
        # Every pod that is touched goes from ready to unready or back, so that each change is one.
        which = number * 7919 % pods
        is_ready = number // pods % 2 == 1
        raw = json.dumps(mesh.pod(which, ready=is_ready)).encode()
        cursor = bench.feed.head
        started_s = time.perf_counter()
        value, faults = decode(raw, "Pod", "Kubernetes")
        parts = bench.commit([Put(value, faults=faults)], cursor)
        samples.append(time.perf_counter() - started_s)
        assert len(parts) == 1
    report("one pod's change", pods=pods, **spread(samples))
    ordered = sorted(samples)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]


def main() -> None:
    by_size = {pods: measure(pods) for pods in SIZES}
    small, large = by_size[SIZES[0]], by_size[SIZES[-1]]
    report(
        "growth of one pod's change",
        from_pods=SIZES[0],
        to_pods=SIZES[-1],
        p50_ratio=large[0] / small[0],
        p99_ratio=large[1] / small[1],
    )


if __name__ == "__main__":
    main()
