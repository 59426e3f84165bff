"""What an operator is told of one object: what became of it, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ambientd.ctl import describing
from ambientd.ctl.main import cli
from ambientd.ctl.snapshot import Failed
from ambientd.debug.descriptions import plain_description
from ambientd.explain.describe import NoSuchKind, describe, ref_of
from ambientd.index.rules import Rules
from ambientd.index.world import World
from ambientd.resources.events import Invalid
from ambientd.resources.faults import Fault
from tests.unit.worlds import CLUSTER, ref, world

SHOP = """
kind: Namespace
metadata: {name: shop, labels: {istio.io/use-waypoint: wp}}
---
kind: Gateway
metadata: {namespace: shop, name: wp, labels: {istio.io/waypoint-for: all}}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
status: {addresses: [{type: Hostname, value: wp.shop.svc.cluster.local}]}
---
kind: Pod
metadata: {namespace: shop, name: cart-0, uid: u-1, labels: {app: cart, tier: back}}
status: {phase: Running, podIPs: [{ip: 10.0.0.5}]}
---
kind: Service
metadata: {namespace: shop, name: cart}
spec: {clusterIP: 10.8.0.1, selector: {app: cart}, ports: [{name: http, port: 80}]}
---
kind: Service
metadata: {namespace: shop, name: legacy}
spec: {clusterIP: 10.8.0.2, ports: [{name: http, port: 80}]}
---
kind: EndpointSlice
metadata: {namespace: shop, name: legacy-1, labels: {kubernetes.io/service-name: legacy}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.5], targetRef: {kind: Pod, namespace: shop, name: cart-0, uid: u-1}}]
ports: [{name: http, port: 80, protocol: TCP}]
---
kind: AuthorizationPolicy
metadata: {namespace: shop, name: own}
spec: {selector: {matchLabels: {app: cart}}, rules: [{}]}
---
kind: AuthorizationPolicy
metadata: {namespace: istio-system, name: back}
spec: {selector: {matchLabels: {tier: back}}, action: DENY}
---
kind: AuthorizationPolicy
metadata: {namespace: shop, name: all}
spec: {rules: [{}]}
---
kind: AuthorizationPolicy
metadata: {namespace: bank, name: elsewhere}
spec: {rules: [{}]}
---
kind: PeerAuthentication
metadata: {namespace: istio-system, name: default}
spec: {mtls: {mode: STRICT}}
"""


def told(made: World, kind: str, name: str, namespace: str = "shop") -> dict[str, Any]:
    return plain_description(describe(made, ref_of(CLUSTER, kind, namespace, name)))


def summary(text: str, kind: str, name: str, rules: Rules | None = None) -> str:
    return str(told(world(text, rules=rules), kind, name)["summary"])


def pairs(lines: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(line["what"], line["why"]) for line in lines]


def test_a_pod_tells_its_waypoint_services_and_policies_with_the_reasons() -> None:
    found = told(world(SHOP), "pod", "cart-0")
    assert (found["object"], found["is_read"], found["summary"]) == ("Pod shop/cart-0", True, "served as a workload")
    assert pairs(found["waypoints"]) == [("shop/wp", "bound to waypoint shop/wp, by the label of Namespace shop")]
    assert pairs(found["services"]) == [
        ("shop/cart.shop.svc.cluster.local", "selector app=cart"),
        ("shop/legacy.shop.svc.cluster.local", "an EndpointSlice of the Service names the Pod"),
    ]
    assert pairs(found["policies"]) == [
        ("istio-system/back", "selector tier=back, in the root namespace"),
        ("shop/own", "selector app=cart"),
        (
            "istio-system/istio_converted_static_strict",
            "every port is STRICT, by PeerAuthentication istio-system/default",
        ),
        ("shop/all", "by its scope: it has no selector, and holds for namespace shop"),
    ]
    (served,) = found["served"]
    assert (served["type"], served["name"]) == ("workload", "Kubernetes//Pod/shop/cart-0")
    assert served["resource"]["addresses"] == ["10.0.0.5"]
    assert found["conditions"] == found["problems"] == []


def test_a_service_tells_why_it_has_no_waypoint_and_its_condition() -> None:
    text = SHOP.replace("labels: {istio.io/use-waypoint: wp}", "labels: {istio.io/use-waypoint: gone}")
    found = told(world(text), "services", "cart")
    ((waypoint, why),) = pairs(found["waypoints"])
    assert waypoint == "none"
    assert why.startswith("WaypointIsNotReady: waypoint shop/gone is not ready")
    assert why.endswith("asked for by the label of Namespace shop")
    assert [(each["status"], each["reason"]) for each in found["conditions"]] == [("False", "WaypointIsNotReady")]
    assert len(found["problems"]) == 1


@pytest.mark.parametrize(
    ("kind", "status", "says"),
    [
        ("Pod", "status: {phase: Succeeded, podIPs: [{ip: 10.0.0.5}]}", "not served: its phase is Succeeded"),
        ("Pod", "status: {phase: Pending}", "not served: it has no IP address"),
        ("Pod", "status: {phase: Running, podIPs: [{ip: 010.0.0.5}]}", "not served: '010.0.0.5' is no IP address"),
        (
            "Service",
            "spec: {type: ExternalName, externalName: a.test}",
            "not served: an ExternalName is no service of the mesh",
        ),
        ("WorkloadEntry", "spec: {address: 192.0.2.1}", "served as a workload"),
        ("EndpointSlice", "addressType: IPv4", "not used: it has no label kubernetes.io/service-name"),
        ("Gateway", "spec: {gatewayClassName: x}", "no waypoint: its status has no address"),
        ("PeerAuthentication", "spec: {}", "in force through the policies that workloads list; not served itself"),
        ("AuthorizationPolicy", "spec: {action: CUSTOM}", "not served: ztunnel cannot enforce action CUSTOM."),
        (
            "AuthorizationPolicy",
            "spec: {targetRefs: [{kind: Service, group: '', name: a}]}",
            "not for ztunnels: it has targets, and their waypoints enforce it",
        ),
    ],
)
def test_the_summary_names_what_became_of_an_object(kind: str, status: str, says: str) -> None:
    assert summary(f"kind: {kind}\nmetadata: {{namespace: shop, name: a}}\n{status}", kind, "a").startswith(says)


def test_what_another_control_plane_reads_is_not_served() -> None:
    text = "kind: WorkloadEntry\nmetadata: {namespace: shop, name: a, labels: {istio.io/rev: blue}}\nspec: {address: a}"
    assert (
        summary(text, "we", "a", Rules(revision="green")) == "not served: its label istio.io/rev names another revision"
    )


def test_what_the_discovery_selectors_leave_out_is_not_served() -> None:
    mesh = "kind: ConfigMap\nmetadata: {namespace: istio-system, name: istio}\n"
    mesh += "data: {mesh: 'discoverySelectors: [{matchLabels: {mesh: joined}}]'}\n---\n"
    pod = "kind: Pod\nmetadata: {namespace: shop, name: a}\nstatus: {phase: Running, podIPs: [{ip: 10.0.0.5}]}"
    says = "not served: discoverySelectors of the mesh configuration leave namespace shop out"
    assert summary(mesh + pod, "po", "a") == says


def test_a_policy_says_in_words_what_an_invalid_part_means() -> None:
    policy = """
