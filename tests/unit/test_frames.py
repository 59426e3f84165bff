"""Bytes written by hand decode to what was meant, with Envoy's own types."""

from __future__ import annotations

import pytest
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryResponse
from hypothesis import given
from hypothesis import strategies as st

from ambientd.index.rendered import version_of
from ambientd.push.frames import ADDRESS, AUTHORIZATION, encode_frame, encode_response, field, listing, varint
from ambientd_api.workload_pb2 import Address, Workload
from tests.unit.conversation import pod


@given(st.integers(0, 2**64 - 1))
def test_a_varint_is_seven_bits_a_byte_lowest_first(number: int) -> None:
    raw = varint(number)
    assert sum((byte & 0x7F) << 7 * at for at, byte in enumerate(raw)) == number
    assert all(byte & 0x80 for byte in raw[:-1])
    assert not raw[-1] & 0x80


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384])
def test_a_field_has_its_length_before_it(size: int) -> None:
    message = DeltaDiscoveryResponse.FromString(field(b"\x2a", b"x" * size))
    assert message.nonce == "x" * size


_resources = st.lists(
    st.tuples(
        st.text(max_size=20), st.text(max_size=4), st.binary(max_size=300), st.lists(st.text(max_size=5), max_size=3)
    ),
    max_size=4,
)


@given(st.sampled_from([ADDRESS, AUTHORIZATION]), _resources, st.lists(st.text(), max_size=3), st.text(), st.text())
def test_a_response_decodes_to_what_was_meant(
    type_url: str,
    resources: list[tuple[str, str, bytes, list[str]]],
    removed: list[str],
    nonce: str,
    system_version: str,
) -> None:
    frames = [encode_frame(type_url, name, version, body, aliases) for name, version, body, aliases in resources]
    message = DeltaDiscoveryResponse.FromString(encode_response(type_url, frames, removed, nonce, system_version))
    expected = DeltaDiscoveryResponse(
        type_url=type_url, nonce=nonce, system_version_info=system_version, removed_resources=removed
    )
    for name, version, body, aliases in resources:
        resource = expected.resources.add(name=name, version=version, aliases=aliases)
        resource.resource.type_url, resource.resource.value = type_url, body
    assert message == expected


@given(st.lists(st.text(max_size=200), max_size=3), st.text(max_size=200))
def test_a_longer_list_of_policies_is_the_only_difference_that_listing_makes(policies: list[str], more: str) -> None:
    rendered = pod("shop/till", ip="10.0.0.1", policies=policies, services=["shop/a.local"])
    message, expected = Address.FromString(listing(rendered.body, more)), Address.FromString(rendered.body)
    expected.workload.authorization_policies.append(more)
    assert message == expected


def test_listing_grows_a_length_of_one_byte_to_two() -> None:
    small = Address(workload=Workload(uid="u", name="n" * 110)).SerializeToString(deterministic=True)
    assert small[1] < 0x80
    message = Address.FromString(listing(listing(small, "shop/one"), "shop/another"))
    assert list(message.workload.authorization_policies) == ["shop/one", "shop/another"]


@pytest.mark.parametrize(
    ("body", "version"),
    [(b"", "ef46db3751d8e999"), (b"a", "d24ec4f1a98c6e5b")],
)
def test_a_version_is_xxh64_of_the_bytes_in_hexadecimal(body: bytes, version: str) -> None:
    assert version_of(body) == version


def test_a_version_has_no_leading_zeros() -> None:
    versions = [version_of(str(number).encode()) for number in range(200)]
    assert any(len(version) < 16 for version in versions)
    assert not any(version.startswith("0") for version in versions)
