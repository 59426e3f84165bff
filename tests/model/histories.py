"""Random histories of a cluster: batches of objects that are created, changed, deleted, and deleted and made again.
They are biased to collisions, and an object often comes before what it refers to. A seed fixes a history; fewer kinds
give a smaller one. It knows nothing of what is served."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from random import Random

import yaml

from tests.model import istio_objects, kubernetes_objects, policy_objects
from tests.model.dice import API, CLASSES, NAMES, NAMESPACES, NODES, TIMES, Dice, Fields
from tests.model.manifests import Change, Manifest, Ref, dig

CLUSTER_KINDS: Mapping[str, tuple[str, ...]] = {"Namespace": NAMESPACES, "Node": NODES, "GatewayClass": CLASSES}
"""Kinds without a namespace, and the names that their objects may have."""

_GENERATORS: Mapping[str, Callable[[Dice], Fields]] = {
    "Pod": kubernetes_objects.pod,
    "Node": kubernetes_objects.node,
    "Namespace": kubernetes_objects.namespace,
    "Service": kubernetes_objects.service,
    "EndpointSlice": kubernetes_objects.endpoint_slice,
    "WorkloadEntry": istio_objects.workload_entry,
    "ServiceEntry": istio_objects.service_entry,
    "AuthorizationPolicy": policy_objects.authorization_policy,
    "PeerAuthentication": policy_objects.peer_authentication,
    "Gateway": istio_objects.gateway,
    "GatewayClass": istio_objects.gateway_class,
}

_WEIGHTS = {
    "Pod": 20,
    "Service": 12,
    "EndpointSlice": 8,
    "Namespace": 6,
    "Node": 2,
    "WorkloadEntry": 8,
    "ServiceEntry": 12,
    "AuthorizationPolicy": 10,
    "PeerAuthentication": 8,
    "Gateway": 14,
    "GatewayClass": 3,
    "ConfigMap": 2,
}

KINDS = tuple(_WEIGHTS)

MESH_REF: Ref = ("ConfigMap", "istio-system", "istio")


class Histories:
    """One endless history. After each `batch`, `state` holds every object that exists, as it was last written."""

    def __init__(self, seed: int, kinds: Collection[str] | None = None) -> None:
        self._dice = Dice(Random(seed))
        self._kinds = [kind for kind in KINDS if kinds is None or kind in kinds]
        self._made = 0
        self.state: dict[Ref, Manifest] = {}
        self.environment: dict[str, str] = {"REVISION": "default"}
        """Environment variables of the server for this history."""
        for variable in (
            "PILOT_AUTO_ALLOW_WAYPOINT_POLICY",
            "AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY",
            "PILOT_ENABLE_SERVICEENTRY_SELECT_PODS",
            "PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES",
            "PILOT_ENABLE_IP_AUTOALLOCATE",
        ):
            if self._dice.chance(0.5):
                self.environment[variable] = self._dice.one("true", "false")

    def batch(self) -> list[Change]:
        """The next changes, in the order in which they happen; one object may change several times."""
        changes: list[Change] = []
        for _ in range(self._dice.one(1, 1, 2, 3, 5, 8)):
            ref = self._any_ref()
            if ref not in self.state:
                changes.append(self._put(ref, self._created(ref)))
            elif self._dice.chance(0.1):
                changes += [self._delete(ref), self._put(ref, self._created(ref))]
            elif self._dice.chance(0.25):
                changes.append(self._delete(ref))
            else:
                changes.append(self._put(ref, self._changed(ref)))
        return changes

    def _any_ref(self) -> Ref:
        weights = [_WEIGHTS[kind] for kind in self._kinds]
        kind = self._dice.random.choices(self._kinds, weights)[0]
        if kind == "ConfigMap":
            return MESH_REF
        if kind in CLUSTER_KINDS:
            return kind, "", self._dice.of(CLUSTER_KINDS[kind])
        # Most of them in one place, so that they meet.
        return kind, self._dice.one("shop", "shop", *NAMESPACES), self._dice.of(NAMES)

    def _put(self, ref: Ref, manifest: Manifest) -> Change:
        self.state[ref] = manifest
        return Change(ref, manifest)

    def _delete(self, ref: Ref) -> Change:
        del self.state[ref]
        return Change(ref, None)

    def _created(self, ref: Ref) -> Manifest:
        kind, namespace, name = ref
        self._made += 1
        manifest = self._generated(ref)
        metadata = {"name": name, "creationTimestamp": self._dice.of(TIMES), "uid": f"u-{self._made}"}
        if namespace:
            metadata["namespace"] = namespace
        return {"apiVersion": API[kind], "kind": kind, **manifest, "metadata": {**manifest["metadata"], **metadata}}

    def _changed(self, ref: Ref) -> Manifest:
        """A new version of an object: all of it, or one part, or nothing; name, age and uid stay."""
        manifest = copy.deepcopy(dict(self.state[ref]))
        fresh = self._generated(ref)
        fields = list(fresh)
        for field in self._dice.one(fields, [self._dice.of(fields)], [self._dice.of(fields)], []):
            if field == "metadata":
                kept = ("name", "namespace", "creationTimestamp", "uid")
                old = {key: value for key, value in manifest["metadata"].items() if key in kept}
                manifest["metadata"] = {**fresh["metadata"], **old}
            else:
                manifest[field] = fresh[field]
        return manifest

    def _generated(self, ref: Ref) -> Fields:
        if ref == MESH_REF:
            document = yaml.safe_dump(istio_objects.mesh_document(self._dice))
            return {"metadata": {}, "data": {"mesh": document} if self._dice.chance(0.9) else {}}
        manifest = _GENERATORS[ref[0]](self._dice)
        if ref[0] == "EndpointSlice":
            for endpoint in manifest["endpoints"]:
                if "targetRef" not in endpoint and self._dice.chance(0.6):
                    endpoint["targetRef"] = self._pod_reference(ref[1])
        return manifest

    def _pod_reference(self, namespace: str) -> Fields:
        """A pod that exists, or existed, or never did."""
        pods = [ref for ref in self.state if ref[0] == "Pod" and (ref[1] == namespace or self._dice.chance(0.1))]
        if not pods or self._dice.chance(0.15):
            return {"kind": "Pod", "namespace": namespace, "name": self._dice.of(NAMES), "uid": "u-0"}
        pod = self._dice.of(pods)
        reference = {"kind": "Pod", "namespace": pod[1], "name": pod[2]}
        if self._dice.chance(0.9):
            reference["uid"] = dig(self.state[pod], "metadata", "uid")
        return reference
