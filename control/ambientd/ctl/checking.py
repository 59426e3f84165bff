"""Whether a running server is well, in words. What is asked is in `ask`; what is wrong in what was answered is said by
`complaints`, which is pure. Must not change anything."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Sequence

from msgspec import Struct

from ambientd.ctl.snapshot import TIMEOUT_S, Failed, Plain, ask_page

_WORTH_TELLING_S = 60.0
"""A watch that is interrupted for less is on its way back."""


class Health(Struct, frozen=True):
    """What a server says of itself."""

    is_ready: bool
    watches: list[Plain]
    problems: list[Plain]


def ask(ready_url: str, debug_url: str) -> Health:
    """Raises Failed when the server does not answer."""
    return Health(_ask_ready(ready_url), ask_page(debug_url, "watches"), ask_page(debug_url, "problems"))


def _ask_ready(url: str) -> bool:
    where = f"{url.rstrip('/')}/ready"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(where, timeout=TIMEOUT_S):
            return True
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return False
        raise Failed(f"{where} answered {error.code} {error.reason}; is it ambientd?") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        text = getattr(reason, "strerror", None) or reason
        raise Failed(f"{where} does not answer: {text}; start a server, or give --ready-url") from None


def complaints(health: Health) -> list[str]:
    """What is wrong, one line each, the gravest first; empty: nothing."""
    unlisted = [watch for watch in health.watches if not watch["isListed"]]
    lines = []
    if not health.is_ready:
        kinds = ", ".join(watch["kind"] for watch in unlisted)
        lines.append("not ready: " + (f"waits for {kinds}" if kinds else "it starts or ends just now"))
    for watch in unlisted:
        lines.append(f"{_name(watch)}: not listed yet ({watch['state']}): {watch['reason'] or 'no answer so far'}")
    for watch in health.watches:
        lines += _watch_complaints(watch)
    lines += [_problem_line(problem) for problem in health.problems]
    return lines


def _watch_complaints(watch: Plain) -> list[str]:
    if watch["state"] == "unsupported":
        return [f"{_name(watch)}: left out: {watch['reason']}"]
    outdated_s = watch["outdatedForSeconds"] or 0.0
    if watch["isListed"] and outdated_s >= _WORTH_TELLING_S:
        return [f"{_name(watch)}: may be out of date for {outdated_s:.0f} s: {watch['reason']}"]
    return []


def _name(watch: Plain) -> str:
    return f"{watch['kind']} in {watch['cluster']}"


def _problem_line(problem: Plain) -> str:
    served = "" if problem["is_served"] else " (not served)"
    return f"{problem['object']}{served}: {'; '.join(problem['faults'])}"


def verdict(health: Health, lines: Sequence[str]) -> str:
    """One line for the whole."""
    if lines:
        return f"{len(lines)} thing{'' if len(lines) == 1 else 's'} to look at"
    absent = [watch["kind"] for watch in health.watches if watch["state"] == "absent"]
    text = f"all is well: ready, {len(health.watches) - len(absent)} kinds watched"
    return text + (f", {', '.join(absent)} not installed" if absent else "") if health.watches else "all is well: ready"
