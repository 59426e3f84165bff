"""From an AuthorizationPolicy to what a ztunnel can enforce, with the verdict on the difference (policies.md 5, 10.2).

An ALLOW is never widened: a rule that needs what layer 4 does not have is left out. A DENY is never narrowed: only the
part that cannot be expressed is dropped. Pure functions of one key; must not read the graph, and must not refuse any
value."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from msgspec import Struct

from ambientd.index.authorization_values import (
    Convert,
    Run,
    accounts,
    addresses,
    namespaces,
    not_namespaces,
    ports,
    strings,
)
from ambientd.index.rendered import RenderedPolicy, render_policy
from ambientd.resources.booleans import FALSE_TEXTS, TRUE_TEXTS
from ambientd.resources.faults import Fault, quote
from ambientd.resources.security import Condition, Operation, Rule, Source
from ambientd_api.security_pb2 import (
    ALLOW,
    DENY,
    GLOBAL,
    NAMESPACE,
    WORKLOAD_SELECTOR,
    Authorization,
    Group,
    Match,
    Rules,
    Scope,
)

STATIC_NAME: Final = "istio_converted_static_strict"
CONVERTED_PREFIX: Final = "converted_peer_authentication_"
WAYPOINT_PREFIX: Final = "istio_allow_waypoint_"
"""What policies are called that are no AuthorizationPolicies (policies.md 2, reserved names)."""

_FAULTS_LIMIT: Final = 32
"""Faults that are kept of one policy; one object may hold a quarter of a million values."""
_REMEDY: Final = "attach the policy to a waypoint with targetRefs"


class Verdict(Enum):
    """How much of a policy a ztunnel enforces (policies.md 10.2)."""

    ACCEPTED = "accepted"
    ALLOW_OMITTED = "allow-omitted"
    DENY_PARTIAL = "deny-partial"
    DENY_INERT = "deny-inert"
    ACTION = "action"
    DRY_RUN = "dry-run"


class PolicyVerdict(Struct, frozen=True, gc=False):
    """The verdict on one policy, as its condition `ZtunnelAccepted` says it."""

    verdict: Verdict
    attributes: tuple[str, ...]
    """Sorted names of what is not supported at layer 4 (policies.md 5.6)."""
    message: str
    generation: int
    """`metadata.generation` of the object that was judged; 0: unknown."""

    @property
    def is_accepted(self) -> bool:
        """The status of the condition."""
        return self.verdict not in (Verdict.ACTION, Verdict.DRY_RUN)

    @property
    def reason(self) -> str:
        return "Accepted" if self.verdict is Verdict.ACCEPTED else "UnsupportedValue"


class PolicyKey(Struct, frozen=True, gc=False):
    """All that the conversion of an AuthorizationPolicy depends on."""

    namespace: str
    name: str
    generation: int
    is_in_root: bool
    has_selector: bool
    has_targets: bool
    action: str
    dry_run: str
    """Text of the annotation `istio.io/dry-run`; empty when absent."""
    serves_dry_run: bool
    """`AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY`."""
    rules: tuple[Rule, ...]


class Conversion(Struct, frozen=True, gc=False):
    """What became of a policy."""

    policy: RenderedPolicy | None
    """None: ztunnels do not get it."""
    verdict: PolicyVerdict | None
    """None: it has targets, so the verdict is the waypoints'; or it cannot come from a cluster."""
    faults: tuple[Fault, ...]
    """Where the object says more than is enforced."""


def convert(key: PolicyKey) -> Conversion:
    """The decision sequence of policies.md 5.1; its order is observable."""
    faults: list[Fault] = []
    if key.name.startswith((STATIC_NAME, CONVERTED_PREFIX, WAYPOINT_PREFIX)):
        # No API server lets an underscore pass; an object from a file must not take the place of what we make.
        effect = "ztunnels do not get the policy"
        return Conversion(None, None, (Fault("metadata.name", "must not be a reserved name", quote(key.name), effect),))
    is_dry_run = _is_dry_run(key.dry_run, faults)
    if is_dry_run and not key.serves_dry_run:
        return _withheld(key, Verdict.DRY_RUN, faults)
    if key.has_targets:
        if key.has_selector:
            faults.append(
                Fault(
                    "spec.selector",
                    "must not stand beside targets",
                    "",
                    "the targets count, and ztunnels do not get the policy",
                    "make two policies of it",
                )
            )
        return Conversion(policy=None, verdict=None, faults=tuple(faults))
    if key.action not in ("ALLOW", "DENY"):
        return _withheld(key, Verdict.ACTION, faults)
    run = Run(key.namespace, key.action == "ALLOW", faults)
    unsupported = unsupported_attributes(key.rules)
    converted = [_group(rule, f"spec.rules[{number}]", run) for number, rule in enumerate(key.rules)]
    groups = [group for group in converted if group is not None]
    if not key.rules and not run.is_allow:
        faults.append(Fault("spec.rules", "must not be empty with action DENY", "", "the policy denies nothing"))
    authorization = Authorization(
        name=key.name,
        namespace=key.namespace,
        scope=_scope(key),
        action=ALLOW if run.is_allow else DENY,
        groups=groups,
        dry_run=is_dry_run,
    )
    return Conversion(
        policy=render_policy(authorization),
        verdict=_verdict_on(key, _verdict(groups, key.action, unsupported), unsupported),
        faults=_bounded(faults),
    )


