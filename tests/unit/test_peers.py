"""PeerAuthentications: the tables, every combination of modes, precedence, what is reported, what a change recomputes,
and that a ztunnel accepts plaintext exactly where the modes say so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases.loader import comparable
from tests.model.verdict import Connection, allows
from tests.unit.policy_graph import MESH_CONFIG, ROOT, Manifest, PolicyGraph, peer, rows

STATIC = f"{ROOT}/istio_converted_static_strict"
CONVERTED = "shop/converted_peer_authentication_w"
SELECTOR = {"matchLabels": {"app": "till"}}
MODES = ("UNSET", "DISABLE", "PERMISSIVE", "STRICT")


def _modes(modes: dict[int, str]) -> dict[str, Any]:
    return {"portLevelMtls": {str(port): {"mode": mode} for port, mode in modes.items()}} if modes else {}


@pytest.mark.parametrize("row", rows("policies/peers.json"), ids=lambda row: row["id"])
def test_what_is_served_and_listed_is_what_the_table_says(row: dict[str, Any]) -> None:
    graph = PolicyGraph()
    graph.apply(row["objects"])
    served = graph.authorizations()
    static = served.pop(STATIC, None)
    assert [served[name] for name in sorted(served)] == [comparable(message) for message in row["converted"]]
    assert (static is not None) is bool(row["objects"])
    for number, workload in enumerate(row["workloads"]):
        graph.add_workload(str(number), workload["namespace"], workload["labels"])
        assert graph.lists(str(number)) == workload["lists"]


def test_every_combination_of_modes_becomes_what_the_golden_matrix_says() -> None:
    # One graph that goes from row to row, so that what is left of a former row would show.
    graph = PolicyGraph()
    graph.add_workload("till", "shop", {"app": "till"})
    names = {"static": STATIC, "converted": CONVERTED}
    for row in rows("golden/policies/policies-matrix.json"):
        levels = [peer("m", ROOT, 1, mtls={"mode": row["mesh"]}), peer("n", "shop", 2, mtls={"mode": row["namespace"]})]
        present = [level for level in levels if level["spec"]["mtls"]["mode"] is not None]
        graph.delete(*(level for level in levels if level not in present))
        ports = {port: row[str(port)] for port in (8080, 8443) if row[str(port)] is not None}
        graph.apply(
            [*present, peer("w", "shop", 3, selector=SELECTOR, mtls={"mode": row["workload"]}, **_modes(ports))]
        )
        served = graph.authorizations()
        assert served.get(CONVERTED, {}).get("groups") == row["converted"], row
        assert graph.lists("till") == [names[name] for name in row["lists"]], row
        assert served.keys() == {STATIC} | ({CONVERTED} if row["converted"] is not None else set()), row


def test_the_static_policy_is_a_denial_of_peers_without_identity() -> None:
    graph = PolicyGraph()
    graph.apply([peer("a", mtls={"mode": "PERMISSIVE"})])
    match: dict[str, Any] = {"not_principals": [{"presence": {}}]}
    assert graph.authorizations() == {
        STATIC: {
            "name": "istio_converted_static_strict",
            "namespace": ROOT,
            "scope": "WORKLOAD_SELECTOR",
            "action": "DENY",
            "groups": [{"rules": [{"matches": [match]}]}],
        }
    }


def test_the_static_policy_comes_with_the_first_object_and_goes_with_the_last() -> None:
    graph = PolicyGraph()
    first, second, third = peer("a"), peer("b"), peer("sel", ROOT, selector=SELECTOR)
    graph.apply([first])
    graph.apply([second, third])
    graph.delete(first)
    graph.delete(second)
    assert list(graph.served()) == [STATIC]
    graph.delete(third)
    assert graph.served() == {}


def test_the_names_follow_the_root_namespace() -> None:
    graph = PolicyGraph()
    graph.add_workload("till", "shop", {"app": "till"})
    graph.apply([peer("m", "shop", mtls={"mode": "STRICT"})])
    assert graph.lists("till") == [STATIC]
    graph.apply([{**MESH_CONFIG, "data": {"mesh": "rootNamespace: shop"}}])
    graph.add_workload("probe", "lab", {})
    assert list(graph.served()) == ["shop/istio_converted_static_strict"]
    assert graph.lists("till") == graph.lists("probe") == ["shop/istio_converted_static_strict"]


def test_of_equal_age_the_first_by_name_counts_whatever_came_first() -> None:
    objects = [
        peer("b", mtls={"mode": "STRICT"}),
        peer("a", mtls={"mode": "PERMISSIVE"}),
        peer("w2", selector=SELECTOR, mtls={"mode": "PERMISSIVE"}),
        peer("w1", selector=SELECTOR, mtls={"mode": "STRICT"}),
    ]
    for order in (objects, objects[::-1]):
        graph = PolicyGraph()
        graph.add_workload("till", "shop", {"app": "till"})
        graph.add_workload("other", "shop", {})
        for each in order:
            graph.apply([each])
        assert (graph.lists("till"), graph.lists("other")) == ([STATIC], [])


# What is reported.


@pytest.mark.parametrize(
    ("objects", "fault"),
    [
        (
            [peer("m", ROOT, selector=SELECTOR, mtls={"mode": "STRICT"})],
            f"spec.selector must not be set in the root namespace {ROOT}; ztunnels ignore the object; put it into the"
            " namespace of the workloads that it selects",
        ),
        (
            [peer("n", mtls={"mode": "STRICT"}, **_modes({80: "PERMISSIVE"}))],
            "spec.portLevelMtls must stand beside a selector with at least one label; the modes of ports are ignored,"
            " and spec.mtls.mode holds for all ports",
        ),
        (
            [peer("young", age=2), peer("old", age=1)],
            "must be the only one without selector in its namespace; the older old counts, and this object is ignored",
        ),
        (
            [peer("w", selector=SELECTOR, **_modes({80: "DISABLE"})), peer("m", ROOT, mtls={"mode": "STRICT"})],
            "spec.portLevelMtls must stand beside spec.mtls.mode, or hold a PERMISSIVE port, to open ports under an"
            " inherited STRICT, got DISABLE; these ports stay strict; write PERMISSIVE, which is the same at a ztunnel",
        ),
    ],
)
def test_an_object_that_says_more_than_is_enforced_is_reported(objects: list[Manifest], fault: str) -> None:
    graph = PolicyGraph()
    graph.apply(objects)
    assert graph.faults(objects[0]) == [fault]
    assert [graph.faults(other) for other in objects[1:]] == [[] for _ in objects[1:]]


# What a change recomputes.


def _three_workloads() -> PolicyGraph:
    graph = PolicyGraph()
    for name, namespace, app in (("till", "shop", "till"), ("other", "shop", "other"), ("far", "lab", "till")):
        graph.add_workload(name, namespace, {"app": app})
    graph.gathered.clear()
    return graph


def test_a_namespace_level_that_changes_nothing_reaches_no_workload() -> None:
    graph = _three_workloads()
    graph.apply([peer("n", mtls={"mode": "PERMISSIVE"})])
    graph.apply([peer("n", mtls={"mode": "DISABLE"})])
    assert graph.gathered == []


def test_a_namespace_level_reaches_the_workloads_of_its_namespace_only() -> None:
    graph = _three_workloads()
    graph.apply([peer("n", mtls={"mode": "STRICT"})])
    assert sorted(graph.gathered) == ["shop app=other", "shop app=till"]


def test_a_mesh_level_does_not_reach_namespaces_with_a_mode_of_their_own() -> None:
    graph = _three_workloads()
    graph.apply([peer("n", mtls={"mode": "PERMISSIVE"})])
    graph.gathered.clear()
    graph.apply([peer("m", ROOT, mtls={"mode": "STRICT"})])
    assert graph.gathered == ["lab app=till"]


def test_a_workload_level_reaches_the_workloads_with_its_label_only() -> None:
    graph = _three_workloads()
    graph.apply([peer("w", selector=SELECTOR, mtls={"mode": "STRICT"})])
    assert graph.gathered == ["shop app=till"]
    graph.gathered.clear()
    # With a mode of its own, it does not ask for the levels above.
    graph.apply([peer("n", mtls={"mode": "STRICT"})])
    assert graph.gathered == ["shop app=other"]


def test_another_port_changes_the_policy_and_reaches_no_workload() -> None:
    graph = _three_workloads()
    strict: dict[str, Any] = {"selector": SELECTOR, "mtls": {"mode": "STRICT"}}
    graph.apply([peer("w", **strict, **_modes({80: "PERMISSIVE"}))])
    version = graph.served()[CONVERTED].version
    graph.gathered.clear()
    graph.apply([peer("w", **strict, **_modes({81: "PERMISSIVE"}))])
    assert graph.served()[CONVERTED].version != version
    assert graph.gathered == []


def test_nothing_is_left_when_all_objects_are_gone() -> None:
    graph = PolicyGraph()
    empty = graph.graph.sizes()
    manifests = [manifest for row in rows("policies/peers.json") for manifest in row["objects"]]
    graph.add_workload("till", "shop", {"app": "till"})
    graph.apply(manifests)
    graph.delete(*manifests)
    graph.remove_workload("till")
    assert graph.graph.sizes() == empty


# What a ztunnel makes of it.

_MODE = st.sampled_from(MODES)
_PORTS = (80, 90, 100)
_OBJECTS = st.lists(
    st.builds(
        lambda name, namespace, age, selector, mode, ports: peer(
            name,
            namespace,
            age,
            selector={"matchLabels": selector},
            mtls={"mode": mode},
            **_modes(ports),
        ),
        st.sampled_from("abcd"),
        st.sampled_from(["shop", "lab", ROOT]),
        st.integers(1, 2),
        st.sampled_from([{}, {"app": "till"}, {"app": "till", "ver": "v1"}, {"ver": "v1"}]),
        _MODE,
        st.dictionaries(st.sampled_from(_PORTS[:2]), _MODE),
    ),
    max_size=6,
    unique_by=lambda manifest: (manifest["metadata"]["namespace"], manifest["metadata"]["name"]),
)
_WORKLOADS = [
    (space, labels) for space in ("shop", ROOT) for labels in ({}, {"app": "till"}, {"app": "till", "ver": "v1"})
]


@settings(max_examples=150, deadline=None)
@given(_OBJECTS)
def test_plaintext_is_accepted_exactly_where_the_modes_say_so(objects: list[Manifest]) -> None:
    graph = PolicyGraph()
    graph.apply(objects)
    held = graph.authorizations()
    for number, (namespace, labels) in enumerate(_WORKLOADS):
        graph.add_workload(str(number), namespace, labels)
        listed = graph.lists(str(number))
        assert set(listed) <= held.keys(), "a listed name is always served"
        workload = {"namespace": namespace, "authorization_policies": listed}
        for port in _PORTS:
            known = Connection("10.1.0.5", "10.2.0.9", port, "spiffe://corp.example/ns/a/sa/b")
            assert allows(workload, held, known)
            is_open = allows(workload, held, Connection("10.1.0.5", "10.2.0.9", port))
            assert is_open is not _is_strict(objects, namespace, labels, port), (namespace, labels, port)


def _is_strict(objects: list[Manifest], namespace: str, labels: dict[str, str], port: int) -> bool:
    """Whether a port refuses plaintext, by the documentation of PeerAuthentication, with the one exception that ports
    which are DISABLE stay strict under an inherited STRICT, unless another port is PERMISSIVE."""

    def oldest(level: str, is_selecting: bool) -> dict[str, Any]:
        found = [
            each
            for each in objects
            if each["metadata"]["namespace"] == level
            and bool(each["spec"]["selector"]["matchLabels"]) is is_selecting
            and each["spec"]["selector"]["matchLabels"].items() <= labels.items()
        ]
        first = min(
            found, key=lambda each: (each["metadata"]["creationTimestamp"], each["metadata"]["name"]), default={}
        )
        return dict(first.get("spec", {"mtls": {"mode": "UNSET"}}))

    levels = [oldest(level, False)["mtls"]["mode"] for level in (namespace, ROOT)]
    inherited = next((mode for mode in levels if mode != "UNSET"), "PERMISSIVE")
    own: dict[str, Any] = oldest(namespace, True) if namespace != ROOT else {"mtls": {"mode": "UNSET"}}
    ports = {key: value["mode"] for key, value in own.get("portLevelMtls", {}).items()}
    mode = ports.get(str(port), "UNSET")
    if own["mtls"]["mode"] == "UNSET" and inherited == "STRICT" and "PERMISSIVE" not in ports.values():
        return True
    if mode != "UNSET":
        return bool(mode == "STRICT")
    return bool((own["mtls"]["mode"] if own["mtls"]["mode"] != "UNSET" else inherited) == "STRICT")
