"""The implicit policies that let a waypoint reach what is bound to it (waypoints.md 9; policies.md 8). Only with the
setting `auto_allow_waypoints`. Must not decide which workloads list them."""

from __future__ import annotations

from msgspec import Struct

from ambientd.index.authorization_conversion import WAYPOINT_PREFIX
from ambientd.index.declarations import Derived, Index, Reader, derive, on_demand
from ambientd.index.inputs import PODS
from ambientd.index.mesh import mesh_of
from ambientd.index.namespaces import is_discovered
from ambientd.index.rendered import RenderedPolicy, render_policy
from ambientd.index.waypoints import GATEWAY_NAME, WAYPOINTS, Waypoint, gateway_ref
from ambientd.resources.core import Pod
from ambientd.resources.ref import Ref, label
from ambientd_api import security_pb2 as api


class _Instance(Struct, frozen=True, gc=False):
    """A pod of a Gateway."""

    gateway: tuple[str, str]
    service_account: str


def _gather_instance(pod: Pod, read: Reader) -> _Instance | None:
    gateway = label(pod.labels, GATEWAY_NAME)
    if not gateway or pod.phase == "Failed":
        return None
    if not mesh_of(read).rules.auto_allow_waypoints or not is_discovered(pod.ref.namespace, read):
        return None
    return _Instance((pod.ref.namespace, gateway), pod.service_account)


_INSTANCES: Derived[Ref, _Instance] = derive("gateway instances", PODS, _gather_instance)
_INSTANCES_BY_GATEWAY: Index[tuple[str, str], _Instance] = Index(
    "gateway instances by gateway", _INSTANCES, lambda instance: (instance.gateway,)
)


class _AllowKey(Struct, frozen=True, gc=False):
    namespace: str
    name: str
    trust_domain: str
    service_accounts: tuple[str, ...]
    """Of its pods, each once."""


def _gather_allow_policy(waypoint: Waypoint, read: Reader) -> _AllowKey | None:
    mesh = mesh_of(read)
    if not mesh.rules.auto_allow_waypoints:
        return None
    namespace, _, name = waypoint.key.partition("/")
    instances = read.under(_INSTANCES_BY_GATEWAY, (namespace, name))
    if not instances:
        return None
    accounts = tuple(sorted({instance.service_account for instance in instances}))
    return _AllowKey(namespace, f"{WAYPOINT_PREFIX}{namespace}_{name}", mesh.trust_domain, accounts)


def _render_allow_policy(key: _AllowKey) -> RenderedPolicy:
    policy = api.Authorization(
        name=key.name, namespace=key.namespace, scope=api.Scope.WORKLOAD_SELECTOR, action=api.Action.ALLOW
    )
    match = policy.groups.add().rules.add().matches.add()
    domain = key.trust_domain.replace("@", ".")
    for account in key.service_accounts:
        match.principals.add().exact = f"{domain}/ns/{key.namespace}/sa/{account}"
    return render_policy(policy)


WAYPOINT_POLICIES = derive("waypoint policies", WAYPOINTS, _gather_allow_policy, _render_allow_policy)
"""By Ref of the Gateway; only with the setting `auto_allow_waypoints` (waypoints.md 9)."""


def _gather_allow_name(key: str, read: Reader) -> str | None:
    policy = read.get(WAYPOINT_POLICIES, gateway_ref(key, read))
    return None if policy is None else policy.name


_ALLOW_NAMES = on_demand("names of waypoint policies", _gather_allow_name)


def allow_names(keys: tuple[str, ...], read: Reader) -> tuple[str, ...]:
    """Names of the implicit policies of these waypoints, as far as they exist. Their accounts do not matter."""
    names = (read.get(_ALLOW_NAMES, key) for key in keys)
    return tuple(name for name in names if name is not None)


DECLARATIONS = (PODS, _INSTANCES, _INSTANCES_BY_GATEWAY, WAYPOINT_POLICIES, _ALLOW_NAMES)
