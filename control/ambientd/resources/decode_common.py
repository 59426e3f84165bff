"""What every decoder shares: metadata, names, labels, and faults made of the errors of msgspec. The wire structs here
and in the other `decode_*` modules have the shape of the JSON and only the fields that we use; null counts as absent,
as it does for the API server. Must not know any kind."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from ambientd.resources.faults import Fault, Undecodable, quote
from ambientd.resources.kinds import CLUSTER_KINDS
from ambientd.resources.ref import ClusterId, Labels, Ref, intern_labels

Port = Annotated[int, Meta(ge=0, le=65535)]
"""A port number; 0 counts as unset."""
Unsigned = Annotated[int, Meta(ge=0, le=4294967295)]


class TrackedAnnotations(Struct, gc=False):
    """The annotations that some rule reads: all others, which may be long, are passed over without a copy."""

    redirection: str | None = field(default=None, name="ambient.istio.io/redirection")
    inbound_binding: str | None = field(default=None, name="ambient.istio.io/waypoint-inbound-binding")
    service_account: str | None = field(default=None, name="gateway.istio.io/service-account")
    auto_registration_group: str | None = field(default=None, name="istio.io/autoRegistrationGroup")
    connect_strategy: str | None = field(default=None, name="istio.io/connect-strategy")
    dry_run: str | None = field(default=None, name="istio.io/dry-run")
    canary_weight: str | None = field(default=None, name="istio.io/use-waypoint-canary-weight")
    traffic_distribution: str | None = field(default=None, name="networking.istio.io/traffic-distribution")


_ANNOTATION_NAMES = tuple(field.encode_name for field in msgspec.structs.fields(TrackedAnnotations))


class WireMeta(Struct, gc=False):
    """Metadata of every kind but Pod, which has its own."""

    name: str | None = None
    namespace: str | None = None
    labels: dict[str, str] | None = None
    annotations: TrackedAnnotations | None = None
    created: str | None = field(default=None, name="creationTimestamp")
    generation: int | None = None


NO_META = WireMeta()


def make_ref(cluster: ClusterId, kind: str, namespace: str | None, name: str | None) -> Ref:
    """The name of an object; the namespace of a cluster kind is ignored. Raises Undecodable when a part is missing."""
    if not name:
        raise Undecodable((Fault("metadata.name", "must be set", "", "the object has no name and cannot be used"),))
    if kind in CLUSTER_KINDS:
        return Ref(cluster, kind, "", name)
    if not namespace:
        rule = "must be set, as the objects of this kind have a namespace"
        raise Undecodable((Fault("metadata.namespace", rule, "", "the object cannot be used"),))
    return Ref(cluster, kind, sys.intern(namespace), name)


def labels_of(labels: dict[str, str] | None) -> Labels:
    return intern_labels(labels) if labels else ()


def annotations_of(annotations: TrackedAnnotations | None) -> Labels:
    if annotations is None:
        return ()
    values = msgspec.structs.astuple(annotations)
    return intern_labels(
        (name, value) for name, value in zip(_ANNOTATION_NAMES, values, strict=True) if value is not None
    )


def created_of(text: str | None) -> str:
    """A time stamp as RFC 3339 in UTC with whole seconds, so that text order is time order; empty when absent. Raises
    Undecodable when the text is no time."""
    if not text:
        return ""
    try:
        time = datetime.fromisoformat(text)
        # A text without an offset is UTC, as in YAML.
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        rule = "must be an RFC 3339 time such as 2026-01-31T12:00:00Z"
        raise Undecodable((Fault("metadata.creationTimestamp", rule, quote(text), ""),)) from error
    return time.strftime("%Y-%m-%dT%H:%M:%SZ") if time.year > 999 else ""


_ERROR = re.compile(
    r"(?:Expected `(?P<want>[^`]*)`(?P<bound> [<>=]+ -?\d+)?(?:, got `(?P<got>[^`]*)`)?|(?P<other>.*?))"
    r"(?: - at `\$(?P<path>.*)`)?",
    re.DOTALL,
)
_TYPE_NAMES = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_JSON_TYPES = {str: "str", bool: "bool", int: "int", float: "float", type(None): "null", dict: "object", list: "array"}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def fault_of(error: Exception, raw: bytes, effect: str, prefix: str = "") -> Fault:
    """The error of a decoder in our words: the field's path (below `prefix`), the rule, and the value that came. Slow,
    since it decodes again; errors are rare."""
    if isinstance(error, RecursionError):
        return Fault(prefix, "must not be nested that deeply", "", effect)
    if not isinstance(error, msgspec.ValidationError):
        return Fault(prefix, "must be JSON in UTF-8", quote(str(error), 120), effect)
    match = _ERROR.fullmatch(str(error))
    if match is None or match["want"] is None:
        return Fault(prefix, "must have the right type", quote(str(error), 120), effect)
    wanted = [_TYPE_NAMES.get(name, name) for name in match["want"].split(" | ") if name != "null"]
    rule = f"must be {' or '.join(wanted) or 'null'}{match['bound'] or ''}"
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return Fault(prefix, rule, match["got"] or "", effect)
    path, value = _follow(value, match["path"] or "", match["got"] or match["want"])
    return Fault((prefix + path).removeprefix("."), rule, describe(value), effect)


def describe(value: Any) -> str:
    """What came, for a fault: a scalar quoted, anything else by its type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else quote(value)


def key_path(key: str) -> str:
    """One step of a field path: `.name`, or `["other/name"]` where the key is no plain word."""
    return f".{key}" if _IDENTIFIER.match(key) else f'["{key}"]'


def _follow(value: Any, path: str, wrong_type: str) -> tuple[str, Any]:
    """The readable form of msgspec's path, and the value there. `[...]` stands for any key of a map: the first value of
    the type that was refused is meant."""
    readable = ""
    while path:
        if path.startswith("[...]"):
            path = path[len("[...]") :]
            pairs = value.items() if isinstance(value, dict) else ()
            found = next((pair for pair in pairs if path or _JSON_TYPES.get(type(pair[1])) == wrong_type), None)
            if found is None:
                return readable, None
            readable, value = f'{readable}["{found[0]}"]', found[1]
        elif path.startswith("[") and isinstance(value, list):
            index, _, path = path[1:].partition("]")
            readable, value = f"{readable}[{index}]", value[int(index)]
        elif path.startswith(".") and isinstance(value, dict):
            rest = path[1:]
            # Keys may hold dots: the longest one that fits is meant.
            keys = [key for key in value if rest == key or rest.startswith((key + ".", key + "["))]
            if not keys:
                return readable + path, None
            key = max(keys, key=len)
            readable, value, path = readable + key_path(key), value[key], rest[len(key) :]
        else:
            return readable + path, None
    return readable, value
