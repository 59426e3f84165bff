"""The mesh configuration, as far as it is read (operations.md 6), and label selectors."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ambientd.resources.ref import Labels


class Requirement(Struct, frozen=True, gc=False):
    key: str
    operator: str
    """`In`, `NotIn`, `Exists`, `DoesNotExist`."""
    values: tuple[str, ...]


class LabelSelector(Struct, frozen=True, gc=False):
    """A Kubernetes label selector; an empty one matches everything."""

    match_labels: Labels = ()
    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Labels) -> bool:
        held = dict(labels)
        return all(held.get(key) == value for key, value in self.match_labels) and all(
            _holds(requirement, held) for requirement in self.requirements
        )


def _holds(requirement: Requirement, held: dict[str, str]) -> bool:
    value = held.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False


class VisibilityPolicy(Struct, frozen=True, gc=False):
    visibility: str
    rules: tuple[LabelSelector | None, ...]
    """One namespace selector per matching rule; None: a rule that matches nothing (services.md 7)."""


class ServiceEntryVisibility(Struct, frozen=True, gc=False):
    default: str
    policies: tuple[VisibilityPolicy, ...]


class MeshConfig(Struct, frozen=True, gc=False):
    trust_domain: str = "cluster.local"
    trust_domain_aliases: tuple[str, ...] = ()
    root_namespace: str = "istio-system"
    discovery_selectors: tuple[LabelSelector, ...] = ()
    service_entry_visibility: ServiceEntryVisibility | None = None
    discovery_host: str = "istiod.istio-system.svc"
    """Host of `defaultConfig.discoveryAddress`: by which proxies call us."""
    malformed: frozenset[str] = frozenset()
    """Names of fields above in which a selector is malformed: they stand for what they were before (`settled`). As
    decoded they hold what there is to use when there was nothing before."""


def settled(new: MeshConfig, held: MeshConfig | None) -> MeshConfig:
    """A decoded configuration as it takes effect after `held`: fields with a malformed selector stay as they were
    (operations.md 8, services.md 7)."""
    if not new.malformed:
        return new
    kept = {} if held is None else {name: getattr(held, name) for name in new.malformed}
    return replace(new, malformed=frozenset(), **kept)
