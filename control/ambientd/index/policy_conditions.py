"""The status conditions that AuthorizationPolicies deserve, as values: what ztunnels make of one without targets, and
whether the targets of one with targets lead to waypoints (policies.md 10; waypoints.md 11.5). Must not write anything,
and must not decide what ztunnels get."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ambientd.index.authorization import CONVERSIONS
from ambientd.index.conditions import Condition, Conditions, binding_message, is_written, ordered
from ambientd.index.declarations import Derived, Reader, derive, on_demand
from ambientd.index.inputs import AUTHORIZATION_POLICIES, GATEWAY_CLASSES, SERVICE_ENTRIES, SERVICES
from ambientd.index.mesh import in_revision, mesh_of
from ambientd.index.namespaces import is_discovered
from ambientd.index.service_records import visibility_in
from ambientd.index.waypoints import ServiceBinding, bind_service, waypoint_of
from ambientd.resources.ref import Ref
from ambientd.resources.security import AuthorizationPolicy, PolicyTarget

ZTUNNEL_ACCEPTED = "ZtunnelAccepted"
WAYPOINT_ACCEPTED = "WaypointAccepted"

_WAYPOINT_CONTROLLER = "istio.io/mesh-controller"
_BUILT_IN_CLASSES = {
    "istio": "istio.io/gateway-controller",
    "istio-remote": "istio.io/unmanaged-gateway",
    "istio-waypoint": _WAYPOINT_CONTROLLER,
}
"""Controllers of the GatewayClasses that every control plane makes where they are missing (waypoints.md 13)."""


class Attachment(Struct, frozen=True, gc=False):
    """What came of one target of a policy (policies.md 10.3)."""

    is_bound: bool
    reason: str
    message: str


TargetKey = tuple[str, str, str]
"""Kind, namespace and name. The group of a reference decides nothing."""


def _gather_attachment(key: TargetKey, read: Reader) -> Attachment:
    kind, namespace, name = key
    match kind:
        case "GatewayClass":
            return _to_class(name, read)
        case "Gateway":
            if waypoint_of(f"{namespace}/{name}", read) is None:
                missing = f"Gateway {namespace}/{name} does not exist, or its status has no address"
                return Attachment(False, "TargetNotFound", missing)
            return Attachment(True, "Accepted", f"bound to waypoint {namespace}/{name}")
        case "Service":
            return _to_service(key, read)
        case "ServiceEntry":
            return _to_entry(key, read)
    return Attachment(False, "unknown", f"a policy cannot be attached to {kind} {namespace}/{name}")


def _to_class(name: str, read: Reader) -> Attachment:
    found = read.get(GATEWAY_CLASSES, Ref(mesh_of(read).rules.cluster_id, "GatewayClass", "", name))
    controller = _BUILT_IN_CLASSES.get(name) if found is None else found.controller
    if controller is None:
        return Attachment(False, "TargetNotFound", f"GatewayClass {name} does not exist")
    if controller != _WAYPOINT_CONTROLLER:
        wrong = f"GatewayClass {name} is not one of waypoints: its controller must be {_WAYPOINT_CONTROLLER}"
        return Attachment(False, "Invalid", wrong)
    return Attachment(True, "Accepted", f"bound to the waypoints of GatewayClass {name}")


def _to_service(key: TargetKey, read: Reader) -> Attachment:
    kind, namespace, name = key
    service = read.get(SERVICES, Ref(mesh_of(read).rules.cluster_id, kind, namespace, name))
    if service is None or not is_discovered(namespace, read):
        return _not_found(key)
    return _through(bind_service(namespace, service.labels, service.annotations, False, read), key)


def _to_entry(key: TargetKey, read: Reader) -> Attachment:
    kind, namespace, name = key
    rules = mesh_of(read).rules
    entry = read.get(SERVICE_ENTRIES, Ref(rules.cluster_id, kind, namespace, name))
    if entry is None or not in_revision(entry.labels, rules) or not is_discovered(namespace, read):
        return _not_found(key)
    is_local = visibility_in(namespace, read) == "NAMESPACE"
    return _through(bind_service(namespace, entry.labels, entry.annotations, is_local, read), key)


def _not_found(key: TargetKey) -> Attachment:
    kind, namespace, name = key
    return Attachment(False, "TargetNotFound", f"{kind} {namespace}/{name} does not exist")


def _through(binding: ServiceBinding | None, key: TargetKey) -> Attachment:
    kind, namespace, name = key
    if binding is None:
        return Attachment(False, "AncestorNotBound", f"{kind} {namespace}/{name} is not bound to a waypoint")
    message = binding_message(binding.primary, namespace, "service")
    if binding.primary.reason is not None:
        why = f"{kind} {namespace}/{name} is not bound to a waypoint: {message}"
        return Attachment(False, "AncestorNotBound", why)
    return Attachment(True, "Accepted", message)


_ATTACHMENTS: Derived[TargetKey, Attachment] = on_demand("policy attachments", _gather_attachment)
"""By target: so a Service that changes touches its policies only when their answer changes."""


def _attach(target: PolicyTarget, policy: AuthorizationPolicy, read: Reader) -> Attachment:
    namespace = _namespace_of(target, policy)
    if target.kind == "GatewayClass":
        root = mesh_of(read).root_namespace
        if namespace != root:
            wrong = f"a policy for a GatewayClass must be in the root namespace, {root}, and is in {namespace}"
            return Attachment(False, "Invalid", wrong)
        namespace = ""
    found = read.get(_ATTACHMENTS, (target.kind, namespace, target.name))
    assert found is not None, "every target has an answer"
    return found


def _namespace_of(target: PolicyTarget, policy: AuthorizationPolicy) -> str:
    return target.namespace or policy.ref.namespace


def _ancestor(target: PolicyTarget, policy: AuthorizationPolicy) -> str:
    return f"{target.kind}.{target.group or 'core'}:{_namespace_of(target, policy)}/{target.name}"


def _waypoint_accepted(policy: AuthorizationPolicy, read: Reader) -> Condition:
    found = [(target, _attach(target, policy, read)) for target in policy.targets]
    unbound = [_ancestor(target, policy) for target, attachment in found if not attachment.is_bound]
    if len(found) == 1:
        reason, message = found[0][1].reason, found[0][1].message
    elif not unbound:
        reason, message = "Accepted", ""
    else:
        reason = "PartiallyInvalid" if len(unbound) < len(found) else "Invalid"
        message = f"targets that lead to no waypoint: {', '.join(unbound)}"
    status = "True" if len(unbound) < len(found) else "False"
    return Condition(WAYPOINT_ACCEPTED, status, reason, message, policy.generation)


def _policy_conditions(policy: AuthorizationPolicy, read: Reader) -> Iterator[Condition]:
    converted = read.get(CONVERSIONS, policy.ref)
    if converted is None:
        return
    verdict = converted.conversion.verdict
    if verdict is not None:
        status = "True" if verdict.is_accepted else "False"
        yield Condition(ZTUNNEL_ACCEPTED, status, verdict.reason, verdict.message, verdict.generation)
    # A dry-run policy that is not served belongs to both (waypoints.md Q14).
    if policy.targets:
        yield _waypoint_accepted(policy, read)


def _gather_policy(policy: AuthorizationPolicy, read: Reader) -> Conditions | None:
    return ordered(_policy_conditions(policy, read)) if is_written(read) else None


POLICY_CONDITIONS: Derived[Ref, Conditions] = derive(
    "authorization policy conditions", AUTHORIZATION_POLICIES, _gather_policy
)
"""By Ref of the AuthorizationPolicy."""

DECLARATIONS = (GATEWAY_CLASSES, _ATTACHMENTS, POLICY_CONDITIONS)
