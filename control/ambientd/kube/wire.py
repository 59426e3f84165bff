"""The JSON around the objects: lists, watch lines, statuses, definitions. An object itself stays raw until it is known
that it is wanted. Pure. Must not know any kind."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from ambientd.kube.errors import (
    Ahead,
    ApiError,
    Busy,
    Forbidden,
    Garbled,
    Gone,
    NotDefined,
    NotFound,
    Refused,
    Unauthorized,
)

LONGEST_LINE_BYTES = 32 << 20
"""Of a watch; an object in etcd has at most a few MiB."""

T = TypeVar("T")

_DEEPEST = 100
"""Levels; what is read of any kind lies within a dozen. An API server takes ten times as many as the decoder has stack
for, from whoever may write a kind whose definition keeps fields that it does not know."""
# A text that breaks off is one token too: else the search would begin anew at each quotation mark in it.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


def decoded(decoder: msgspec.json.Decoder[T], raw: bytes | Raw) -> T:
    """Raises msgspec.DecodeError, and nothing else however deeply the JSON is nested."""
    try:
        return decoder.decode(raw)
    except RecursionError:
        return decoder.decode(shallow(bytes(raw)))


def decode_object(raw: bytes) -> dict[str, Any]:
    """A whole object that is to be written back, without its managed fields: they may be nested more deeply than can be
    read, and the API server keeps them where they are left out. Raises msgspec.DecodeError."""
    found = decoded(_OBJECT, raw)
    metadata = found.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
    return found


_OBJECT = msgspec.json.Decoder(dict[str, Any])


def shallow(raw: bytes) -> bytes:
    """The same JSON with null in the place of what is nested too deeply to be read, so that one such object does not
    take the others of its list with it. Slow: 0.04 s for each MB, and 0.14 s where it is nothing but brackets."""
    pieces: list[bytes] = []
    depth = kept_from = 0
    for token in _TOKEN.finditer(raw):
        at = token.start()
        if raw[at] in b"[{":
            depth += 1
            if depth == _DEEPEST:
                pieces.append(raw[kept_from:at])
        elif raw[at] in b"]}":
            depth -= 1
            if depth == _DEEPEST - 1:
                pieces.append(b"null")
                kept_from = token.end()
    # What breaks off in the depth is not JSON, and stays so.
    pieces.append(raw[kept_from:] if depth < _DEEPEST else b"")
    return b"".join(pieces)


class _ListMeta(Struct):
    version: str | None = field(default=None, name="resourceVersion")
    after: str | None = field(default=None, name="continue")


class _List(Struct):
    kind: str | None = None
    metadata: _ListMeta | None = None
    items: list[Raw] | None = None


class Page(Struct, frozen=True):
    """A part of a list."""

    version: str
    """Of the whole list; pages of one list have the same."""
    items: tuple[Raw, ...]
    after: str
    """Where the next page begins; empty: this is the last one."""


_LIST = msgspec.json.Decoder(_List)


def decode_page(raw: bytes) -> Page:
    """Raises Garbled. What is no list must not pass for an empty one."""
    try:
        page = decoded(_LIST, raw)
    except msgspec.DecodeError as error:
        raise Garbled(f"the answer is no list of objects: {error}") from error
    if not (page.kind or "").endswith("List") or page.metadata is None or not page.metadata.version:
        raise Garbled(f"the answer is no list of objects, but {page.kind or 'something'} without a version")
    return Page(page.metadata.version, tuple(page.items or ()), page.metadata.after or "")


class WatchLine(Struct, frozen=True):
    """One line of a watch."""

    type: str
    """ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""
    object: Raw


_LINE = msgspec.json.Decoder(WatchLine)


def decode_line(raw: bytes) -> WatchLine:
    """Raises Garbled."""
    try:
        return decoded(_LINE, raw)
    except msgspec.DecodeError as error:
        raise Garbled(f"a line of the watch is no event: {error}") from error


class _Meta(Struct):
    version: str | None = field(default=None, name="resourceVersion")


class _HasMeta(Struct):
    metadata: _Meta | None = None


_BOOKMARK = msgspec.json.Decoder(_HasMeta)


