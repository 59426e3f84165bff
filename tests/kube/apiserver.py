"""A real API server over a real etcd, on loopback, for tests: started, killed, restarted, rewound and compacted as they
ask. There is no kubelet and there are no controllers: a test writes pods, their statuses and slices itself, and nothing
answers its writes. Must not know what tests prove with it."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from msgspec import Struct

from tests.kube.certificates import write_cluster_files
from tests.kube.client import Client
from tests.kube.processes import Program, free_port

ADMIN_TOKEN = "admin-token"
"""May do everything."""

NOBODY_TOKEN = "nobody-token"
"""Token of user `nobody`, who may do what a test grants with RBAC, and discover."""

# Generous: several of these start at once on two slow cores.
_READY_WITHIN_S = 120.0

# What would touch a test's objects, or refuse them for want of a controller or a kubelet.
_WITHOUT_ADMISSION = ("ServiceAccount", "TaintNodesByCondition", "DefaultTolerationSeconds")


class Snapshot(Struct, frozen=True):
    """What etcd held at one moment, as a copy of its folder."""

    folder: Path
    revision: int


@asynccontextmanager
async def running(etcd: Path, kube_apiserver: Path, prefix: str) -> AsyncIterator[ApiServer]:
    """A server with the custom kinds that we read, in a folder of its own, for as long as the block."""
    # Not pytest's own temporary folder, which is kept: etcd alone preallocates 64 MB.
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        server = ApiServer(etcd, kube_apiserver, Path(folder))
        try:
            await server.start()
            async with server.client() as client:
                await client.install_crds()
            yield server
        finally:
            server.kill()


class ApiServer:
    """One etcd and one kube-apiserver, with everything that they need in one folder. Addresses and credentials outlive
    restarts. To be started from the main thread (see `Program`), in any event loop; usable from every loop after that.

    `flags` are appended to kube-apiserver's own, and the last one of a name wins."""

    def __init__(self, etcd: Path, kube_apiserver: Path, folder: Path, *, flags: Sequence[str] = ()) -> None:
        self._executables = (etcd, kube_apiserver)
        self._folder = folder
        self._flags = tuple(flags)
        self._programs: list[Program] = []
        self._snapshots = 0
        self._was_ready = False
        self.files = write_cluster_files(folder)
        (folder / "tokens.csv").write_text(
            f"{ADMIN_TOKEN},admin,admin,system:masters\n{NOBODY_TOKEN},nobody,nobody\n", "ascii"
        )
        self._choose_ports()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return bool(self._programs) and all(program.is_running for program in self._programs)

    async def start(self) -> None:
        """Returns when the server is ready and has made its own namespaces. Raises RuntimeError with the end of a
        program's output when one ends, or when they are not ready after two minutes."""
        for attempt in range(1, 4):
            try:
                await self._start_once()
                self._was_ready = True
                return
            except RuntimeError as error:
                self.kill()
                # Somebody else took a port between the look and the use. Once clients know the ports, they stay.
                if "address already in use" not in str(error) or self._was_ready or attempt == 3:
                    raise
                shutil.rmtree(self._folder / "etcd", ignore_errors=True)
                self._choose_ports()
            except BaseException:
                self.kill()
                raise

    def kill(self) -> None:
        """Both programs, at once, as a machine that loses power. What was acknowledged stays."""
        for program in reversed(self._programs):
            program.kill()
        self._programs.clear()

    async def restart(self) -> None:
        """Kills both and starts them again at the same addresses, with what etcd held. The server's watch cache begins
        anew, so a watch from a version before the restart may be told 410."""
        self.kill()
        await self.start()

    def pause(self) -> None:
        """Both stop where they are: connections stay, and are silent."""
        for program in self._programs:
            program.signal(signal.SIGSTOP)

    def resume(self) -> None:
        for program in self._programs:
            program.signal(signal.SIGCONT)

    def kubeconfig(self, *, server: str = "", token: str = ADMIN_TOKEN) -> Path:
        """A configuration file for this server, or for one in front of it that shows the same certificate."""
        server = server or self.url
        path = self._folder / f"kubeconfig-{server.rpartition(':')[2]}-{token}.json"
        configuration = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [
                {
                    "name": "test",
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": base64.b64encode(self.files.ca.read_bytes()).decode(),
                    },
                }
            ],
            "users": [{"name": "test", "user": {"token": token}}],
        }
        path.write_text(json.dumps(configuration, indent=1))  # JSON is YAML
        return path

    def client(self, *, server: str = "", token: str = ADMIN_TOKEN) -> Client:
        """To be entered with `async with`, in the loop that uses it."""
        return Client(server or self.url, self.files.ca, token)

    async def revision(self) -> int:
        """etcd's present revision: the newest resource version of any object."""
        answer = await self.etcd("kv/range", {"key": base64.b64encode(b"/registry/x").decode()})
        return int(answer["header"]["revision"])

    async def compact(self, revision: int | None = None) -> int:
        """Makes etcd forget what was before a revision (the present one by default), which is returned. The API server
        still answers from its watch cache where it can: a version that must be gone for everybody needs a restart too,
        or a server without one (`--watch-cache=false`)."""
        at = await self.revision() if revision is None else revision
        await self.etcd("kv/compaction", {"revision": str(at), "physical": True})
        return at

    async def etcd_snapshot(self) -> Snapshot:
        """What etcd holds now, without a pause that a client could see."""
        self._snapshots += 1
        folder = self._folder / f"etcd-snapshot-{self._snapshots}"
        revision = await self.revision()
        etcd = self._programs[0]
        # A copy made while the program stands still is what its folder would be if it were killed now.
        etcd.signal(signal.SIGSTOP)
        try:
            shutil.copytree(self._folder / "etcd", folder)
        finally:
            etcd.signal(signal.SIGCONT)
        return Snapshot(folder=folder, revision=revision)

    async def etcd_restore(self, snapshot: Snapshot) -> None:
        """Kills both and starts them with what a snapshot holds: objects written since are gone, and resource versions
        go back, as after a restored backup."""
        self.kill()
        shutil.rmtree(self._folder / "etcd")
        shutil.copytree(snapshot.folder, self._folder / "etcd")
        await self.start()

    def _choose_ports(self) -> None:
        self.port = free_port()
        self._etcd_port = free_port()
        self._peer_port = free_port()

    async def _start_once(self) -> None:
        etcd, kube_apiserver = self._executables
        self._programs.append(Program(etcd, self._etcd_arguments(), self._folder / "etcd.log"))
        arguments = [*self._server_arguments(), *self._flags]
        self._programs.append(Program(kube_apiserver, arguments, self._folder / "kube-apiserver.log"))
        deadline = time.monotonic() + _READY_WITHIN_S
        async with self.client() as client:
            while not await self._is_ready(client):
                for program in self._programs:
                    if not program.is_running:
                        raise RuntimeError(f"{program.name} ended before it was ready:\n{program.last_words()}")
                if time.monotonic() > deadline:
                    words = "\n".join(program.last_words() for program in self._programs)
                    raise RuntimeError(f"the API server was not ready within {_READY_WITHIN_S} s:\n{words}")
                await asyncio.sleep(0.1)

    async def _is_ready(self, client: Client) -> bool:
        try:
            if await client.status("/readyz") != 200:
                return False
            # Made by the server after it is ready. Without the Service no address can be given to another one.
            return await client.status("/api/v1/namespaces/default/services/kubernetes") == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _etcd_arguments(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        return [
            f"--data-dir={self._folder / 'etcd'}",
            "--name=test",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=test={peer}",
            # The kernel outlives a killed etcd, and what was written with it; only its own end would lose anything.
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _server_arguments(self) -> list[str]:
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            # Only tests compact.
            "--etcd-compaction-interval=0",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={self.files.serving_certificate}",
            f"--tls-private-key-file={self.files.serving_key}",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self.files.account_public_key}",
            f"--service-account-signing-key-file={self.files.account_key}",
            "--service-cluster-ip-range=10.0.0.0/9,fd00::/64",
            # Its own slices would hold this machine's address.
            "--endpoint-reconciler-type=none",
            f"--disable-admission-plugins={','.join(_WITHOUT_ADMISSION)}",
            "--allow-privileged=true",
        ]

    async def etcd(self, method: str, request: dict[str, Any]) -> dict[str, Any]:
        """One call of etcd's API as JSON. Raises RuntimeError with etcd's answer."""
        url = f"http://127.0.0.1:{self._etcd_port}/v3/{method}"
        async with aiohttp.ClientSession() as session, session.post(url, json=request) as answer:
            if answer.status != 200:
                raise RuntimeError(f"etcd refused {method} {request}: {answer.status} {await answer.text()}")
            result: dict[str, Any] = await answer.json()
            return result
