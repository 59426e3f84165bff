"""The content of each debug page as pieces of JSON (operations.md 12.3 to 12.5). A dump of a large mesh is long work,
so it comes as an iterator that is cheap between two pieces; whoever sends it takes a break whenever it likes. Must not
wait, and must not know HTTP."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import msgspec
from google.protobuf.message import Message

from ambientd.debug.readable import AddressForm, plain, quirky_address, raw_address
from ambientd.debug.state import DebugState, Problem
from ambientd.index.conditions import Condition, Conditions
from ambientd.push.feed import Feed
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.push.views import Entry, R, View, live
from ambientd.resources.ref import Ref
from ambientd.sources.watches import Watch
from ambientd.xds.connections import ConnectionInfo, TypeStatus
from ambientd_api.security_pb2 import Authorization
from ambientd_api.workload_pb2 import Address

_SORTED_AT_ONCE = 2_000

_TYPES = {"wds": (ADDRESS,), "wads": (AUTHORIZATION,)}
_NO_TIME = "0001-01-01T00:00:00Z"

Pieces = Iterator[bytes]


def ambientz(feed: Feed, *, pretty: bool) -> Pieces:
    """Everything that is served; addresses are in the form that scripts decode (operations.md 12.5.3)."""
    addresses, policies = _addresses(feed), _policies(feed)

    def items() -> Iterator[tuple[str, Iterator[Any]]]:
        services: list[bytes] = []
        yield "workloads", _workloads(addresses, services, quirky_address)
        # Only now the services are known: one pass over the addresses serves both.
        yield "services", (plain(Address.FromString(body).service, quirky_address) for body in services)
        yield "policies", (_PAUSE if item is None else plain(item[1], quirky_address) for item in policies)

    yield from _object(items(), pretty=pretty)


def _workloads(
    addresses: Iterator[tuple[bytes, Address] | None], services: list[bytes], form: AddressForm
) -> Iterator[Any]:
    for item in addresses:
        if item is None:
            yield _PAUSE
        elif item[1].HasField("workload"):
            yield plain(item[1].workload, form)
        else:
            services.append(item[0])
            yield _PAUSE


def config_dump(
    feed: Feed, client: ConnectionInfo, types: str, held: dict[str, Collection[str] | None], *, pretty: bool
) -> Pieces:
    """What one client holds of the types that it watches, as Any messages (operations.md 12.5.4). `types`: the query
    parameter, empty for Address alone. `held`: names by type URL, None for all of them."""
    wanted: dict[str, None] = {}
    for name in types.split(",") if types else ["wds"]:
        wanted.update(dict.fromkeys(_TYPES.get(name.strip().lower(), (name.strip(),))))

    def configs() -> Iterator[Any]:
        for type_url in wanted:
            if type_url not in client.types:
                continue
            names = held.get(type_url)
            entries = _addresses(feed, names) if type_url == ADDRESS else _policies(feed, names)
            for item in entries:
                yield _PAUSE if item is None else {"@type": type_url, **plain(item[1], raw_address)}

    yield from _object([("configs", configs())], pretty=pretty)


def problems(found: Sequence[Problem], *, pretty: bool) -> Pieces:
    """Objects and files with something wrong in them, in the order of their names."""

    def items() -> Iterator[Any]:
        for problem in sorted(found, key=lambda problem: problem.object):
            yield plain_problem(problem)

    yield from _array(items(), pretty=pretty)


def conditions(found: Mapping[Ref, Conditions], *, pretty: bool) -> Pieces:
    """The status conditions that objects deserve, in the order of the objects' names."""

    def items() -> Iterator[Any]:
        for ref in sorted(found):
            yield {**plain_ref(ref), "conditions": plain_conditions(found[ref])}

    yield from _array(items(), pretty=pretty)


def plain_conditions(held: Conditions) -> list[dict[str, Any]]:
    """As they stand in the status of an object, without their times."""
    return [_plain_condition(condition) for condition in held]


def _plain_condition(condition: Condition) -> dict[str, Any]:
    fields = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
    }
    if condition.observed_generation:
        # Only Istio's own kinds have it from us, and there it is a text, as 64 bit numbers are in proto-JSON
        # (policies.md 10.1).
        fields["observedGeneration"] = str(condition.observed_generation)
    return fields


def watches(found: Sequence[Watch], now_s: float, *, pretty: bool) -> Pieces:
    """How the watch of each kind is doing, at this time of the watches' clock."""
    yield from _array((watch.plain(now_s) for watch in found), pretty=pretty)


def plain_problem(problem: Problem) -> dict[str, Any]:
    return {**plain_ref(problem.object), "is_served": problem.is_served, "faults": list(problem.faults)}


def plain_ref(ref: Ref) -> dict[str, str]:
    return {
        "object": str(ref),
        "cluster": ref.cluster,
        "kind": ref.kind,
        "namespace": ref.namespace,
        "name": ref.name,
    }


def syncz(connections: Iterable[ConnectionInfo], namespace: str, *, pretty: bool) -> Pieces:
    """Whether clients hold what they were sent (operations.md 12.5.1)."""
    chosen = [client for client in connections if not namespace or client.node.namespace == namespace]
    yield from _array((_sync(client) for client in chosen), pretty=pretty)


