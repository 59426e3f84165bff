"""Who runs where, now (ca.md 5.5)."""

from __future__ import annotations

import pytest

from ambientd.index.pods import AccountRef, Placement, PodIndex
from ambientd.resources.events import Absent, Delete, Event, Invalid, Put, Replace
from ambientd.resources.faults import Fault
from tests.unit.worlds import CLUSTER, events, ref

TILL = AccountRef("shop", "till")
HERE = Placement(TILL, "n1")


def pod(name: str = "till-1", *, node: str = "n1", account: str = "till", phase: str = "Running") -> Put:
    (event,) = events(
        f"""
        kind: Pod
        metadata: {{namespace: shop, name: {name}, uid: {name}-uid}}
        spec: {{serviceAccountName: "{account}", nodeName: "{node}", containers: []}}
        status: {{phase: {phase}}}
        """
    )
    assert isinstance(event, Put)
    return event


@pytest.fixture
def pods() -> PodIndex:
    return PodIndex(CLUSTER)


def test_a_pod_makes_its_account_run_on_its_node(pods: PodIndex) -> None:
    assert pods.apply([pod()]) == (HERE,)
    assert pods.runs(TILL, "n1")
    assert not pods.runs(TILL, "n2")
    held = pods.pod("shop", "till-1")
    assert held is not None
    assert held.uid == "till-1-uid"


def test_only_the_first_pod_of_an_account_on_a_node_appears(pods: PodIndex) -> None:
    assert pods.apply([pod("a"), pod("b")]) == (HERE,)
    assert pods.apply([pod("c"), pod("a")]) == ()


def test_the_last_pod_that_goes_ends_it(pods: PodIndex) -> None:
    pods.apply([pod("a"), pod("b")])
    pods.apply([Delete(ref("Pod", "shop", "a"))])
    assert pods.runs(TILL, "n1")
    pods.apply([Delete(ref("Pod", "shop", "b"))])
    assert not pods.runs(TILL, "n1")
    assert (len(pods), pods.placements) == (0, 0)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_finishes_runs_no_more(pods: PodIndex, phase: str) -> None:
    pods.apply([pod()])
    pods.apply([pod(phase=phase)])
    assert not pods.runs(TILL, "n1")
    assert pods.pod("shop", "till-1") is not None


@pytest.mark.parametrize("given", [pod(node=""), pod(account=""), pod(phase="Failed")])
def test_a_pod_without_node_or_account_or_life_runs_nowhere(pods: PodIndex, given: Put) -> None:
    assert pods.apply([given]) == ()
    assert pods.placements == 0


def test_nothing_is_on_the_node_without_a_name(pods: PodIndex) -> None:
    pods.apply([pod(node="")])
    assert not pods.runs(TILL, "")


def test_a_pod_that_moves_is_on_its_new_node_only(pods: PodIndex) -> None:
    pods.apply([pod()])
    assert pods.apply([pod(node="n2")]) == (Placement(TILL, "n2"),)
    assert not pods.runs(TILL, "n1")


def test_what_appears_and_goes_within_the_same_events_is_not_told(pods: PodIndex) -> None:
    assert pods.apply([pod(), Delete(ref("Pod", "shop", "till-1"))]) == ()


def test_a_list_replaces_what_is_held_and_keeps_what_cannot_be_read(pods: PodIndex) -> None:
    pods.apply([pod("a"), pod("b", node="n2"), pod("c", node="n3")])
    broken = Invalid(ref("Pod", "shop", "b"), (Fault("", "must be an object", "1", ""),))
    assert pods.apply([Replace(CLUSTER, "Pod", (pod("a"), broken, pod("d", node="n4")))]) == (Placement(TILL, "n4"),)
    assert [pods.runs(TILL, node) for node in ("n1", "n2", "n3", "n4")] == [True, True, False, True]


@pytest.mark.parametrize(
    "foreign",
    [
        Delete(ref("Service", "shop", "till-1")),
        Invalid(ref("Pod", "shop", "till-1"), ()),
        Replace(CLUSTER, "Service", ()),
        Replace("east", "Pod", ()),
        Absent("east", "Pod"),
    ],
)
def test_what_concerns_other_objects_changes_nothing(pods: PodIndex, foreign: Event) -> None:
    pods.apply([pod()])
    assert pods.apply([foreign]) == ()
    assert pods.runs(TILL, "n1")


def test_a_cluster_without_the_kind_has_no_pods(pods: PodIndex) -> None:
    pods.apply([pod()])
    pods.apply([Absent(CLUSTER, "Pod")])
    assert (len(pods), pods.placements) == (0, 0)


def test_labels_of_namespaces_are_held_until_they_go(pods: PodIndex) -> None:
    pods.apply(events("{kind: Namespace, metadata: {name: shop, labels: {mesh: 'on'}}}"))
    labels = pods.namespace_labels("shop")
    assert labels is not None
    assert dict(labels)["mesh"] == "on"
    pods.apply([Replace(CLUSTER, "Namespace", ())])
    assert pods.namespace_labels("shop") is None
    assert pods.namespaces == 0
