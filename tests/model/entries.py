"""Workloads that are no pods: WorkloadEntries, endpoints of ServiceEntries and EndpointSlices, network gateways
(workloads.md 4 to 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.model import ip
from tests.model.manifests import Labels, Manifest, annotations_of, dig, entries, labels, name, namespace
from tests.model.pods import service_record
from tests.model.services import Record, resolution
from tests.model.view import (
    View,
    attachment,
    locality,
    located,
    network_gateway,
    own_waypoint,
    policy_names,
    selecting,
    telemetry,
    trust_domain,
    tunnel,
)


def of_workload_entries(view: View) -> list[dict[str, Any]]:
    return [_of_workload_entry(entry, view) for entry in view.of_kind("WorkloadEntry")]


def _of_workload_entry(entry: Manifest, view: View) -> dict[str, Any]:
    spec, home = entry.get("spec") or {}, namespace(entry)
    held: Labels = {**(spec.get("labels") or {}), **labels(entry)}
    joined = [
        record
        for record in selecting(view, home, held)
        if not record.is_kubernetes or view.settings.services_select_workload_entries
    ]
    workload_name = annotations_of(entry).get(
        "istio.io/autoRegistrationGroup", held.get("service.istio.io/workload-name", name(entry))
    )
    return {
        "uid": f"{view.settings.cluster}/networking.istio.io/WorkloadEntry/{home}/{name(entry)}",
        "name": name(entry),
        "namespace": home,
        **_endpoint(spec, view),
        **tunnel(entry, held),
        **attachment(view, home, held),
        **telemetry(held, workload_name),
        "services": {record.key: {"ports": _ports(record, spec.get("ports") or {})} for record in joined},
        "authorization_policies": policy_names(view, home, held, joined, own_waypoint(view, home, held)),
    }


def _endpoint(spec: Mapping[str, Any], view: View) -> dict[str, Any]:
    """What a WorkloadEntry and an endpoint of a ServiceEntry say in the same words."""
    network = spec.get("network") or view.settings.network
    weight = spec.get("weight") or 0
    return {
        **located(spec.get("address") or ""),
        "network": network,
        "network_gateway": network_gateway(view, network),
        "trust_domain": trust_domain(view.settings),
        "cluster_id": view.settings.cluster,
        "service_account": spec.get("serviceAccount"),
        "locality": locality(spec.get("locality") or ""),
        "capacity": {"value": weight} if weight > 0 else None,
    }


def _ports(record: Record, ports: Mapping[str, int]) -> list[dict[str, Any]]:
    """Target ports by the endpoint's own map of port names (workloads.md 4.3)."""
    listed = []
    for port in record.ports:
        names = record.port_names[port.number]
        target = ports.get(names.target_name) if names.target_name else ports.get(names.name, port.target)
        if target is not None:
            listed.append({"service_port": port.number, "target_port": target})
    return listed


def of_service_entries(view: View) -> list[dict[str, Any]]:
    made = []
    for entry in view.of_kind("ServiceEntry"):
        hosts = [record for record in view.services if record.source is entry]
        if not hosts:
            continue
        for endpoint in entries(entry, "spec", "endpoints"):
            made.append(_of_endpoint(entry, endpoint, hosts, view, is_implied=False))
        if _implies_endpoints(entry):
            for record in hosts:
                made.append(_of_endpoint(entry, {"address": record.hostname}, [record], view, is_implied=True))
    return made


def _implies_endpoints(entry: Manifest) -> bool:
    return (
        not entries(entry, "spec", "endpoints")
        and resolution(entry) in ("DNS", "DNS_ROUND_ROBIN", "DYNAMIC_DNS")
        and dig(entry, "spec", "workloadSelector") is None
    )


def _of_endpoint(
    entry: Manifest, endpoint: Mapping[str, Any], hosts: Sequence[Record], view: View, is_implied: bool
) -> dict[str, Any]:
    home, held = namespace(entry), labels(entry)
    of_endpoint: Labels = endpoint.get("labels") or {}
    own = None if is_implied else own_waypoint(view, home, of_endpoint)
    address = endpoint.get("address") or ""
    return {
        "uid": f"{view.settings.cluster}/networking.istio.io/ServiceEntry/{home}/{name(entry)}/{address}",
        "name": name(entry),
        "namespace": home,
        **_endpoint(endpoint, view),
        **tunnel(entry, held),
        **attachment(view, home, of_endpoint, is_implied),
        **telemetry(held, name(entry)),
        "services": {record.key: {"ports": _ports(record, endpoint.get("ports") or {})} for record in hosts},
        "authorization_policies": policy_names(view, home, held, hosts, own),
    }


def of_slices(view: View) -> list[dict[str, Any]]:
    made = []
    for slice_ in view.of_kind("EndpointSlice"):
        service = labels(slice_).get("kubernetes.io/service-name")
        record = None if service is None else service_record(view, namespace(slice_), service)
        if record is None or slice_.get("addressType") == "FQDN":
            continue
        seen: set[str] = set()
        for endpoint in entries(slice_, "endpoints"):
            texts = entries(endpoint, "addresses")
            if dig(endpoint, "targetRef", "kind") == "Pod" or not texts or texts[0] in seen:
                continue
            seen.add(texts[0])
            parsed = [_of_family(ip.parse(text), slice_.get("addressType")) for text in texts]
            addresses = [ip.text(address) for address in parsed if address is not None]
            if len(addresses) == len(texts):
                made.append(_of_slice(slice_, endpoint, addresses, record, view))
    return made


def _of_family(address: ip.Address | None, family: str | None) -> ip.Address | None:
    """The address, unless the slice says that its addresses are of the other family."""
    versions = {"IPv4": 4, "IPv6": 6}
    return None if address is None or versions.get(family or "", address.version) != address.version else address


def _of_slice(
    slice_: Manifest, endpoint: Mapping[str, Any], addresses: Sequence[str], record: Record, view: View
) -> dict[str, Any]:
    home, cluster = namespace(slice_), view.settings.cluster
    first = endpoint["addresses"][0]
    ports = []
    for port in entries(slice_, "ports"):
        if not port.get("port") or port["protocol"] != "TCP":
            continue
        numbers = [each.number for each in record.ports if record.port_names[each.number].name == port["name"]]
        if numbers:
            ports.append({"service_port": numbers[0], "target_port": port["port"]})
    return {
        "uid": f"{cluster}/discovery.k8s.io/EndpointSlice/{home}/{name(slice_)}/{first}",
        "name": name(slice_),
        "namespace": home,
        "addresses": addresses,
        "network": view.settings.network,
        "trust_domain": trust_domain(view.settings),
        "cluster_id": cluster,
        "services": {record.key: {"ports": ports}},
        "status": "UNHEALTHY" if dig(endpoint, "conditions", "ready") is False else None,
        "network_mode": "HOST_NETWORK",
    }


def of_network_gateways(view: View) -> list[dict[str, Any]]:
    """One per gateway record; among equal uids the smaller record name stays (workloads.md 2.1)."""
    made: dict[str, dict[str, Any]] = {}
    for record in view.gateways:
        uid = f"NetworkGateway/{record.network}/{record.address}/{record.port}"
        account = annotations_of(record.gateway).get("gateway.istio.io/service-account")
        made.setdefault(
            uid,
            {
                "uid": uid,
                "name": uid,
                "namespace": namespace(record.gateway),
                "service_account": account or f"{name(record.gateway)}-istio-remote",
                "network": record.network,
                **located(record.address),
                "trust_domain": trust_domain(view.settings),
            },
        )
    return list(made.values())
