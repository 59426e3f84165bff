"""Decoding and indexing a mesh: time, settled memory, and the marginal memory of a workload between two sizes. Sizes in
pods as arguments; each size runs in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.bench.report import Bench, report, rss_bytes

SIZES = (1_000, 10_000, 50_000, 100_000)


def measure(pods: int) -> None:
    before = rss_bytes()
    bench = Bench(pods)
    after = rss_bytes()
    report(
        "build",
        pods=pods,
        decode_s=bench.decode_s,
        decode_us_per_object=bench.decode_s / bench.objects * 1e6,
        index_s=bench.index_s,
        index_us_per_object=bench.index_s / bench.objects * 1e6,
        settled_rss_bytes=after,
        rss_growth_bytes=after - before,
        bytes_per_workload=(after - before) / pods,
    )


def main() -> None:
    if len(sys.argv) == 2:
        measure(int(sys.argv[1]))
        return
    settled: dict[int, int] = {}
    for pods in SIZES:
        line = subprocess.run(
            [sys.executable, "-m", "tests.bench.build", str(pods)], check=True, capture_output=True, text=True
        ).stdout
        print(line, end="", flush=True)
        settled[pods] = json.loads(line)["settled_rss_bytes"]
    marginal = (settled[50_000] - settled[10_000]) / 40_000
    report("marginal memory", from_pods=10_000, to_pods=50_000, bytes_per_workload=marginal)


if __name__ == "__main__":
    main()
