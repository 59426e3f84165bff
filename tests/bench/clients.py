"""Loopback clients for benchmarks, in a process of their own: so many streams to a port, each with both wildcards, that
take and acknowledge everything. Prints a line when all hold the full state, then one per second with how much arrived;
ends when nobody reads that any more."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import grpc.aio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse

from ambientd.push.frames import ADDRESS, AUTHORIZATION

METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"


class Count:
    """What arrived at all clients."""

    def __init__(self) -> None:
        self.responses = 0
        self.full: set[tuple[int, str]] = set()


async def client(number: int, port: int, count: Count) -> None:
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", -1), ("bench.number", number)]
    ) as channel:
        stream: Any = channel.stream_stream
        call = stream(METHOD)()
        node = Node(id=f"ztunnel~10.0.0.1~ztunnel-{number}.istio-system~istio-system.svc.cluster.local")
        for type_url in (ADDRESS, AUTHORIZATION):
            await call.write(DeltaDiscoveryRequest(node=node, type_url=type_url).SerializeToString())
        while True:
            raw = await call.read()
            if not isinstance(raw, bytes):
                return
            type_url, nonce = tail(raw)
            count.responses += 1
            count.full.add((number, type_url))
            await call.write(DeltaDiscoveryRequest(type_url=type_url, response_nonce=nonce).SerializeToString())


def tail(raw: bytes) -> tuple[str, str]:
    """Type and nonce of a response, without decoding its resources, which is not what is measured."""
    type_url = ADDRESS if ADDRESS.encode() in raw[-200_000:] else AUTHORIZATION
    marker = raw.rindex(b"\x22" + bytes((len(type_url),)) + type_url.encode())
    return type_url, DeltaDiscoveryResponse.FromString(raw[marker:]).nonce


async def main(port: int, streams: int) -> None:
    count = Count()
    tasks = [asyncio.create_task(client(number, port, count)) for number in range(streams)]
    while len(count.full) < 2 * streams:
        await asyncio.sleep(0.05)
        for task in tasks:
            if task.done():
                task.result()
                raise SystemExit("a stream ended")
    print(json.dumps({"full": streams}), flush=True)
    while True:
        before = count.responses
        await asyncio.sleep(1)
        print(json.dumps({"at": time.time(), "responses": count.responses - before}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
