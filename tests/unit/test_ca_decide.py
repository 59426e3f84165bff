"""Who may have which identity (ca.md 5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ambientd.ca.caller import Caller
from ambientd.ca.decide import Ask, Await, Issue, Reason, Refuse, Trust, decide
from ambientd.ca.identity import parse_identity
from ambientd.ca.trust import trust_of
from ambientd.index.mesh import MeshView
from ambientd.index.pods import AccountRef, PodIndex
from ambientd.index.rules import Rules
from ambientd.resources.events import Event
from ambientd.resources.mesh import LabelSelector
from tests.unit.worlds import CLUSTER, events

TABLE = yaml.safe_load((Path(__file__).parents[1] / "cases" / "ca" / "decisions.yaml").read_text())


def manifest(pod: dict[str, Any]) -> str:
    metadata = {"namespace": pod["namespace"], "name": pod["name"], "uid": pod["uid"]}
    if pod.get("deleting"):
        metadata["deletionTimestamp"] = "2026-08-01T00:00:00Z"
    spec = {"serviceAccountName": pod["account"], "nodeName": pod["node"], "containers": []}
    text: str = yaml.safe_dump({"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": pod["phase"]}})
    return text


def history_of(row: dict[str, Any]) -> list[Event]:
    """What happened until the cluster was as the row has it."""
    happened: list[Event] = []
    for name in row["pods"]:
        happened.extend(events(manifest({**TABLE["pods"][name], **row.get("with", {}).get(name, {})})))
    for name, labels in row.get("namespaces", {}).items():
        happened.extend(events(yaml.safe_dump({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})))
    return happened


def index_of(row: dict[str, Any]) -> PodIndex:
    pods = PodIndex(CLUSTER)
    pods.apply(history_of(row))
    return pods


def ask_of(row: dict[str, Any]) -> Ask:
    pod = TABLE["pods"][row.get("caller", "Z")]
    token = {"pod_name": pod["name"], "pod_uid": pod["uid"], "node": "", **row.get("token", {})}
    caller = Caller(pod["namespace"], pod["account"], "cluster.local", **token)
    return Ask(caller, row.get("cluster", CLUSTER), row["asks"])


def trust_in(row: dict[str, Any]) -> Trust:
    given = row.get("trust", {})
    selector = LabelSelector(tuple(given.get("discovery", {}).items()))
    return Trust(
        accounts=frozenset(given.get("accounts", [AccountRef("istio-system", "ztunnel")])),
        clusters=frozenset({CLUSTER, "alias-of-c1"}),
        trust_domains=frozenset(given.get("trust_domains", ["cluster.local"])),
        checks_trust_domain=given.get("checks_trust_domain", True),
        discovery_selectors=(selector,) if "discovery" in given else (),
    )


every_row = pytest.mark.parametrize("row", TABLE["rows"], ids=[f"{row['row']}: {row['says']}" for row in TABLE["rows"]])


@pytest.mark.fault(78)
@every_row
def test_an_identity_is_issued_exactly_where_the_table_says(row: dict[str, Any]) -> None:
    decision = decide(ask_of(row), index_of(row), trust_in(row))
    match decision:
        case Issue(identity):
            assert (row["gets"], identity) == ("issue", row.get("identity", row["asks"]))
        case Await(placement):
            parsed = parse_identity(row["asks"])
            assert parsed is not None
            assert (row["gets"], placement.account) == ("await", parsed[1])
        case Refuse(reason):
            assert row["gets"] == reason.name


def test_every_reason_of_a_decision_is_in_the_table() -> None:
    of_the_shell = {Reason.NOT_ON_NODE, Reason.TOO_MANY_WAIT}
    assert {row["gets"] for row in TABLE["rows"]} - {"issue", "await"} == {
        reason.name for reason in Reason if reason not in of_the_shell
    }


def test_every_reason_has_its_own_text() -> None:
    assert len({reason.value for reason in Reason}) == len(Reason)


def test_an_identity_of_a_megabyte_is_none() -> None:
    assert parse_identity("spiffe://" + "a" * (1 << 20) + "/ns/a/sa/b") is None


def test_names_are_as_long_as_kubernetes_allows() -> None:
    longest = ".".join(["a" * 63] * 3 + ["a" * 61])
    assert parse_identity(f"spiffe://{'t' * 255}/ns/{'n' * 63}/sa/{longest}") == (
        "t" * 255,
        AccountRef("n" * 63, longest),
    )
    # A name of an account may be one part of any length; a namespace is a label.
    assert parse_identity(f"spiffe://t/ns/n/sa/{'a' * 253}") == ("t", AccountRef("n", "a" * 253))
    assert parse_identity(f"spiffe://t/ns/n/sa/{'a' * 254}") is None
    assert parse_identity(f"spiffe://t/ns/{'n' * 64}/sa/a") is None
    assert parse_identity(f"spiffe://t/ns/n/sa/{longest}a") is None
    assert parse_identity(f"spiffe://{'t' * 256}/ns/n/sa/a") is None


def test_an_empty_cluster_id_is_never_ours() -> None:
    mesh = MeshView(Rules(cluster_id=""), "td", ("old.td",), "istio-system", (), None)
    made = trust_of(mesh, frozenset(), [("", ""), ("alias", "")])
    assert made.clusters == frozenset({"alias"})
    assert made.trust_domains == frozenset({"td", "old.td"})


def test_an_at_sign_does_not_reach_an_identity() -> None:
    assert Caller("ns", "sa", "td@x").identity == "spiffe://td.x/ns/ns/sa/sa"
