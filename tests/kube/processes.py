"""Programs that tests start: their output goes to a file, and they end with the tests, however those end. Must not know
what a program is for."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

# Becomes the program after asking the kernel to kill it with its parent: a test run that is itself killed calls no
# finaliser. The kernel means the thread that started it, so that must be one that lives as long as the process. In a
# process of its own because code between fork and exec of a process with threads may deadlock.
_BECOME = """
import ctypes, os, sys
ctypes.CDLL(None, use_errno=True).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""

_LASTING = ThreadPoolExecutor(1, "starts programs")
# Begun here, before anybody has entered a network namespace: a thread stays in that of the one that begins it.
_LASTING.submit(int)


class Program:
    """A started program. Not in the terminal's process group: an interrupt reaches the tests, whose finalisers then
    kill it."""

    def __init__(
        self,
        executable: Path,
        arguments: Sequence[str],
        log: Path,
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`folder` and `environment`: those of the tests, without them. Its network namespace is that of the main
        thread if it is started there, else the one in which the tests began."""
        self.name = executable.name
        self.log = log
        with log.open("ab") as output:
            start = partial(
                subprocess.Popen[bytes],
                [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), str(executable), *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            is_main = threading.current_thread() is threading.main_thread()
            self._process = start() if is_main else _LASTING.submit(start).result()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def check(self, name: str = "") -> None:
        """Raises AssertionError when it has ended, with how and what it said last. `name`: what to call it instead of
        its executable."""
        code = self._process.poll()
        if code is not None:
            how = f"exit status {code}" if code >= 0 else signal.Signals(-code).name
            told = f"{name or self.name} ended with {how}; its output is in {self.log}"
            raise AssertionError(f"{told}:\n{self.last_words()}")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """At once, without its cooperation; returns when it is gone. Of a program that has ended it asks nothing."""
        self._process.kill()
        self._process.wait()

    def wait(self, within_s: float) -> int:
        """Its exit status, once it has ended. Raises TimeoutExpired."""
        return self._process.wait(timeout=within_s)

    def last_words(self, lines: int = 15) -> str:
        """The end of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def descendants(pid: int) -> set[int]:
    """The processes that a process has started, and those that they have, as far as they run."""
    parents = {each: _parent(each) for each in map(int, filter(str.isdigit, os.listdir("/proc")))}
    found: set[int] = set()
    new = {pid}
    while new:
        new = {each for each, parent in parents.items() if parent in new}
        found |= new
    return found


def are_gone(pids: set[int]) -> bool:
    """None of them runs. One that nobody has waited for does not."""
    return not any(_parent(pid) for pid in pids)


def _parent(pid: int) -> int:
    """0 when it has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if state in "ZX" else int(parent)


def free_port() -> int:
    """A loopback TCP port on which nobody listens now. Below the kernel's range for outgoing connections, so that none
    of those takes it while the program that has it is restarted; and not given again soon, to this process or, with
    overwhelming likelihood, to another, since a program takes a while until it listens on what it was given."""
    for number in itertools.islice(_numbers, len(PORTS)):
        port = PORTS[number % len(PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free loopback port between {PORTS.start} and {PORTS.stop}")


PORTS = range(20000, 32000)
_numbers = itertools.count(random.randrange(len(PORTS)))
