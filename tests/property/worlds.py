"""Small random worlds of workloads and policies, and what a client may do with a connection. The verdict on one policy
is the model's (policies.md 13), so nothing here is judged by the code that orders messages. No test stands here."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict
from hypothesis import strategies as st

from ambientd.index.rendered import RenderedAddress, RenderedPolicy, render_policy
from ambientd_api.security_pb2 import Authorization
from ambientd_api.workload_pb2 import Address
from tests.model import verdict
from tests.unit.conversation import Mesh, Rendered, pod, uid

GLOBAL, NAMESPACE, SELECTOR = 0, 1, 2
ALLOW, DENY = 0, 1

WORKLOADS = ("a/w0", "a/w1", "b/w2")
POLICIES = ("a/p0", "a/p1", "b/p2", "root/p3")

_TILL, _SHOP = "spiffe://cluster.local/ns/a/sa/till", "spiffe://cluster.local/ns/b/sa/shop"

CONNECTIONS = tuple(
    verdict.Connection("10.0.0.1", "10.0.0.2", port, identity)
    for identity in (_TILL, _SHOP, None)
    for port in (80, 8080)
)
EVERYTHING = (1 << len(CONNECTIONS)) - 1
"""Sets of connections are numbers, one bit for each."""

_Match = dict[str, Any]
_ACCOUNT_TILL = {"namespace": "a", "serviceAccount": "till"}
_RULES: tuple[tuple[_Match, ...], ...] = (
    ({"destination_ports": [80]},),
    ({"destination_ports": [8080]},),
    ({"service_accounts": [_ACCOUNT_TILL]},),
    ({"not_service_accounts": [_ACCOUNT_TILL]},),
    ({"service_accounts": [_ACCOUNT_TILL]}, {"destination_ports": [80]}),
    (),  # every connection
)


@dataclass(frozen=True)
class Policy:
    scope: int
    action: int
    rule: int
    is_dry_run: bool = False


@dataclass(frozen=True)
class Workload:
    selected_by: frozenset[str]
    """The policies whose selector it meets; it lists those of them that exist and have a selector."""
    revision: int = 0
    """Something that has no say in verdicts."""


@dataclass(frozen=True)
class World:
    policies: Mapping[str, Policy]
    workloads: Mapping[str, Workload]

    def listed(self, workload: Workload) -> tuple[str, ...]:
        return tuple(
            name
            for name, policy in sorted(self.policies.items())
            if name in workload.selected_by and policy.scope == SELECTOR
        )

    def served(self) -> tuple[dict[str, RenderedAddress], dict[str, RenderedPolicy]]:
        addresses = {
            uid(name): _pod(name, self.listed(workload), workload.revision) for name, workload in self.workloads.items()
        }
        return addresses, {name: _policy(name, policy) for name, policy in self.policies.items()}


NOTHING = World({}, {})


@functools.cache
def _pod(name: str, policies: tuple[str, ...], revision: int) -> RenderedAddress:
    return pod(name, policies=policies, revision=str(revision))


@functools.cache
def _policy(name: str, policy: Policy) -> RenderedPolicy:
    message = Authorization(scope=policy.scope, action=policy.action, dry_run=policy.is_dry_run)  # type: ignore[arg-type]
    message.namespace, _, message.name = name.partition("/")
    group = message.groups.add()
    for match in _RULES[policy.rule]:
        group.rules.add().matches.add(**match)
    return render_policy(message)


# Verdicts.

State = tuple[Mapping[str, bytes], Mapping[str, bytes]]
"""Bodies of addresses and of policies, by name: what a client holds, or what is served."""


def admitted(state: State) -> dict[str, int]:
    """By workload that exists: the connections that are let through (policies.md 13, Verdict)."""
    addresses, policies = state
    contents = {name: _content(body) for name, body in policies.items()}
    result = {}
    for name, body in addresses.items():
        namespace, listed = _workload(body)
        in_force = [content for content in contents.values() if _reaches(content, namespace)]
        in_force += [contents[policy] for policy in listed if policy in contents]
        denied = allowed = 0
        has_allow = False
        for content in in_force:
            if content.is_dry_run:
                continue
            if content.action == DENY:
                denied |= content.matches
            else:
                has_allow = True
                allowed |= content.matches
        result[name] = (allowed if has_allow else EVERYTHING) & ~denied
    return result


@dataclass(frozen=True)
class _Content:
    scope: int
    namespace: str
    action: int
    is_dry_run: bool
    matches: int


def _reaches(content: _Content, namespace: str) -> bool:
    return content.scope == GLOBAL or (content.scope == NAMESPACE and content.namespace == namespace)


@functools.cache
def _content(body: bytes) -> _Content:
    message = Authorization.FromString(body)
    fields = {**_fields(body), "scope": "GLOBAL", "action": "ALLOW", "dry_run": False}
    matches = sum(
        1 << at for at, connection in enumerate(CONNECTIONS) if verdict.allows({}, {"it": fields}, connection)
    )
    return _Content(message.scope, message.namespace, message.action, message.dry_run, matches)


def _fields(body: bytes) -> dict[str, Any]:
    return MessageToDict(Authorization.FromString(body), preserving_proto_field_name=True)


@functools.cache
def _workload(body: bytes) -> tuple[str, tuple[str, ...]]:
    workload = Address.FromString(body).workload
    return workload.namespace, tuple(workload.authorization_policies)


def slow_admitted(state: State, name: str) -> int:
    """The same for one workload, by the model alone."""
    addresses, policies = state
    workload = MessageToDict(Address.FromString(addresses[name]), preserving_proto_field_name=True)["workload"]
    authorizations = {policy: _fields(body) for policy, body in policies.items()}
    return sum(
        1 << at for at, connection in enumerate(CONNECTIONS) if verdict.allows(workload, authorizations, connection)
    )


# Change.

Edit = tuple[str, Policy | Workload | None]


def edited(world: World, edits: list[Edit]) -> World:
    policies, workloads = dict(world.policies), dict(world.workloads)
    for name, value in edits:
        table: dict[str, Any] = policies if name in POLICIES else workloads
        if value is None:
            table.pop(name, None)
        else:
            table[name] = value
    return World(policies, workloads)


def commit(mesh: Mesh, before: World, after: World, *, folds: bool = True) -> None:
    """Brings the feed from one world to the next, in one commit."""
    old_addresses, old_policies = before.served()
    new_addresses, new_policies = after.served()
    put: list[Rendered] = [
        *(new for name, new in new_addresses.items() if old_addresses.get(name) != new),
        *(new for name, new in new_policies.items() if old_policies.get(name) != new),
    ]
    gone = [*(old_addresses.keys() - new_addresses.keys()), *(old_policies.keys() - new_policies.keys())]
    mesh.show(*put, gone=sorted(gone))
    if folds:
        mesh.feed.settle().run()


policies = st.builds(
    Policy,
    scope=st.sampled_from((SELECTOR, NAMESPACE, GLOBAL)),
    action=st.sampled_from((ALLOW, DENY)),
    rule=st.integers(0, len(_RULES) - 1),
    is_dry_run=st.sampled_from((False, False, False, True)),
)
workloads = st.builds(Workload, selected_by=st.frozensets(st.sampled_from(POLICIES)), revision=st.integers(0, 1))
edit = st.one_of(
    st.tuples(st.sampled_from(POLICIES), st.none() | policies),
    st.tuples(st.sampled_from(POLICIES), policies),
    st.tuples(st.sampled_from(WORKLOADS), st.none() | workloads),
    st.tuples(st.sampled_from(WORKLOADS), workloads),
)
worlds = st.builds(
    World,
    st.dictionaries(st.sampled_from(POLICIES), policies),
    st.dictionaries(st.sampled_from(WORKLOADS), workloads, min_size=1),
)


def as_served(world: World) -> State:
    addresses, policies = world.served()
    return (
        {name: rendered.body for name, rendered in addresses.items()},
        {name: rendered.body for name, rendered in policies.items()},
    )


def in_words(state: State) -> str:
    """What a state says, for the story of a failure."""
    addresses, policies = state
    workloads = {name.removeprefix(uid("")): list(_workload(body)[1]) for name, body in addresses.items()}
    contents = {}
    for name, body in policies.items():
        content = _content(body)
        scope = ("global", "namespace", "selector")[content.scope]
        action = ("ALLOW", "DENY")[content.action] + (" dry run" if content.is_dry_run else "")
        contents[name] = f"{scope} {action} {content.matches:06b}"
    return f"workloads {workloads}, policies {contents}"
