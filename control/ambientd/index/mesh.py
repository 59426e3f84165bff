"""What holds for the whole mesh: the process's fixed settings and the mesh configuration in force, as one value. Must
not look at any other object."""

from __future__ import annotations

from msgspec import Struct

from ambientd.index.declarations import Reader, Source, on_demand
from ambientd.index.inputs import CONFIG_MAPS
from ambientd.index.rules import Rules
from ambientd.resources.core import MESH_FILE
from ambientd.resources.mesh import LabelSelector, MeshConfig, ServiceEntryVisibility
from ambientd.resources.ref import Labels, Ref, label

RULES: Source[tuple[()], Rules] = Source("rules")
"""One value, under the key `()`."""

_REVISION = "istio.io/rev"
_DEFAULT_TRUST_DOMAIN = "cluster.local"
_DEFAULT_ROOT_NAMESPACE = "istio-system"


class MeshView(Struct, frozen=True, gc=False):
    """Settings and mesh configuration, as rules ask for them (operations.md 6.6)."""

    rules: Rules
    trust_domain: str
    trust_domain_aliases: tuple[str, ...]
    root_namespace: str
    """Never empty (workloads.md A11)."""
    discovery_selectors: tuple[LabelSelector, ...]
    visibility: ServiceEntryVisibility | None
    discovery_host: str = MeshConfig().discovery_host

    @property
    def sent_trust_domain(self) -> str:
        """As it stands in a workload: elided when it is what clients assume (workloads.md 3.6)."""
        return "" if self.trust_domain == _DEFAULT_TRUST_DOMAIN else self.trust_domain


def in_revision(labels: Labels, rules: Rules) -> bool:
    """Whether an object with these labels is ours to read (workloads.md 2.2). For ServiceEntry, WorkloadEntry and the
    policies only."""
    if not rules.revision:
        return True
    value = label(labels, _REVISION)
    return value is None or value == rules.revision


def _gather_mesh(_: tuple[()], read: Reader) -> MeshView | None:
    rules = read.get(RULES, ())
    if rules is None:
        return None
    config_map = Ref(rules.cluster_id, "ConfigMap", rules.system_namespace, rules.mesh_config_map)
    ref = MESH_FILE if rules.has_mesh_file else config_map
    held = read.get(CONFIG_MAPS, ref)
    config = held.mesh if held is not None and held.mesh is not None else MeshConfig()
    return MeshView(
        rules=rules,
        trust_domain=config.trust_domain,
        trust_domain_aliases=config.trust_domain_aliases,
        root_namespace=config.root_namespace or _DEFAULT_ROOT_NAMESPACE,
        discovery_selectors=config.discovery_selectors,
        visibility=config.service_entry_visibility,
        discovery_host=config.discovery_host,
    )


MESH = on_demand("mesh", _gather_mesh)
"""Under the key `()`; None only while no rules were set."""


def mesh_of(read: Reader) -> MeshView:
    """The mesh as it is now; that of an unset process before its rules were set."""
    return read.get(MESH, ()) or _UNSET


_UNSET = MeshView(Rules(), _DEFAULT_TRUST_DOMAIN, (), _DEFAULT_ROOT_NAMESPACE, (), None)

DECLARATIONS = (RULES, CONFIG_MAPS, MESH)
