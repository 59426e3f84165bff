"""The ConfigMaps of a cluster without an API server: what a client of it asks for, and no more. No test stands here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from ambientd.kube.errors import ApiError, NotDefined, Refused
from ambientd.kube.turns import Urgency

Key = tuple[str, str]
"""Namespace and name."""


DEEP = "<something that is nested very deeply>"


def _encoded(value: Any) -> bytes:
    return json.dumps(value).replace(json.dumps(DEEP), '{"f:a":' * 1500 + "{}" + "}" * 1500).encode()


class ConfigMaps:
    """Takes the place of `Api`."""

    def __init__(self) -> None:
        self.held: dict[Key, dict[str, Any]] = {}
        self.writes: list[tuple[str, str]] = []
        """Method and namespace of each attempt."""
        self.refusals: dict[str, list[ApiError]] = {}
        """By namespace: what the next attempts end with."""
        self.trouble_with_lists: ApiError | None = None
        self.answers_after_s = 0.0
        """How much later than watches whoever writes hears of it."""
        self.binary: object = None
        """Binary data of the last write."""
        self._version = 1
        self._watchers: dict[str, list[asyncio.Queue[bytes]]] = {}

    def data(self, name: str) -> dict[str, dict[str, str]]:
        """What the ConfigMaps of this name hold, by namespace."""
        return {namespace: found["data"] for (namespace, named), found in self.held.items() if named == name}

    # What others do.

    def put(self, namespace: str, name: str, data: Mapping[str, str], **metadata: Any) -> None:
        kind = "MODIFIED" if (namespace, name) in self.held else "ADDED"
        self._version += 1
        version = str(self._version)
        about = {"namespace": namespace, "name": name, "resourceVersion": version, **metadata}
        self.held[namespace, name] = {"metadata": about, "data": dict(data)}
        self._tell(name, {"type": kind, "object": self.held[namespace, name]})

    def delete(self, namespace: str, name: str) -> None:
        found = self.held.pop((namespace, name))
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        self._tell(name, {"type": "DELETED", "object": found})

    def end_watches(self, name: str) -> None:
        """What they told up to is no longer kept."""
        self._tell(name, {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}})

    def _tell(self, name: str, line: dict[str, Any]) -> None:
        for watcher in self._watchers.get(name, ()):
            watcher.put_nowait(_encoded(line) + b"\n")

    # What the client asks.

    async def get(self, path: str, parameters: Mapping[str, str] | None = None, *, urgency: Urgency) -> bytes:
        await asyncio.sleep(0)
        if parameters is not None:
            if self.trouble_with_lists is not None:
                raise self.trouble_with_lists
            name = parameters["fieldSelector"].removeprefix("metadata.name=")
            items = [found for (_, named), found in self.held.items() if named == name]
            answer = {"kind": "ConfigMapList", "metadata": {"resourceVersion": str(self._version)}, "items": items}
            return _encoded(answer)
        namespace, name = path.split("/")[4], path.split("/")[6]
        if (namespace, name) not in self.held:
            raise NotDefined(f"GET {path}: there is none")
        return _encoded(self.held[namespace, name])

    async def send(self, method: str, path: str, *, urgency: Urgency, body: bytes) -> bytes:
        await asyncio.sleep(0)
        given = json.loads(body)
        namespace, name = path.split("/")[4], given["metadata"]["name"]
        self.writes.append((method, namespace))
        if refusals := self.refusals.get(namespace):
            raise refusals.pop(0)
        held = self.held.get((namespace, name))
        if (method == "POST") is (held is not None):
            raise Refused(f"{method} {path}: it exists, or does not", status=409)
        if held is not None and given["metadata"]["resourceVersion"] != held["metadata"]["resourceVersion"]:
            raise Refused(f"{method} {path}: it has changed", status=409)
        metadata = {key: value for key, value in given["metadata"].items() if key == "labels"}
        self.binary = given.get("binaryData")
        self.put(namespace, name, given["data"], **metadata)
        await asyncio.sleep(self.answers_after_s)
        return b""

    @asynccontextmanager
    async def stream(
        self, path: str, parameters: Mapping[str, str]
    ) -> AsyncIterator[Callable[[float], Awaitable[bytes]]]:
        name = parameters["fieldSelector"].removeprefix("metadata.name=")
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._watchers.setdefault(name, []).append(queue)

        async def read(wait_s: float) -> bytes:
            return await queue.get()

        try:
            yield read
        finally:
            self._watchers[name].remove(queue)
