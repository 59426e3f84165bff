"""The real server as a process of its own, on a folder and free loopback ports; and a client of it."""

from __future__ import annotations

import difflib
import os
import queue
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pprint import pformat

import grpc
from envoy.service.discovery.v3 import ads_pb2_grpc
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse

from ambientd.ctl.ztunnel import SimulatedZtunnel
from tests.kube.processes import Program, free_port

PATIENCE_S = 20.0


def eventually(holds: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    """Waits until something holds; fails with `what` when it does not in time."""
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)


def eventually_equal(values: Callable[[], tuple[object, object]], what: str, within_s: float = PATIENCE_S) -> None:
    """Waits until two values are equal; shows how they differ when they are not in time."""
    deadline_s = time.monotonic() + within_s
    while True:
        one, other = values()
        if one == other:
            return
        if time.monotonic() > deadline_s:
            lines = difflib.unified_diff(pformat(one).splitlines(), pformat(other).splitlines(), lineterm="")
            raise AssertionError(f"not within {within_s:g} s: {what}\n" + "\n".join(lines))
        time.sleep(0.05)


class ServerProcess:
    """`ambientd serve` on a folder, or on an API server."""

    def __init__(self, folder: Path, log: Path, *flags: str, **environment: str) -> None:
        """`folder`: of manifests, or a kubeconfig file; `flags`: after the others, so that they win."""
        self.folder = folder
        self._source = ("--kubeconfig" if folder.is_file() else "--config-dir", str(folder))
        self._flags = flags
        self.grpc_port, self.http_port, self.monitoring_port = free_port(), free_port(), free_port()
        self._log = log
        self._environment = environment
        self._program: Program | None = None
        self.start()

    def start(self) -> None:
        """Returns when it is ready; when that is broken off, the server is not left behind."""
        arguments = [
            *("-c", "import sys; from ambientd.cli import main; sys.exit(main())"),
            *("serve", *self._source),
            *("--grpc-addr", f"127.0.0.1:{self.grpc_port}"),
            *("--http-addr", f"127.0.0.1:{self.http_port}"),
            *("--monitoring-addr", f"127.0.0.1:{self.monitoring_port}"),
            *self._flags,
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **self._environment}
        # Its own word: on its port, until it has it, another program might answer.
        before = self._times_ready()
        program = self._program = Program(Path(sys.executable), arguments, self._log, environment=environment)
        try:
            eventually(lambda: self._times_ready() > before or not program.is_running, "the server is ready")
            program.check("the server")
        except BaseException:
            program.kill()
            raise

    def _times_ready(self) -> int:
        return self.log().count(f"\tready\tgrpc_port={self.grpc_port} ")

    @property
    def pid(self) -> int:
        assert self._program is not None
        return self._program.pid

    def log(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self._log.read_text()) if self._log.exists() else ""

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ends the server; its exit code."""
        assert self._program is not None
        self._program.signal(how)
        return self._program.wait(PATIENCE_S)


@contextmanager
def serving(folder: Path, log: Path, *flags: str, **environment: str) -> Iterator[ServerProcess]:
    """A running server, ended at the end."""
    server = ServerProcess(folder, log, *flags, **environment)
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)


class WireClient:
    """A simulated ztunnel on a real connection, which it pings every second. A thread takes and acknowledges what
    comes, so that a test reads as a story."""

    def __init__(
        self,
        port: int,
        ztunnel: SimulatedZtunnel | None = None,
        *,
        root: bytes | None = None,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """`root`: PEM of the bundle to verify the server with; None: there is no TLS."""
        self.ztunnel = ztunnel or SimulatedZtunnel()
        self.responses: list[DeltaDiscoveryResponse] = []
        self.ended: grpc.StatusCode | None = None
        """How the stream ended."""
        self._outgoing: queue.SimpleQueue[DeltaDiscoveryRequest | None] = queue.SimpleQueue()
        for request in self.ztunnel.first_requests():
            self._outgoing.put(request)
        self.detail = ""
        if root is None:
            self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_PINGING)
        else:
            self._channel = grpc.secure_channel(
                f"localhost:{port}", grpc.ssl_channel_credentials(root), options=_PINGING
            )
        stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(self._channel)
        self._call = stub.DeltaAggregatedResources(iter(self._outgoing.get, None), metadata=metadata)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            for response in self._call:
                self.responses.append(response)
                self._outgoing.put(self.ztunnel.apply(response).answer)
        except grpc.RpcError:
            self.detail = self._call.details()
            self.ended = self._call.code()

    def close(self) -> None:
        self._outgoing.put(None)
        self._call.cancel()
        self._channel.close()


_PINGING = (
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    # A connection of its own: gRPC shares those of equal channels.
    ("grpc.use_local_subchannel_pool", 1),
)
