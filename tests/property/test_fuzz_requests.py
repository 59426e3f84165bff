"""Whatever a client sends, it is refused in the one declared way or gives commands, and no other client notices
(xds.md 3.5)."""

from __future__ import annotations

from collections.abc import Sequence

from envoy.config.core.v3.base_pb2 import Node as NodeMessage
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest
from google.protobuf.struct_pb2 import Struct as JsonStruct
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.xds import requests
from ambientd.xds.protocol import Advanced, Code, Requested, Woke
from ambientd.xds.requests import Malformed, Request
from tests.unit.conversation import Mesh, Peer, Rendered, node_message, pod, policy, service, uid

_some = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])

_VIP = service("shop/till.local", ip="10.9.0.1")
_SERVED: tuple[Rendered, ...] = (
    pod("shop/till", ip="10.0.0.1", node="n1", services=[_VIP.name], policies=["shop/p"]),
    _VIP,
    policy("shop/p"),
)

_names = st.one_of(
    st.sampled_from(
        ["*", "", "/", "//", uid("shop/till"), _VIP.name, "/10.0.0.1", "/10.9.0.1", "/10.9.9.9", "shop/p", "/::1"]
    ),
    st.text(max_size=12),
)
_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def _nodes(draw: st.DrawFn) -> NodeMessage:
    if draw(st.booleans()):
        node_type = draw(st.sampled_from(["ztunnel", "waypoint", "sidecar"]))
        return node_message(node_type, draw(st.sampled_from(["", "n1"])))
    metadata = JsonStruct()
    keys = st.sampled_from(["NAMESPACE", "CLUSTER_ID", "LABELS", "DNS_CAPTURE", "PROXY_CONFIG", "OTHER"])
    metadata.update(draw(st.dictionaries(keys, _json, max_size=3)))
    parts = draw(st.lists(st.sampled_from(["ztunnel", "10.0.0.1", "a.b", "x", "", "~"]), max_size=5))
    return NodeMessage(id="~".join(parts), metadata=metadata)


@st.composite
def _messages(draw: st.DrawFn) -> DeltaDiscoveryRequest:
    message = DeltaDiscoveryRequest(
        type_url=draw(st.sampled_from([ADDRESS, ADDRESS, AUTHORIZATION, "istio.v1.HealthInformation", "", "x"])),
        resource_names_subscribe=draw(st.lists(_names, max_size=3)),
        resource_names_unsubscribe=draw(st.lists(_names, max_size=3)),
        initial_resource_versions=draw(st.dictionaries(_names, st.text(max_size=4), max_size=3)),
        response_nonce=draw(st.sampled_from(["", "nonce-1", "nonce-2", "nonce-3", "x"])),
    )
    if draw(st.booleans()):
        message.node.CopyFrom(draw(_nodes()))
    if draw(st.sampled_from([False, False, False, True])):
        message.error_detail.message = draw(st.sampled_from(["", "no"]))
    return message


def _parsed(raw: bytes) -> Request:
    parsing = requests.parse(raw)
    while True:
        try:
            next(parsing)
        except StopIteration as stop:
            request: Request = stop.value
            return request


@_some
@given(st.binary(max_size=200), st.booleans())
def test_arbitrary_bytes_are_a_request_or_malformed(raw: bytes, in_slices: bool) -> None:
    padding = b"\x2a\x04\x0a\x02ab" * 30_000 if in_slices else b""
    try:
        _parsed(padding + raw)
    except Malformed:
        pass


@_some
@given(st.lists(st.one_of(_messages(), st.sampled_from([Advanced(), Woke()]), st.integers(0, 2)), max_size=8))
def test_no_sequence_of_requests_breaks_a_stream_or_disturbs_another(
    happens: Sequence[DeltaDiscoveryRequest | Advanced | Woke | int],
) -> None:
    mesh = Mesh()
    mesh.change(*_SERVED)
    odd, other = Peer(mesh), Peer(mesh)
    for request in other.first_requests():
        other.hear(Requested(request))
    for at, event in enumerate(happens):
        if isinstance(event, DeltaDiscoveryRequest):
            odd.take(Requested(_parsed(event.SerializeToString())))
        elif isinstance(event, int):
            odd.proceed(parts=event)
        else:
            odd.take(event)
        if at % 3 == 2:
            # A change that concerns everybody, while the odd client may be anywhere in what it is doing.
            mesh.change(pod("shop/till", ip=f"10.0.1.{at}", node="n1", policies=["shop/p"]), policy("shop/p", port=at))
            other.hear(Advanced())
    odd.proceed()
    odd.hear(Advanced())
    if odd.end is not None:
        assert odd.end.code in (Code.INVALID_ARGUMENT, Code.UNAVAILABLE)
    else:
        odd.stream.close()
    mesh.change(gone=[uid("shop/till")])
    other.hear(Advanced())
    other.assert_holds_what_is_served()
    other.stream.close()
    assert mesh.feed.oldest_cursor() == mesh.feed.head
