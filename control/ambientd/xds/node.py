"""Who a client says that it is (xds.md 4). A claim only; authentication is elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.config.core.v3.base_pb2 import Node as NodeMessage
from google.protobuf.json_format import MessageToDict, SerializeToJsonError
from msgspec import Struct

from ambientd.index.ips import parse_ip
from ambientd.resources.booleans import FALSE_TEXTS, TRUE_TEXTS

NODE_TYPES = ("sidecar", "router", "waypoint", "ztunnel", "agentgateway")

_TEXTS = frozenset(
    {
        "AUTO_REGISTER_GROUP",
        "CLUSTER_ID",
        "GENERATOR",
        "INSTANCE_IPS",
        "INTERCEPTION_MODE",
        "ISTIO_VERSION",
        "MESH_ID",
        "NAME",
        "NAMESPACE",
        "NETWORK",
        "NODE_NAME",
        "POD_PORTS",
        "REQUESTED_NETWORK_VIEW",
        "SERVICE_ACCOUNT",
        "WORKLOAD_ENTRY",
        "WORKLOAD_NAME",
    }
)
_BOOLEANS = frozenset(
    {
        "DISABLE_HBONE_SEND",
        "DNS_AUTO_ALLOCATE",
        "DNS_CAPTURE",
        "ENABLE_HBONE",
        "ENABLE_SELF_DISCOVERY",
        "METADATA_DISCOVERY",
        "UNPRIVILEGED_POD",
    }
)
_MAPS = frozenset({"LABELS", "STATIC_LABELS", "ANNOTATIONS"})
_BOOLEAN_TEXTS = TRUE_TEXTS | FALSE_TEXTS


class Node(Struct, frozen=True):
    """A client's account of itself, with the keys of its metadata that we read."""

    type: str
    id: str
    """`<pod>.<namespace>`."""
    ips: tuple[str, ...]
    namespace: str
    """Configuration namespace: metadata `NAMESPACE`, else the first label of the DNS domain."""
    cluster_id: str
    node_name: str
    """Kubernetes node that it runs on; empty when it does not tell."""
    istio_version: str
    service_account: str
    metadata: Mapping[str, Any]


class BadNode(Exception):
    """A client that cannot be served; the text is for the client."""


def parse_node(message: NodeMessage | None, aliases: Mapping[str, str]) -> Node:
    """Checks a node message. `aliases`: cluster ids by their other names. Raises BadNode with the texts of xds.md 4."""
    if message is None or not message.id:
        raise BadNode("missing node information")
    parts = message.id.split("~")
    if len(parts) != 4:
        raise BadNode(f'missing parts in the service node "{message.id}"')
    node_type, ip, node_id, domain = parts
    if node_type not in NODE_TYPES:
        raise BadNode(
            f'invalid node type (valid types: [sidecar router waypoint ztunnel]) in the service node "{message.id}"'
        )
    try:
        metadata = MessageToDict(message.metadata)
    except (SerializeToJsonError, ValueError) as error:  # numbers that JSON does not have
        raise BadNode(f"failed to unmarshal node metadata: {error}") from error
    _check_metadata(metadata)
    cluster_id = _text(metadata, "CLUSTER_ID")
    return Node(
        type=node_type,
        id=node_id,
        ips=_ips(_text(metadata, "INSTANCE_IPS"), ip),
        namespace=_text(metadata, "NAMESPACE") or (domain.split(".")[0] if "." in domain else ""),
        cluster_id=aliases.get(cluster_id, cluster_id),
        node_name=_text(metadata, "NODE_NAME"),
        istio_version=_text(metadata, "ISTIO_VERSION"),
        service_account=_text(metadata, "SERVICE_ACCOUNT"),
        metadata=metadata,
    )


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key)
    return value if isinstance(value, str) else ""


def _ips(instance_ips: str, ip: str) -> tuple[str, ...]:
    listed = tuple(instance_ips.split(",")) if instance_ips else ()
    if listed and all(parse_ip(text) is not None for text in listed):
        return listed
    if parse_ip(ip) is not None:
        return (ip,)
    raise BadNode("no valid IP address in the service node id or metadata")


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    for key, value in metadata.items():
        if value is None:
            continue
        if key in _TEXTS and not isinstance(value, str):
            reason = f"{key} must be a string"
        elif key in _BOOLEANS and not (isinstance(value, str) and value in _BOOLEAN_TEXTS):
            reason = f'{key} must be "true" or "false", as a string'
        elif key in _MAPS and not _is_map_of_strings(value):
            reason = f"{key} must be an object of strings"
        elif key == "PROXY_CONFIG" and not isinstance(value, dict):
            reason = "PROXY_CONFIG must be an object"
        else:
            continue
        raise BadNode(f"failed to unmarshal node metadata ({dict(metadata)}): {reason}")


def _is_map_of_strings(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
