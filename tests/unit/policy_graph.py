"""The part of the graph that policies need, fed with manifests through the real decoder, and workloads that are nothing
but a namespace and labels. No test stands here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ambientd.index import authorization, mesh, namespaces, peers
from ambientd.index.authorization_conversion import PolicyVerdict
from ambientd.index.declarations import Change, Derived, Reader, Source, derive
from ambientd.index.graph import Graph
from ambientd.index.inputs import SOURCES, changes_of
from ambientd.index.mesh import RULES, mesh_of
from ambientd.index.rendered import RenderedPolicy
from ambientd.index.rules import Rules
from ambientd.resources.events import Delete, Event
from ambientd.resources.faults import Fault
from ambientd.resources.manifest import decode_manifest
from ambientd.resources.ref import Labels, Ref, intern_labels
from ambientd_api.security_pb2 import Authorization
from tests.cases.loader import HERE, golden

Manifest = Mapping[str, Any]

ROOT = "mesh-root"
RULES_OF_TABLES = Rules(revision="stable")
MESH_CONFIG: Manifest = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "istio-stable", "namespace": "istio-system"},
    "data": {"mesh": f"rootNamespace: {ROOT}\ntrustDomain: corp.example\n"},
}

_WORKLOADS: Source[str, tuple[str, Labels]] = Source("workloads of a test")


class PolicyGraph:
    """Policies and workloads, by the settings of the tables; a derivation that raises fails the test."""

    def __init__(self, rules: Rules = RULES_OF_TABLES, mesh_config: Manifest = MESH_CONFIG) -> None:
        self.gathered: list[str] = []
        """Names of the workloads whose lists were gathered, each time that one was."""
        self._listed: Derived[str, tuple[str, ...]] = derive("lists of a test", _WORKLOADS, self._gather)
        self.graph = Graph(
            (
                *SOURCES,
                *mesh.DECLARATIONS,
                *namespaces.DECLARATIONS,
                *authorization.DECLARATIONS,
                *peers.DECLARATIONS,
                _WORKLOADS,
                self._listed,
            ),
            is_strict=True,
        )
        self.graph.apply([(RULES, (), rules)])
        self.apply([mesh_config])

    def _gather(self, workload: tuple[str, Labels], read: Reader) -> tuple[str, ...]:
        namespace, labels = workload
        view = mesh_of(read)
        self.gathered.append(namespace + "".join(f" {key}={value}" for key, value in labels))
        name = peers.gather_listed(namespace, labels, view, read)
        return authorization.gather_listed(namespace, labels, view, read) + (() if name is None else (name,))

    def apply(self, manifests: Iterable[Manifest]) -> None:
        events = [decode_manifest(dict(manifest), "Kubernetes") for manifest in manifests]
        self._change(events)

    def delete(self, *manifests: Manifest) -> None:
        self._change([Delete(_ref(manifest)) for manifest in manifests])

    def _change(self, events: Sequence[Event]) -> None:
        self.graph.apply(list(changes_of(events, self.graph)))

    def add_workload(self, name: str, namespace: str, labels: Mapping[str, str]) -> None:
        change: Change = (_WORKLOADS, name, (namespace, intern_labels(labels)))
        self.graph.apply([change])

    def remove_workload(self, name: str) -> None:
        self.graph.apply([(_WORKLOADS, name, None)])

    def lists(self, name: str) -> list[str]:
        listed = self.graph.get(self._listed, name)
        return list(listed or ())

    def served(self) -> dict[str, RenderedPolicy]:
        collections: tuple[Derived[Any, RenderedPolicy], ...] = (
            authorization.POLICIES,
            peers.POLICIES,
            peers.STATIC_POLICY,
        )
        return {policy.name: policy for each in collections for _, policy in self.graph.items(each)}

    def authorizations(self) -> dict[str, dict[str, Any]]:
        """What ztunnels get, in golden form."""
        return {name: golden(Authorization.FromString(policy.body)) for name, policy in self.served().items()}

    def verdict(self, manifest: Manifest) -> PolicyVerdict | None:
        return self.graph.get(authorization.VERDICTS, _ref(manifest))

    def faults(self, manifest: Manifest) -> list[str]:
        is_peer = manifest["kind"] == "PeerAuthentication"
        faults: tuple[Fault, ...] | None = self.graph.get(
            peers.PROBLEMS if is_peer else authorization.PROBLEMS, _ref(manifest)
        )
        return [str(fault) for fault in faults or ()]


def _ref(manifest: Manifest) -> Ref:
    return Ref("Kubernetes", manifest["kind"], manifest["metadata"]["namespace"], manifest["metadata"]["name"])


def rules_of(environment: Mapping[str, str]) -> Rules:
    is_on = environment.get("AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY") == "true"
    return Rules(revision="stable", serve_dry_run_policies=is_on)


def rows(path: str) -> list[dict[str, Any]]:
    """The rows of a file of small cases."""
    listed: list[dict[str, Any]] = json.loads((HERE / path).read_bytes())["rows"]
    return listed


def policy(name: str, namespace: str = "shop", annotations: Mapping[str, str] | None = None, **spec: Any) -> Manifest:
    return _manifest("AuthorizationPolicy", name, namespace, spec, {"annotations": dict(annotations or {})})


def peer(name: str, namespace: str = "shop", age: int = 1, **spec: Any) -> Manifest:
    """A PeerAuthentication that was created at second `age` of a minute."""
    created = f"2026-01-01T00:00:{age:02}Z"
    return _manifest("PeerAuthentication", name, namespace, spec, {"creationTimestamp": created})


def _manifest(kind: str, name: str, namespace: str, spec: Mapping[str, Any], meta: Mapping[str, Any]) -> Manifest:
    metadata = {"name": name, "namespace": namespace, **meta}
    return {"apiVersion": "security.istio.io/v1", "kind": kind, "metadata": metadata, "spec": spec}
