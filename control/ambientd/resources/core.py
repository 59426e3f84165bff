"""Kinds of the core API group, with only the fields that we read (workloads.md 2.2, 9.1; services.md 3). Values stand
as in the object, after the API server's defaulting (workloads.md 2.3); no rule is applied here."""

from __future__ import annotations

from msgspec import Struct

from ambientd.resources.mesh import MeshConfig
from ambientd.resources.ref import Labels, Ref


class ContainerPort(Struct, frozen=True, gc=False):
    """A port of a container, or of an init container with `restartPolicy: Always`; containers come first."""

    name: str
    protocol: str
    number: int


class Owner(Struct, frozen=True, gc=False):
    """The first owner reference with `controller: true`."""

    kind: str
    name: str


class Pod(Struct, frozen=True, gc=False):
    ref: Ref
    uid: str
    labels: Labels
    redirection: str
    """Annotation `ambient.istio.io/redirection`; empty when absent."""
    has_generate_name: bool
    owner: Owner | None
    service_account: str
    node: str
    host_network: bool
    ports: tuple[ContainerPort, ...]
    phase: str
    ips: tuple[str, ...]
    """`status.podIPs`, else `status.podIP`, as written (workloads.md 3.4)."""
    is_ready: bool
    """The condition `Ready` has status `True`."""
    is_deleting: bool
    """`metadata.deletionTimestamp` is set."""


class Namespace(Struct, frozen=True, gc=False):
    ref: Ref
    labels: Labels
    annotations: Labels
    """Those only that some rule reads (`decode_common.TrackedAnnotations`)."""


class Node(Struct, frozen=True, gc=False):
    ref: Ref
    region: str
    zone: str
    subzone: str


class ServicePort(Struct, frozen=True, gc=False):
    name: str
    number: int
    protocol: str
    target_number: int
    """0 when the target port is a name."""
    target_name: str
    app_protocol: str | None


class Service(Struct, frozen=True, gc=False):
    ref: Ref
    labels: Labels
    annotations: Labels
    created: str
    """`metadata.creationTimestamp`, RFC 3339 in UTC with seconds, so that text order is time order; empty: unknown."""
    type: str
    cluster_ips: tuple[str, ...]
    """`clusterIPs`, else `clusterIP`, as written (`None` included)."""
    ports: tuple[ServicePort, ...]
    selector: Labels
    ip_families: tuple[str, ...]
    publish_not_ready: bool
    internal_traffic_policy: str
    traffic_distribution: str


class ConfigMap(Struct, frozen=True, gc=False):
    """Only its mesh configuration is read; None when it has no key `mesh` (operations.md 6.1)."""

    ref: Ref
    mesh: MeshConfig | None


MESH_FILE = Ref("", "ConfigMap", "", "--mesh-config")
"""Stands for the file with the mesh configuration, where one is given: an object of no cluster."""
