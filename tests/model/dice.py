"""The dice of the random manifests, and the small pools that they draw from, so that objects meet: few namespaces,
names, labels and addresses, references to things that may not exist, and now and then a value that does not parse."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

Fields = dict[str, Any]

ROOTS = ("istio-system", "mesh-root")
NAMESPACES = ("shop", "bank", *ROOTS)
NAMES = ("a", "b", "c")
NODES = ("node-1", "node-2")
CLASSES = ("istio-waypoint", "sandwich", "istio-remote")
NETWORKS = ("net-a", "net-b")
TIMES = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z", "2026-01-01T00:00:03Z")

API = {
    "Pod": "v1",
    "Namespace": "v1",
    "Node": "v1",
    "Service": "v1",
    "ConfigMap": "v1",
    "EndpointSlice": "discovery.k8s.io/v1",
    "ServiceEntry": "networking.istio.io/v1",
    "WorkloadEntry": "networking.istio.io/v1",
    "AuthorizationPolicy": "security.istio.io/v1",
    "PeerAuthentication": "security.istio.io/v1",
    "Gateway": "gateway.networking.k8s.io/v1",
    "GatewayClass": "gateway.networking.k8s.io/v1",
}

_IPS = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "fd00::1", "fd00::2", "::ffff:10.0.0.4", "FD00:0:0::1")
_BAD_IPS = ("10.0.0.01", "10.0.0.300", "", " 10.0.0.1", "fd00:::1", "10.0.0.1%eth0")
_RANGES = ("10.0.0.0/24", "10.0.0.9/24", "fd00::/64", "0.0.0.0/0", "10.0.0.1/32", "::ffff:10.0.0.0/120")
_BAD_RANGES = ("10.0.0.0/33", "10.0.0.0/08", "fe80::1%eth0/64", "host")
PORT_NAMES = ("http", "grpc-api", "tcp", "web", "metrics")
TRUE_AND_OTHER = ("true", "1", "T", "false", "yes", "")


class Dice:
    """What the generators below draw from; the same seed gives the same draws."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def one(self, *values: Any) -> Any:
        return values[self.random.randrange(len(values))]

    def of(self, values: Sequence[Any]) -> Any:
        return values[self.random.randrange(len(values))]

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def some(self, values: Sequence[Any], most: int) -> list[Any]:
        return [self.of(values) for _ in range(self.random.randrange(most + 1))]

    def ip(self) -> str:
        return str(self.of(_BAD_IPS) if self.chance(0.04) else self.of(_IPS))

    def range(self) -> str:
        return str(self.of(_BAD_RANGES) if self.chance(0.08) else self.of((*_RANGES, *_IPS)))


def app_labels(dice: Dice) -> Fields:
    """Labels that selectors here ask for."""
    labels: Fields = {}
    if dice.chance(0.85):
        labels["app"] = dice.one("cart", "till")
    if dice.chance(0.3):
        labels["tier"] = dice.one("web", "db")
    if dice.chance(0.15):
        labels["version"] = dice.one("v1", "v2", "")
    return labels


def selector_labels(dice: Dice) -> Fields:
    return {key: value for key, value in app_labels(dice).items() if key != "version"}


def waypoint_labels(dice: Dice, probability: float) -> Fields:
    """References to waypoints that may or may not exist."""
    labels: Fields = {}
    for label, chance in (("istio.io/use-waypoint", probability), ("istio.io/use-waypoint-canary", probability / 2)):
        if dice.chance(chance):
            labels[label] = dice.one(*NAMES, *NAMES, *NAMES, "none", "")
            if dice.chance(0.3):
                labels[f"{label}-namespace"] = dice.of(NAMESPACES)
    if dice.chance(probability / 4):
        labels["istio.io/ingress-use-waypoint"] = dice.of(TRUE_AND_OTHER)
    return labels


def workload_labels(dice: Dice) -> Fields:
    labels = {**app_labels(dice), **waypoint_labels(dice, 0.35)}
    for probability, label, values in (
        (0.15, "gateway.networking.k8s.io/gateway-name", NAMES),
        (0.05, "networking.istio.io/tunnel", ("http", "http2", "http3,http")),
        (0.08, "service.istio.io/canonical-name", ("canon", "")),
        (0.08, "service.istio.io/workload-name", ("named", "")),
        (0.05, "topology.istio.io/network", NETWORKS),
    ):
        if dice.chance(probability):
            labels[label] = dice.of(values)
    return labels


def revision_label(dice: Dice) -> Fields:
    return {"istio.io/rev": dice.one("default", "other")} if dice.chance(0.08) else {}


def traffic_annotations(dice: Dice) -> Fields:
    annotations: Fields = {}
    if dice.chance(0.1):
        key = "networking.istio.io/traffic-distribution"
        annotations[key] = dice.one("PreferClose", "prefersamenode", "Anywhere", "")
    if dice.chance(0.2):
        annotations["istio.io/use-waypoint-canary-weight"] = dice.one("10", "+0", "100", "101", "", "x")
    return annotations
