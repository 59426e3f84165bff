"""What a ztunnel decides about one connection, with what it holds (policies.md 13). Workload and policies are in golden
form: the fields that are absent have their default values. Must not import anything of the product."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.model import ip

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Connection:
    source_ip: str
    destination_ip: str
    destination_port: int
    identity: str | None = None
    """`spiffe://<trust domain>/ns/<namespace>/sa/<account>` of the peer; None: it has none that was verified."""


def allows(destination_workload: Fields, authorizations: Mapping[str, Fields], connection: Connection) -> bool:
    """Whether the connection to the workload is let through. A name that the workload lists and that is not among
    `authorizations` is passed over [K4]."""
    home = destination_workload.get("namespace", "")
    candidates = [
        policy
        for policy in authorizations.values()
        if policy.get("scope", "GLOBAL") == "GLOBAL"
        or (policy.get("scope") == "NAMESPACE" and policy.get("namespace", "") == home)
    ]
    listed = destination_workload.get("authorization_policies", ())
    candidates += [authorizations[name] for name in listed if name in authorizations]
    enforced = [policy for policy in candidates if not policy.get("dry_run", False)]
    denying = [policy for policy in enforced if policy.get("action", "ALLOW") == "DENY"]
    allowing = [policy for policy in enforced if policy.get("action", "ALLOW") == "ALLOW"]
    if any(_applies(policy, connection) for policy in denying):
        return False
    return not allowing or any(_applies(policy, connection) for policy in allowing)


def _applies(policy: Fields, connection: Connection) -> bool:
    return any(_group_applies(group, connection) for group in policy.get("groups", ()))


def _group_applies(group: Fields, connection: Connection) -> bool:
    return all(
        not entry.get("matches") or any(_match_applies(match, connection) for match in entry["matches"])
        for entry in group.get("rules", ())
    )


def _match_applies(match: Fields, connection: Connection) -> bool:
    return bool(match) and all(_field_holds(field, values, connection) for field, values in match.items())


def _field_holds(field: str, values: Sequence[Any], connection: Connection) -> bool:
    if not values:
        return True
    subject = field.removeprefix("not_")
    is_met = any(_value_applies(subject, value, connection) for value in values)
    return not is_met if subject != field else is_met


def _value_applies(subject: str, value: Any, connection: Connection) -> bool:
    match subject:
        case "principals":
            identity = connection.identity
            return identity is not None and _string_applies(value, identity.removeprefix("spiffe://"))
        case "namespaces":
            return _string_applies(value, _account_of(connection)[0])
        case "service_accounts":
            wanted = value.get("namespace", ""), value.get("serviceAccount", "")
            return connection.identity is not None and _account_of(connection) == wanted
        case "source_ips":
            return _contains(value, connection.source_ip)
        case "destination_ips":
            return _contains(value, connection.destination_ip)
        case "destination_ports":
            return bool(value == connection.destination_port)
    raise ValueError(f"no such field of a Match: {subject}")


def _account_of(connection: Connection) -> tuple[str, str]:
    """Namespace and service account of the peer, both empty without an identity."""
    if connection.identity is None:
        return "", ""
    _, _, path = connection.identity.removeprefix("spiffe://").partition("/ns/")
    namespace, _, account = path.partition("/sa/")
    return namespace, account


def _string_applies(form: Fields, text: str) -> bool:
    match form:
        case {"exact": wanted}:
            return bool(text == wanted)
        case {"prefix": wanted}:
            return text.startswith(wanted)
        case {"suffix": wanted}:
            return text.endswith(wanted)
        case {"presence": _}:
            return text != ""
    return False


def _contains(network: Fields, spelling: str) -> bool:
    address, base = _peer(spelling), ip.parse(network["address"])
    if base is None or address.version != base.version:
        return False
    length = network.get("length", 0)
    return ip.masked(address, length) == ip.masked(base, length)


def _peer(spelling: str) -> ip.Address:
    """Address of a connection; an IPv4-mapped one is seen as IPv4."""
    address = ipaddress.ip_address(spelling)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
