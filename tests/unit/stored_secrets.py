"""Secrets of a namespace without an API server, and a clock that goes as fast as it is asked. No test stands here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ambientd.ca.secrets import Conflict, Data, Secret
from ambientd.kube.errors import ApiError


class Stored:
    """Takes the place of `Secrets`."""

    def __init__(self, held: Mapping[str, Mapping[str, bytes]] | None = None) -> None:
        self.held = {name: Secret(name, Data(data), "1") for name, data in (held or {}).items()}
        self.kinds: dict[str, str] = {}
        """Of those that were created."""
        self.reads = self.attempts = 0
        self.writes: list[str] = []
        """Names of those that were replaced."""
        self.trouble: Exception | None = None
        """What every call raises."""
        self.trouble_with_writes: Exception | None = None
        self.trouble_with_next_reads: list[Exception] = []

    def source(self, name: str) -> str:
        return f"Secret istio-system/{name}"

    def put(self, name: str, data: Mapping[str, bytes]) -> None:
        """As somebody else would."""
        version = int(self.held[name].version) if name in self.held else 0
        self.held[name] = Secret(name, Data(data), str(version + 1))

    def data(self, name: str) -> dict[str, bytes]:
        return dict(self.held[name].data.by_key)

    async def read(self, name: str) -> Secret | None:
        self.reads += 1
        self._fail(self.trouble_with_next_reads.pop(0) if self.trouble_with_next_reads else self.trouble)
        return self.held.get(name)

    async def create(self, name: str, kind: str, data: Data) -> None:
        self._fail(self.trouble)
        if name in self.held:
            raise Conflict(f"{name} is there")
        self.kinds[name] = kind
        self.put(name, data.by_key)

    async def replace(self, secret: Secret, data: Data) -> None:
        self.attempts += 1
        self._fail(self.trouble or self.trouble_with_writes)
        if self.held[secret.name].version != secret.version:
            raise Conflict(f"{secret.name} has changed")
        self.writes.append(secret.name)
        self.put(secret.name, {**secret.data.by_key, **data.by_key})

    def _fail(self, trouble: Exception | None) -> None:
        if trouble is not None:
            raise trouble


class FastClock:
    """A second passes in a thousandth of one. No sleep is shorter than `least_s`."""

    def __init__(self, least_s: float = 0.0) -> None:
        self.now_s = 0.0
        self._least_s = least_s

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, for_s: float) -> None:
        await asyncio.sleep(for_s / 1000)
        self.now_s += max(for_s, self._least_s)


OUTAGE = ApiError("the API server does not answer")
