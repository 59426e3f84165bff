"""Plays random histories against the naive model until so many events were played, or something differs."""

from __future__ import annotations

import argparse
import sys
import time

from tests.property.oracle import first_difference


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1_000, help="the first of the histories")
    parser.add_argument("--batches", type=int, default=60, help="of each history")
    arguments = parser.parse_args()
    played, seed, started_s = 0, arguments.seed, time.monotonic()
    while played < arguments.events:
        found, events = first_difference(seed, arguments.batches)
        if found:
            print("\n".join(found), file=sys.stderr)
            return 1
        played += events
        seed += 1
        if seed % 50 == 0:
            print(
                f"{played} events, {seed - arguments.seed} histories, {time.monotonic() - started_s:.0f} s", flush=True
            )
    print(f"{played} events in {seed - arguments.seed} histories: nothing differs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
