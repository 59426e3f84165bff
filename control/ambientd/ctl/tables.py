"""Plain values as tables and lines for people. Decides what of a resource is worth a column, and nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ambientd.ctl.snapshot import Plain

_PIPED_WIDTH = 240
_SIGNS = {"+": "green", "~": "yellow", "-": "red"}


def make_console() -> Console:
    """Writes to standard output; wide where nobody looks at a screen, so that lines stay whole."""
    is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_PIPED_WIDTH if is_piped else None, highlight=False, emoji=False)


def workloads_table(workloads: Sequence[Plain]) -> Table:
    table = _table(
        "NAMESPACE", "NAME", "KIND", "ADDRESSES", "NODE", "STATUS", "TUNNEL", "WAYPOINT", "SERVICES", "POLICIES"
    )
    for workload in workloads:
        _add(
            table,
            workload.get("namespace", ""),
            workload.get("name", ""),
            kind_of(workload),
            ", ".join(workload.get("addresses", [])) or workload.get("hostname", ""),
            workload.get("node", ""),
            workload.get("status", "HEALTHY"),
            workload.get("tunnelProtocol", "NONE"),
            gateway_text(workload.get("waypoint")),
            ", ".join(_short(name, workload) for name in workload.get("services", {})),
            ", ".join(workload.get("authorizationPolicies", [])),
        )
    return table


def services_table(services: Sequence[Plain], workloads: Iterable[Plain]) -> Table:
    """`workloads`: those that may be endpoints of the services."""
    endpoints: dict[str, list[str]] = {}
    for workload in workloads:
        for name in workload.get("services", {}):
            endpoints.setdefault(name, []).append(workload.get("status", "HEALTHY"))
    table = _table("NAMESPACE", "HOSTNAME", "ADDRESSES", "PORTS", "WAYPOINT", "ENDPOINTS")
    for service in services:
        states = endpoints.get(f"{service.get('namespace', '')}/{service.get('hostname', '')}", [])
        healthy = states.count("HEALTHY")
        _add(
            table,
            service.get("namespace", ""),
            service.get("hostname", ""),
            ", ".join(network_address_text(address) for address in service.get("addresses", [])) or "headless",
            ", ".join(_port_text(port) for port in service.get("ports", [])),
            gateway_text(service.get("waypoint")),
            f"{healthy} of {len(states)} healthy" if states else "none",
        )
    return table


def policies_table(policies: Sequence[Plain], workloads: Iterable[Plain]) -> Table:
    listed: dict[str, int] = {}
    for workload in workloads:
        for name in workload.get("authorizationPolicies", []):
            listed[name] = listed.get(name, 0) + 1
    table = _table("NAMESPACE", "NAME", "ACTION", "SCOPE", "WORKLOADS", "MATCHES")
    for policy in policies:
        name = f"{policy.get('namespace', '')}/{policy.get('name', '')}"
        scope = policy.get("scope", "GLOBAL")
        _add(
            table,
            policy.get("namespace", ""),
            policy.get("name", ""),
            policy.get("action", "ALLOW") + (" (dry run)" if policy.get("dryRun") else ""),
            scope,
            str(listed.get(name, 0)) if scope == "WORKLOAD_SELECTOR" else "all" if scope == "GLOBAL" else "namespace",
            policy_text(policy),
        )
    return table


def problems_table(problems: Sequence[Plain]) -> Table:
    table = _table("OBJECT", "SERVED", "WHAT IS WRONG")
    for problem in problems:
        _add(table, problem["object"], "yes" if problem["is_served"] else "no", "\n".join(problem["faults"]))
    return table


def kind_of(workload: Plain) -> str:
    """`Pod`, `WorkloadEntry`, …: a part of the uid (wire-contract.md 3.2)."""
    parts = str(workload.get("uid", "")).split("/")
    return parts[0] if parts[0] == "NetworkGateway" else parts[2] if len(parts) > 2 else ""


def gateway_text(gateway: Plain | None) -> str:
    if not gateway:
        return ""
    hostname = gateway.get("hostname")
    if hostname:
        return f"{hostname.get('namespace', '')}/{hostname.get('hostname', '')}"
    return network_address_text(gateway.get("address", {}))


def network_address_text(address: Plain) -> str:
    network = address.get("network", "")
    text = address.get("address", "")
    if "length" in address:
        text = f"{text}/{address['length']}"
    return f"{network}/{text}" if network else text


def policy_text(policy: Plain) -> str:
    """The conditions of a policy on one line; what stands in one pair of braces must hold together."""
    groups = [
        " and ".join(_rules_text(rules) for rules in group.get("rules", [])) or "anything"
        for group in policy.get("groups", [])
    ]
    return " or ".join(f"{{{group}}}" for group in groups) or "nothing"


def summary(kind: str, item: Plain) -> str:
    """What a resource is, in a few words."""
    match kind:
        case "workload":
            parts = [
                ", ".join(item.get("addresses", [])) or item.get("hostname", ""),
                item.get("node", ""),
                item.get("status", "HEALTHY"),
                item.get("tunnelProtocol", "NONE"),
            ]
        case "service":
            parts = [
                ", ".join(network_address_text(address) for address in item.get("addresses", [])) or "headless",
                ", ".join(_port_text(port) for port in item.get("ports", [])),
            ]
        case _:
            parts = [item.get("action", "ALLOW"), item.get("scope", "GLOBAL"), policy_text(item)]
    return "  ".join(part for part in parts if part)


def change_line(sign: str, kind: str, name: str, what: str) -> Text:
    """`+ workload  shop/cart-0  …`"""
    line = Text(f"{sign} {kind:<8}  ", style=_SIGNS[sign])
    line.append(name, style="bold")
    line.append(f"  {what}" if what else "", style="default")
    return line


def _rules_text(rules: Plain) -> str:
    matches = [_match_text(match) for match in rules.get("matches", [])]
    return " or ".join(matches) if matches else "anything"


def _match_text(match: Plain) -> str:
    fields = [f"{field} {', '.join(_value_texts(values))}" for field, values in match.items()]
    return " and ".join(fields) or "nothing"


def _value_texts(values: Any) -> Iterator[str]:
    for value in values:
        if not isinstance(value, dict):
            yield str(value)
        elif "serviceAccount" in value:
            yield f"{value.get('namespace', '')}/{value['serviceAccount']}"
        elif "length" in value:
            yield f"{value.get('address', '')}/{value['length']}"
        elif "presence" in value:
            yield "*"
        else:
            yield value.get("exact") or f"{value.get('prefix', '')}*{value.get('suffix', '')}"


def _port_text(port: Plain) -> str:
    service, target = port.get("servicePort", 0), port.get("targetPort", 0)
    return str(service) if target in (0, service) else f"{service}→{target}"


def _short(name: str, workload: Plain) -> str:
    """A service's name, without what the workload's own row says already."""
    namespace, _, hostname = name.partition("/")
    is_own = namespace == workload.get("namespace")
    suffix = f".{namespace}.svc."
    short = hostname.partition(suffix)[0] if suffix in hostname else hostname
    return short if is_own else f"{namespace}/{short}"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    # Text and not markup: a name may hold brackets.
    table.add_row(*(Text(cell) for cell in cells))