def decode_bookmark(raw: bytes | Raw) -> str:
    """The resource version that a bookmark tells of. Raises Garbled."""
    try:
        meta = decoded(_BOOKMARK, raw).metadata
    except msgspec.DecodeError as error:
        raise Garbled(f"a bookmark of the watch has no version: {error}") from error
    if meta is None or not meta.version:
        raise Garbled("a bookmark of the watch has no version")
    return meta.version


class _Cause(Struct):
    reason: str | None = None
    message: str | None = None


class _Details(Struct):
    name: str | None = None
    retry_after_s: float | None = field(default=None, name="retryAfterSeconds")
    causes: list[_Cause] | None = None


class _Status(Struct):
    kind: str | None = None
    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: _Details | None = None


_STATUS = msgspec.json.Decoder(_Status)
_NO_STATUS = _Status()


def error_of(what: str, raw: bytes | Raw, status: int = 0, retry_after: str = "") -> ApiError:
    """The error that an answer means: of a response with this HTTP status and `Retry-After`, or of an ERROR line of a
    watch (no status). `what` was asked for."""
    try:
        told = decoded(_STATUS, raw)
    except msgspec.DecodeError:
        told = _NO_STATUS
    details = told.details or _Details()
    code = status or told.code or 500
    text = _text(bytes(raw), told)
    wait_s = max(_seconds(retry_after), details.retry_after_s or 0.0)
    is_ahead = "ResourceVersionTooLarge" in {cause.reason for cause in details.causes or ()}
    if is_ahead or "Too large resource version" in text:
        return Ahead(f"{what}: {text}", retry_after_s=wait_s)
    match code:
        case 401:
            return Unauthorized(f"{what}: the server does not accept our credentials ({text})")
        case 403:
            return Forbidden(f"{what}: {text}; grant it in the ClusterRole of the server")
        case 404:
            is_certain = told.kind == "Status" and told.reason == "NotFound" and bool(details.name)
            return (NotDefined if is_certain else NotFound)(f"{what}: {text}")
        case 410:
            return Gone(f"{what}: {text}", retry_after_s=wait_s)
        case 429:
            return Busy(f"{what}: the server is busy ({text})", retry_after_s=wait_s)
    if wait_s:
        return Busy(f"{what}: {text}", retry_after_s=wait_s)
    return Refused(f"{what}: {text}", status=code)


def _text(raw: bytes, told: _Status) -> str:
    """What the server says, on one line."""
    text = told.message or told.reason or raw[:300].decode(errors="replace")
    if told.code and not told.message:
        text = f"{told.code} {text}"
    return " ".join(text.split())[:300] or "no explanation"


def _seconds(retry_after: str) -> float:
    """Of a `Retry-After` header; an API server gives no dates there."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        return 0.0


class _DefinedVersion(Struct):
    name: str
    served: bool = False


class _DefinitionSpec(Struct):
    versions: list[_DefinedVersion] = []


class _Condition(Struct):
    type: str
    status: str


class _DefinitionStatus(Struct):
    conditions: list[_Condition] | None = None


class _Definition(Struct):
    spec: _DefinitionSpec
    status: _DefinitionStatus | None = None


_DEFINITION = msgspec.json.Decoder(_Definition)


class Definition(Struct, frozen=True):
    """What a CustomResourceDefinition says."""

    served: tuple[str, ...]
    """Versions without their group, as it lists them."""
    is_established: bool
    """The API server serves it, or is about to."""


def decode_definition(raw: bytes) -> Definition:
    """Raises Garbled."""
    try:
        wire = decoded(_DEFINITION, raw)
    except msgspec.DecodeError as error:
        raise Garbled(f"the answer is no definition of a kind: {error}") from error
    served = tuple(version.name for version in wire.spec.versions if version.served)
    conditions = (wire.status.conditions if wire.status else None) or ()
    established = any(condition.type == "Established" and condition.status == "True" for condition in conditions)
    return Definition(served, established)


class Lines:
    """Cuts a stream of bytes into lines; what comes after the last line end waits for more."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete now, without empty ones. Raises Garbled."""
        end = chunk.rfind(b"\n")
        if end < 0:
            self._rest += chunk
            if len(self._rest) > LONGEST_LINE_BYTES:
                raise Garbled(f"a line of the watch is longer than {LONGEST_LINE_BYTES} bytes")
            return []
        whole = bytes(self._rest) + chunk[:end]
        self._rest = bytearray(chunk[end + 1 :])
        return [line for line in whole.split(b"\n") if line and not line.isspace()]
