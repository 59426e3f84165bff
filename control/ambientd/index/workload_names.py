"""How a workload is called in telemetry (workloads.md 3.7 to 3.9). Pure functions of labels and owner."""

from __future__ import annotations

import re

from ambientd.resources.core import Owner, Pod
from ambientd.resources.ref import Labels, label

WORKLOAD_NAME = "service.istio.io/workload-name"
_TUNNEL = "networking.istio.io/tunnel"
_CANONICAL_NAMES = ("service.istio.io/canonical-name", "app.kubernetes.io/name", "app")
_CANONICAL_REVISIONS = ("service.istio.io/canonical-revision", "app.kubernetes.io/version", "version")
_JOB_OF_CRON_JOB = re.compile(r"(.+)-[0-9]{8,10}", re.ASCII | re.DOTALL)


def pod_workload_name(pod: Pod) -> str:
    """The name of what made the pod, as far as it can be told (workloads.md 3.7)."""
    own = label(pod.labels, WORKLOAD_NAME)
    if own is not None:
        return own
    if not pod.has_generate_name or pod.owner is None:
        return pod.ref.name
    return _owner_name(pod.owner, pod.labels)


def _owner_name(owner: Owner, labels: Labels) -> str:
    match owner.kind:
        case "ReplicaSet":
            for key in ("pod-template-hash", "rollouts-pod-template-hash"):
                hash_ = label(labels, key)
                # The test is without the hyphen, the cut with it, as upstream.
                if hash_ and owner.name.endswith(hash_):
                    return owner.name.removesuffix(f"-{hash_}")
        case "ReplicationController":
            return label(labels, "deploymentconfig") or owner.name
        case "Job":
            found = _JOB_OF_CRON_JOB.fullmatch(owner.name)
            if found is not None:
                return found[1]
    return owner.name


def canonical_name(labels: Labels, workload_name: str) -> str:
    """The first of the labels that is present, even when empty (workloads.md 3.8)."""
    return _first_present(labels, _CANONICAL_NAMES, workload_name)


def canonical_revision(labels: Labels) -> str:
    return _first_present(labels, _CANONICAL_REVISIONS, "latest")


def _first_present(labels: Labels, keys: tuple[str, ...], otherwise: str) -> str:
    for key in keys:
        value = label(labels, key)
        if value is not None:
            return value
    return otherwise


def has_native_tunnel(labels: Labels) -> bool:
    """The workload terminates HBONE itself (workloads.md 3.9)."""
    value = label(labels, _TUNNEL)
    return value is not None and "http" in value.split(",")
