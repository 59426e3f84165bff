"""Servers without a server: a feed that is changed by calls, streams that are driven by hand, and clients that hold
what they are sent as a ztunnel does. Decodes with Envoy's own types, so that nothing is judged by the code that wrote
it. No test stands here."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from envoy.config.core.v3.base_pb2 import Node as NodeMessage
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryResponse

from ambientd.index.ips import ip_text
from ambientd.index.rendered import RenderedAddress, RenderedPolicy, deterministic, render_policy, version_of
from ambientd.push.feed import Feed
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.push.views import BelowFloor, Seq
from ambientd.xds.protocol import (
    Advanced,
    Command,
    Done,
    End,
    Event,
    Note,
    Overtaken,
    Requested,
    Send,
    Stream,
    Wake,
    Woke,
    Work,
    Written,
)
from ambientd.xds.requests import Request
from ambientd_api.security_pb2 import Action, Authorization, Scope
from ambientd_api.workload_pb2 import Address, GatewayAddress, Workload

Rendered = RenderedAddress | RenderedPolicy

TYPES = (ADDRESS, AUTHORIZATION)
"""In the order in which a ztunnel asks for them."""


def node_message(node_type: str = "ztunnel", node_name: str = "") -> NodeMessage:
    """What a client says that it is."""
    node = NodeMessage(id=f"{node_type}~10.244.1.2~ztunnel-x7k2p.istio-system~istio-system.svc.cluster.local")
    node.metadata.update({"NAMESPACE": "istio-system", "NODE_NAME": node_name})
    return node


# What is served.


def rendered_address(message: Address) -> RenderedAddress:
    """An address with what lookups and orders need to know of it."""
    body = deterministic(message)
    if message.HasField("service"):
        service = message.service
        return RenderedAddress(
            name=f"{service.namespace}/{service.hostname}",
            body=body,
            version=version_of(body),
            namespace=service.namespace,
            aliases=tuple(f"{address.network}/{ip_text(address.address)}" for address in service.addresses),
            is_workload=False,
            references=_reference(service.waypoint) if service.HasField("waypoint") else (),
        )
    workload = message.workload
    gateways = [name for name in ("waypoint", "network_gateway") if workload.HasField(name)]
    return RenderedAddress(
        name=workload.uid,
        body=body,
        version=version_of(body),
        namespace=workload.namespace,
        aliases=tuple(f"{workload.network}/{ip_text(raw)}" for raw in workload.addresses),
        policies=tuple(workload.authorization_policies),
        services=tuple(sorted(workload.services)),
        node=workload.node,
        references=tuple(key for name in gateways for key in _reference(getattr(workload, name))),
    )


def _reference(gateway: GatewayAddress) -> tuple[str, ...]:
    if gateway.HasField("hostname"):
        return (f"{gateway.hostname.namespace}/{gateway.hostname.hostname}",)
    return (f"{gateway.address.network}/{ip_text(gateway.address.address)}",)


def pod(
    name: str,
    *,
    ip: str = "",
    node: str = "",
    policies: Iterable[str] = (),
    services: Iterable[str] = (),
    waypoint: str = "",
    revision: str = "",
) -> RenderedAddress:
    """The workload of a pod, its name `<namespace>/<name>`."""
    namespace, _, short = name.partition("/")
    workload = Workload(uid=uid(name), name=short, namespace=namespace, node=node, canonical_revision=revision)
    if ip:
        workload.addresses.append(bytes(map(int, ip.split("."))))
    workload.authorization_policies.extend(policies)
    for service_name in services:
        workload.services[service_name].SetInParent()
    if waypoint:
        workload.waypoint.hostname.namespace, _, workload.waypoint.hostname.hostname = waypoint.partition("/")
    return rendered_address(Address(workload=workload))


def uid(name: str) -> str:
    return f"Kubernetes//Pod/{name}"


def service(name: str, *, ip: str = "", port: int = 80) -> RenderedAddress:
    """A service, its name `<namespace>/<hostname>`."""
    message = Address()
    message.service.namespace, _, message.service.hostname = name.partition("/")
    message.service.ports.add(service_port=port)
    if ip:
        message.service.addresses.add(address=bytes(map(int, ip.split("."))))
    return rendered_address(message)


def policy(name: str, scope: str = "WORKLOAD_SELECTOR", action: str = "DENY", *, port: int = 80) -> RenderedPolicy:
    """A policy about one port, its name `<namespace>/<name>`."""
    message = Authorization()
    message.namespace, _, message.name = name.partition("/")
    message.scope = Scope.Value(scope)
    message.action = Action.Value(action)
    message.groups.add().rules.add().matches.add().destination_ports.append(port)
    return render_policy(message)


class Mesh:
    """The feed, and what is served now."""

    def __init__(self, *, most_tombstones: int = 50_000, most_recent: int = 50_000) -> None:
        nonces = itertools.count(1)
        self.feed = Feed(lambda: f"nonce-{next(nonces)}", most_tombstones=most_tombstones, most_recent=most_recent)
        self.served: dict[str, dict[str, Rendered]] = {ADDRESS: {}, AUTHORIZATION: {}}
        self.streams = itertools.count(1)

    def change(self, *put: Rendered, gone: Iterable[str] = ()) -> Seq:
        """One commit, from its first to its last step."""
        self.show(*put, gone=gone)
        self.feed.settle().run()
        return self.feed.head

    def show(self, *put: Rendered, gone: Iterable[str] = ()) -> None:
        """One commit that is not folded in yet."""
        addresses: list[tuple[str, RenderedAddress | None]] = []
        policies: list[tuple[str, RenderedPolicy | None]] = []
        for name in gone:
            type_url = next(url for url in TYPES if name in self.served[url])
            del self.served[type_url][name]
            if type_url == ADDRESS:
                addresses.append((name, None))
            else:
                policies.append((name, None))
        for rendered in put:
            if isinstance(rendered, RenderedAddress):
                self.served[ADDRESS][rendered.name] = rendered
                addresses.append((rendered.name, rendered))
            else:
                self.served[AUTHORIZATION][rendered.name] = rendered
                policies.append((rendered.name, rendered))
        self.feed.commit(self.feed.stage(addresses, policies).run())

    def versions(self, type_url: str) -> dict[str, str]:
        return {name: rendered.version for name, rendered in self.served[type_url].items()}


# What a client sees.


@dataclass(frozen=True)
class Resource:
    version: str
    body: bytes
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Response:
    type_url: str
    nonce: str
    resources: Mapping[str, Resource] = field(default_factory=dict)
    removed: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return sorted(self.resources)

    @property
    def is_empty(self) -> bool:
        return not self.resources and not self.removed


def decoded(raw: bytes) -> Response:
    """A response as a client reads it. Fails where it breaks the protocol by itself."""
    message = DeltaDiscoveryResponse.FromString(raw)
    resources = {}
    for resource in message.resources:
        assert resource.resource.type_url == message.type_url
        assert resource.name not in resources, f"{resource.name} stands twice in one response"
        resources[resource.name] = Resource(resource.version, resource.resource.value, tuple(resource.aliases))
    removed = tuple(message.removed_resources)
    assert not resources.keys() & set(removed), "a name stands in both lists of a response (xds.md 19.6)"
    assert message.nonce
    assert message.system_version_info
    return Response(message.type_url, message.nonce, resources, removed)


class Peer:
    """A client and the stream that serves it. What the stream says is done at once, unless told otherwise."""

    def __init__(self, mesh: Mesh, *, node: NodeMessage | None = None, is_on_demand: bool = False) -> None:
        self.mesh = mesh
        self.node = node if node is not None else node_message()
        self.is_on_demand = is_on_demand
        self.held: dict[str, dict[str, Resource]] = {ADDRESS: {}, AUTHORIZATION: {}}
        self.keys: dict[str, None] = {}
        """What was asked for on demand and not answered as absent."""
        self.is_waited_for = False
        """Whether the time for which the server waits for an answer goes by only when it is told so; else at once."""
        self._connect()

    def _connect(self) -> None:
        self.ident = next(self.mesh.streams)
        self.stream = Stream(self.ident, self.mesh.feed)
        self.notes: list[Note] = []
        self.wakes: list[Wake] = []
        self.end: End | None = None
        self.to: Seq = 0
        """The commit to which the last job leads."""
        self.round_parts = 0
        """How many parts of the last job have not been received yet."""
        self.held_before: dict[str, dict[str, Resource]] = {}
        """What it held when the last job was done, of whose parts it had none then."""
        self._nonces: set[str] = set()
        self._commands: deque[Command] = deque()

    # Requests.

    def first_requests(self) -> list[Request]:
        """What a ztunnel sends when it has connected (wire-contract.md 8): with what it holds, if anything."""
        claims = {url: {name: resource.version for name, resource in self.held[url].items()} for url in TYPES}
        claims[ADDRESS] = {**dict.fromkeys(self.keys, ""), **claims[ADDRESS]}
        star = ("*",) if self.is_on_demand else ()
        return [
            Request(ADDRESS, self.node, star, star, claims=claims[ADDRESS]),
            Request(AUTHORIZATION, self.node, claims=claims[AUTHORIZATION]),
        ]

    def reconnect(self) -> None:
        """Loses the stream, with all that was not received, and opens another one."""
        self.stream.close()
        self._connect()

    # Events.

    def hear(self, event: Event) -> list[Response]:
        """Hands the stream an event and does what it says; what was received."""
        self.take(event)
        return self.proceed()

    def take(self, event: Event) -> None:
        """Hands the stream an event; what it says is not done yet."""
        self._commands.extend(self.stream.handle(event))

    @property
    def is_idle(self) -> bool:
        return not self._commands

    def proceed(self, *, parts: int | None = None, steps: int | None = None) -> list[Response]:
        """Does what the stream says, until nothing is left; or until so many parts were received, or a job was worked
        on for so many steps."""
        responses: list[Response] = []
        while self._commands and (not parts or len(responses) < parts):
            command = self._commands[0]
            match command:
                case Work():
                    try:
                        if not command.job.step(_after(steps)):
                            return responses
                    except BelowFloor:
                        self._then(Overtaken())
                        continue
                    self.to = command.job.result.to
                    self.round_parts = len(command.job.result.parts)
                    self.held_before = {url: dict(held) for url, held in self.held.items()}
                    self._then(Done())
                case Send():
                    if parts == 0:
                        return responses
                    responses.append(self._received(command.part.response))
                    self._then(Written())
                case Wake(nonce=nonce) if nonce and not self.is_waited_for:
                    self._then(Woke(nonce))
                case Wake():
                    self.wakes.append(command)
                    self._commands.popleft()
                case Note():
                    self.notes.append(command)
                    self._commands.popleft()
                case End():
                    self.end = command
                    self._commands.popleft()
        return responses

    def _then(self, event: Event) -> None:
        self._commands.popleft()
        self._commands.extend(self.stream.handle(event))

    def _received(self, raw: bytes) -> Response:
        response = decoded(raw)
        assert response.nonce not in self._nonces, "a nonce was used twice on a stream"
        self._nonces.add(response.nonce)
        self.round_parts -= 1
        held = self.held.setdefault(response.type_url, {})
        held.update(response.resources)
        for name in response.removed:
            held.pop(name, None)
            self.keys.pop(name, None)
        return response

    # Claims.

    def assert_holds_what_is_served(self) -> None:
        for url in TYPES:
            held = {name: resource.version for name, resource in self.held[url].items()}
            served = self.mesh.versions(url)
            if self.is_on_demand and url == ADDRESS:
                wrong = {name: version for name, version in held.items() if served.get(name) != version}
                assert not wrong, f"held, but not served so: {wrong}"
            else:
                assert held == served


def _after(steps: int | None) -> Callable[[], bool]:
    left = itertools.count(1)
    return lambda: steps is not None and next(left) >= steps


# Requests in words.


def subscribe(
    type_url: str,
    *names: str,
    unsubscribe: Iterable[str] = (),
    claims: Mapping[str, str] | None = None,
    nonce: str = "",
    node: NodeMessage | None = None,
) -> Request:
    return Request(
        type_url,
        node if node is not None else node_message(),
        tuple(names),
        tuple(unsubscribe),
        dict(claims or {}),
        nonce,
    )


def ack(response: Response, *, nonce: str | None = None) -> Request:
    return Request(response.type_url, nonce=response.nonce if nonce is None else nonce)


def nack(response: Response, error: str) -> Request:
    return Request(response.type_url, nonce=response.nonce, error=error)


class Conversation:
    """One client, its stream and the mesh, in the words of a test. `check` holds at the end of every conversation."""

    def __init__(self, mesh: Mesh, peer: Peer) -> None:
        self.mesh = mesh
        self.peer = peer

    @property
    def notes(self) -> list[Note]:
        return self.peer.notes

    def hears(self, request: Request) -> list[Response]:
        """What the client is sent after this request."""
        return self.peer.hear(Requested(request))

    def answers(self, request: Request) -> Response:
        """The only thing that it is sent after this request."""
        (response,) = self.hears(request)
        return response

    def is_silent_after(self, request: Request) -> None:
        assert self.hears(request) == []

    def waits(self) -> list[Response]:
        """What the client is sent when the time for which the server waits is over."""
        return self.peer.hear(Woke())

    def tells(self, *put: Rendered, gone: Iterable[str] = ()) -> list[Response]:
        """What the client is sent after this commit."""
        self.mesh.change(*put, gone=gone)
        return self.peer.hear(Advanced())

    def connects(self) -> list[Response]:
        """The first requests of a ztunnel, and what it is sent."""
        return [response for request in self.peer.first_requests() for response in self.hears(request)]

    def check(self) -> None:
        """Unless the stream was ended, the client holds what is served; nothing is remembered for a stream that is
        over. That no name stands in both lists, and that no nonce comes twice, is checked with each response."""
        if self.peer.end is None:
            self.peer.hear(Advanced())
            answered = {url for url, watch in self.peer.stream.watches.items() if watch.cursor is not None}
            if answered >= set(TYPES):
                self.peer.assert_holds_what_is_served()
            self.peer.stream.close()
        assert self.mesh.feed.oldest_cursor() == self.mesh.feed.head, "a stream that is over holds the feed back"
