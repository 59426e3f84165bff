"""Random objects of Istio and the Gateway API, and mesh configurations. Every manifest can be read as a whole; values
in it may be bad. Names and ages are put in by `histories.py`."""

from __future__ import annotations

from tests.model.dice import (
    CLASSES,
    NETWORKS,
    PORT_NAMES,
    ROOTS,
    Dice,
    Fields,
    app_labels,
    revision_label,
    selector_labels,
    traffic_annotations,
    waypoint_labels,
    workload_labels,
)

_HOSTS = ("a.test", "b.test", "*.c.test", "a.shop.svc.cluster.local", "b.bank.svc.cluster.local")


def entry_endpoint(dice: Dice) -> Fields:
    """What a WorkloadEntry's spec and an endpoint of a ServiceEntry have in common."""
    endpoint: Fields = {}
    if dice.chance(0.95):
        endpoint["address"] = dice.one(dice.ip(), dice.ip(), "vm.test")
    if dice.chance(0.3):
        endpoint["network"] = dice.one("", *NETWORKS)
    if dice.chance(0.3):
        endpoint["locality"] = dice.one("r1/z1/s1/x", "r1", "/z1", "")
    if dice.chance(0.3):
        endpoint["weight"] = dice.one(0, 1, 5)
    if dice.chance(0.5):
        endpoint["serviceAccount"] = dice.one("web", "db")
    if dice.chance(0.5):
        endpoint["ports"] = {dice.of(PORT_NAMES): dice.one(8080, 9090)}
    if dice.chance(0.6):
        endpoint["labels"] = workload_labels(dice)
    return endpoint


def workload_entry(dice: Dice) -> Fields:
    annotations: Fields = {}
    if dice.chance(0.2):
        annotations["istio.io/autoRegistrationGroup"] = "group"
    if dice.chance(0.2):
        annotations["ambient.istio.io/redirection"] = "enabled"
    labels = {**workload_labels(dice), **revision_label(dice)} if dice.chance(0.6) else {}
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": entry_endpoint(dice)}


def service_entry(dice: Dice) -> Fields:
    labels = {**app_labels(dice), **waypoint_labels(dice, 0.6), **revision_label(dice)}
    if dice.chance(0.1):
        labels["networking.istio.io/enable-autoallocate-ip"] = dice.one("False", "true")
    hosts = dice.some(_HOSTS, 2) or [dice.of(_HOSTS)]
    spec: Fields = {
        "hosts": hosts,
        "resolution": dice.one("NONE", "STATIC", "STATIC", "DNS", "DNS_ROUND_ROBIN", "DYNAMIC_DNS"),
        "ports": [
            {"number": number, "name": dice.of(PORT_NAMES), "protocol": dice.one("HTTP", "tls", "TCP", "GRPC-Web", "")}
            for number in dice.some((80, 443, 53), 2)
        ],
    }
    for port in spec["ports"]:
        if dice.chance(0.4):
            port["targetPort"] = dice.one(8080, 9090)
    if dice.chance(0.5):
        spec["addresses"] = [dice.range() for _ in range(dice.one(1, 1, 2))]
    if dice.chance(0.4):
        spec["endpoints"] = [entry_endpoint(dice) for _ in range(dice.one(1, 2, 3))]
    elif dice.chance(0.4):
        spec["workloadSelector"] = {"labels": selector_labels(dice)}
    if dice.chance(0.15):
        spec["subjectAltNames"] = ["spiffe://x/ns/y/sa/z"]
    annotations = traffic_annotations(dice)
    if dice.chance(0.15):
        annotations["istio.io/connect-strategy"] = dice.one("RACE_FIRST_TCP_CONNECT", "race_first_tcp_connect", "OTHER")
    manifest: Fields = {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}
    if dice.chance(0.4):
        manifest["status"] = {
            "addresses": [{"host": dice.of(_HOSTS), "value": dice.ip()} for _ in range(dice.one(1, 3))]
        }
    return manifest