kind: AuthorizationPolicy
metadata: {namespace: shop, name: a, generation: 2}
spec: {rules: [{from: [{source: {ipBlocks: [10.0.0.300], namespaces: [bank]}}]}, {to: [{operation: {methods: [GET]}}]}]}
"""
    found = told(world(policy), "ap", "a")
    assert found["summary"].startswith(
        "served to ztunnels; it holds for namespace shop; not enforceable at layer 4: methods"
    )
    assert [each["observedGeneration"] for each in found["conditions"]] == ["2"]
    assert any("ipBlocks[0] must be an IP address" in text for text in found["problems"])
    assert any("matches nothing, so it allows nothing" in text for text in found["problems"])
    assert found["served"][0]["resource"]["groups"] == [{"rules": [{"matches": [{}]}]}]


def test_what_cannot_be_read_and_what_is_not_there_are_two_things() -> None:
    made = world()
    made.apply([Invalid(ref("AuthorizationPolicy", "shop", "a"), (Fault("spec", "must be an object", "7", "lost"),))])
    found = told(made, "ap", "a")
    assert (found["is_read"], found["summary"]) == (False, "it cannot be read, and there is no former version of it")
    assert len(found["problems"]) == 1
    assert told(made, "ap", "b")["summary"] == "there is no such object"


def test_hosts_of_an_entry_say_who_serves_them() -> None:
    entry = """
