"""A rig for each test of this folder."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import lacks, require
from tests.dataplane.mesh import Mesh
from tests.dataplane.namespaces import missing
from tests.dataplane.rig import Rig

why_not = functools.cache(missing)


@pytest.fixture
def rig() -> Iterator[Rig]:
    if reason := why_not():
        lacks(f"needs network namespaces: {reason}", "network-namespaces")
    # A socket's path has at most 107 characters, which pytest's own folders may use up.
    with tempfile.TemporaryDirectory(prefix="ambientd-rig-") as folder:
        with Rig(Path(folder)) as rig:
            yield rig
            made = rig.namespaces()
        assert not {each.name for each in made}.intersection(os.listdir("/run/netns"))


@pytest.fixture
def mesh(rig: Rig, tmp_path: Path) -> Iterator[Mesh]:
    """Two nodes with real ztunnels, over a folder."""
    mesh = Mesh(rig, tmp_path, require("ztunnel"))
    with mesh.running():
        yield mesh
