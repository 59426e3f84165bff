"""Random policies on the real data path: which calls real ztunnels let through is what the model says, which shares no
code with the server; and while policies change nothing gets through that neither the old nor the new ones allow."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from itertools import permutations
from random import Random
from typing import Self

import pytest

from tests.dataplane.held import reaches
from tests.dataplane.mesh import Mesh
from tests.dataplane.rig import PORTS, Pod
from tests.model.dice import Dice, Fields
from tests.model.model import expected
from tests.model.verdict import Connection, allows
from tests.wire.process import eventually, eventually_equal

ROUNDS = 50

Call = tuple[Pod, Pod, int]
"""Caller, target and port."""

pytestmark = [pytest.mark.peer, pytest.mark.slow]

_PRINCIPALS = (
    "cluster.local/ns/shop/sa/cart",
    "spiffe://cluster.local/ns/bank/sa/vault",
    "cluster.local/ns/shop/*",
    "*/sa/vault",
    "*",
)
_NAMESPACES = ("shop", "bank", "sh*", "*nk", "*")
_ACCOUNTS = ("cart", "shop/till", "bank/vault")
_RANGES = ("10.1.0.1", "10.1.0.2/31", "10.1.0.0/24", "10.2.0.0/16", "0.0.0.0/0")
_PORTS = tuple(map(str, PORTS))
_MODES = ("PERMISSIVE", "STRICT", "STRICT", "DISABLE", "UNSET")

_SOURCE = (
    ("principals", _PRINCIPALS),
    ("notPrincipals", _PRINCIPALS),
    ("namespaces", _NAMESPACES),
    ("notNamespaces", _NAMESPACES),
    ("serviceAccounts", _ACCOUNTS),
    ("notServiceAccounts", _ACCOUNTS),
    ("ipBlocks", _RANGES),
    ("notIpBlocks", _RANGES),
)
_OPERATION = (("ports", _PORTS), ("notPorts", _PORTS))
_CONDITIONS = (
    ("source.ip", _RANGES),
    ("destination.ip", _RANGES),
    ("destination.port", _PORTS),
    ("source.namespace", _NAMESPACES),
    ("source.principal", _PRINCIPALS),
)


def _filled(dice: Dice, fields: Sequence[tuple[str, Sequence[str]]]) -> Fields:
    """One or two of these fields, each with one or two values; for each value that is taken, what goes with it."""
    return {
        name: [dice.of(values) for _ in range(dice.one(1, 2))] for name, values in dice.some(fields, 2) or fields[:1]
    }


def _rule(dice: Dice) -> Fields:
    rule: Fields = {}
    if dice.chance(0.7):
        # A source has either accounts or what accounts are made of (the API refuses both).
        made = [_filled(dice, dice.one(_SOURCE[:4], _SOURCE[4:])) for _ in range(dice.one(1, 2))]
        rule["from"] = [{"source": source} for source in made]
    if dice.chance(0.4):
        rule["to"] = [{"operation": _filled(dice, _OPERATION)}]
    if dice.chance(0.4):
        key, values = dice.of(_CONDITIONS)
        rule["when"] = [{"key": key, dice.one("values", "notValues"): [dice.of(values) for _ in range(dice.one(1, 2))]}]
    return rule


def _scope(dice: Dice) -> tuple[str, Fields]:
    """Where a policy is, and whom it selects there."""
    namespace = dice.one("istio-system", "shop", "shop", "bank")
    is_selecting = namespace != "istio-system" and dice.chance(0.6)
    return namespace, {"selector": {"matchLabels": {"app": dice.one("cart", "till", "vault")}}} if is_selecting else {}


def policies(dice: Dice, number: int) -> list[Fields]:
    """Their names are of this round, so that it can be seen whose policies a ztunnel holds."""
    made: list[Fields] = []
    for kind, count in (("AuthorizationPolicy", dice.one(1, 2, 3)), ("PeerAuthentication", dice.one(0, 0, 1, 2))):
        for each in range(count):
            namespace, spec = _scope(dice)
            if kind == "AuthorizationPolicy":
                spec["action"] = dice.one("ALLOW", "DENY")
                spec["rules"] = [_rule(dice) for _ in range(dice.one(0, 1, 1, 2))]
            else:
                spec["mtls"] = {"mode": dice.of(_MODES)}
                if "selector" in spec and dice.chance(0.6):
                    spec["portLevelMtls"] = {int(dice.of(_PORTS)): {"mode": dice.of(_MODES)}}
            made.append(
                {
                    "apiVersion": "security.istio.io/v1",
                    "kind": kind,
                    "metadata": {
                        "namespace": namespace,
                        "name": f"{kind[0].lower()}{each}-{number}",
                        "creationTimestamp": f"2026-01-01T00:00:0{each}Z",
                    },
                    "spec": spec,
                }
            )
    return made


def test_real_ztunnels_decide_as_the_model_says(mesh: Mesh) -> None:
    pods = [
        mesh.add_pod("node-a", "cart", "10.1.0.1"),
        mesh.add_pod("node-b", "till", "10.1.0.2"),
        mesh.add_pod("node-b", "vault", "10.2.0.1", namespace="bank"),
        mesh.add_pod("node-a", "outside", "10.1.0.3", enrolled=False),
    ]
    mesh.until_served(*pods)
    calls = [(caller, target, port) for caller, target in permutations(pods, 2) if target.is_enrolled for port in PORTS]
    eventually(lambda: all(reaches(*each) for each in calls), "calls without policies")
    verdicts = dict.fromkeys(calls, True)
    seen: set[bool] = set()
    for number in range(ROUNDS):
        with Attempts(call for call, allowed in verdicts.items() if not allowed) as attempts:
            verdicts = judge(mesh, pods, calls, number)
        opened = attempts.answered & {call for call, allowed in verdicts.items() if not allowed}
        assert not opened, f"let through on the way to round {number}, though neither before nor after it"
        seen |= set(verdicts.values())
    assert seen == {True, False}


def judge(mesh: Mesh, pods: Sequence[Pod], calls: Sequence[Call], number: int) -> dict[Call, bool]:
    """Plays one round: who gets through is what the model says. The verdict of each call."""
    written = policies(Dice(Random(number)), number)
    mesh.apply("policies", written)
    served = expected([*(pod.manifest() for pod in pods), *written])
    names = sorted(served.authorizations)
    workloads = {pod: served.addresses[f"Kubernetes//Pod/{pod.namespace}/{pod.name}"]["workload"] for pod in pods}
    captured = [pod for pod in pods if pod.is_enrolled]
    wanted = [(names, workloads[pod].get("authorization_policies", [])) for pod in captured]
    eventually_equal(
        lambda: ([(_policies(pod), _listed(pod)) for pod in captured], wanted),
        f"the policies of round {number} are with the ztunnels",
    )
    verdicts: dict[Call, bool] = {}
    for caller, target, port in calls:
        identity = caller.identity if caller.is_enrolled else None
        connection = Connection(caller.address, target.address, port, identity)
        verdict = allows(workloads[target], served.authorizations, connection)
        assert reaches(caller, target, port) is verdict, (number, caller.name, target.name, port, written)
        verdicts[caller, target, port] = verdict
    return verdicts


class Attempts:
    """Calls that are tried again and again on the side, each by itself."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self.answered: set[Call] = set()
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._threads = [threading.Thread(target=self._try, args=(call,), daemon=True) for call in calls]

    def _try(self, call: Call) -> None:
        while self._goes_on.is_set():
            if reaches(*call):
                self.answered.add(call)
            time.sleep(0.001)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._goes_on.clear()
        for thread in self._threads:
            thread.join()


def _policies(pod: Pod) -> list[str]:
    """Names of the policies that the ztunnel of a pod holds."""
    return sorted(f"{policy['namespace']}/{policy['name']}" for policy in pod.node.dump().get("policies", ()))


def _listed(pod: Pod) -> list[str]:
    """Policies that a pod's workload names, as its ztunnel has it."""
    for workload in pod.node.dump().get("workloads", ()):
        if workload["name"] == pod.name:
            return list(workload.get("authorizationPolicies", []))
    return []
