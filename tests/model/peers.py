"""PeerAuthentications: which one counts where, what a workload lists, and the DENY policies that they become
(policies.md 6; workloads.md 3.17)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.model.manifests import Labels, Manifest, age, dig, is_selected, kind, name, namespace
from tests.model.mesh import Settings
from tests.model.policies import port_number

_STATIC = "istio_converted_static_strict"
_CONVERTED = "converted_peer_authentication_"
_NO_IDENTITY: Mapping[str, Any] = {"not_principals": [{"presence": {}}]}


def listed(manifests: Sequence[Manifest], settings: Settings, from_namespace: str, held: Labels) -> list[str]:
    """The policy that a workload lists for its mutual TLS: one name, or none (policies.md 6.6)."""
    applies = [
        peer
        for peer in _peers(manifests)
        if namespace(peer) == from_namespace != settings.root_namespace and is_selected(_selector(peer), held)
    ]
    static = [f"{settings.root_namespace}/{_STATIC}"]
    parent = _is_parent_strict(manifests, settings, from_namespace)
    if not applies:
        return static if parent else []
    workload = min(applies, key=age)
    converted = [f"{from_namespace}/{_CONVERTED}{name(workload)}"]
    mode, modes = _mode(workload), set(_port_modes(workload).values())
    if mode == "STRICT" or (mode == "UNSET" and parent):
        # Under an inherited mode a DISABLE port alone is no exception [K3].
        exempting = {"PERMISSIVE", "DISABLE"} if mode == "STRICT" else {"PERMISSIVE"}
        return converted if modes & exempting else static
    return converted if "STRICT" in modes else []


def messages(manifests: Sequence[Manifest], settings: Settings) -> list[dict[str, Any]]:
    """The static policy, as soon as there is any PeerAuthentication, and the converted ones."""
    peers = _peers(manifests)
    served = []
    if peers:
        groups = [{"rules": [{"matches": [_NO_IDENTITY]}]}]
        served.append(_deny(_STATIC, settings.root_namespace, groups))
    for peer in peers:
        if namespace(peer) != settings.root_namespace and _selector(peer) and _port_modes(peer):
            groups = _groups(peer, _is_parent_strict(manifests, settings, namespace(peer)))
            if groups:
                served.append(_deny(f"{_CONVERTED}{name(peer)}", namespace(peer), groups))
    return served


def _groups(peer: Manifest, parent: bool) -> list[dict[str, Any]]:
    mode, modes = _mode(peer), _port_modes(peer)
    if mode == "STRICT" or (mode == "UNSET" and parent):
        exempt = [port for port in sorted(modes) if modes[port] in ("PERMISSIVE", "DISABLE")]
        if not exempt:
            return []
        matches: list[Mapping[str, Any]] = [_NO_IDENTITY] if mode == "STRICT" else []
        matches += [{"not_destination_ports": [port]} for port in exempt]
        matches += [_NO_IDENTITY] if parent else []
        return [{"rules": [{"matches": [match]} for match in matches]}]
    return [
        {"rules": [{"matches": [{**_NO_IDENTITY, "destination_ports": [port]}]}]}
        for port in sorted(modes)
        if modes[port] == "STRICT"
    ]


def _deny(policy: str, of_namespace: str, groups: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": policy,
        "namespace": of_namespace,
        "scope": "WORKLOAD_SELECTOR",
        "action": "DENY",
        "groups": groups,
    }


def _is_parent_strict(manifests: Sequence[Manifest], settings: Settings, of_namespace: str) -> bool:
    """What a workload without a policy of its own inherits (policies.md 6.2)."""
    for level in (of_namespace, settings.root_namespace):
        objects = [peer for peer in _peers(manifests) if namespace(peer) == level and not _selector(peer)]
        mode = _mode(min(objects, key=age)) if objects else "UNSET"
        if mode != "UNSET":
            return mode == "STRICT"
    return False


def _peers(manifests: Sequence[Manifest]) -> list[Manifest]:
    return [manifest for manifest in manifests if kind(manifest) == "PeerAuthentication"]


def _selector(peer: Manifest) -> Labels:
    return dig(peer, "spec", "selector", "matchLabels") or {}


def _mode(peer: Manifest) -> str:
    return dig(peer, "spec", "mtls", "mode") or "UNSET"


def _port_modes(peer: Manifest) -> dict[int, str]:
    modes = {}
    for key, value in (dig(peer, "spec", "portLevelMtls") or {}).items():
        port = port_number(str(key))
        if port:
            modes[port] = dig(value, "mode") or "UNSET"
    return modes
