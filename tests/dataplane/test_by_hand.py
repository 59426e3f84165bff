"""`hack/dataplane` as a shell sees it: one line that says what is wrong, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import lacks
from tests.dataplane.conftest import why_not
from tests.dataplane.namespaces import FOLDER
from tests.dataplane.rig import Rig
from tests.kube.processes import are_gone, descendants
from tests.wire.process import eventually

ROOT = Path(__file__).parents[2]


def start(scratch: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    variables = {name: value for name, value in os.environ.items() if name != "ZTUNNEL_BIN"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.dataplane", *arguments],
        cwd=ROOT,
        env={**variables, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(scratch), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def refused(running: subprocess.Popen[str]) -> str:
    """The one line of a run that fails."""
    said, complaint = running.communicate(timeout=60)
    assert (running.returncode, said, complaint.count("\n")) == (1, "", 1), (running.returncode, said, complaint)
    return complaint.rstrip("\n")


@pytest.fixture
def scratch() -> Iterator[Path]:
    """For temporary files. Sockets are among them, and a socket's path has at most 107 characters."""
    if reason := why_not():
        lacks(f"needs network namespaces: {reason}", "network-namespaces")
    with tempfile.TemporaryDirectory(prefix="ambientd-") as folder:
        yield Path(folder)


def test_without_a_ztunnel_the_variable_and_the_remedy_are_named(tmp_path: Path) -> None:
    assert refused(start(tmp_path)) == (
        "hack/dataplane: ZTUNNEL_BIN must be the path of a ztunnel, and is not set; "
        "run it as ZTUNNEL_BIN=/path/to/ztunnel hack/dataplane"
    )


@pytest.mark.parametrize("path", ["/nowhere", "/tmp", "/etc/passwd"])
def test_what_cannot_be_executed_is_no_ztunnel(tmp_path: Path, path: str) -> None:
    assert refused(start(tmp_path, ZTUNNEL_BIN=path)) == (
        f"hack/dataplane: ZTUNNEL_BIN must be the path of an executable ztunnel, got '{path}'"
    )


def test_unknown_arguments_are_refused(tmp_path: Path) -> None:
    assert refused(start(tmp_path, "--twice")) == "hack/dataplane: expected --once or nothing, got --twice"


def test_a_program_that_is_no_ztunnel_is_told_of_with_its_exit_status_and_its_output(scratch: Path) -> None:
    program = scratch / "no-ztunnel"
    program.write_text("#!/bin/sh\necho 'I am none'\nexit 3\n")
    program.chmod(0o755)
    line = refused(start(scratch, ZTUNNEL_BIN=str(program)))
    told = re.fullmatch(r"hack/dataplane: no-ztunnel ended with exit status 3; its output is in (\S+)", line)
    assert told, line
    assert Path(told[1]).read_text() == "I am none\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_start_that_was_ended(scratch: Path, how: signal.Signals) -> None:
    program = scratch / "never-ready"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    running = start(scratch, ZTUNNEL_BIN=str(program))
    # The server, its signing process, and what is taken for a ztunnel.
    eventually(lambda: len(list(scratch.glob("*/node-a/ztunnel.log"))) == 1, "a ztunnel is started")
    started = descendants(running.pid)
    assert len(started) >= 2
    running.send_signal(how)
    if how != signal.SIGKILL:
        assert refused(running) == "hack/dataplane: interrupted; everything is taken down"
        assert not list(scratch.glob("ambientd-rig-*"))
    else:
        running.communicate()
    eventually(lambda: are_gone(started), "all programs are gone")
    if how == signal.SIGKILL:
        # Nobody was left to remove the namespaces; the next rig does.
        Rig(scratch).close()
    assert not [name for name in os.listdir(FOLDER) if name.startswith(f"amb{running.pid}-")]
