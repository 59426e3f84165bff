"""The secrets of the authority in the server's namespace: read, created, replaced (ca.md 10.3). What they hold never
shows in a text: not of a value, and not of an error. Must not know what is in them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from ambientd.kube.errors import Garbled, NotDefined, Refused
from ambientd.kube.turns import Urgency
from ambientd.kube.wire import decode_object, decoded

if TYPE_CHECKING:
    from ambientd.kube.api import Api


class Data(Struct, frozen=True):
    """What a secret holds, by key. Its own type, so that whatever prints a value that holds one prints nothing of
    it."""

    by_key: Mapping[str, bytes]

    def __repr__(self) -> str:
        return "Data(...)"

    __str__ = __repr__

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class Secret(Struct, frozen=True):
    name: str
    data: Data
    version: str
    """Resource version that it was read at."""


class Conflict(Exception):
    """Somebody else has created or changed it meanwhile."""


class _Meta(Struct):
    version: str = field(default="", name="resourceVersion")


class _Secret(Struct):
    metadata: _Meta = field(default_factory=_Meta)
    data: dict[str, str] | None = None


_SECRET = msgspec.json.Decoder(_Secret)


class Secrets:
    """Those of one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._path = f"/api/v1/namespaces/{namespace}/secrets"

    def source(self, name: str) -> str:
        """As errors name it."""
        return f"Secret {self._namespace}/{name}"

    async def read(self, name: str) -> Secret | None:
        """None: the API server says that there is none. Raises ApiError."""
        try:
            raw = await self._api.get(f"{self._path}/{name}", urgency=Urgency.READ)
        except NotDefined:
            return None
        try:
            found = decoded(_SECRET, raw)
            data = {key: base64.b64decode(value, validate=True) for key, value in (found.data or {}).items()}
        except (msgspec.DecodeError, binascii.Error, ValueError):
            raise Garbled(f"{self.source(name)}: the API server's answer is no secret") from None
        return Secret(name, Data(data), found.metadata.version)

    async def create(self, name: str, kind: str, data: Data) -> None:
        """Raises Conflict when there is one, and ApiError."""
        metadata = {"name": name, "namespace": self._namespace}
        await self._send("POST", self._path, name, _body(metadata, kind, data))

    async def replace(self, secret: Secret, data: Data) -> None:
        """Writes keys into a secret as it was read; its other keys, labels and the like stay. Raises Conflict and
        ApiError."""
        path = f"{self._path}/{secret.name}"
        raw = await self._api.get(path, urgency=Urgency.READ)
        try:
            held = decode_object(raw)
            version = decoded(_SECRET, raw).metadata.version
        except msgspec.DecodeError:
            raise Garbled(f"{self.source(secret.name)}: the API server's answer is no secret") from None
        if version != secret.version:
            raise Conflict(f"{self.source(secret.name)} has changed since it was read")
        old = held.get("data")
        held["data"] = {**(old if isinstance(old, dict) else {}), **_encoded(data)}
        await self._send("PUT", path, secret.name, msgspec.json.encode(held))

    async def _send(self, method: str, path: str, name: str, body: bytes) -> None:
        try:
            await self._api.send(method, path, urgency=Urgency.READ, body=body)
        except Refused as error:
            if error.status == 409:
                raise Conflict(f"{self.source(name)} was written by somebody else") from None
            # What the server says about a body might quote it.
            raise Refused(f"{method} {path}: refused with status {error.status}", status=error.status) from None


def _body(metadata: Mapping[str, str], kind: str, data: Data) -> bytes:
    return msgspec.json.encode(
        {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": metadata, "data": _encoded(data)}
    )


def _encoded(data: Data) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in data.by_key.items()}
