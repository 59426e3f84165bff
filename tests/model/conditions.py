"""The status conditions that objects deserve (waypoints.md 11; policies.md 10). Texts of messages are free, so a
`message` here is only what a message must name, with blanks between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.model.manifests import (
    Labels,
    Manifest,
    annotations_of,
    dig,
    entries,
    kind,
    labels,
    name,
    namespace,
    ref_of,
)
from tests.model.mesh import visibility_of
from tests.model.policies import is_dry_run, unsupported
from tests.model.services import Record, namespace_object
from tests.model.view import View
from tests.model.waypoints import admits, instance_of, reference, usable_weight

Condition = Mapping[str, Any]

_BOUND = "istio.io/WaypointBound"
_USE = "istio.io/use-waypoint"
_CANARY = "istio.io/use-waypoint-canary"
_OF_PROXIES = ("istio.io-mesh-controller", "istio.io-eastwest-controller")
_CLASSES = {
    "istio": "istio.io/gateway-controller",
    "istio-remote": "istio.io/unmanaged-gateway",
    "istio-waypoint": "istio.io/mesh-controller",
}
"""GatewayClasses that a control plane makes where they are missing."""


def conditions_of(view: View) -> dict[str, list[Condition]]:
    """By `Kind/namespace/name`, of every object that deserves a condition."""
    if not view.settings.writes_status:
        return {}
    found = {"/".join(ref_of(manifest)): list(_of(manifest, view)) for manifest in view.manifests}
    return {key: conditions for key, conditions in found.items() if conditions}


def _of(manifest: Manifest, view: View) -> Iterator[Condition]:
    match kind(manifest):
        case "Service" | "ServiceEntry":
            records = [record for record in view.services if ref_of(record.source) == ref_of(manifest)]
            if records:
                yield from _of_service(manifest, records, view)
        case "WorkloadEntry":
            yield from _of_workload_entry(manifest, view)
        case "AuthorizationPolicy":
            yield from _of_policy(manifest, view)


# Services and ServiceEntries.


def _of_service(service: Manifest, records: Sequence[Record], view: View) -> Iterator[Condition]:
    home = namespace_object(view.manifests, namespace(service))
    asked, problem = _service_waypoint(service, home, view)
    if asked is not None and problem is not None:
        yield _condition(_BOUND, "False", problem, asked, *(["service"] if problem == "UnsupportedTrafficType" else []))
    elif asked is not None:
        yield _condition(_BOUND, "True", "WaypointAccepted", asked, *_about_canary(service, home, asked, view))
    if kind(service) != "ServiceEntry":
        return
    if asked is None or problem is not None:
        strategy = annotations_of(service).get("istio.io/connect-strategy", "")
        if strategy.upper() == "RACE_FIRST_TCP_CONNECT":
            yield _condition("istio.io/WaypointMissing", "True", "NoWaypointForRacingConnectStrategy")
        elif any(record.hostname.startswith("*") for record in records):
            yield _condition("istio.io/WaypointMissing", "True", "NoWaypointForWildcardService")
    if view.settings.visibility is not None:
        visibility = visibility_of(view.settings, labels(home))
        yield _condition("istio.io/VisibilityApplied", "True", visibility.capitalize())


def _service_waypoint(service: Manifest, home: Manifest, view: View) -> tuple[str | None, str | None]:
    """The waypoint that is asked for, if any, and why it is not bound."""
    if labels(service).get("gateway.istio.io/managed") in _OF_PROXIES:
        return None, None
    asked = reference(_USE, namespace(service), labels(service), labels(home))
    return asked, None if asked is None else _problem_of_service(asked, service, home, view)


def _problem_of_service(asked: str, service: Manifest, home: Manifest, view: View) -> str | None:
    problem = _problem(asked, namespace(service), labels(home), view, "service")
    is_local = kind(service) == "ServiceEntry" and visibility_of(view.settings, labels(home)) == "NAMESPACE"
    if problem is None and is_local and asked.split("/")[0] != namespace(service):
        return "CrossNamespaceWaypointForbidden"
    return problem


def _problem(asked: str, home: str, home_labels: Labels, view: View, wanted: str) -> str | None:
    waypoint = view.waypoints.get(asked)
    if waypoint is None:
        return "WaypointIsNotReady"
    if not admits(waypoint, home, home_labels):
        return "AttachmentDenied"
    return None if waypoint.traffic in (wanted, "all") else "UnsupportedTrafficType"


def _about_canary(service: Manifest, home: Manifest, primary: str, view: View) -> list[str]:
    """What the message must name for a canary that is not used (waypoints.md 7)."""
    held, annotations = labels(service), annotations_of(service)
    inherited = _USE not in held
    place = held if not inherited or _CANARY in held else labels(home)
    if place.get(_CANARY) in (None, "", "none"):
        return []
    canary = f"{place.get(f'{_CANARY}-namespace', namespace(service))}/{place[_CANARY]}"
    weight = annotations.get(f"{_CANARY}-weight")
    if weight is None and inherited:
        weight = dig(home, "metadata", "annotations", f"{_CANARY}-weight")
    if canary == primary:
        return [canary, "CanarySameAsPrimary"]
    if usable_weight("0" if weight is None else weight) is None:
        return [canary, "CanaryInvalidWeight"]
    problem = _problem_of_service(canary, service, home, view)
    return [] if problem is None else [canary, problem]


# WorkloadEntries.


def _of_workload_entry(entry: Manifest, view: View) -> Iterator[Condition]:
    home = namespace(entry)
    held = {**(dig(entry, "spec", "labels") or {}), **labels(entry)}
    asked = reference(_USE, home, held, view.namespace_labels(home))
    if asked is None or instance_of(home, held, view.waypoints) is not None:
        return
    problem = _problem(asked, home, view.namespace_labels(home), view, "workload")
    if problem is None:
        yield _condition(_BOUND, "True", "WaypointAccepted", asked)
    elif problem != "UnsupportedTrafficType":
        yield _condition(_BOUND, "False", problem, asked)
    elif _USE in held:
        yield _condition(_BOUND, "False", problem, asked, "workload")


# AuthorizationPolicies.


def _of_policy(policy: Manifest, view: View) -> Iterator[Condition]:
    targets = entries(policy, "spec", "targetRefs") or [each for each in [dig(policy, "spec", "targetRef")] if each]
    generation = dig(policy, "metadata", "generation")
    observed = {"observedGeneration": str(generation)} if generation else {}
    is_withheld = is_dry_run(policy) and not view.settings.serve_dry_run
    if is_withheld or not targets:
        yield {**_of_ztunnel(policy, is_withheld), **observed}
    if targets:
        yield {**_of_waypoints(policy, targets, view), **observed}


def _of_ztunnel(policy: Manifest, is_withheld: bool) -> Condition:
    action = dig(policy, "spec", "action") or "ALLOW"
    if is_withheld:
        return _condition("ZtunnelAccepted", "False", "UnsupportedValue", f"{namespace(policy)}/{name(policy)}")
    if action not in ("ALLOW", "DENY"):
        return _condition("ZtunnelAccepted", "False", "UnsupportedValue", action)
    names = unsupported(policy)
    return _condition("ZtunnelAccepted", "True", "UnsupportedValue" if names else "Accepted", *names)


def _of_waypoints(policy: Manifest, targets: Sequence[Mapping[str, Any]], view: View) -> Condition:
    results = [(target, *_target(target, policy, view)) for target in targets]
    if len(results) == 1:
        _, is_bound, reason, names = results[0]
        return _condition("WaypointAccepted", str(is_bound), reason, *names)
    unbound = [target for target, is_bound, _, _ in results if not is_bound]
    texts = [
        f"{target['kind']}.{target.get('group') or 'core'}:{_home(target, policy)}/{target['name']}"
        for target in unbound
    ]
    if not unbound:
        return _condition("WaypointAccepted", "True", "Accepted")
    is_any = len(unbound) < len(results)
    reason = "PartiallyInvalid" if is_any else "Invalid"
    return _condition("WaypointAccepted", str(is_any), reason, *([", ".join(texts)] if texts else []))


def _home(target: Mapping[str, Any], policy: Manifest) -> str:
    return target.get("namespace") or namespace(policy)


def _target(target: Mapping[str, Any], policy: Manifest, view: View) -> tuple[bool, str, list[str]]:
    """Whether it is bound, the reason, and what the message must name."""
    home, key = _home(target, policy), f"{_home(target, policy)}/{target['name']}"
    match target["kind"]:
        case "GatewayClass":
            if home != view.settings.root_namespace:
                return False, "Invalid", [view.settings.root_namespace]
            controllers = [
                dig(each, "spec", "controllerName")
                for each in view.of_kind("GatewayClass")
                if name(each) == target["name"]
            ] or [_CLASSES.get(target["name"])]
            if controllers == [None]:
                return False, "TargetNotFound", [target["name"]]
            is_waypoint = controllers == ["istio.io/mesh-controller"]
            return is_waypoint, "Accepted" if is_waypoint else "Invalid", [target["name"]]
        case "Gateway":
            is_waypoint = key in view.waypoints
            return is_waypoint, "Accepted" if is_waypoint else "TargetNotFound", [key]
        case "Service" | "ServiceEntry":
            for each in view.of_kind(target["kind"]):
                if namespace(each) == home and name(each) == target["name"]:
                    asked, problem = _service_waypoint(each, namespace_object(view.manifests, home), view)
                    if asked is None or problem is not None:
                        return False, "AncestorNotBound", [key]
                    return True, "Accepted", [asked]
            return False, "TargetNotFound", [key]
    return False, "unknown", []


def _condition(of_type: str, status: str, reason: str, *names: str) -> Condition:
    return {"type": of_type, "status": status, "reason": reason, "message": " ".join(names)}


def unlike(deserved: Mapping[str, Sequence[Condition]], wanted: Mapping[str, Sequence[Condition]]) -> list[str]:
    """Where conditions are not what the model says, one line each. A message must hold everything that it must name;
    one that must name nothing because all is well with several targets must be empty."""
    lines = []
    for key in sorted(deserved.keys() | wanted.keys()):
        have = {each["type"]: each for each in deserved.get(key, ())}
        want = {each["type"]: each for each in wanted.get(key, ())}
        for of_type in sorted(have.keys() | want.keys()):
            one, other = have.get(of_type, {}), want.get(of_type, {})
            if {**one, "message": ""} != {**other, "message": ""}:
                lines.append(f"status {key}: {of_type} is {dict(one)}, expected {dict(other)}")
            elif missing := [part for part in other["message"].split(" ") if part not in one["message"]]:
                lines.append(f"status {key}: {of_type} does not name {missing}: {one['message']}")
    return lines
