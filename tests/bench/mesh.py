"""A synthetic mesh of a given size, as raw JSON the way an API server gives it: namespaces of 100 pods, ten services
each with a selector, nodes of 100 pods, a namespace-wide policy in each namespace and a selector policy in every
tenth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

PODS_PER_NAMESPACE = 100
SERVICES_PER_NAMESPACE = 10
PODS_PER_NODE = 100


def pod(number: int, *, ready: bool = True) -> dict[str, Any]:
    """Pod `number`, with the fields that real ones have and we do not read."""
    namespace, app = f"ns-{number // PODS_PER_NAMESPACE}", f"app-{number % SERVICES_PER_NAMESPACE}"
    ip = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{app}-7d9c8b6f5d-{number:05x}",
            "generateName": f"{app}-7d9c8b6f5d-",
            "namespace": namespace,
            "uid": f"00000000-0000-4000-8000-{number:012x}",
            "resourceVersion": str(1000 + number),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": app, "version": "v1", "pod-template-hash": "7d9c8b6f5d"},
            "annotations": {"ambient.istio.io/redirection": "enabled", "kubernetes.io/config.seen": "2026-01-01"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{app}-7d9c8b6f5d",
                    "uid": "00000000-0000-4000-8000-00000000000f",
                    "controller": True,
                }
            ],
            "managedFields": [
                {"manager": "kubelet", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {}}}
            ],
        },
        "spec": {
            "serviceAccountName": app,
            "nodeName": f"node-{number // PODS_PER_NODE}",
            "containers": [
                {
                    "name": "main",
                    "image": f"registry.example/{app}:1.0",
                    "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                    "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
                    "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets", "readOnly": True}],
                }
            ],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        },
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "hostIP": "192.168.0.1",
            "conditions": [
                {"type": "Initialized", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
            "containerStatuses": [{"name": "main", "ready": ready, "restartCount": 0, "image": "i", "imageID": "x"}],
        },
    }


def service(namespace: int, app: int, selector: dict[str, str] | None = None) -> dict[str, Any]:
    """The service of one app, with its selector or another."""
    number = namespace * SERVICES_PER_NAMESPACE + app
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"app-{app}", "namespace": f"ns-{namespace}", "uid": f"s{number}"},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": f"172.{16 + (number >> 16)}.{number >> 8 & 255}.{number & 255}",
            "clusterIPs": [f"172.{16 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"],
            "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
            "selector": selector or {"app": f"app-{app}"},
        },
    }


def policy(namespace: str, name: str, selector: dict[str, str] | None, port: str) -> dict[str, Any]:
    """An ALLOW policy for one port."""
    spec: dict[str, Any] = {"action": "ALLOW", "rules": [{"to": [{"operation": {"ports": [port]}}]}]}
    if selector:
        spec["selector"] = {"matchLabels": selector}
    return {
        "apiVersion": "security.istio.io/v1",
        "kind": "AuthorizationPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def peer_authentication(namespace: str, mode: str) -> dict[str, Any]:
    """A PeerAuthentication without selector."""
    return {
        "apiVersion": "security.istio.io/v1",
        "kind": "PeerAuthentication",
        "metadata": {"name": "default", "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"mtls": {"mode": mode}},
    }


def gateway(namespace: str, name: str, *, is_ready: bool = True) -> dict[str, Any]:
    """A waypoint for everything in its namespace."""
    addresses = [{"type": "Hostname", "value": f"{name}.{namespace}.svc.cluster.local"}] if is_ready else []
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": name, "namespace": namespace, "labels": {"istio.io/waypoint-for": "all"}},
        "spec": {
            "gatewayClassName": "istio-waypoint",
            "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}],
        },
        "status": {"addresses": addresses},
    }


def slice_(namespace: int, app: int, endpoints: int, *, first: int = 0) -> dict[str, Any]:
    """A slice of a service with endpoints that are no pods."""
    addresses = [f"100.{64 + (n >> 16)}.{n >> 8 & 255}.{n & 255}" for n in range(first, first + endpoints)]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"app-{app}-manual",
            "namespace": f"ns-{namespace}",
            "labels": {"kubernetes.io/service-name": f"app-{app}"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [ip], "conditions": {"ready": True}} for ip in addresses],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


def namespace(number: int, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"ns-{number}", "labels": labels}}


def node(number: int, zone: str = "") -> dict[str, Any]:
    labels = {"topology.kubernetes.io/region": "r1", "topology.kubernetes.io/zone": zone or f"z{number % 3}"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}", "labels": labels}}


def objects(pods: int) -> Iterator[tuple[str, bytes]]:
    """Kind and JSON of every object of a mesh with this many pods."""
    for number in range(-(-pods // PODS_PER_NODE)):
        yield "Node", json.dumps(node(number)).encode()
    for number in range(-(-pods // PODS_PER_NAMESPACE)):
        yield "Namespace", json.dumps(namespace(number)).encode()
        for app in range(SERVICES_PER_NAMESPACE):
            yield "Service", json.dumps(service(number, app)).encode()
        yield "AuthorizationPolicy", json.dumps(policy(f"ns-{number}", "base", None, "8080")).encode()
        if number % 10 == 0:
            yield "AuthorizationPolicy", json.dumps(policy(f"ns-{number}", "one", {"app": "app-1"}, "8080")).encode()
    for number in range(pods):
        yield "Pod", json.dumps(pod(number)).encode()
