"""Addresses as text and bytes (wire-contract.md 4.1)."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ambientd.index.ips import ip_text, masked, parse_cidr, parse_ip


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("10.1.0.7", "0a010007"),
        ("0.0.0.0", "00000000"),
        ("::", "00" * 16),
        ("FD00:10::7", "fd000010000000000000000000000007"),
        ("::ffff:10.0.0.4", "00000000000000000000ffff0a000004"),
        ("fe80::1%eth0", "fe800000000000000000000000000001"),
        ("1:2:3:4:5:6:7::", "00010002000300040005000600070000"),
    ],
)
def test_an_address_gives_its_bytes(text: str, raw: str) -> None:
    assert parse_ip(text) == bytes.fromhex(raw)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 10.0.0.1",
        "10.0.0.1 ",
        "010.0.0.5",
        "10.0.0.00",
        "10.0.0",
        "10.0.0.256",
        "10.0.0.1/32",
        "[::1]",
        "::1%",
        "%eth0",
        "10.0.0.1%eth0",
        "1::2::3",
        "12345::",
        "::ffff:010.0.0.4",
        "1:2:3:4:5:6:7:8::",
        ":1",
        "1:",
        "\0",
        "::\udc80",
        "١٠.0.0.1",
        "example.test",
        "unix:///run/x.sock",
    ],
)
def test_what_is_not_plainly_an_address_is_none(text: str) -> None:
    assert parse_ip(text) is None


def test_a_prefix_keeps_its_host_bits_until_it_is_masked() -> None:
    assert parse_cidr("10.9.8.7/20") == (bytes([10, 9, 8, 7]), 20)
    assert masked(bytes([10, 9, 8, 7]), 20) == bytes([10, 9, 0, 0])
    assert masked(bytes([10, 9, 8, 7]), 0) == bytes(4)
    assert masked(bytes([10, 9, 8, 7]), 32) == bytes([10, 9, 8, 7])


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.0",
        "10.0.0.0/",
        "10.0.0.0/33",
        "10.0.0.0/08",
        "10.0.0.0/+8",
        "10.0.0.0/-1",
        "10.0.0.0/8/8",
        "10.0.0.0/٨",
        "10.0.0.0/" + "9" * 5000,
        "fe80::%e/64",
        "::/129",
        "/8",
    ],
)
def test_what_is_not_plainly_a_prefix_is_none(text: str) -> None:
    assert parse_cidr(text) is None


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.0.0.4", "10.0.0.4"),
        ("::FFFF:a00:4", "::ffff:10.0.0.4"),
        ("::10.0.0.4", "::a00:4"),
        ("::1:2", "::1:2"),
        ("::", "::"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8:0:0:1:0:0:1", "2001:db8::1:0:0:1"),
        ("2001:db8:0:1:1:1:1:1", "2001:db8:0:1:1:1:1:1"),
    ],
)
def test_an_address_is_printed_canonically(text: str, canonical: str) -> None:
    raw = parse_ip(text)
    assert raw is not None
    assert ip_text(raw) == canonical


@given(st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)))
def test_what_is_printed_is_read_again(raw: bytes) -> None:
    assert parse_ip(ip_text(raw)) == raw
    if not raw.startswith(b"\0" * 10):  # the library prints mapped addresses in another form
        assert ip_text(raw) == str(ipaddress.ip_address(raw))


@given(st.text(alphabet="0123fF:.", max_size=24))
def test_what_parses_is_what_the_system_parses(text: str) -> None:
    try:
        expected = socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
    except OSError:
        assert parse_ip(text) is None
    else:
        assert parse_ip(text) == expected


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    assert parse_ip(text) is None or len(parse_ip(text) or b"") in (4, 16)
    parse_cidr(text)
