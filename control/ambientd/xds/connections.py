"""The live connections of this process: what is kept of each beside its stream (protocol.py), what is told of them, and
whom news reaches first. Must not know gRPC, nor what is said on a stream."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection

from msgspec import Struct

from ambientd.ca.caller import Caller
from ambientd.xds.node import Node
from ambientd.xds.protocol import Stream


class TypeStatus(Struct):
    """What a client was sent of a type, and what it said to that (operations.md 12.5.1)."""

    nonce_sent: str
    nonce_acked: str
    sent_at_s: float | None
    """Wall clock; None: nothing was sent."""
    last_error: str
    names: Callable[[], Collection[str]]
    """Subscribed names now; none for a wildcard. There may be very many, which few pages show."""


class ConnectionInfo(Struct):
    """One connected client."""

    connection_id: str
    node: Node
    peer: str
    connected_at_s: float
    """Wall clock."""
    types: dict[str, TypeStatus]


class Connection:
    """One stream while it lives."""

    def __init__(self, ident: int, stream: Stream, peer: str, caller: Caller | None = None) -> None:
        self.ident = ident
        self.caller = caller
        """None: nobody was asked who it is."""
        self.stream = stream
        self.peer = peer
        self.connected_at_s = time.time()
        self.sent_at_s: dict[str, float] = {}
        self.requests: deque[bytes] = deque()
        self.has_room = asyncio.Event()
        """The reader may take the next request from the wire; at most one waits."""
        self.has_room.set()
        self.is_half_closed = False
        self.woke: deque[str] = deque()
        """Nonces of `Wake` commands whose time is over."""
        self.converging_from_s: float | None = None
        """When the feed advanced to what is on its way to this client now; None: it holds everything."""
        self.poke = asyncio.Event()
        """Something happened that the writing task should look at."""
        self.is_counted = False
        self.is_ending = False

    @property
    def name(self) -> str:
        node = self.stream.node
        return f"{node.id if node else ''}-{self.ident}"

    def let_in(self) -> None:
        """The reader may go on, if there is room."""
        if not self.requests and not self.stream.is_full:
            self.has_room.set()

    def info(self) -> ConnectionInfo | None:
        """None before the first request was read."""
        node = self.stream.node
        if node is None:
            return None
        types = {
            url: TypeStatus(
                watch.nonce_sent,
                watch.nonce_acked,
                self.sent_at_s.get(url),
                watch.last_error,
                tuple if watch.interest is None else watch.interest.subscriptions,
            )
            for url, watch in self.stream.watches.items()
        }
        return ConnectionInfo(self.name, node, self.peer, self.connected_at_s, types)


class Registry:
    """The live connections of this process, by connection and not by client: a client that reconnects may be here
    twice for a while, and the end of one must not touch the other."""

    def __init__(self) -> None:
        self._connections: dict[int, Connection] = {}
        self.announced_s = 0.0
        """When the feed last advanced, on the monotonic clock."""

    def add(self, connection: Connection) -> None:
        self._connections[connection.ident] = connection

    def remove(self, connection: Connection) -> None:
        self._connections.pop(connection.ident, None)

    def __len__(self) -> int:
        return len(self._connections)

    def connections(self) -> list[ConnectionInfo]:
        """Every connected client, by cluster, namespace and id."""
        infos = [info for connection in self._connections.values() if (info := connection.info()) is not None]
        return sorted(infos, key=lambda info: (info.node.cluster_id, info.node.namespace, info.connection_id))

    def held_names(self, connection_id: str, type_url: str) -> set[str] | None:
        """What an on-demand client holds of a type; None: everything."""
        for connection in self._connections.values():
            if connection.name == connection_id:
                watch = connection.stream.watches.get(type_url)
                return None if watch is None or watch.interest is None else set(watch.interest.held)
        return None

    def announce(self, nodes: set[str]) -> None:
        """The feed has advanced. Clients on these nodes, which got a new workload, go first."""
        self.announced_s = time.perf_counter()
        later = []
        for connection in self._connections.values():
            node = connection.stream.node
            if node is not None and node.node_name in nodes:
                connection.poke.set()
            else:
                later.append(connection)
        for connection in later:
            connection.poke.set()

    async def drain(self, over_s: float) -> None:
        """Ends all streams, spread over this time, so that their clients do not all come to another replica at once."""
        connections = list(self._connections.values())
        for connection in connections:
            connection.is_ending = True
            connection.poke.set()
            await asyncio.sleep(over_s / len(connections))
