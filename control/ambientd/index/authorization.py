"""AuthorizationPolicies: which of them ztunnels get, the verdict on each, and which ones a workload lists (policies.md
5, 7, 10.2). The conversion itself is `authorization_conversion`. Must not read anything but the policy, its namespace's
discovery and the mesh: a policy depends on nothing else (policies.md 11)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ambientd.index.authorization_conversion import Conversion, PolicyKey, PolicyVerdict, convert, scope_is_selector
from ambientd.index.declarations import Derived, Index, Reader, derive
from ambientd.index.inputs import AUTHORIZATION_POLICIES
from ambientd.index.mesh import MeshView, in_revision, mesh_of
from ambientd.index.namespaces import is_discovered
from ambientd.index.rendered import RenderedPolicy
from ambientd.index.selectors import Pair, by_first_pair, selecting
from ambientd.resources.faults import Fault
from ambientd.resources.ref import Labels, Ref, label
from ambientd.resources.security import AuthorizationPolicy

_DRY_RUN: Final = "istio.io/dry-run"


class PolicyRecord(Struct, frozen=True, gc=False):
    """What workloads depend on of a policy that they may list (workloads.md 9.2). Not its rules."""

    name: str
    """`namespace/name`."""
    namespace: str
    selector: Labels
    """At least one pair, in order of the keys."""


class Converted(Struct, frozen=True, gc=False):
    """A conversion with the selector beside it, which ztunnels never see."""

    conversion: Conversion
    selector: Labels


class ConvertedKey(Struct, frozen=True, gc=False):
    policy: PolicyKey
    selector: Labels


def gather_conversion(policy: AuthorizationPolicy, read: Reader) -> ConvertedKey | None:
    """None: the policy does not exist for this control plane (policies.md 3.1)."""
    mesh = mesh_of(read)
    if not in_revision(policy.labels, mesh.rules) or not is_discovered(policy.ref.namespace, read):
        return None
    return ConvertedKey(
        policy=PolicyKey(
            namespace=policy.ref.namespace,
            name=policy.ref.name,
            generation=policy.generation,
            is_in_root=policy.ref.namespace == mesh.root_namespace,
            has_selector=bool(policy.selector),
            has_targets=bool(policy.targets),
            action=policy.action,
            dry_run=label(policy.annotations, _DRY_RUN) or "",
            serves_dry_run=mesh.rules.serve_dry_run_policies,
            rules=policy.rules,
        ),
        selector=policy.selector,
    )


def render_conversion(key: ConvertedKey) -> Converted:
    return Converted(convert(key.policy), key.selector)


def gather_policy(converted: Converted, read: Reader) -> RenderedPolicy | None:
    return converted.conversion.policy


def gather_verdict(converted: Converted, read: Reader) -> PolicyVerdict | None:
    return converted.conversion.verdict


def gather_faults(converted: Converted, read: Reader) -> tuple[Fault, ...] | None:
    return converted.conversion.faults or None


def gather_record(converted: Converted, read: Reader) -> PolicyRecord | None:
    """Only what is served with a selector can be listed, so that no name leads nowhere."""
    policy = converted.conversion.policy
    if policy is None or not scope_is_selector(policy):
        return None
    return PolicyRecord(policy.name, policy.namespace, converted.selector)


CONVERSIONS: Derived[Ref, Converted] = derive(
    "authorization conversions", AUTHORIZATION_POLICIES, gather_conversion, render_conversion
)
POLICIES: Derived[Ref, RenderedPolicy] = derive("authorization policies as served", CONVERSIONS, gather_policy)
VERDICTS: Derived[Ref, PolicyVerdict] = derive("authorization verdicts", CONVERSIONS, gather_verdict)
PROBLEMS: Derived[Ref, tuple[Fault, ...]] = derive("authorization problems", CONVERSIONS, gather_faults)
RECORDS: Derived[Ref, PolicyRecord] = derive("authorization records", CONVERSIONS, gather_record)
SELECTORS_BY_NAMESPACE: Index[str, PolicyRecord] = Index(
    "authorization selectors by namespace", RECORDS, lambda record: (record.namespace,)
)
SELECTORS_BY_PAIR: Index[tuple[str, Pair], PolicyRecord] = Index(
    "authorization selectors by pair", RECORDS, by_first_pair
)

DECLARATIONS = (
    CONVERSIONS,
    POLICIES,
    VERDICTS,
    PROBLEMS,
    RECORDS,
    SELECTORS_BY_NAMESPACE,
    SELECTORS_BY_PAIR,
)


def gather_listed(namespace: str, labels: Labels, mesh: MeshView, read: Reader) -> tuple[str, ...]:
    """Names of the selector policies that a workload with these labels lists, sorted (policies.md 7, part 1). Labels
    that no selector of the namespace or the root namespace uses make no difference."""
    namespaces = (namespace,) if namespace == mesh.root_namespace else (namespace, mesh.root_namespace)
    return tuple(
        sorted(record.name for within in namespaces for record in selecting(SELECTORS_BY_PAIR, within, labels, read))
    )