def _sync(client: ConnectionInfo) -> dict[str, Any]:
    node = client.node
    return _without_empty(
        {
            "cluster_id": node.cluster_id,
            "proxy": node.id,
            "proxy_type": node.type,
            "istio_version": node.istio_version,
            "resources": {url: _type_status(status) for url, status in sorted(client.types.items())},
        }
    )


def _type_status(status: TypeStatus) -> dict[str, Any]:
    return _without_empty(
        {
            "sent": status.nonce_sent,
            "acked": status.nonce_acked,
            "sentTime": _NO_TIME if status.sent_at_s is None else _time(status.sent_at_s),
            "lastError": status.last_error,
        }
    )


def connections(clients: Sequence[ConnectionInfo], *, with_details: bool, pretty: bool) -> Pieces:
    """Who is connected (operations.md 12.5.2); with details: metadata and subscriptions too."""

    def members() -> Iterator[tuple[str, int | Iterator[Any]]]:
        yield "totalClients", len(clients)
        if clients:
            yield "clients", (_connection(client, with_details=with_details) for client in clients)

    yield from _object(members(), pretty=pretty)


def _connection(client: ConnectionInfo, *, with_details: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "connectionId": client.connection_id,
        "connectedAt": _time(client.connected_at_s),
        "address": peer_address(client.peer),
    }
    if with_details:
        watches = {url: list(status.names()) for url, status in sorted(client.types.items())}
        described |= _without_empty(
            {
                "labels": client.node.metadata.get("LABELS", {}),
                "metadata": dict(client.node.metadata),
                "watches": watches,
            }
        )
    return described


def peer_address(peer: str) -> str:
    """`10.0.0.1:4711` of gRPC's `ipv4:10.0.0.1:4711`; IPv6 in brackets."""
    family, colon, rest = peer.partition(":")
    return unquote(rest) if colon and family in ("ipv4", "ipv6") else peer


def to_json(value: Any, *, pretty: bool) -> bytes:
    """Compact, or indented by 4 spaces."""
    text = msgspec.json.encode(value)
    return msgspec.json.format(text, indent=4) if pretty else text


def find_client(state: DebugState, proxy_id: str) -> ConnectionInfo | None:
    """The first client whose connection id holds this text (operations.md 12.3)."""
    return next((client for client in state.registry.connections() if proxy_id in client.connection_id), None)


# Entries in the order of their names, with breaks.


def _addresses(feed: Feed, names: Collection[str] | None = None) -> Iterator[tuple[bytes, Address] | None]:
    return _messages(feed.addresses, Address, names)


def _policies(feed: Feed, names: Collection[str] | None = None) -> Iterator[tuple[bytes, Authorization] | None]:
    return _messages(feed.policies, Authorization, names)


def _messages(view: View[R], kind: type[Any], names: Collection[str] | None) -> Iterator[tuple[bytes, Any] | None]:
    # Taken now and not when the first piece is asked for, so that all parts of one page tell of one moment.
    entries = view.entries()

    def messages() -> Iterator[tuple[bytes, Message] | None]:
        for ordered in _in_order(entries):
            if ordered is None:
                yield None
                continue
            for entry, rendered in live([ordered]):
                if names is None or entry.name in names:
                    yield rendered.body, kind.FromString(rendered.body)

    return messages()


def _in_order(entries: list[Entry[R]]) -> Iterator[Entry[R] | None]:
    """Entries by name; None: a moment to take a break. Sorting 100,000 names at once would hold the loop."""
    runs: list[list[Entry[R]]] = []
    for start in range(0, len(entries), _SORTED_AT_ONCE):
        runs.append(sorted(entries[start : start + _SORTED_AT_ONCE], key=_name))
        yield None
    yield from heapq.merge(*runs, key=_name)


def _name(entry: Entry[Any]) -> str:
    return entry.name


# JSON by pieces.

_PAUSE = object()
"""Stands for nothing, where an iterator has worked for a while without a result."""


def _object(members: Iterable[tuple[str, int | Iterable[Any]]], *, pretty: bool) -> Pieces:
    """An object whose members are arrays, or numbers."""
    separator = b""
    yield b"{"
    for name, items in members:
        yield separator + (b"\n    " if pretty else b"") + to_json(name, pretty=False) + (b": " if pretty else b":")
        if isinstance(items, int):
            yield to_json(items, pretty=False)
        else:
            yield from _array(items, pretty=pretty, depth=1)
        separator = b","
    yield b"\n}" if pretty else b"}"


def _array(items: Iterable[Any], *, pretty: bool, depth: int = 0) -> Pieces:
    outer = b"\n" + b"    " * depth if pretty else b""
    inner = outer + b"    " if pretty else b""
    is_first = True
    for item in items:
        if item is _PAUSE:
            yield b""
            continue
        text = to_json(item, pretty=pretty)
        if pretty:
            # Line breaks inside texts are escaped, so every real one begins a line of ours.
            text = text.replace(b"\n", inner)
        yield (b"[" if is_first else b",") + inner + text
        is_first = False
    yield b"[]" if is_first else outer + b"]"


def _without_empty(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value not in ("", {}, None)}


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")
