"""Values of AuthorizationPolicies as ztunnels compare them: strings with a wildcard, service accounts, addresses, ports
(policies.md 3.5, 5.5). What does not parse is left out and reported; must not decide what follows for the match."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from google.protobuf.empty_pb2 import Empty
from msgspec import Struct

from ambientd.index.ips import parse_cidr, parse_ip
from ambientd.resources.faults import Fault, quote
from ambientd_api.security_pb2 import Address, ServiceAccountMatch, StringMatch

T = TypeVar("T")

_PORT = re.compile("0*([0-9]{1,5})")
_PORT_MAX: Final = 65535


class Run(Struct, frozen=True):
    """One conversion on its way."""

    namespace: str
    """Of the policy."""
    is_allow: bool
    faults: list[Fault]


Convert = Callable[[Sequence[str], str, Run], list[Any]]
"""From the values of one list and its path to elements of the message."""


def string_match(text: str) -> StringMatch:
    """A value with its wildcard; only one star at one end is one."""
    if text == "*":
        return StringMatch(presence=Empty())
    if text.startswith("*"):
        return StringMatch(suffix=text[1:])
    if text.endswith("*"):
        return StringMatch(prefix=text[:-1])
    return StringMatch(exact=text)


def parse_port(text: str) -> int | None:
    """ASCII digits, leading zeros allowed, at most 65535; None for anything else."""
    found = _PORT.fullmatch(text)
    if found is None:
        return None
    port = int(found[1])
    return port if port <= _PORT_MAX else None


def parse_block(text: str) -> tuple[bytes, int] | None:
    """Bytes and prefix length of an address or a CIDR, host bits kept; None when it does not parse. The zone of an IPv6
    address is dropped; a CIDR must not have one."""
    if "/" in text:
        return parse_cidr(text)
    raw = parse_ip(text)
    return None if raw is None else (raw, 8 * len(raw))


def strings(values: Sequence[str], at: str, run: Run) -> list[StringMatch]:
    """Principals."""
    for number, value in enumerate(values):
        if value.startswith("spiffe://"):
            effect = "this value matches no peer"
            run.faults.append(Fault(f"{at}[{number}]", "must not begin with spiffe://", quote(value), effect))
    return [string_match(value) for value in values]


def namespaces(values: Sequence[str], at: str, run: Run) -> list[StringMatch]:
    """Namespaces that are asked for. A ztunnel takes an empty exact one for "a peer without identity", so an ALLOW must
    not have it [H5]."""
    if not run.is_allow:
        return not_namespaces(values, at, run)
    for number, value in enumerate(values):
        if not value:
            _drop(f"{at}[{number}]", "must not be empty", value, run)
    return [string_match(value) for value in values if value]


def not_namespaces(values: Sequence[str], at: str, run: Run) -> list[StringMatch]:
    """Namespaces as they are written."""
    for number, value in enumerate(values):
        if not value:
            fault = Fault(f"{at}[{number}]", "must not be empty", quote(value), "it stands for peers without identity")
            run.faults.append(fault)
    return [string_match(value) for value in values]


def accounts(values: Sequence[str], at: str, run: Run) -> list[ServiceAccountMatch]:
    """`namespace/account`, or an account of the policy's own namespace; no wildcard."""
    matches = []
    for value in values:
        namespace, slash, account = value.partition("/")
        if not slash:
            namespace, account = run.namespace, value
        matches.append(ServiceAccountMatch(namespace=namespace, serviceAccount=account))
    return matches


def addresses(values: Sequence[str], at: str, run: Run) -> list[Address]:
    blocks = _parsed(values, at, parse_block, "must be an IP address or a CIDR", run)
    return [Address(address=raw, length=length) for raw, length in blocks]


def ports(values: Sequence[str], at: str, run: Run) -> list[int]:
    return _parsed(values, at, parse_port, f"must be a port number up to {_PORT_MAX}", run)


def _parsed(values: Sequence[str], at: str, parse: Callable[[str], T | None], rule: str, run: Run) -> list[T]:
    parsed = []
    for number, value in enumerate(values):
        found = parse(value)
        if found is None:
            _drop(f"{at}[{number}]", rule, value, run)
        else:
            parsed.append(found)
    return parsed


def _drop(at: str, rule: str, value: str, run: Run) -> None:
    run.faults.append(Fault(at, rule, quote(value), "this value is left out"))
