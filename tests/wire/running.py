"""A server without a source, which a test feeds, and a client of it on a real connection that reads only when it is
told to. No test stands here."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse

from ambientd.app import App
from ambientd.ctl.connection import METHOD
from ambientd.ctl.ztunnel import ADDRESS, AUTHORIZATION, SimulatedZtunnel
from ambientd.index.inputs import NODES
from ambientd.resources.core import Node
from ambientd.resources.events import Event, Put, Synced
from ambientd.resources.kinds import KINDS
from ambientd.resources.ref import Ref
from ambientd.settings import load as load_settings
from tests.cases.loader import Served, golden

_FIELDS = {ADDRESS: "address", AUTHORIZATION: "authorization"}


class Running:
    """A server with nothing around it but its gRPC port; this test is the source of its objects."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        flags = {"grpc-addr": "127.0.0.1:0", "http-addr": "127.0.0.1:0", "monitoring-addr": ""}
        self.app = App(load_settings(flags, environment, strict=False)[0])
        self._emitted = 0

    async def emit(self, events: Iterable[Event]) -> None:
        """Hands over one batch, and comes back when it is committed."""
        self._emitted += 1
        mark = Ref(self.app.settings.cluster_id, "Node", "", f"mark-{self._emitted}")
        self.app.pump.emit([*events, Put(Node(mark, region="", zone="", subzone=""))])
        while self.app.world.graph.get(NODES, mark) is None:
            await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self, first: Iterable[Event]) -> AsyncIterator[None]:
        """The server with these objects from the start."""
        app = self.app
        pumping = asyncio.create_task(app.pump.run())
        try:
            await self.emit([*first, *(Synced(app.settings.cluster_id, kind) for kind in KINDS)])
            await app.pump.ready()
            await app.grpc.open()
            app.is_open = True
            yield
        finally:
            await app.grpc.close(0)
            pumping.cancel()


class Client:
    """A ztunnel on one stream. It reads only when it is told to."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[DeltaDiscoveryRequest, DeltaDiscoveryResponse],
        ztunnel: SimulatedZtunnel,
    ) -> None:
        self._call = call
        self._asked = 0
        self._ztunnel = ztunnel
        self.sent: defaultdict[str, list[str]] = defaultdict(list)
        """Names since the last `pushed`, by the fields of `expect.pushed`."""

    @classmethod
    @asynccontextmanager
    async def connected(cls, port: int, ztunnel: SimulatedZtunnel | None = None) -> AsyncIterator[Client]:
        """A new stream, of a ztunnel that holds nothing or of one that was here before."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            method = channel.stream_stream(
                METHOD,
                request_serializer=DeltaDiscoveryRequest.SerializeToString,
                response_deserializer=DeltaDiscoveryResponse.FromString,
            )
            client = cls(method(), ztunnel or SimulatedZtunnel())  # type: ignore[call-arg]  # requests are written one by one
            for request in client._ztunnel.first_requests():
                await client._call.write(request)
            while not client._ztunnel.is_ready:
                await client._read()
            yield client
            client._call.cancel()

    async def come_to_rest(self) -> None:
        """Takes everything that the server has to say. A question is answered before a round that has not begun, and
        after one that has; so the second answer comes after all rounds that were due at the first question."""
        for _ in range(2):
            self._asked += 1
            name = f"nobody/{self._asked}"
            await self._call.write(DeltaDiscoveryRequest(type_url=ADDRESS, resource_names_subscribe=[name]))
            while name not in await self._read():
                pass

    async def _read(self) -> list[str]:
        """Takes and answers one response; the names that it removes."""
        response = await self._call.read()
        assert isinstance(response, DeltaDiscoveryResponse), f"the stream is over: {await self._call.details()}"
        applied = self._ztunnel.apply(response)
        assert not applied.answer.HasField("error_detail"), applied.answer.error_detail.message
        await self._call.write(applied.answer)
        field = _FIELDS[response.type_url]
        removed = list(response.removed_resources)
        self.sent[field] += [resource.name for resource in response.resources]
        self.sent[f"removed_{field}"] += [name for name in removed if not name.startswith("nobody/")]
        return removed

    def pushed(self) -> dict[str, list[str]]:
        """What was sent since the last call, each name as often as it was."""
        sent = {field: sorted(names) for field, names in self.sent.items() if names}
        self.sent.clear()
        return sent

    def held(self) -> Served:
        ztunnel = self._ztunnel
        address: dict[str, Any] = {name: {"workload": golden(each)} for name, each in ztunnel.workloads.items()}
        address |= {name: {"service": golden(each)} for name, each in ztunnel.services.items()}
        return Served(address, {name: golden(each) for name, each in ztunnel.policies.items()})
