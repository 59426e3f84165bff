"""The gRPC service in this process, with a plain client on a loopback port (xds.md 3.5, 5, 7.3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
import grpc.aio
import pytest
from envoy.config.core.v3.base_pb2 import Node as NodeMessage
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest

from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.push.rounds import Part
from ambientd.xds.connections import Registry
from ambientd.xds.node import Node
from ambientd.xds.protocol import HOLD_FIRST_S, Note
from ambientd.xds.requests import Request
from ambientd.xds.service import SERVICE, Budget, Service
from tests.unit.conversation import Mesh, Rendered, Response, decoded, node_message, pod, policy, uid

PATIENCE_S = 20.0
"""After this time a test that waits has failed; nothing here takes as long."""


class Counts:
    """What the service told its observer."""

    def __init__(self) -> None:
        self.connected_nodes: list[Node] = []
        self.disconnected_nodes: list[Node] = []
        self.requests: list[Request] = []
        self.parts: list[Part] = []
        self.notes: list[Note] = []
        self.errors = 0
        self.unexpected_clients = 0

    def connected(self, node: Node) -> None:
        self.connected_nodes.append(node)

    def disconnected(self, node: Node) -> None:
        self.disconnected_nodes.append(node)

    def requested(self, request: Request) -> None:
        self.requests.append(request)

    def pushed(self, part: Part, send_s: float) -> None:
        self.parts.append(part)

    def converged(self, after_s: float) -> None:
        pass

    def noted(self, note: Note) -> None:
        self.notes.append(note)

    def unexpected(self) -> None:
        self.unexpected_clients += 1

    def failed(self) -> None:
        self.errors += 1


class Client:
    """One stream, as bytes."""

    def __init__(self, channel: grpc.aio.Channel, method: str = "DeltaAggregatedResources") -> None:
        raw_method: Any = channel.stream_stream
        self.call: Any = raw_method(f"/{SERVICE}/{method}")()

    async def asks(
        self, *type_urls: str, claims: dict[str, str] | None = None, node: NodeMessage | None = None
    ) -> None:
        for type_url in type_urls:
            message = DeltaDiscoveryRequest(
                type_url=type_url,
                node=node_message() if node is None else node,
                initial_resource_versions=claims or {},
            )
            await self.sends(message.SerializeToString())

    async def sends(self, raw: bytes) -> None:
        await self.call.write(raw)

    async def hears(self) -> Response:
        raw = await asyncio.wait_for(self.call.read(), PATIENCE_S)
        assert isinstance(raw, bytes), "the stream is over"
        return decoded(raw)

    async def is_ended_with(self) -> tuple[grpc.StatusCode, str]:
        """Reads to the end; the status."""
        try:
            while isinstance(await asyncio.wait_for(self.call.read(), PATIENCE_S), bytes):
                pass
        except grpc.aio.AioRpcError:
            pass
        return await self.call.code(), await self.call.details()


class Running:
    """A service that listens, and the mesh that it serves."""

    def __init__(self) -> None:
        self.mesh = Mesh()
        self.mesh.change(pod("shop/till", ip="10.0.0.1"), policy("shop/p", "NAMESPACE"))
        self.registry = Registry()
        self.counts = Counts()
        self.is_ready = True
        self._channels: list[grpc.aio.Channel] = []
        self._server: grpc.aio.Server | None = None
        self._port = 0

    async def listen(self, **limits: float) -> None:
        service = Service(
            self.mesh.feed,
            self.registry,
            self.counts,
            is_ready=lambda: self.is_ready,
            cluster_aliases={},
            **limits,  # type: ignore[arg-type]
        )
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((service.handlers(),))
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()

    async def channel(self) -> grpc.aio.Channel:
        """A connection of its own. It takes no more than 64 KiB that nobody reads."""
        if self._server is None:
            await self.listen()
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.http2.bdp_probe", 0),
        ]
        self._channels.append(grpc.aio.insecure_channel(f"127.0.0.1:{self._port}", options=options))
        return self._channels[-1]

    def changes(self, *put: Rendered, gone: Iterable[str] = ()) -> None:
        self.mesh.change(*put, gone=gone)
        self.registry.announce(set())

    async def stop(self) -> None:
        for channel in self._channels:
            await channel.close(None)
        await comes_true(lambda: len(self.registry) == 0)
        if self._server is not None:
            await self._server.stop(None)
        assert self.mesh.feed.oldest_cursor() == self.mesh.feed.head, "a stream that is over holds the feed back"
        assert self.counts.errors == 0
        assert len(self.counts.connected_nodes) == len(self.counts.disconnected_nodes)


async def comes_true(what: Callable[[], bool]) -> None:
    """Waits for something that other tasks bring about."""

    async def look() -> None:
        while not what():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(look(), PATIENCE_S)


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """At the end of every test all clients leave, and nothing of them may be left."""
    running = Running()
    yield running
    await running.stop()


@pytest.fixture
async def client(running: Running) -> Client:
    return Client(await running.channel())


async def test_a_ztunnel_is_answered_and_told_what_changes(running: Running, client: Client) -> None:
    await client.asks(ADDRESS, AUTHORIZATION)
    assert [(await client.hears()).names, (await client.hears()).names] == [[uid("shop/till")], ["shop/p"]]
    running.changes(pod("shop/new"), gone=["shop/p"])
    told = [await client.hears(), await client.hears()]
    assert sorted((response.names, response.removed) for response in told) == [
        ([], ("shop/p",)),
        ([uid("shop/new")], ()),
    ]
    assert [(info.node.type, sorted(info.types)) for info in running.registry.connections()] == [
        ("ztunnel", [AUTHORIZATION, ADDRESS])
    ]


async def test_two_clients_are_told_the_same_bytes(running: Running) -> None:
    channel = await running.channel()
    clients = [Client(channel), Client(channel)]
    for client in clients:
        await client.asks(ADDRESS)
        await client.hears()
    running.changes(pod("shop/new"))
    first, second = [await client.hears() for client in clients]
    assert first == second
    assert len(running.registry) == 2


async def test_what_was_asked_before_a_half_close_is_answered_and_the_stream_ends_with_ok(client: Client) -> None:
    await client.asks(ADDRESS, AUTHORIZATION)
    await client.call.done_writing()
    assert {(await client.hears()).type_url, (await client.hears()).type_url} == {ADDRESS, AUTHORIZATION}
    assert await client.is_ended_with() == (grpc.StatusCode.OK, "")


async def test_a_request_that_waits_for_another_is_answered_when_no_other_can_come(client: Client) -> None:
    await client.asks(ADDRESS, claims={uid("shop/gone"): "1"})
    await client.call.done_writing()
    response = await client.hears()
    assert (response.names, response.removed) == ([uid("shop/till")], (uid("shop/gone"),))
    assert await client.is_ended_with() == (grpc.StatusCode.OK, "")


async def test_a_request_that_waits_for_another_is_answered_after_a_while(client: Client) -> None:
    began_s = asyncio.get_running_loop().time()
    await client.asks(ADDRESS, claims={uid("shop/gone"): "1"})
    assert (await client.hears()).names == [uid("shop/till")]
    assert asyncio.get_running_loop().time() - began_s >= HOLD_FIRST_S / 2


async def test_a_client_that_cancels_leaves_nothing_behind(running: Running, client: Client) -> None:
    await client.asks(ADDRESS)
    await client.hears()
    assert len(running.registry) == 1
    # A client counts once it was answered, which it may know before us.
    await comes_true(lambda: len(running.counts.connected_nodes) == 1)
    client.call.cancel()
    await comes_true(lambda: len(running.registry) == 0)
    running.changes(pod("shop/new"))
    assert [node.type for node in running.counts.disconnected_nodes] == ["ztunnel"]


async def test_bytes_that_are_no_request_end_this_stream_only(running: Running) -> None:
    channel = await running.channel()
    good, bad = Client(channel), Client(channel)
    await good.asks(ADDRESS)
    await good.hears()
    await bad.asks(ADDRESS)
    await bad.hears()
    await bad.sends(b"\xff\xff\xff")
    code, details = await bad.is_ended_with()
    assert code is grpc.StatusCode.INTERNAL
    assert details.startswith("grpc: failed to unmarshal the received message: ")
    running.changes(pod("shop/new"))
    assert (await good.hears()).names == [uid("shop/new")]


async def test_nobody_is_served_before_the_server_is_ready(running: Running, client: Client) -> None:
    running.is_ready = False
    assert await client.is_ended_with() == (
        grpc.StatusCode.UNAVAILABLE,
        "server is not ready to serve discovery information",
    )


@pytest.mark.parametrize(
    ("node", "details"),
    [
        (NodeMessage(), "missing node information"),
        (NodeMessage(id="ztunnel~10.0.0.1~x"), 'missing parts in the service node "ztunnel~10.0.0.1~x"'),
        (NodeMessage(id="ztunnel~x~y~z"), "no valid IP address in the service node id or metadata"),
    ],
)
async def test_a_client_that_does_not_say_who_it_is_is_refused(client: Client, node: NodeMessage, details: str) -> None:
    await client.asks(ADDRESS, node=node)
    assert await client.is_ended_with() == (grpc.StatusCode.INVALID_ARGUMENT, details)


async def test_the_state_of_the_world_method_is_refused(running: Running) -> None:
    client = Client(await running.channel(), "StreamAggregatedResources")
    code, details = await client.is_ended_with()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "DeltaAggregatedResources" in details


async def test_many_clients_that_are_refused_leave_nothing_behind(running: Running) -> None:
    channel = await running.channel()
    for _ in range(10):
        clients = [Client(channel) for _ in range(10)]
        for client in clients:
            await client.asks(ADDRESS, node=NodeMessage(id="nobody"))
        ends = [await client.is_ended_with() for client in clients]
        assert {code for code, _ in ends} == {grpc.StatusCode.INVALID_ARGUMENT}
    await comes_true(lambda: len(running.registry) == 0)
    assert running.counts.connected_nodes == []
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("read ")] == []


async def test_many_requests_at_once_are_all_answered_in_their_order(client: Client) -> None:
    await client.asks(ADDRESS)
    await client.hears()
    for number in range(50):
        message = DeltaDiscoveryRequest(type_url=ADDRESS, resource_names_subscribe=[f"shop/none-{number}.local"])
        await client.sends(message.SerializeToString())
    answers = [await client.hears() for _ in range(50)]
    assert [response.removed for response in answers] == [(f"shop/none-{number}.local",) for number in range(50)]


async def test_a_flood_of_requests_while_policies_wait_waits_in_the_client(running: Running) -> None:
    waiting: list[int] = []

    class Watching(Counts):
        def requested(self, request: Request) -> None:
            super().requested(request)
            waiting.append(len(self.requests) - len(self.parts))

    running.counts = Watching()
    client = Client(await running.channel())
    await client.asks(ADDRESS, AUTHORIZATION)
    for _ in range(2):
        await client.hears()
    running.changes(pod("shop/late"))
    await client.hears()
    running.changes(policy("shop/q", "NAMESPACE"))
    await client.asks("to/be/sure/that/the/policy/waits")
    asked = 400
    for number in range(asked):
        message = DeltaDiscoveryRequest(type_url=ADDRESS, resource_names_subscribe=[f"shop/none-{number}.local"])
        await client.sends(message.SerializeToString())
    answers = [await client.hears() for _ in range(asked + 2)]
    assert [each.names for each in answers if each.type_url == AUTHORIZATION] == [["shop/q"]]
    names = [f"shop/none-{number}.local" for number in range(asked)]
    assert [name for each in answers for name in each.removed] == names
    assert 50 < max(waiting) < 120


# Clients that do not read.


def _large(mesh: Mesh, megabytes: int) -> None:
    """More than all buffers between server and client take."""
    mesh.change(*(pod(f"bulk/{number}", revision="x" * 10_000) for number in range(100 * megabytes)))


async def test_a_client_that_does_not_read_delays_nobody(running: Running) -> None:
    _large(running.mesh, 8)
    stuck, brisk = Client(await running.channel()), Client(await running.channel())
    await stuck.asks(ADDRESS)
    await comes_true(lambda: len(running.counts.requests) == 1)
    await brisk.asks(ADDRESS)
    assert len((await brisk.hears()).names) == 801
    for number in range(20):
        running.changes(pod(f"shop/{number}"))
        assert (await brisk.hears()).names == [uid(f"shop/{number}")]


async def test_a_large_first_answer_that_is_not_taken_in_time_ends_the_stream(running: Running) -> None:
    _large(running.mesh, 8)
    await running.listen(write_deadline_s=0.1)
    client = Client(await running.channel())
    await client.asks(ADDRESS)
    await comes_true(lambda: len(running.counts.requests) == 1)
    await comes_true(lambda: len(running.registry) == 0)
    # Who begins to read after all is sent what was on its way, and then told to come again.
    assert await client.is_ended_with() == (
        grpc.StatusCode.UNAVAILABLE,
        "the first answer was not taken within 0.1 s; connect again",
    )


async def test_large_first_answers_beyond_the_budget_wait_for_each_other(running: Running) -> None:
    _large(running.mesh, 8)
    await running.listen(budget_bytes=1)
    stuck, *waiting = [Client(await running.channel()) for _ in range(3)]
    await stuck.asks(ADDRESS)
    await comes_true(lambda: len(running.counts.requests) == 1)
    for client in waiting:
        await client.asks(ADDRESS)
    await comes_true(lambda: len(running.counts.requests) == 3)
    assert running.counts.parts == []
    stuck.call.cancel()
    answers = await asyncio.gather(*(client.hears() for client in waiting))
    assert [len(answer.names) for answer in answers] == [801, 801]


async def test_a_budget_lets_one_message_through_whatever_its_size_and_gives_way_when_who_waits_gives_up() -> None:
    budget = Budget(10)
    await budget.take(100)
    waits = asyncio.create_task(budget.take(5))
    gives_up = asyncio.create_task(budget.take(6))
    await asyncio.sleep(0)
    gives_up.cancel()
    await asyncio.gather(gives_up, return_exceptions=True)
    assert not waits.done()
    await budget.give(100)
    await asyncio.wait_for(waits, PATIENCE_S)
    await asyncio.wait_for(budget.take(5), PATIENCE_S)
