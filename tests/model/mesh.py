"""The settings that hold for everything: environment variables, and the mesh configuration from its ConfigMap, with the
filters that follow from both (workloads.md 2.2; operations.md 1.3, 6, 8)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tests.model.manifests import (
    FALSE_TEXTS,
    TRUE_TEXTS,
    Labels,
    Manifest,
    dig,
    entries,
    is_selector,
    kind,
    labels,
    matches,
    name,
    namespace,
)

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)

CLUSTER_KINDS = frozenset({"Namespace", "Node", "GatewayClass"})
REVISIONED_KINDS = frozenset({"ServiceEntry", "WorkloadEntry", "AuthorizationPolicy", "PeerAuthentication"})


@dataclass(frozen=True)
class Settings:
    """Everything that does not come from an object of the mesh."""

    cluster: str
    system_namespace: str
    domain: str
    revision: str
    service_entries_select_pods: bool
    services_select_workload_entries: bool
    allow_waypoints: bool
    serve_dry_run: bool
    allocate_addresses: bool
    writes_status: bool
    trust_domain: str = "cluster.local"
    root_namespace: str = "istio-system"
    network: str = ""
    visibility: Mapping[str, Any] | None = None


def _is_on(environment: Mapping[str, str], variable: str, default: bool) -> bool:
    value = environment.get(variable, "")
    return value in TRUE_TEXTS if value in TRUE_TEXTS | FALSE_TEXTS else default


def settings_of(environment: Mapping[str, str], manifests: Sequence[Manifest]) -> Settings:
    """The environment, the mesh configuration in force, and the network of the cluster."""
    system_namespace = environment.get("POD_NAMESPACE") or "istio-system"
    revision = environment.get("REVISION", "")
    mesh = configuration(mesh_text(manifests, system_namespace, revision))
    network = ""
    for manifest in manifests:
        if kind(manifest) == "Namespace" and name(manifest) == system_namespace:
            network = labels(manifest).get("topology.istio.io/network", "")
    return Settings(
        cluster=environment.get("CLUSTER_ID", "Kubernetes"),
        system_namespace=system_namespace,
        domain="cluster.local",
        revision=revision,
        service_entries_select_pods=_is_on(environment, "PILOT_ENABLE_SERVICEENTRY_SELECT_PODS", True),
        services_select_workload_entries=_is_on(environment, "PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES", True),
        allow_waypoints=_is_on(environment, "PILOT_AUTO_ALLOW_WAYPOINT_POLICY", False),
        serve_dry_run=_is_on(environment, "AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY", False),
        allocate_addresses=_is_on(environment, "PILOT_ENABLE_IP_AUTOALLOCATE", True),
        writes_status=_is_on(environment, "AMBIENT_ENABLE_STATUS", True),
        trust_domain=mesh.get("trustDomain", "cluster.local"),
        # An empty root namespace is none at all (workloads.md A11).
        root_namespace=mesh.get("rootNamespace") or "istio-system",
        network=network,
        visibility=mesh.get("serviceEntryVisibility"),
    )


def config_map_name(revision: str) -> str:
    """Where the mesh configuration stands (operations.md 6.1)."""
    return "istio" if revision in ("", "default") else f"istio-{revision}"


def mesh_text(manifests: Sequence[Manifest], system_namespace: str, revision: str) -> str:
    """The document under the key `mesh`; empty when there is none, which means the defaults."""
    for manifest in manifests:
        if (
            kind(manifest) == "ConfigMap"
            and namespace(manifest) == system_namespace
            and name(manifest) == config_map_name(revision)
        ):
            return dig(manifest, "data", "mesh") or ""
    return ""


def configuration(document: str) -> dict[str, Any]:
    """A mesh configuration as YAML, its top-level fields in camelCase. Raises ValueError if it is invalid as a whole
    (operations.md 6.4), as far as the fields that are read here go."""
    try:
        fields = yaml.safe_load(document) or {}
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    if not isinstance(fields, dict):
        raise ValueError("not a map of fields")
    mesh = {_camel(key): value for key, value in fields.items() if value is not None}
    trust_domain = mesh.get("trustDomain", "cluster.local")
    if not trust_domain or not all(_LABEL.fullmatch(part) for part in trust_domain.removesuffix(".").split(".")):
        raise ValueError(f"trust domain {trust_domain!r}")
    return mesh


def _camel(field: str) -> str:
    head, *rest = field.split("_")
    return head + "".join(part.capitalize() for part in rest)


def in_force(former: Mapping[str, Any] | None, document: str) -> dict[str, Any]:
    """The mesh configuration after a new document: as a whole the former one if the new one is invalid; for the parts
    that are built from selectors, the former ones if a selector is malformed (operations.md 6.4, 8; services.md 7).
    `former` is None at the start, before there was any."""
    try:
        mesh = configuration(document)
    except ValueError:
        return dict(former or {})
    visibility_selectors = [
        rule["namespaceSelector"]
        for policy in entries(mesh, "serviceEntryVisibility", "policies")
        for rule in entries(policy, "matchingRules")
        if rule.get("namespaceSelector") is not None
    ]
    for field, selectors in (
        ("discoverySelectors", entries(mesh, "discoverySelectors")),
        ("serviceEntryVisibility", visibility_selectors),
    ):
        if all(is_selector(selector) for selector in selectors):
            continue
        if former is not None and field in former:
            mesh[field] = former[field]
        elif former is not None or field == "discoverySelectors":
            # At the start a visibility with a malformed selector is used as far as it goes; a filter is not.
            mesh.pop(field)
    return mesh


def visible(manifests: Sequence[Manifest], settings: Settings) -> list[Manifest]:
    """What the rules get to see: discovery selectors and the revision are applied (workloads.md 2.2)."""
    mesh = configuration(mesh_text(manifests, settings.system_namespace, settings.revision))
    selectors = entries(mesh, "discoverySelectors")
    discovered = {
        name(manifest)
        for manifest in manifests
        if kind(manifest) == "Namespace" and any(matches(selector, labels(manifest)) for selector in selectors)
    }
    seen = []
    for manifest in manifests:
        if selectors and kind(manifest) not in CLUSTER_KINDS and namespace(manifest) not in discovered:
            continue
        if kind(manifest) in REVISIONED_KINDS and not _is_of_revision(labels(manifest), settings.revision):
            continue
        # Pods of this phase are not watched.
        if kind(manifest) == "Pod" and dig(manifest, "status", "phase") == "Failed":
            continue
        seen.append(manifest)
    return seen


def _is_of_revision(held: Labels, revision: str) -> bool:
    return not revision or held.get("istio.io/rev", revision) == revision


def visibility_of(settings: Settings, namespace_labels: Labels) -> str:
    """`PUBLIC`, `NAMESPACE` or `NONE` for the ServiceEntries of a namespace with these labels (services.md 7)."""
    if settings.visibility is None:
        return "PUBLIC"
    answer = settings.visibility.get("defaultVisibility")
    for policy in entries(settings.visibility, "policies"):
        selectors = [rule.get("namespaceSelector") for rule in entries(policy, "matchingRules")]
        if all(
            selector is not None and is_selector(selector) and matches(selector, namespace_labels)
            for selector in selectors
        ):
            answer = policy.get("visibility")
            break
    return answer if answer in ("NAMESPACE", "NONE") else "PUBLIC"
