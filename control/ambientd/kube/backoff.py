"""How long to wait before something is tried again. Pure: chance is handed in. Must not wait."""

from __future__ import annotations

from collections.abc import Callable

LONGEST_RETRY_AFTER_S = 300.0
"""What a server asks for beyond it is not believed, seconds."""


class Backoff:
    """Doubles from one failure to the next up to a ceiling, with a random part, so that replicas which failed together
    do not come back together."""

    def __init__(self, first_s: float, ceiling_s: float, chance: Callable[[], float]) -> None:
        """`chance`: a number from 0 to 1, another one at each call."""
        self._first_s = first_s
        self._ceiling_s = ceiling_s
        self._chance = chance
        self._failures = 0

    def next_s(self, retry_after_s: float = 0.0) -> float:
        """Seconds to wait after one more failure: half to all of the present step, but no less than the server asked
        for."""
        # The exponent is bounded, as a power of a thousand failures is no float.
        step_s = min(self._ceiling_s, self._first_s * 2.0 ** min(self._failures, 30))
        self._failures += 1
        wait_s = step_s * (0.5 + 0.5 * self._chance())
        asked_s = min(retry_after_s, LONGEST_RETRY_AFTER_S)
        return max(wait_s, asked_s * (1 + 0.2 * self._chance()))

    def reset(self) -> None:
        """Things went well for long enough."""
        self._failures = 0
