"""A control plane without a socket and its one client: manifests go in, and what a ztunnel is sent and holds comes out.
The whole product but the shell: decoder, index, feed, stream. The client judges what it is sent as a ztunnel does. No
test stands here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse

from ambientd.ctl.ztunnel import SimulatedZtunnel
from ambientd.index.conditions import Condition
from ambientd.index.inputs import SOURCES
from ambientd.index.rules import Rules
from ambientd.index.world import World
from ambientd.pump import stage_outputs
from ambientd.push.feed import Feed
from ambientd.push.rounds import Job, Part
from ambientd.resources.events import Delete, Event, Replace
from ambientd.xds.protocol import Advanced, Command, Done, End, Requested, Send, Stream, Wake, Woke, Work, Written
from ambientd.xds.requests import parse
from ambientd_api.security_pb2 import Authorization
from ambientd_api.workload_pb2 import Service, Workload
from tests.unit.worlds import CLUSTER, events, ref


@dataclass
class Sent:
    """What one commit, or one connection, made the server send."""

    changed: set[str] = field(default_factory=set)
    """Names of resources."""
    removed: set[str] = field(default_factory=set)
    messages: int = 0

    def __eq__(self, other: object) -> bool:
        """By what was sent; in how many messages does not matter."""
        return isinstance(other, Sent) and (self.changed, self.removed) == (other.changed, other.removed)


NOTHING = Sent()


class Ztunnel:
    """A client, and the stream that serves it. It reads at once what it is sent, unless it is told to sleep."""

    def __init__(self, feed: Feed, *, is_on_demand: bool = False) -> None:
        self._feed = feed
        self._idents = itertools.count(id(self))
        self.holds = SimulatedZtunnel(is_on_demand=is_on_demand)
        self.messages: list[DeltaDiscoveryResponse] = []
        self.is_asleep = False
        self.ends: list[End] = []
        self.connect()

    def connect(self) -> None:
        """Opens a stream, and tells what it holds."""
        self._commands: list[Command] = []
        self._stream = Stream(next(self._idents), self._feed)
        for request in self.holds.first_requests():
            self._hear(request)
        self.read()

    def disconnect(self) -> None:
        """Loses its stream, with all that was not read."""
        self._stream.close()
        self._commands.clear()

    def ask(self, key: str) -> None:
        self._hear(self.holds.ask(key))
        self.read()

    def advance(self) -> None:
        self._commands += self._stream.handle(Advanced())
        if not self.is_asleep:
            self.read()

    def read(self) -> None:
        while self._commands:
            command = self._commands.pop(0)
            match command:
                case Work():
                    command.job.step(lambda: False)
                    self._commands += self._stream.handle(Done())
                case Send():
                    self._take(command.part)
                case Wake():
                    self._commands += self._stream.handle(Woke(command.nonce))
                case End():
                    self.ends.append(command)
                    self.disconnect()

    def _take(self, part: Part) -> None:
        response = DeltaDiscoveryResponse.FromString(part.response)
        self.messages.append(response)
        answer = self.holds.apply(response).answer
        assert not answer.HasField("error_detail"), answer.error_detail.message
        self._commands += self._stream.handle(Written())
        self._hear(answer)

    def _hear(self, request: DeltaDiscoveryRequest) -> None:
        parsed = Job(parse(request.SerializeToString())).run()
        self._commands += self._stream.handle(Requested(parsed))


class Mesh:
    """The control plane, with one wildcard client from the start."""

    def __init__(self, *texts: str, rules: Rules | None = None) -> None:
        numbers = itertools.count(1)
        self.world = World(rules or Rules(), is_strict=True)
        self.feed = Feed(lambda: f"n{next(numbers)}")
        self.nothing = self.world.graph.sizes()
        """What the index holds before it was told of anything."""
        self.ztunnels: list[Ztunnel] = []
        self.commit([])
        self.ztunnel = self.join()
        for text in texts:
            self.apply(text)

    def join(self, *, is_on_demand: bool = False) -> Ztunnel:
        """One more client."""
        client = Ztunnel(self.feed, is_on_demand=is_on_demand)
        self.ztunnels.append(client)
        return client

    # What happens.

    def apply(self, text: str) -> Sent:
        """Manifests are created or changed, in one commit; what the first client is sent."""
        return self.commit(events(text))

    def delete(self, kind: str, namespace: str, *names: str) -> Sent:
        return self.commit([Delete(ref(kind, namespace, name)) for name in names])

    def relist(self, kind: str, text: str = "") -> Sent:
        """A watch was lost, and a list gives these objects of a kind and no other."""
        return self.commit([Replace(CLUSTER, kind, tuple(events(text)))])

    def commit(self, batch: Sequence[Event]) -> Sent:
        return self.sent(lambda: self._commit(batch))

    def sent(self, act: Callable[[], None]) -> Sent:
        """What the first client is sent while something is done."""
        start = len(self.ztunnel.messages) if self.ztunnels else 0
        act()
        messages = self.ztunnel.messages[start:] if self.ztunnels else []
        return Sent(
            {resource.name for message in messages for resource in message.resources},
            {name for message in messages for name in message.removed_resources},
            len(messages),
        )

    def _commit(self, batch: Sequence[Event]) -> None:
        transaction = self.world.begin(batch)
        transaction.step(lambda: False)
        staged = stage_outputs(transaction, self.feed).run()
        transaction.commit()
        if not staged.is_empty or not self.feed.head:
            self.feed.commit(staged)
        transaction.settle(lambda: False)
        if not self.feed.is_settled:
            self.feed.settle().run()
        for client in self.ztunnels:
            client.advance()

    def empty(self) -> Sent:
        """Every object goes; fails if anything of it is left in the index."""
        graph = self.world.graph
        sent = self.commit([Delete(ref) for source in SOURCES for ref in graph.keys(source)])
        left = {name: size for name, size in graph.sizes().items() if size != self.nothing[name]}
        assert not left, f"left when all objects are gone: {left}"
        return sent

    # What the first client holds.

    def pod(self, name: str, namespace: str = "shop") -> Workload:
        return self.ztunnel.holds.workloads[pod_uid(name, namespace)]

    def service(self, name: str, namespace: str = "shop") -> Service:
        return self.ztunnel.holds.services[service_name(name, namespace)]

    def host(self, host: str, namespace: str = "shop") -> Service:
        return self.ztunnel.holds.services[f"{namespace}/{host}"]

    def policy(self, name: str, namespace: str = "shop") -> Authorization:
        return self.ztunnel.holds.policies[f"{namespace}/{name}"]

    # What an operator is told.

    def problems(self, kind: str, name: str, namespace: str = "shop") -> tuple[str, ...]:
        found = {problem.object: problem.faults for problem in self.world.problems()}
        return found.get(ref(kind, namespace, name), ())

    def conditions(self, kind: str, name: str, namespace: str = "shop") -> dict[str, Condition]:
        """By type."""
        held = self.world.conditions().get(ref(kind, namespace, name), ())
        return {condition.type: condition for condition in held}


def pod_uid(name: str, namespace: str = "shop") -> str:
    return f"{CLUSTER}//Pod/{namespace}/{name}"


def service_name(name: str, namespace: str = "shop") -> str:
    return f"{namespace}/{name}.{namespace}.svc.cluster.local"
