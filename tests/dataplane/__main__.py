"""`hack/dataplane`: what it does is in `by_hand.py`. Signals are attended to before that is imported, which takes a
second."""

from __future__ import annotations

import signal
import sys

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _interrupt(*_: object) -> None:
    # Once is enough: what is being taken down is not left half taken down.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> None:
    # Also where a shell has its background jobs ignore interrupts; everything is taken down.
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    try:
        from tests.dataplane.by_hand import run

        run(sys.argv[1:])
    except KeyboardInterrupt:
        raise SystemExit("hack/dataplane: interrupted; everything is taken down") from None


if __name__ == "__main__":
    main()
