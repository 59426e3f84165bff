"""The settings that rules depend on and that stay fixed while the process runs (operations.md 1.2, 1.3)."""

from __future__ import annotations

from msgspec import Struct


class Rules(Struct, frozen=True):
    cluster_id: str = "Kubernetes"
    domain: str = "cluster.local"
    """DNS suffix of Kubernetes Services (`--domain`)."""
    system_namespace: str = "istio-system"
    """Namespace of the server itself (`--namespace`): its label gives the network, its ConfigMap the mesh
    configuration."""
    revision: str = ""
    """Empty: every object is read. Otherwise an object with another value of `istio.io/rev` does not exist."""
    has_mesh_file: bool = False
    """The mesh configuration comes from a file that existed at the start, and not from the ConfigMap (operations.md
    6.1)."""
    service_entries_select_pods: bool = True
    """`PILOT_ENABLE_SERVICEENTRY_SELECT_PODS`."""
    services_select_workload_entries: bool = True
    """`PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES`."""
    auto_allow_waypoints: bool = False
    """`PILOT_AUTO_ALLOW_WAYPOINT_POLICY`."""
    serve_dry_run_policies: bool = False
    """`AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY`."""
    auto_allocate_addresses: bool = True
    """`PILOT_ENABLE_IP_AUTOALLOCATE`: addresses in a ServiceEntry's status are served."""
    writes_status: bool = True
    """`AMBIENT_ENABLE_STATUS`: objects have conditions at all."""

    @property
    def mesh_config_map(self) -> str:
        """Name of the ConfigMap with the mesh configuration (operations.md 6.1)."""
        return "istio" if self.revision in ("", "default") else f"istio-{self.revision}"
