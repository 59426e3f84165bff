"""What every test may use. A test that needs a program of others (a ztunnel, an API server) asks for it by name and
gets the path of its executable. Where the program is not there, the test is skipped, and says why; where the run
requires the program, the test fails."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest

PEERS: Mapping[str, str] = {
    "ztunnel": "ZTUNNEL_BIN",
    "istioctl": "ISTIOCTL_BIN",
    "kube-apiserver": "KUBE_APISERVER_BIN",
    "etcd": "ETCD_BIN",
    "envoy": "ENVOY_BIN",
    "browser": "BROWSER_BIN",
}
"""Name of a peer, and the environment variable that holds the path of its executable."""


MACHINE = ("network-namespaces",)
"""What a test may need of the machine itself, by names that `AMBIENTD_REQUIRE` may hold too."""


def require(peer: str) -> Path:
    """Path of a real peer's executable. Skips the calling test when it is absent; fails it when `AMBIENTD_REQUIRE`, a
    comma list of peers, names it, so that a run that promises a peer cannot pass without it. A variable that is set and
    leads to no executable always fails: somebody meant the test to run."""
    variable = PEERS[peer]
    path = os.environ.get(variable, "")
    if path:
        if not os.access(path, os.X_OK) or not Path(path).is_file():
            pytest.fail(f"{variable} must be the path of an executable {peer}, got {path!r}", pytrace=False)
        return Path(path)
    lacks(f"needs a real {peer}: set {variable} to its path", peer)


def lacks(reason: str, *needed: str) -> NoReturn:
    """Skips the calling test for want of something, or fails it where the run requires any of that."""
    required = {name.strip() for name in os.environ.get("AMBIENTD_REQUIRE", "").split(",")} - {""}
    known = {*PEERS, *MACHINE}
    if unknown := required - known:
        pytest.fail(f"AMBIENTD_REQUIRE must name peers of {sorted(known)}, got {sorted(unknown)}", pytrace=False)
    if missing := required.intersection(needed):
        pytest.fail(f"required by AMBIENTD_REQUIRE: {', '.join(sorted(missing))}; {reason}", pytrace=False)
    pytest.skip(reason)