def scope_is_selector(policy: RenderedPolicy) -> bool:
    """Whether workloads list the policy, instead of finding it by its namespace."""
    return policy.scope == int(WORKLOAD_SELECTOR)


def unsupported_attributes(rules: Sequence[Rule]) -> tuple[str, ...]:
    """Sorted names of all attributes in the rules that have no meaning at layer 4 (policies.md 5.6)."""
    return tuple(sorted({name for rule in rules for name in _unsupported_in(rule)}))


# The decision sequence.


def _is_dry_run(text: str, faults: list[Fault]) -> bool:
    if text and text not in TRUE_TEXTS | FALSE_TEXTS:
        faults.append(
            Fault(
                "metadata.annotations[istio.io/dry-run]",
                "must be true or false",
                quote(text),
                "the policy counts as not dry-run and is enforced",
            )
        )
    return text in TRUE_TEXTS


def _scope(key: PolicyKey) -> Scope.ValueType:
    if key.has_selector:
        return WORKLOAD_SELECTOR
    return GLOBAL if key.is_in_root else NAMESPACE


def _withheld(key: PolicyKey, verdict: Verdict, faults: list[Fault]) -> Conversion:
    if verdict is Verdict.ACTION:
        faults.append(
            Fault(
                "spec.action",
                "must be ALLOW or DENY for a ztunnel to enforce it",
                quote(key.action),
                "ztunnels do not get the policy",
                _REMEDY,
            )
        )
    else:
        faults.append(
            Fault(
                "metadata.annotations[istio.io/dry-run]",
                "needs dry-run support for ztunnel, which is switched off",
                quote(key.dry_run),
                "ztunnels do not get the policy",
                "set AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY=true",
            )
        )
    return Conversion(policy=None, verdict=_verdict_on(key, verdict, ()), faults=tuple(faults))


def _verdict(groups: Sequence[Group], action: str, unsupported: tuple[str, ...]) -> Verdict:
    if not unsupported:
        return Verdict.ACCEPTED
    if action == "ALLOW":
        return Verdict.ALLOW_OMITTED
    return Verdict.DENY_PARTIAL if any(map(_is_effective, groups)) else Verdict.DENY_INERT


def _verdict_on(key: PolicyKey, verdict: Verdict, attributes: tuple[str, ...]) -> PolicyVerdict:
    named = f"not enforceable at layer 4: {', '.join(attributes)}."
    attach = "Attach the policy to a waypoint with targetRefs."
    match verdict:
        case Verdict.ACCEPTED:
            message = "policy is served to ztunnel"
        case Verdict.ALLOW_OMITTED:
            message = (
                f"{named} ALLOW rules that use these attributes are left out, so fewer connections are allowed than"
                f" written. {attach}"
            )
        case Verdict.DENY_PARTIAL:
            message = (
                f"{named} They are ignored: where other attributes remain, more is denied than written; rules with a"
                f" part that has nothing else to match deny nothing. {attach}"
            )
        case Verdict.DENY_INERT:
            message = f"{named} No rule of this DENY policy can match without them, so it has no effect. {attach}"
        case Verdict.ACTION:
            message = f"ztunnel cannot enforce action {key.action}."
        case Verdict.DRY_RUN:
            message = (
                f"dry-run policy {key.namespace}/{key.name} is not served: dry-run support for ztunnel is switched off."
            )
    return PolicyVerdict(verdict, attributes, message, key.generation)


# Rules (policies.md 5.4, 5.7).


def _group(rule: Rule, at: str, run: Run) -> Group | None:
    """None: the rule is left out, since without its unsupported attributes it would allow more than written."""
    unsupported = _unsupported_in(rule)
    if unsupported and run.is_allow:
        _report_unsupported(unsupported, at, "this rule is left out, so less is allowed than written", run)
        return None
    entries = []
    if rule.operations:
        entries.append(
            [_operation(part, f"{at}.to[{number}].operation", run) for number, part in enumerate(rule.operations)]
        )
    if rule.sources:
        entries.append([_source(part, f"{at}.from[{number}].source", run) for number, part in enumerate(rule.sources)])
    entries.extend([_condition(part, f"{at}.when[{number}]", run)] for number, part in enumerate(rule.conditions))
    # Empty matches stay: a ztunnel takes an empty match for "never", and an absent entry for "always".
    group = Group(rules=[Rules(matches=matches) for matches in entries])
    if unsupported:
        effect = "they are ignored, so more is denied than written"
        if not _is_effective(group):
            effect = "this rule denies nothing"
        _report_unsupported(unsupported, at, effect, run)
    return group


