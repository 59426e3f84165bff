"""Everything that the rules of a single workload look at, gathered once: the objects that can be seen, and the records
made from them. And the parts that all kinds of workloads have in common (workloads.md 3.6 to 3.18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.model import ip, peers, policies
from tests.model.manifests import (
    Labels,
    Manifest,
    annotations_of,
    dig,
    entries,
    is_selected,
    kind,
    labels,
    name,
    namespace,
)
from tests.model.mesh import Settings
from tests.model.services import Record, namespace_object
from tests.model.waypoints import Waypoint, bound_workload, instance_of


@dataclass(frozen=True)
class NetworkGateway:
    """One address of a Gateway to another network (workloads.md 7.2)."""

    gateway: Manifest
    network: str
    address: str
    port: int

    @property
    def name(self) -> str:
        return f"{namespace(self.gateway)}/{name(self.gateway)}/{self.address}"


@dataclass(frozen=True)
class View:
    manifests: Sequence[Manifest]
    settings: Settings
    waypoints: Mapping[str, Waypoint]
    services: Sequence[Record]
    gateways: Sequence[NetworkGateway]
    """In the order of their names."""

    def of_kind(self, wanted: str) -> list[Manifest]:
        return [manifest for manifest in self.manifests if kind(manifest) == wanted]

    def namespace_labels(self, wanted: str) -> Labels:
        return labels(namespace_object(self.manifests, wanted))


def network_gateways(manifests: Sequence[Manifest]) -> list[NetworkGateway]:
    """The gateway records of one cluster (workloads.md 7.2)."""
    found = []
    for gateway in manifests:
        if kind(gateway) != "Gateway" or dig(gateway, "spec", "gatewayClassName") != "istio-remote":
            continue
        network = labels(gateway).get("topology.istio.io/network")
        listeners = [each for each in entries(gateway, "spec", "listeners") if each.get("protocol") == "HBONE"]
        if not network or not listeners:
            continue
        for address in entries(gateway, "status", "addresses"):
            if address["type"] in ("IPAddress", "Hostname"):
                found.append(NetworkGateway(gateway, network, address["value"], listeners[0]["port"]))
    return sorted(found, key=lambda record: record.name)


def located(address: str) -> dict[str, Any]:
    """`addresses`, or `hostname` for a text that is no IP (workloads.md 4.2)."""
    parsed = ip.parse(address)
    return {"hostname": address} if parsed is None else {"addresses": [ip.text(parsed)]}


def network_gateway(view: View, network: str) -> Mapping[str, Any] | None:
    """How callers on other networks reach this one (workloads.md 3.11)."""
    for record in view.gateways:
        if record.network == network and record.port:
            parsed = ip.parse(record.address)
            if parsed is None:
                hostname = {"namespace": namespace(record.gateway), "hostname": record.address}
                return {"hostname": hostname, "hbone_mtls_port": record.port}
            return {
                "address": {"network": network, "address": ip.text(parsed)},
                "hbone_mtls_port": record.port,
            }
    return None


def trust_domain(settings: Settings) -> str:
    return "" if settings.trust_domain == "cluster.local" else settings.trust_domain


def tunnel(object_: Manifest, held: Labels) -> dict[str, Any]:
    """What the workload accepts (workloads.md 3.9)."""
    if "http" in held.get("networking.istio.io/tunnel", "").split(","):
        return {"tunnel_protocol": "HBONE", "native_tunnel": True}
    if annotations_of(object_).get("ambient.istio.io/redirection") == "enabled":
        return {"tunnel_protocol": "HBONE"}
    return {}


def first_present(held: Labels, keys: Sequence[str], otherwise: str) -> str:
    for key in keys:
        if key in held:
            return held[key]
    return otherwise


def telemetry(held: Labels, workload_name: str) -> dict[str, Any]:
    """Names for metrics and logs (workloads.md 3.8)."""
    names = ("service.istio.io/canonical-name", "app.kubernetes.io/name", "app")
    revisions = ("service.istio.io/canonical-revision", "app.kubernetes.io/version", "version")
    return {
        "workload_name": workload_name,
        "workload_type": "POD",
        "canonical_name": first_present(held, names, workload_name),
        "canonical_revision": first_present(held, revisions, "latest"),
    }


def locality(text: str) -> dict[str, str]:
    region, zone, subzone = ([*text.split("/"), "", "", ""])[:3]
    return {"region": region, "zone": zone, "subzone": subzone}


def selecting(view: View, from_namespace: str, held: Labels) -> list[Record]:
    """The services of the namespace that select these labels."""
    return [
        record for record in view.services if record.namespace == from_namespace and is_selected(record.selector, held)
    ]


def attachment(view: View, from_namespace: str, held: Labels, is_implied: bool = False) -> dict[str, Any]:
    """Waypoint and application tunnel (workloads.md 3.14, 3.15)."""
    if is_implied:
        return {}
    gateway = instance_of(from_namespace, held, view.waypoints)
    if gateway is not None:
        binding = gateway.binding
        if binding is None:
            return {}
        protocol = None if binding.protocol == "NONE" else binding.protocol
        return {"application_tunnel": {"protocol": protocol, "port": binding.port}}
    bound = bound_workload(from_namespace, held, view.namespace_labels(from_namespace), view.waypoints)
    return {"waypoint": None if bound is None else bound.address}


def policy_names(
    view: View, from_namespace: str, held: Labels, joined: Sequence[Record], own: Waypoint | None
) -> list[str]:
    """The policies that a workload lists (policies.md 7): `joined` are its services, `own` is its waypoint."""
    selected = [
        f"{namespace(policy)}/{name(policy)}"
        for policy in view.of_kind("AuthorizationPolicy")
        if namespace(policy) in (from_namespace, view.settings.root_namespace)
        and is_selected(policies.selector(policy), held)
        and policies.is_served(policy, view.settings)
    ]
    mutual = peers.listed(view.manifests, view.settings, from_namespace, held)
    implicit: list[str] = []
    if view.settings.allow_waypoints:
        of_services = {}
        for bound in [record.bound for record in joined if record.bound is not None]:
            for waypoint in (bound.waypoint, bound.canary):
                if waypoint is not None and waypoint != own:
                    of_services[waypoint.key] = waypoint
        ordered = [of_services[key] for key in sorted(of_services)] + ([own] if own is not None else [])
        implicit = [f"{waypoint.namespace}/{implicit_name(waypoint)}" for waypoint in ordered if waypoint.accounts]
    return sorted(selected, key=str.encode) + mutual + implicit


def own_waypoint(view: View, from_namespace: str, held: Labels) -> Waypoint | None:
    return bound_workload(from_namespace, held, view.namespace_labels(from_namespace), view.waypoints)


def implicit_name(waypoint: Waypoint) -> str:
    return f"istio_allow_waypoint_{waypoint.namespace}_{waypoint.name}"


def implicit_policy(waypoint: Waypoint, settings: Settings) -> dict[str, Any]:
    """The policy that admits a waypoint that has pods (policies.md 8)."""
    prefix = f"{settings.trust_domain.replace('@', '.')}/ns/{waypoint.namespace}/sa"
    principals = [{"exact": f"{prefix}/{account}"} for account in waypoint.accounts]
    return {
        "name": implicit_name(waypoint),
        "namespace": waypoint.namespace,
        "scope": "WORKLOAD_SELECTOR",
        "groups": [{"rules": [{"matches": [{"principals": principals}]}]}],
    }
