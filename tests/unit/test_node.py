"""What clients say that they are (xds.md 4)."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.core.v3.base_pb2 import Node as NodeMessage

from ambientd.xds.node import BadNode, parse_node

ZTUNNEL = "ztunnel~10.0.0.1~ztunnel-x.istio-system~istio-system.svc.cluster.local"


def _message(node_id: str = ZTUNNEL, **metadata: Any) -> NodeMessage:
    message = NodeMessage(id=node_id)
    message.metadata.update(metadata)
    return message


def test_what_a_ztunnel_sends_is_read() -> None:
    node = parse_node(
        _message(
            NAME="ztunnel-x",
            NAMESPACE="istio-system",
            INSTANCE_IPS="10.0.0.1,fd00::1",
            NODE_NAME="node-a",
            CLUSTER_ID="alias",
            ISTIO_VERSION="1.31",
            SERVICE_ACCOUNT="ztunnel",
        ),
        {"alias": "Kubernetes"},
    )
    assert (node.type, node.id, node.ips) == ("ztunnel", "ztunnel-x.istio-system", ("10.0.0.1", "fd00::1"))
    assert (node.namespace, node.cluster_id, node.node_name) == ("istio-system", "Kubernetes", "node-a")
    assert (node.istio_version, node.service_account) == ("1.31", "ztunnel")


@pytest.mark.parametrize("message", [None, NodeMessage(), NodeMessage(cluster="x")])
def test_a_node_without_an_id_is_no_node(message: NodeMessage | None) -> None:
    with pytest.raises(BadNode, match=r"^missing node information$"):
        parse_node(message, {})


@pytest.mark.parametrize("node_id", ["x", "ztunnel~10.0.0.1~a.b", "ztunnel~10.0.0.1~a.b~c~d"])
def test_a_node_id_has_four_parts(node_id: str) -> None:
    with pytest.raises(BadNode) as error:
        parse_node(_message(node_id), {})
    assert str(error.value) == f'missing parts in the service node "{node_id}"'


@pytest.mark.parametrize("node_type", ["Ztunnel", "", "proxy"])
def test_a_node_type_is_one_that_we_know_in_this_very_spelling(node_type: str) -> None:
    node_id = f"{node_type}~10.0.0.1~a.b~c"
    with pytest.raises(BadNode) as error:
        parse_node(_message(node_id), {})
    assert str(error.value) == (
        f'invalid node type (valid types: [sidecar router waypoint ztunnel]) in the service node "{node_id}"'
    )


@pytest.mark.parametrize("node_type", ["sidecar", "router", "waypoint", "ztunnel", "agentgateway"])
def test_every_known_node_type_is_served(node_type: str) -> None:
    assert parse_node(_message(f"{node_type}~10.0.0.1~~"), {}).type == node_type


@pytest.mark.parametrize(
    ("ip", "instance_ips", "ips"),
    [
        ("10.0.0.1", "", ("10.0.0.1",)),
        ("nonsense", "10.0.0.2", ("10.0.0.2",)),
        ("10.0.0.1", "10.0.0.2,nonsense", ("10.0.0.1",)),
        ("10.0.0.1", "10.0.0.2/24", ("10.0.0.1",)),
        ("10.0.0.1", "10.0.0.2, fd00::1", ("10.0.0.1",)),
    ],
)
def test_addresses_are_all_those_listed_or_the_one_of_the_id(ip: str, instance_ips: str, ips: tuple[str, ...]) -> None:
    assert parse_node(_message(f"ztunnel~{ip}~a.b~c", INSTANCE_IPS=instance_ips), {}).ips == ips


def test_a_node_without_any_valid_address_is_refused() -> None:
    with pytest.raises(BadNode, match=r"^no valid IP address in the service node id or metadata$"):
        parse_node(_message("ztunnel~~a.b~c", INSTANCE_IPS="nonsense"), {})


@pytest.mark.parametrize(
    ("domain", "metadata", "namespace"),
    [
        ("shop.svc.cluster.local", {}, "shop"),
        ("local", {}, ""),
        ("", {}, ""),
        ("shop.svc", {"NAMESPACE": "bank"}, "bank"),
        ("shop.svc", {"NAMESPACE": ""}, "shop"),
        ("shop.svc", {"NAMESPACE": None}, "shop"),
    ],
)
def test_the_namespace_is_that_of_the_metadata_or_of_the_domain(
    domain: str, metadata: dict[str, Any], namespace: str
) -> None:
    assert parse_node(_message(f"ztunnel~10.0.0.1~a.b~{domain}", **metadata), {}).namespace == namespace


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"NAMESPACE": 1}, "NAMESPACE must be a string"),
        ({"NODE_NAME": ["n"]}, "NODE_NAME must be a string"),
        ({"INSTANCE_IPS": ["10.0.0.1"]}, "INSTANCE_IPS must be a string"),
        ({"DNS_CAPTURE": True}, 'DNS_CAPTURE must be "true" or "false", as a string'),
        ({"ENABLE_HBONE": "maybe"}, 'ENABLE_HBONE must be "true" or "false", as a string'),
        ({"DNS_CAPTURE": ["true"]}, 'DNS_CAPTURE must be "true" or "false", as a string'),
        ({"LABELS": "app=x"}, "LABELS must be an object of strings"),
        ({"LABELS": {"app": 1}}, "LABELS must be an object of strings"),
        ({"PROXY_CONFIG": "x"}, "PROXY_CONFIG must be an object"),
    ],
)
def test_a_known_key_of_a_wrong_type_is_refused(metadata: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadNode) as error:
        parse_node(_message(**metadata), {})
    assert str(error.value).startswith("failed to unmarshal node metadata (")
    assert str(error.value).endswith(f"): {reason}")


def test_null_is_absent_and_unknown_keys_are_kept() -> None:
    metadata: dict[str, Any] = {"NAMESPACE": None, "DNS_CAPTURE": None, "SOMETHING": [1, {"a": True}]}
    node = parse_node(_message(**metadata), {})
    assert node.metadata["SOMETHING"] == [1.0, {"a": True}]


@pytest.mark.parametrize("text", ["true", "false", "1", "0", "T", "F"])
def test_booleans_are_texts(text: str) -> None:
    assert parse_node(_message(ENABLE_HBONE=text), {}).metadata["ENABLE_HBONE"] == text


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_json_does_not_have_are_refused(number: float) -> None:
    with pytest.raises(BadNode, match=r"^failed to unmarshal node metadata: "):
        parse_node(_message(OTHER=number), {})
