"""The naive model: what every ztunnel must hold, computed from all manifests at once with plain loops. It is written
from the specification alone and shares nothing with the product, so that the two cannot misunderstand the same thing.
It must not import anything of the product, and it need not be fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.model import entries, peers, pods, policies, services, view
from tests.model.conditions import conditions_of
from tests.model.manifests import Manifest, defaulted
from tests.model.mesh import settings_of, visible
from tests.model.waypoints import waypoints_of

Golden = dict[str, Any]
"""A message as a dict: names of the proto files, enums by name, IPs as canonical text, default values left out."""

# Sub-messages that say something by being there, even without any field (wire-contract.md 4.4).
_MEANINGFUL_WHEN_EMPTY = frozenset({"application_tunnel", "presence"})


@dataclass(frozen=True)
class World:
    addresses: Mapping[str, Golden]
    """Address by primary name."""
    authorizations: Mapping[str, Golden]
    """Authorization by primary name."""
    aliases: Mapping[str, Sequence[str]]
    """Further names of an Address, by primary name; every Address has an entry (wire-contract.md 3.3)."""
    conditions: Mapping[str, Sequence[Mapping[str, Any]]]
    """Status conditions by `Kind/namespace/name`, of every object that deserves any."""


def expected(manifests: Sequence[Manifest], settings: Mapping[str, str] | None = None) -> World:
    """What is served for these objects of one cluster. `settings` are environment variables. An object that is invalid
    as a whole must be given in its last good version; values that do not parse are the model's business."""
    everything = [defaulted(manifest) for manifest in manifests]
    known = settings_of(settings or {}, everything)
    seen = visible(everything, known)
    waypoints = waypoints_of(seen, known)
    records = services.services_of(seen, waypoints, known)
    world = view.View(seen, known, waypoints, records, view.network_gateways(seen))
    workloads = [
        *pods.workloads(world),
        *entries.of_workload_entries(world),
        *entries.of_service_entries(world),
        *entries.of_slices(world),
        *entries.of_network_gateways(world),
    ]
    authorizations = [
        *(
            policies.message(policy, known)
            for policy in world.of_kind("AuthorizationPolicy")
            if policies.is_served(policy, known)
        ),
        *peers.messages(seen, known),
        *(
            view.implicit_policy(waypoint, known)
            for waypoint in waypoints.values()
            if known.allow_waypoints and waypoint.accounts
        ),
    ]
    addresses = {workload["uid"]: {"workload": _trimmed(workload)} for workload in workloads}
    addresses |= {record.key: {"service": _trimmed(services.message(record))} for record in records}
    return World(
        addresses=addresses,
        authorizations={f"{policy['namespace']}/{policy['name']}": _trimmed(policy) for policy in authorizations},
        aliases={primary: _aliases(address) for primary, address in addresses.items()},
        conditions=conditions_of(world),
    )


def _aliases(address: Golden) -> list[str]:
    if "workload" in address:
        workload = address["workload"]
        return [f"{workload.get('network', '')}/{text}" for text in workload.get("addresses", ())]
    aliases = []
    for entry in address["service"].get("addresses", ()):
        length = f"/{entry['length']}" if "length" in entry else ""
        aliases.append(f"{entry.get('network', '')}/{entry['address']}{length}")
    return aliases


def _trimmed(message: Mapping[str, Any]) -> Golden:
    """Without default values, all the way down. What has presence of its own stays: a length, the form of a string
    match, a value of the map of services, an element of a list."""
    kept: Golden = {}
    for field, value in message.items():
        if field == "services":
            if value:
                kept[field] = {key: _trimmed(ports) for key, ports in value.items()}
        elif isinstance(value, Mapping):
            inner = _trimmed(value)
            if inner or field in _MEANINGFUL_WHEN_EMPTY:
                kept[field] = inner
        elif isinstance(value, Sequence) and not isinstance(value, str):
            if value:
                kept[field] = [_trimmed(element) if isinstance(element, Mapping) else element for element in value]
        elif _has_presence(field, message) or value not in (None, "", 0, False):
            kept[field] = value
    return kept


def _has_presence(field: str, message: Mapping[str, Any]) -> bool:
    return field in ("exact", "prefix", "suffix") or (field == "length" and "network" in message)
