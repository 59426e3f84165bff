"""Pods (workloads.md 3)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.model import ip
from tests.model.manifests import Labels, Manifest, dig, entries, labels, name, namespace
from tests.model.services import Record
from tests.model.view import (
    View,
    attachment,
    network_gateway,
    own_waypoint,
    policy_names,
    selecting,
    telemetry,
    trust_domain,
    tunnel,
)


def workloads(view: View) -> list[dict[str, Any]]:
    """The Workload of every Pod that yields one, in golden form."""
    made = [_workload(pod, view) for pod in view.of_kind("Pod")]
    return [workload for workload in made if workload is not None]


def _workload(pod: Manifest, view: View) -> dict[str, Any] | None:
    status = pod.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return None
    texts = [entry.get("ip") or "" for entry in entries(status, "podIPs")] or [status.get("podIP") or ""]
    parsed = [ip.parse(text) for text in texts]
    addresses = [ip.text(address) for address in parsed if address is not None]
    if len(addresses) < len(texts):
        return None
    spec, held, home = pod.get("spec") or {}, labels(pod), namespace(pod)
    joined = _services(pod, view)
    is_ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in entries(status, "conditions")
    )
    is_healthy = is_ready and not dig(pod, "metadata", "deletionTimestamp")
    return {
        "uid": f"{view.settings.cluster}//Pod/{home}/{name(pod)}",
        "name": name(pod),
        "namespace": home,
        "addresses": addresses,
        "network": view.settings.network,
        "network_gateway": network_gateway(view, view.settings.network),
        **tunnel(pod, held),
        "trust_domain": trust_domain(view.settings),
        "service_account": spec.get("serviceAccountName"),
        "cluster_id": view.settings.cluster,
        **attachment(view, home, held),
        "node": spec.get("nodeName"),
        **telemetry(held, _workload_name(pod)),
        "services": {record.key: {"ports": _ports(record, pod)} for record in joined},
        "authorization_policies": policy_names(view, home, held, joined, own_waypoint(view, home, held)),
        "status": None if is_healthy else "UNHEALTHY",
        "locality": _locality(spec.get("nodeName"), view),
        "network_mode": "HOST_NETWORK" if spec.get("hostNetwork") else None,
    }


def _workload_name(pod: Manifest) -> str:
    held: Labels = labels(pod)
    if "service.istio.io/workload-name" in held:
        return held["service.istio.io/workload-name"]
    controllers = [owner for owner in entries(pod, "metadata", "ownerReferences") if owner.get("controller") is True]
    if not dig(pod, "metadata", "generateName") or not controllers:
        return name(pod)
    owner_kind, owner_name = str(controllers[0]["kind"]), str(controllers[0]["name"])
    match owner_kind:
        case "ReplicaSet":
            for label in ("pod-template-hash", "rollouts-pod-template-hash"):
                value = held.get(label)
                if value and owner_name.endswith(value):
                    return owner_name.removesuffix(f"-{value}")
        case "ReplicationController":
            return held.get("deploymentconfig") or owner_name
        case "Job":
            numbered = re.fullmatch(r"(.+)-[0-9]{8,10}", owner_name, re.ASCII | re.DOTALL)
            return numbered[1] if numbered else owner_name
    return owner_name


def _locality(node_name: str | None, view: View) -> dict[str, str]:
    for node in view.of_kind("Node"):
        if node_name and name(node) == node_name:
            held = labels(node)
            return {
                "region": held.get("topology.kubernetes.io/region", ""),
                "zone": held.get("topology.kubernetes.io/zone", ""),
                "subzone": held.get("topology.istio.io/subzone", ""),
            }
    return {}


def _services(pod: Manifest, view: View) -> list[Record]:
    """Those whose selector matches, and those that have a slice that names the pod (workloads.md 3.12, 3.13)."""
    joined = [
        record
        for record in selecting(view, namespace(pod), labels(pod))
        if record.is_kubernetes or view.settings.service_entries_select_pods
    ]
    hostnames = {record.hostname for record in joined}
    uid = dig(pod, "metadata", "uid")
    identity = {"kind": "Pod", "namespace": namespace(pod), "name": name(pod), "uid": uid}
    for slice_ in view.of_kind("EndpointSlice"):
        service = labels(slice_).get("kubernetes.io/service-name")
        if service is None or slice_.get("addressType") == "FQDN" or not uid:
            continue
        targets = [dig(endpoint, "targetRef") or {} for endpoint in entries(slice_, "endpoints")]
        if not any({key: target.get(key) for key in identity} == identity for target in targets):
            continue
        record = service_record(view, namespace(slice_), service)
        if record is not None and record.hostname not in hostnames:
            hostnames.add(record.hostname)
            joined.append(record)
    return joined


def service_record(view: View, of_namespace: str, service: str) -> Record | None:
    """The record of a Kubernetes Service."""
    for record in view.services:
        if record.is_kubernetes and record.namespace == of_namespace and name(record.source) == service:
            return record
    return None


def _ports(record: Record, pod: Manifest) -> list[dict[str, Any]]:
    ports = []
    for port in record.ports:
        names = record.port_names[port.number]
        if record.is_kubernetes and names.target_name:
            target = _container_port(pod, names.target_name)
        elif record.is_kubernetes:
            target = port.target
        else:
            target = _container_port(pod, names.name)
            target = port.target if target is None else target
        if target is not None:
            ports.append({"service_port": port.number, "target_port": target})
    return ports


def _container_port(pod: Manifest, wanted: str) -> int | None:
    native_sidecars = [
        container for container in entries(pod, "spec", "initContainers") if container.get("restartPolicy") == "Always"
    ]
    containers: Sequence[Mapping[str, Any]] = [*entries(pod, "spec", "containers"), *native_sidecars]
    for container in containers:
        for port in entries(container, "ports"):
            if (port.get("name") or "") == wanted and port["protocol"] == "TCP":
                return int(port["containerPort"])
    return None