def _is_effective(group: Group) -> bool:
    """Whether any connection can match the group."""
    return all(any(match.ListFields() for match in entry.matches) for entry in group.rules)


def _unsupported_in(rule: Rule) -> set[str]:
    names = {condition.key for condition in rule.conditions if condition.key not in _CONDITIONS}
    for source in rule.sources:
        names.update(source.unsupported)
    for operation in rule.operations:
        names.update(operation.unsupported)
    return names


def _report_unsupported(names: set[str], at: str, effect: str, run: Run) -> None:
    got = quote(", ".join(sorted(names)), 200)
    run.faults.append(Fault(at, "must use only attributes that ztunnel knows at layer 4", got, effect, _REMEDY))


def _source(source: Source, at: str, run: Run) -> Match:
    if source == Source():
        return _never(at, "must have at least one field", run)
    return _match(
        at,
        run,
        ("principals", "principals", source.principals, strings),
        ("not_principals", "notPrincipals", source.not_principals, strings),
        ("namespaces", "namespaces", source.namespaces, namespaces),
        ("not_namespaces", "notNamespaces", source.not_namespaces, not_namespaces),
        ("service_accounts", "serviceAccounts", source.service_accounts, accounts),
        ("not_service_accounts", "notServiceAccounts", source.not_service_accounts, accounts),
        ("source_ips", "ipBlocks", source.ip_blocks, addresses),
        ("not_source_ips", "notIpBlocks", source.not_ip_blocks, addresses),
    )


def _operation(operation: Operation, at: str, run: Run) -> Match:
    if operation == Operation():
        return _never(at, "must have at least one field", run)
    return _match(
        at,
        run,
        ("destination_ports", "ports", operation.ports, ports),
        ("not_destination_ports", "notPorts", operation.not_ports, ports),
    )


def _condition(condition: Condition, at: str, run: Run) -> Match:
    known = _CONDITIONS.get(condition.key)
    if known is None:
        return Match()
    if not condition.values and not condition.not_values:
        return _never(at, "must have values or notValues", run)
    field, convert_values, convert_not_values = known
    return _match(
        at,
        run,
        (field, "values", condition.values, convert_values),
        (f"not_{field}", "notValues", condition.not_values, convert_not_values),
    )


_CONDITIONS: Final[dict[str, tuple[str, Convert, Convert]]] = {
    "source.principal": ("principals", strings, strings),
    "source.namespace": ("namespaces", namespaces, not_namespaces),
    "source.ip": ("source_ips", addresses, addresses),
    "destination.ip": ("destination_ips", addresses, addresses),
    "destination.port": ("destination_ports", ports, ports),
}
"""Condition key to the field of its values, and what converts them and those that are negated."""


def _match(at: str, run: Run, *columns: tuple[str, str, Sequence[str], Convert]) -> Match:
    """One match from columns: field of the message, name in the object, values, and what converts them. In an ALLOW a
    positive list of which no value is left must match nothing: a list that is gone would match anything [H5]."""
    fields: dict[str, Any] = {}
    lost = []
    for field, written, values, convert in columns:
        fields[field] = convert(values, f"{at}.{written}", run)
        if values and not fields[field]:
            lost.append((f"{at}.{written}", not field.startswith("not_")))
    is_narrowed = any(is_positive for _, is_positive in lost)
    match = Match() if is_narrowed and run.is_allow else Match(**fields)
    for path, is_positive in lost:
        if not match.ListFields():
            effect = f"this part matches nothing, so it {_verb(run)} nothing"
        elif is_positive:
            effect = "this constraint is dropped, so more is denied than written"
        else:
            continue  # nothing was excluded by values that no connection has
        run.faults.append(Fault(path, "must have a value that can be used", "", effect))
    return match


def _never(at: str, rule: str, run: Run) -> Match:
    run.faults.append(Fault(at, rule, "", f"this part matches nothing, so it {_verb(run)} nothing"))
    return Match()


def _verb(run: Run) -> str:
    return "allows" if run.is_allow else "denies"


def _bounded(faults: list[Fault]) -> tuple[Fault, ...]:
    if len(faults) <= _FAULTS_LIMIT:
        return tuple(faults)
    more = len(faults) - _FAULTS_LIMIT
    return (*faults[:_FAULTS_LIMIT], Fault("spec", f"has {more} more faults", "", "they are not listed"))
