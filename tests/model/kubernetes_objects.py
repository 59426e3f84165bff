"""Random Pods, Nodes, Namespaces, Services and EndpointSlices. Every manifest can be read as a whole; values in it may
be bad. Names, ages and references to pods are put in by `histories.py`."""

from __future__ import annotations

from tests.model.dice import (
    NAMES,
    NETWORKS,
    NODES,
    PORT_NAMES,
    Dice,
    Fields,
    selector_labels,
    traffic_annotations,
    waypoint_labels,
    workload_labels,
)


def pod(dice: Dice) -> Fields:
    metadata: Fields = {"labels": workload_labels(dice)}
    if dice.chance(0.4):
        metadata["annotations"] = {"ambient.istio.io/redirection": dice.one("enabled", "pending")}
    if dice.chance(0.3):
        metadata["generateName"] = "made-"
        owner, hash_ = dice.one("ReplicaSet", "Job", "StatefulSet", "ReplicationController"), dice.one("abc12", "zz")
        name = dice.one(f"own-{hash_}", "own-29876543", "own")
        metadata["ownerReferences"] = [{"kind": owner, "name": name, "controller": dice.chance(0.9)}]
        metadata["labels"]["pod-template-hash"] = hash_
    if dice.chance(0.05):
        metadata["deletionTimestamp"] = "2026-02-01T00:00:00Z"
    spec: Fields = {
        "serviceAccountName": dice.one("web", "db", "default"),
        "containers": [{"name": "app", "ports": container_ports(dice)}],
    }
    if dice.chance(0.8):
        spec["nodeName"] = dice.of(NODES)
    if dice.chance(0.1):
        spec["hostNetwork"] = True
    if dice.chance(0.2):
        side: Fields = {"name": "side", "ports": container_ports(dice)}
        spec["initContainers"] = [{**side, "restartPolicy": "Always"} if dice.chance(0.7) else side]
    return {"metadata": metadata, "spec": spec, "status": pod_status(dice)}


def container_ports(dice: Dice) -> list[Fields]:
    ports = []
    for number in dice.some((8080, 8443, 9090), 2):
        port: Fields = {"name": dice.of(PORT_NAMES), "containerPort": number}
        if dice.chance(0.3):
            port["protocol"] = dice.one("TCP", "UDP")
        ports.append(port)
    return ports


def pod_status(dice: Dice) -> Fields:
    status: Fields = {"phase": dice.one("Running", "Running", "Running", "Pending", "Succeeded", "Failed", "Unknown")}
    if dice.chance(0.9):
        first = dice.ip()
        status["podIP"] = first
        if dice.chance(0.5):
            status["podIPs"] = [{"ip": first}, *({"ip": dice.ip()} for _ in range(dice.random.randrange(2)))]
    if dice.chance(0.8):
        status["conditions"] = [{"type": "Ready", "status": dice.one("True", "True", "False")}]
    return status


def node(dice: Dice) -> Fields:
    keys = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone")
    return {"metadata": {"labels": {key: dice.one("r1", "r2", "") for key in keys if dice.chance(0.6)}}}


def namespace(dice: Dice) -> Fields:
    labels = waypoint_labels(dice, 0.6)
    if dice.chance(0.5):
        labels["topology.istio.io/network"] = dice.one("", *NETWORKS)
    if dice.chance(0.6):
        labels["mesh"] = dice.one("on", "off")
    return {"metadata": {"labels": labels, "annotations": traffic_annotations(dice)}}


def service(dice: Dice) -> Fields:
    labels = waypoint_labels(dice, 0.6)
    if dice.chance(0.08):
        labels["gateway.istio.io/managed"] = dice.one("istio.io-mesh-controller", "somebody")
    spec: Fields = {"ports": service_ports(dice)}
    if dice.chance(0.8):
        spec["selector"] = selector_labels(dice)
    if dice.chance(0.08):
        spec["type"] = "ExternalName"
    if dice.chance(0.15):
        spec["clusterIP"] = "None"
    else:
        addresses = [dice.ip() for _ in range(dice.random.randrange(3))]
        spec["clusterIP"] = addresses[0] if addresses else ""
        if dice.chance(0.5):
            spec["clusterIPs"] = addresses
    spec["ipFamilies"] = dice.one([], ["IPv4"], ["IPv6"], ["IPv4", "IPv6"])
    if dice.chance(0.1):
        spec["publishNotReadyAddresses"] = True
    if dice.chance(0.1):
        spec["internalTrafficPolicy"] = dice.one("Local", "Cluster")
    if dice.chance(0.15):
        spec["trafficDistribution"] = dice.one("PreferClose", "PreferSameZone", "PreferSameNode", "preferclose")
    return {"metadata": {"labels": labels, "annotations": traffic_annotations(dice)}, "spec": spec}


def service_ports(dice: Dice) -> list[Fields]:
    ports = []
    for number in dice.some((80, 81, 53, 3306), 3):
        port: Fields = {"name": dice.of((*PORT_NAMES, "redis-x")), "port": number}
        if dice.chance(0.7):
            port["targetPort"] = dice.one(8080, 8081, "http", "web")
        if dice.chance(0.4):
            port["protocol"] = dice.one("TCP", "UDP", "SCTP")
        if dice.chance(0.15):
            port["appProtocol"] = dice.one("kubernetes.io/h2c", "HTTP", "", "other")
        ports.append(port)
    return ports


def endpoint_slice(dice: Dice) -> Fields:
    labels: Fields = {}
    if dice.chance(0.9):
        labels["kubernetes.io/service-name"] = dice.of(NAMES)
    endpoints = []
    for _ in range(dice.random.randrange(4)):
        endpoint: Fields = {"addresses": [dice.ip() for _ in range(dice.one(1, 1, 1, 2))]}
        if dice.chance(0.5):
            endpoint["conditions"] = {"ready": dice.chance(0.7)}
        # References to pods are put in where the pods are known.
        if dice.chance(0.1):
            endpoint["targetRef"] = {"kind": "Node", "name": dice.of(NODES)}
        endpoints.append(endpoint)
    ports = [
        {"name": dice.of(PORT_NAMES), "port": number, "protocol": dice.one("TCP", "TCP", "UDP")}
        for number in dice.some((8080, 9090), 2)
    ]
    return {
        "metadata": {"labels": labels},
        "addressType": dice.one("IPv4", "IPv4", "IPv6", "FQDN"),
        "endpoints": endpoints,
        "ports": ports,
    }
