"""The composition root: the only module that knows all the parts. Builds them from the settings, starts them in the
order of operations.md 3.2, and ends them in that of 3.5."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import stat
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Never

import structlog
from msgspec.structs import replace

from ambientd.auditing import Auditor, audit
from ambientd.ca.waiting import Waiters
from ambientd.debug.access import Gate
from ambientd.debug.http import HttpServers
from ambientd.debug.metrics import Metrics
from ambientd.explain.describe import Description, describe, ref_of
from ambientd.index.pods import PodIndex
from ambientd.index.world import World
from ambientd.pump import Pump
from ambientd.push.feed import Feed
from ambientd.resources.events import Event, Invalid, Put
from ambientd.secure import CannotSecure, Secure
from ambientd.settings import Settings
from ambientd.sources.files import watch_folder
from ambientd.sources.mesh_file import watch_mesh_file
from ambientd.sources.watches import Watch
from ambientd.stalls import watch_stalls
from ambientd.xds.connections import Registry
from ambientd.xds.server import CannotListen, check_listen, plain_server
from ambientd.xds.service import Service

if TYPE_CHECKING:
    from ambientd.kube.api import Api
    from ambientd.sources.kubernetes import Cluster

log = structlog.get_logger("app")


class CannotStart(Exception):
    """Why the server cannot start, in one line for the operator."""


class App:
    """One running control plane."""

    def __init__(self, settings: Settings) -> None:
        """Raises CannotStart."""
        self.settings = settings
        self.metrics = Metrics()
        self._mesh_file = Path(settings.mesh_config_file)
        self._has_mesh_file = _is_there(self._mesh_file)
        self.world = World(replace(settings.rules(), has_mesh_file=self._has_mesh_file))
        self.pods = PodIndex(settings.cluster_id)
        self.waiters = Waiters()
        """Requests for certificates of pods that are just appearing."""
        self.feed = Feed(_nonces())
        self.registry = Registry()
        self.pump = Pump(
            self.world,
            self.feed,
            cluster=settings.cluster_id,
            announce=self.registry.announce,
            watcher=self.metrics,
        )
        self.ads = Service(
            self.feed,
            self.registry,
            self.metrics,
            is_ready=self.is_ready,
            cluster_aliases=dict(settings.cluster_aliases),
            serves_ztunnels=settings.ambient,
        )
        self.secure = Secure(
            settings, world=self.world, pods=self.pods, waiters=self.waiters, ads=self.ads, metrics=self.metrics
        )
        guard = self.secure.guard(is_demanding=settings.security.authenticate_plaintext)
        self.grpc = plain_server(settings, self.ads, guard)
        self.cluster: Cluster | None = None
        """The API server that objects come from; None while they come from a folder."""
        self._api: Api | None = None
        """For objects, tokens, secrets and roots alike; None beside a folder."""
        self._secured: list[asyncio.Task[None]] = []
        self.is_stopping = False
        self.is_open = False

    def is_ready(self) -> bool:
        """Everything was listed and committed, the ports accept, and we are not on our way out."""
        return self.is_open and self.pump.is_ready and not self.is_stopping

    def watches(self) -> list[Watch]:
        """How the watch of each kind is doing; none of a folder."""
        return [] if self.cluster is None else self.cluster.watches

    def authority(self) -> dict[str, object]:
        """The certificate authority, and the last refusals."""
        return self.secure.page()

    def refresh(self) -> None:
        """What is measured by looking."""
        self.secure.refresh()

    def describe(self, kind: str, namespace: str, name: str) -> Description:
        """Raises NoSuchKind."""
        return describe(self.world, ref_of(self.settings.cluster_id, kind, namespace, name))

    def _emit(self, events: Sequence[Event]) -> None:
        """Takes what a source saw, and says what is wrong with it."""
        # Before anything is derived: who hears of a pod by a push finds it here.
        self.waiters.appeared(self.pods.apply(events))
        self.secure.apply(events)
        self.metrics.inbound(events)
        for event in events:
            if isinstance(event, Invalid | Put) and event.faults:
                faults = [str(fault) for fault in event.faults]
                log.warning("there is something wrong", object=str(event.ref), faults=faults)
        self.pump.emit(events)

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop`. Raises CannotStart."""
        source = self._source()
        gate = Gate(self.secure.authenticate_request, self.secure.root_namespace)
        http = HttpServers(self, gate)
        try:
            self.secure.know(self._api)
            check_listen(self.settings.grpc_addr, "--grpc-addr")
            await http.start()
        except (CannotListen, CannotSecure) as error:
            raise CannotStart(str(error)) from None
        try:
            async with self._api or nullcontext(), asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(source(), name="source"),
                    tasks.create_task(self.pump.run(), name="pump"),
                    tasks.create_task(watch_stalls(self.metrics.stalled), name="stalls"),
                    tasks.create_task(self._open(tasks), name="open"),
                ]
                if self._has_mesh_file:
                    running.append(
                        tasks.create_task(watch_mesh_file(self._mesh_file, self._emit), name="mesh configuration")
                    )
                if self.settings.audit_interval_s is not None:
                    auditor = Auditor(self.world, self.feed, self.metrics)
                    auditing = audit(auditor, self.pump, self.settings.audit_interval_s)
                    running.append(tasks.create_task(auditing, name="audit"))
                await stop.wait()
                await self._close()
                for task in (*running, *self._secured):
                    task.cancel()
        except* (CannotListen, CannotSecure, CannotStart) as errors:
            raise CannotStart(str(errors.exceptions[0])) from None
        finally:
            await http.stop()

    def _source(self) -> Callable[[], Coroutine[None, None, Never]]:
        """Where objects come from: a folder if one is given, else an API server. Raises CannotStart."""
        settings = self.settings
        if settings.config_dir:
            folder = Path(settings.config_dir)
            _check_folder(folder)
            return lambda: watch_folder(folder, settings.cluster_id, self._emit)
        # The official client takes 36 MB, which a mesh in a folder need not pay for.
        from ambientd.kube.access import find_origin
        from ambientd.kube.api import Api
        from ambientd.kube.credentials import Credentials
        from ambientd.kube.errors import Misconfigured
        from ambientd.sources.kubernetes import Cluster, Hopeless

        try:
            origin = find_origin(settings.kubeconfig, os.environ)
        except Misconfigured as error:
            raise CannotStart(str(error)) from None
        self._api = Api(
            Credentials(origin, os.environ),
            per_s=settings.kubernetes_api_qps,
            burst=settings.kubernetes_api_burst,
            user_agent=f"ambientd/{self.metrics.version}",
        )
        self.cluster = cluster = Cluster(
            self._api,
            settings.cluster_id,
            self._emit,
            namespace=settings.namespace,
            mesh_config_map=settings.rules().mesh_config_map,
        )

        async def reflect() -> Never:
            try:
                await cluster.run()
            except Hopeless as error:
                raise CannotStart(str(error)) from error

        return reflect

    async def _open(self, tasks: asyncio.TaskGroup) -> None:
        """Opens the gRPC ports once there is a whole state to serve."""
        while True:
            try:
                async with asyncio.timeout(5):
                    await self.pump.ready()
                    break
            except TimeoutError:
                log.info("waiting for objects", kinds=", ".join(self.pump.missing()))
        await self.secure.open()
        for work in self.secure.running():
            self._secured.append(tasks.create_task(work, name="secure"))
        await self.grpc.open()
        # What is there by now stays, modules above all: a full collection need not walk it, for 20 ms, again and again.
        gc.freeze()
        self.is_open = True
        log.info(
            "ready",
            grpc_port=self.grpc.port,
            secure_grpc_port=0 if self.secure.server is None else self.secure.server.port,
            workloads_and_services=self.feed.addresses.served,
            policies=self.feed.policies.served,
        )

    async def _close(self) -> None:
        self.is_stopping = True
        log.info("shutting down", streams=len(self.registry))
        if self.is_open:
            drain_s = self.settings.shutdown_s / 2
            grace_s = self.settings.shutdown_s
            closing = [asyncio.create_task(server.close(grace_s)) for server in (self.grpc, self.secure)]
            await self.registry.drain(min(drain_s, 0.02 * len(self.registry)))
            await asyncio.gather(*closing)


def serve(settings: Settings) -> None:
    """Runs a server until SIGINT or SIGTERM. Raises CannotStart."""

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, stop.set)
        await App(settings).run(stop)

    asyncio.run(main())


def _check_folder(folder: Path) -> None:
    try:
        os.listdir(folder)
    except OSError as error:
        raise CannotStart(
            f"--config-dir: cannot read {folder}: {(error.strerror or str(error)).lower()}; "
            "give a folder of manifests that this user may read"
        ) from None


def _is_there(mesh_file: Path) -> bool:
    """Whether there is a file with the mesh configuration."""
    try:
        mode = os.stat(mesh_file).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CannotStart(
            f"--mesh-config: cannot read {mesh_file}: {reason}; give a file that this user may read, or remove the flag"
        ) from None
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "something else"
        raise CannotStart(
            f"--mesh-config: must be a file, and {mesh_file} is {what}; give the file, or remove the flag"
        )
    return True


def _nonces() -> Callable[[], str]:
    """Nonces that are unique on every stream, across restarts too."""
    run = uuid.uuid4().hex
    numbers = itertools.count(1)
    return lambda: f"{run}-{next(numbers)}"
