"""Network namespaces of the kernel, made and removed by tests, with an address each on a bridge of their own. Nothing
of this touches the network of the machine. Needs root and the programs `ip` and `iptables-restore`. Must not know what
is a node and what is a pod."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PROGRAMS = ("ip", "iptables-restore")
_CLONE_NEWNET = 0x40000000
FOLDER = Path("/run/netns")
"""Where `ip netns` keeps the names of namespaces."""

_LIBC = ctypes.CDLL(None, use_errno=True)


def missing() -> str:
    """Why no namespace can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "root is needed"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    try:
        with Namespace(f"ambientd-{os.getpid()}-probe"):
            return ""
    except RuntimeError as error:
        return str(error)


def run(*arguments: str, given: str = "") -> None:
    """Runs a program to its end. Raises RuntimeError with what it said when it fails."""
    done = subprocess.run(arguments, input=given, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip() or done.returncode}")


class Namespace:
    """One network namespace, with a thread that lives in it. Names are seen by `ip netns`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = FOLDER / name
        run("ip", "netns", "add", name)
        try:
            self.file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            self._thread = ThreadPoolExecutor(1, f"in-{name}", initializer=_enter, initargs=(self.file,))
            self.run("ip", "link", "set", "lo", "up")
        except BaseException:
            run("ip", "netns", "delete", name)
            raise

    def call(self, work: Callable[[], T]) -> T:
        """What some work gives that is done in this namespace: sockets that it opens and programs that it starts stay
        here, whoever uses them later."""
        return self._thread.submit(work).result()

    def run(self, *arguments: str, given: str = "") -> None:
        """As `run` of this module, in here."""
        self.call(lambda: run(*arguments, given=given))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread is in here meanwhile, and so are the threads and programs that it starts."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        _enter(self.file)
        try:
            yield
        finally:
            _enter(before)
            os.close(before)

    def close(self) -> None:
        """Removes it; it goes as soon as no program and no socket is left in it."""
        self._thread.shutdown()
        os.close(self.file)
        run("ip", "netns", "delete", self.name)

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Bridge:
    """A namespace with a bridge in it, and everything that is joined to that. It has an address there itself."""

    def __init__(self, prefix: str, address: str, length: int) -> None:
        """`prefix`: of the names of all its namespaces, at most ten characters. All addresses are within one network of
        this prefix length."""
        self._prefix = prefix
        self._length = length
        self._joined: list[Namespace] = []
        self.inside = Namespace(f"{prefix}-bridge")
        try:
            self._script(
                "link add br0 type bridge forward_delay 0", "link set br0 up", f"addr add {address}/{length} dev br0"
            )
        except BaseException:
            self.close()
            raise

    def join(self, name: str, address: str) -> Namespace:
        """A new namespace with this address, on the bridge."""
        namespace = Namespace(f"{self._prefix}-{name}")
        self._joined.append(namespace)
        # A name of an interface has at most 15 characters, so it is a number here.
        port = _port(namespace)
        self._script(
            f"link add {port} type veth peer name eth0 netns {namespace.name}",
            f"link set {port} master br0",
            f"link set {port} up",
        )
        commands = (f"addr add {address}/{self._length} dev eth0", "link set eth0 up")
        namespace.run("ip", "-batch", "-", given="\n".join(commands))
        return namespace

    def leave(self, namespace: Namespace) -> None:
        """Removes a namespace that joined. Its connections are cut even if somebody still holds their sockets."""
        self._joined.remove(namespace)
        self._script(f"link delete {_port(namespace)}")
        namespace.close()

    def close(self) -> None:
        for namespace in [*reversed(self._joined), self.inside]:
            namespace.close()
        self._joined.clear()

    def _script(self, *commands: str) -> None:
        self.inside.run("ip", "-batch", "-", given="\n".join(commands))


def _port(namespace: Namespace) -> str:
    return f"port{namespace.file}"


def _enter(namespace: int) -> None:
    if _LIBC.setns(namespace, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
