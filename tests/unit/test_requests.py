"""Requests from bytes: cut into slices or not, they say the same (wire-contract.md 8)."""

from __future__ import annotations

import pytest
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest
from hypothesis import given, settings
from hypothesis import strategies as st

from ambientd.xds.requests import Malformed, Request, parse
from tests.unit.conversation import node_message

_FILLER = {f"Kubernetes//Pod/filler/pod-{number}": f"{number:016x}" for number in range(4_000)}
"""Enough entries that a request is cut."""


def _parsed(raw: bytes) -> tuple[Request, int]:
    """A request, and in how many steps it was read."""
    steps, parsing = 0, parse(raw)
    while True:
        try:
            next(parsing)
            steps += 1
        except StopIteration as stop:
            return stop.value, steps


def _expected(message: DeltaDiscoveryRequest, size_bytes: int) -> Request:
    return Request(
        type_url=message.type_url,
        node=message.node if message.HasField("node") else None,
        subscribe=tuple(dict.fromkeys(message.resource_names_subscribe)),
        unsubscribe=tuple(dict.fromkeys(message.resource_names_unsubscribe)),
        claims=dict(message.initial_resource_versions),
        nonce=message.response_nonce,
        error=message.error_detail.message if message.HasField("error_detail") else None,
        size_bytes=size_bytes,
    )


@pytest.mark.parametrize("claims", [{}, {"a": "1", "b": ""}, _FILLER], ids=["none", "few", "many"])
def test_a_request_says_what_its_message_says(claims: dict[str, str]) -> None:
    message = DeltaDiscoveryRequest(
        type_url="t",
        node=node_message(node_name="n1"),
        resource_names_subscribe=["*", "x"],
        resource_names_unsubscribe=["y"],
        initial_resource_versions=claims,
        response_nonce="n",
    )
    message.error_detail.message = "no"
    raw = message.SerializeToString()
    request, steps = _parsed(raw)
    assert request == _expected(message, len(raw))
    assert (steps > 1) == (len(claims) > 1000)


def test_an_empty_error_detail_is_a_rejection() -> None:
    message = DeltaDiscoveryRequest(type_url="t")
    message.error_detail.SetInParent()
    assert _parsed(message.SerializeToString())[0].error == ""
    assert _parsed(DeltaDiscoveryRequest(type_url="t").SerializeToString())[0].error is None


_names = st.text(max_size=8)
_runs = st.one_of(
    st.builds(lambda names: DeltaDiscoveryRequest(resource_names_subscribe=names), st.lists(_names, max_size=2)),
    st.builds(lambda name: DeltaDiscoveryRequest(type_url=name), _names),
    st.builds(lambda name: DeltaDiscoveryRequest(response_nonce=name), _names),
    st.builds(
        lambda claims: DeltaDiscoveryRequest(initial_resource_versions=claims),
        st.dictionaries(_names, _names, max_size=3),
    ),
    st.just(DeltaDiscoveryRequest(initial_resource_versions=_FILLER)),
    st.just(DeltaDiscoveryRequest(initial_resource_versions={name: "again" for name in _FILLER})),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_runs, min_size=1, max_size=5))
def test_slices_say_the_same_as_the_whole_in_whatever_order_the_fields_come(runs: list[DeltaDiscoveryRequest]) -> None:
    raw = b"".join(run.SerializeToString() for run in runs)
    assert _parsed(raw)[0] == _expected(DeltaDiscoveryRequest.FromString(raw), len(raw))


_MANY = DeltaDiscoveryRequest(initial_resource_versions=_FILLER).SerializeToString()


@pytest.mark.parametrize("before", [b"", _MANY], ids=["small", "in slices"])
@pytest.mark.parametrize(
    "raw",
    [
        b"\xff",
        b"\x0a",
        b"\x0a\x05abc",
        b"\x2a\x03\x0a\x05a",
        b"\x2a\xff\xff\xff\xff\x0f",
        b"\x2a\x80",
        b"\x12\x02\xff\xff",
        b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
        b"\x2a\x04\x0a\x02\xff\xff",
    ],
)
def test_bytes_that_are_no_request_are_malformed(before: bytes, raw: bytes) -> None:
    with pytest.raises(Malformed):
        _parsed(before + raw)


def test_fields_that_nobody_knows_are_passed_over() -> None:
    raw = DeltaDiscoveryRequest(type_url="t").SerializeToString() + b"\xf8\x07\x01" + b"\xf2\x07\x02hi"
    assert _parsed(raw)[0].type_url == "t"
    assert _parsed(_MANY + raw)[0].claims == _FILLER


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (bytes(8 << 20), "a field has no number"),
        (b"\x1a\x00" * 1_000_001, "more than 1000000 names"),
        (b"\x2a\x00" * 1_000_001, "more than 1000000 names"),
        (b"\x40\x00" * 1_000_001, "more than 1000000 names"),
        (b"\x12\x80\x80\x80\x01" + b"x" * (2 << 20), "more than 1048576 bytes that are neither"),
        (b"\x12\x01x" * 400_000, "more than 1048576 bytes that are neither"),
    ],
    ids=["zeros", "empty names", "empty versions", "unknown fields", "a long type", "many types"],
)
def test_what_no_client_sends_is_refused_before_it_is_taken_in(raw: bytes, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        _parsed(raw)


@pytest.mark.parametrize("field", [b"\x1a\x00", b"\x22\x01x", b"\x40\x00"], ids=["names", "unsubscribe", "unknown"])
def test_every_kind_of_field_is_read_in_slices(field: bytes) -> None:
    fields = 200_000
    request, steps = _parsed(b"\x12\x01t" + field * fields)
    assert request.type_url == "t"
    assert len(request.subscribe) + len(request.unsubscribe) == (0 if field[0] == 0x40 else 1)
    assert steps > fields / 2000


def test_lists_that_are_cut_are_in_their_order() -> None:
    message = DeltaDiscoveryRequest(type_url="t", resource_names_subscribe=[f"name-{n}" for n in range(50_000)])
    message.resource_names_unsubscribe.extend(f"other-{n}" for n in range(50_000))
    raw = message.SerializeToString()
    assert _parsed(raw)[0] == _expected(message, len(raw))