def gateway(dice: Dice) -> Fields:
    labels: Fields = {}
    if dice.chance(0.7):
        labels["istio.io/waypoint-for"] = dice.one("all", "all", "all", "all", "service", "workload", "none", "")
    if dice.chance(0.4):
        labels["topology.istio.io/network"] = dice.of(NETWORKS)
    annotations: Fields = {}
    if dice.chance(0.2):
        annotations["ambient.istio.io/waypoint-inbound-binding"] = binding(dice)
    if dice.chance(0.2):
        annotations["gateway.istio.io/service-account"] = dice.one("gw", "")
    listeners = []
    for port in dice.some((15008, 15008, 15008, 15088), 2):
        listener: Fields = {
            "name": f"l{port}",
            "port": port,
            "protocol": dice.one("HBONE", "HBONE", "HBONE", "istio.io/PROXY"),
        }
        if dice.chance(0.7):
            listener["allowedRoutes"] = {"namespaces": allowed_namespaces(dice)}
        listeners.append(listener)
    manifest: Fields = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {"gatewayClassName": dice.of((*CLASSES, "istio-waypoint")), "listeners": listeners},
    }
    if dice.chance(0.85):
        manifest["status"] = {"addresses": [gateway_address(dice) for _ in range(dice.one(1, 1, 2))]}
    return manifest


def gateway_address(dice: Dice) -> Fields:
    if dice.chance(0.5):
        return {"type": "Hostname", "value": dice.one("wp.test", "10.0.0.2")}
    value = dice.ip() or "host"
    return {"type": "IPAddress", "value": value} if dice.chance(0.8) else {"value": value}


def binding(dice: Dice) -> str:
    return str(dice.one("PROXY", "NONE", "PROXY/15088", "NONE/4294967296", "PROXY/x", "proxy", "PROXY/1/2", ""))


def allowed_namespaces(dice: Dice) -> Fields:
    allowed: Fields = {"from": dice.one("All", "All", "All", "Same", "Selector", "None")}
    if dice.chance(0.7):
        allowed["selector"] = label_selector(dice)
    return allowed


def label_selector(dice: Dice) -> Fields:
    if dice.chance(0.15):
        return {}
    if dice.chance(0.5):
        return {"matchLabels": {"mesh": dice.one("on", "off")}}
    operator = dice.one("In", "NotIn", "Exists", "DoesNotExist")
    requirement: Fields = {"key": "mesh", "operator": operator}
    if operator in ("In", "NotIn"):
        requirement["values"] = ["on"]
    return {"matchExpressions": [requirement]}


def gateway_class(dice: Dice) -> Fields:
    labels = {"istio.io/waypoint-for": dice.one("all", "workload", "none")} if dice.chance(0.5) else {}
    annotations = {"ambient.istio.io/waypoint-inbound-binding": binding(dice)} if dice.chance(0.5) else {}
    controller = dice.one("istio.io/mesh-controller", "istio.io/x")
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": {"controllerName": controller}}


def mesh_document(dice: Dice) -> Fields:
    """A mesh configuration that is valid."""
    mesh: Fields = {}
    if dice.chance(0.6):
        mesh["rootNamespace"] = dice.one(*ROOTS, "")
    if dice.chance(0.4):
        mesh["trustDomain"] = dice.one("cluster.local", "corp.example")
    if dice.chance(0.15):
        # Not the selector that matches everything: whether it finds a namespace that nobody has seen is undefined.
        mesh["discoverySelectors"] = [label_selector(dice) or {"matchLabels": {"mesh": "on"}}]
    if dice.chance(0.3):
        values = ("NONE", "NAMESPACE", "PUBLIC", "VISIBILITY_UNSPECIFIED")
        policies = [
            {"visibility": dice.of(values), "matchingRules": [{"namespaceSelector": label_selector(dice)}]}
            for _ in range(dice.random.randrange(3))
        ]
        mesh["serviceEntryVisibility"] = {"defaultVisibility": dice.of(values), "policies": policies}
    return mesh
