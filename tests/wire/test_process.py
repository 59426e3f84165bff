"""The server's process as tests hold it: it never outlives them, and one that ends by itself is noticed."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.kube import processes
from tests.kube.processes import Program, are_gone, descendants, free_port
from tests.wire import process
from tests.wire.process import ServerProcess, eventually

ROOT = Path(__file__).parents[2]

_STARTER = "import sys; from pathlib import Path; from tests.wire.process import ServerProcess; "
_START = _STARTER + "ServerProcess(Path(sys.argv[1]), Path(sys.argv[2]))"

# Of an API server that nobody has ever seen: a server that waits for it does not become ready.
_KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: none
contexts: [{name: none, context: {cluster: none, user: none}}]
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: none, user: {token: none}}]
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_server_ends_with_whoever_starts_it_even_while_that_waits(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "kubeconfig").write_text(_KUBECONFIG)
    log = tmp_path / "log"
    arguments = [sys.executable, "-c", _START, str(tmp_path / "kubeconfig"), str(log)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(arguments, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as starter:
        eventually(lambda: log.exists() and b"\t" in log.read_bytes(), "the server says something")
        servers = descendants(starter.pid)
        assert servers
        starter.send_signal(how)
        assert starter.wait(timeout=20) != 0
    eventually(lambda: are_gone(servers), "the server is gone")


def test_a_program_outlives_the_thread_in_which_it_was_started(tmp_path: Path) -> None:
    started: list[Program] = []

    def start() -> None:
        started.append(Program(Path("/bin/sh"), ["-c", "echo begun; sleep 60"], tmp_path / "log"))
        eventually(lambda: started[0].last_words() == "begun", "it runs")

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    time.sleep(0.2)  # for what should not come
    assert started[0].is_running
    started[0].kill()


def test_a_server_that_cannot_start_is_told_of_with_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "mesh").mkdir()
    with pytest.raises(AssertionError) as told:
        ServerProcess(tmp_path / "mesh", tmp_path / "log", "--grpc-addr", "nowhere")
    first, _, said = str(told.value).partition("\n")
    assert first == f"the server ended with exit status 2; its output is in {tmp_path}/log:"
    assert said.startswith("ambientd: --grpc-addr: must be an address such as ")


@pytest.mark.parametrize(
    ("program", "how"), [("exit 0", "exit status 0"), ("exit 7", "exit status 7"), ("kill -9 $$", "SIGKILL")]
)
def test_a_program_that_ended_by_itself_is_told_of_in_one_line(tmp_path: Path, program: str, how: str) -> None:
    started = Program(Path("/bin/sh"), ["-c", program], tmp_path / "log")
    eventually(lambda: not started.is_running, "it has ended")
    with pytest.raises(AssertionError) as told:
        started.check()
    assert str(told.value) == f"sh ended with {how}; its output is in {tmp_path}/log:\n"


def test_another_program_on_its_port_is_not_taken_for_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mesh").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(process, "free_port", lambda: other.getsockname()[1])
        with pytest.raises(AssertionError, match="address already in use"):
            ServerProcess(tmp_path / "mesh", tmp_path / "log")


def test_a_port_that_was_given_and_is_not_listened_on_yet_is_not_given_again() -> None:
    ports = [free_port() for _ in range(1000)]
    assert len(set(ports)) == len(ports)


def test_a_port_that_somebody_listens_on_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = free_port()
    monkeypatch.setattr(processes, "_numbers", itertools.count(taken - processes.PORTS.start))
    with socket.create_server(("127.0.0.1", taken)):
        assert free_port() != taken