kind: ServiceEntry
metadata: {namespace: shop, name: e}
spec: {hosts: [a.test, cart.shop.svc.cluster.local], resolution: STATIC, endpoints: [{address: 192.0.2.1}],
       ports: [{number: 80, name: http, protocol: HTTP}]}
"""
    found = told(world(SHOP, entry), "se", "e")
    assert found["summary"] == "served as 1 service and 1 workload"
    assert pairs(found["hosts"]) == [
        ("a.test", "served, and preferred in the whole mesh"),
        ("cart.shop.svc.cluster.local", "another object of the namespace has this host"),
    ]
    assert [item["type"] for item in found["served"]] == ["service", "workload"]


def test_the_problems_of_one_object_are_those_of_the_list() -> None:
    made = world(SHOP.replace("istio.io/use-waypoint: wp", "istio.io/use-waypoint: gone"))
    listed = {problem.object: problem.faults for problem in made.problems()}
    assert listed
    assert {each: made.problems_of(each) for each in listed} == listed


def test_looking_changes_nothing() -> None:
    made = world(SHOP)
    sizes = made.graph.sizes()
    for kind, name in (("pod", "cart-0"), ("svc", "cart"), ("svc", "none"), ("gtw", "wp"), ("ns", "shop"), ("no", "n")):
        told(made, kind, name)
    assert made.graph.sizes() == sizes


@pytest.mark.parametrize("kind", ["AuthorizationPolicy", "authorizationpolicies", "AP"])
def test_kinds_are_taken_as_kubectl_takes_them(kind: str) -> None:
    assert ref_of(CLUSTER, kind, "shop", "a") == ref("AuthorizationPolicy", "shop", "a")


def test_a_kind_of_the_cluster_has_no_namespace() -> None:
    assert ref_of(CLUSTER, "gatewayclasses", "shop", "a") == ref("GatewayClass", "", "a")
    with pytest.raises(NoSuchKind, match="'pot' is no kind that is read; kinds: AuthorizationPolicy, "):
        ref_of(CLUSTER, "pot", "shop", "a")


def test_a_subject_is_a_kind_and_a_name_with_one_namespace() -> None:
    assert describing.subject_of("pod/a", "") == describing.Subject("pod", "default", "a")
    assert describing.subject_of("pod/shop/a", "shop") == describing.Subject("pod", "shop", "a")
    for text, namespace in (("pod", ""), ("pod/", ""), ("pod/a/b/c", ""), ("pod/shop/a", "bank")):
        with pytest.raises(Failed):
            describing.subject_of(text, namespace)


def test_the_command_tells_it_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {namespace: shop, name: a}\n"
        "status: {phase: Running, podIPs: [{ip: 10.0.0.5}]}\n"
    )
    shown = CliRunner().invoke(cli, ["describe", "pod/a", "-n", "shop", "--config-dir", str(tmp_path)])
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[0] == "Pod shop/a: served as a workload"
    assert lines[1].startswith("  waypoints   none (the label istio.io/use-waypoint names none for workloads")
    assert "workload Kubernetes//Pod/shop/a, version " in shown.stdout
    assert "    - 10.0.0.5" not in lines
    assert "  - 10.0.0.5" in lines
    refused = CliRunner().invoke(cli, ["describe", "pot/a", "--config-dir", str(tmp_path)])
    assert refused.exit_code == 1
    assert refused.stderr.startswith("ambientctl: 'pot' is no kind that is read")
    assert CliRunner().invoke(cli, ["describe", "pod"]).exit_code == 2
    missing = CliRunner().invoke(cli, ["describe", "pod/shop/b", "--config-dir", str(tmp_path)])
    assert (missing.exit_code, missing.output) == (1, "Pod shop/b: there is no such object\n")
