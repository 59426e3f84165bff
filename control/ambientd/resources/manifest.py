"""Objects that never met an API server: what one would have filled in is filled in here (workloads.md 2.3; services.md
3; waypoints.md 2), then they are decoded like all others. Must not change the values it is given, which may be
shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import xxhash

from ambientd.resources.decode import decode, effect_of, to_json
from ambientd.resources.decode_common import describe, make_ref
from ambientd.resources.events import Invalid, Put
from ambientd.resources.faults import Fault, Undecodable, quote
from ambientd.resources.kinds import CLUSTER_KINDS, KINDS
from ambientd.resources.ref import ClusterId, Ref
from ambientd.resources.strict import strict_faults

Manifest = dict[str, Any]
T = TypeVar("T")

_OUR_GROUPS = frozenset({"security.istio.io", "networking.istio.io", "gateway.networking.k8s.io"})
_OTHER_KINDS = frozenset(
    {
        *("RequestAuthentication", "VirtualService", "DestinationRule", "Gateway", "Sidecar", "EnvoyFilter"),
        *("WorkloadGroup", "ProxyConfig", "HTTPRoute", "GRPCRoute", "TCPRoute", "TLSRoute", "UDPRoute"),
        *("ReferenceGrant", "BackendTLSPolicy", "BackendLBPolicy", "ListenerSet", "XListenerSet"),
    }
)
"""Kinds of these groups that exist, and that we do not read."""


class UnknownKind(Undecodable):
    """An object of a kind or version that is not read; it has no effect, and nothing else suffers."""


def decode_manifest(document: Any, cluster: ClusterId) -> Put | Invalid:
    """What a source emits for one manifest, the API server's defaulting applied; the resource version is a hash of the
    content. Raises UnknownKind, and Undecodable when the document has no name by which it could be reported."""
    kind = _kind(document)
    manifest = with_defaults(document)
    raw = to_json(manifest)
    ref = _ref(manifest, kind, cluster)
    refused = strict_faults(document, effect_of(kind))
    if refused:
        return Invalid(ref, refused)
    try:
        value, faults = decode(raw, kind, cluster)
    except Undecodable as error:
        return Invalid(ref, error.faults)
    return Put(value, resource_version=xxhash.xxh64_hexdigest(raw), faults=faults)


def items_of(document: Any) -> Iterator[tuple[str, Any]]:
    """The manifests in a document, with their paths in it: the items of a list, or the document itself with an empty
    path. Items of a `PodList` and the like need not repeat kind and version. Raises Undecodable."""
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(kind, str) or not kind.endswith("List"):
        yield "", document
        return
    items = document.get("items")
    if not isinstance(items, list):
        if items is None:
            return
        raise Undecodable((Fault("items", "must be a list", describe(items), "nothing of it is used"),))
    common = {} if kind == "List" else {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List")}
    for index, item in enumerate(items):
        yield f"items[{index}]", {**common, **item} if isinstance(item, dict) else item


def _kind(document: Any) -> str:
    effect = "nothing of it is used"
    if not isinstance(document, dict):
        raise Undecodable((Fault("", "must be a Kubernetes object", describe(document), effect),))
    for name in ("kind", "apiVersion"):
        value = document.get(name)
        if not value or not isinstance(value, str):
            got = "" if value is None else describe(value)
            raise Undecodable((Fault(name, "must be the text that names what the object is", got, effect),))
    kind, version = str(document["kind"]), document["apiVersion"]
    versions = KINDS.get(kind)
    if versions is None and version.partition("/")[0] in _OUR_GROUPS and kind not in _OTHER_KINDS:
        # A typing error in the name of a kind must not take away the policy that was meant.
        rule = f"must be a kind of {version}"
        raise Undecodable((Fault("kind", rule, quote(kind), effect),))
    if versions is None or version not in versions:
        rule = "must be a kind that is read" if versions is None else f"must be of {' or '.join(versions)} to be read"
        raise UnknownKind((Fault("kind", rule, quote(f"{kind} of {version}"), "the object has no effect"),))
    return kind


def _ref(manifest: Manifest, kind: str, cluster: ClusterId) -> Ref:
    """Raises Undecodable when the name is missing or could not have passed an API server."""
    metadata = manifest["metadata"]
    effect = effect_of(kind)
    if not isinstance(metadata, dict):
        raise Undecodable((Fault("metadata", "must be an object", describe(metadata), effect),))
    for part in ("name",) if kind in CLUSTER_KINDS else ("namespace", "name"):
        value = metadata.get(part)
        if not isinstance(value, str) or not value or value in (".", "..") or "/" in value or "%" in value:
            got = "" if value is None else describe(value)
            raise Undecodable((Fault(f"metadata.{part}", "must be the name of an object", got, effect),))
    return make_ref(cluster, kind, metadata.get("namespace"), metadata["name"])


def with_defaults(document: Manifest) -> Manifest:
    """The manifest as an API server would store it, as far as we read it. Fields of a wrong type are left as they
    are."""
    kind = document.get("kind")
    metadata = document.get("metadata")
    if metadata is None:
        metadata = {}
    if isinstance(metadata, dict) and kind not in CLUSTER_KINDS and metadata.get("namespace") in (None, ""):
        metadata = {**metadata, "namespace": "default"}
    manifest = {**document, "metadata": metadata}
    fill = _FILL.get(str(kind))
    return fill(manifest) if fill else manifest


def _with(value: Any, **defaults: Any) -> Any:
    """An object with what is absent or null filled in."""
    if not isinstance(value, dict):
        return value
    missing = {name: default for name, default in defaults.items() if value.get(name) is None}
    return {**value, **missing} if missing else value


def _at(value: T, name: str, fill: Callable[[Any], Any]) -> T:
    """An object with one member, if it is there, replaced."""
    if not isinstance(value, dict) or value.get(name) is None:
        return value
    return cast("T", {**value, name: fill(value[name])})


def _all(fill: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: [fill(element) for element in value] if isinstance(value, list) else value


def _pod(pod: Manifest) -> Manifest:
    def fill_container(container: Any) -> Any:
        return _at(container, "ports", _all(lambda port: _with(port, protocol="TCP")))

    def fill_spec(spec: Any) -> Any:
        spec = _with(spec, serviceAccountName="default")
        return _at(_at(spec, "containers", _all(fill_container)), "initContainers", _all(fill_container))

    filled = _with(pod, spec={})
    return {**filled, "spec": fill_spec(filled["spec"])}


def _namespace(namespace: Manifest) -> Manifest:
    metadata = namespace["metadata"]
    if not isinstance(metadata, dict):
        return namespace
    labels = metadata.get("labels")
    if labels is not None and not isinstance(labels, dict):
        return namespace
    labels = {**(labels or {}), "kubernetes.io/metadata.name": metadata.get("name")}
    return {**namespace, "metadata": {**metadata, "labels": labels}}


def _service(service: Manifest) -> Manifest:
    def fill_port(port: Any) -> Any:
        if not isinstance(port, dict):
            return port
        port = _with(port, protocol="TCP", targetPort=port.get("port"))
        # An empty target port is an unset one, as is 0.
        return {**port, "targetPort": port.get("port")} if port["targetPort"] in ("", 0) else port

    def fill_spec(spec: Any) -> Any:
        if isinstance(spec, dict) and spec.get("clusterIP") and not spec.get("clusterIPs"):
            spec = {**spec, "clusterIPs": [spec["clusterIP"]]}
        return _at(spec, "ports", _all(fill_port))

    return _at(service, "spec", fill_spec)


def _endpoint_slice(endpoint_slice: Manifest) -> Manifest:
    return _at(endpoint_slice, "ports", _all(lambda port: _with(port, name="", protocol="TCP")))


def _gateway(gateway: Manifest) -> Manifest:
    def fill_status(status: Any) -> Any:
        return _at(status, "addresses", _all(lambda address: _with(address, type="IPAddress")))

    def fill_listener(listener: Any) -> Any:
        return _at(listener, "tls", lambda tls: _with(tls, mode="Terminate"))

    gateway = _at(gateway, "spec", lambda spec: _at(spec, "listeners", _all(fill_listener)))
    return _at(gateway, "status", fill_status)


_FILL: dict[str, Callable[[Manifest], Manifest]] = {
    "Pod": _pod,
    "Namespace": _namespace,
    "Service": _service,
    "EndpointSlice": _endpoint_slice,
    "Gateway": _gateway,
}
