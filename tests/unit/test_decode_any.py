"""Whatever stands in whatever field of whatever kind: an object, or a fault that names it, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ambientd.resources.decode import decode
from ambientd.resources.events import Put
from ambientd.resources.faults import Fault, Undecodable
from ambientd.resources.kinds import CLUSTER_KINDS, KINDS
from ambientd.resources.manifest import decode_manifest
from ambientd.resources.mesh import MeshConfig
from ambientd.resources.mesh_decode import decode_mesh
from ambientd.resources.ref import Ref
from ambientd.resources.yaml_text import TextError, yaml_documents
from ambientd.sources.manifest_file import read_manifests

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**70), max_value=2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from(["10.0.0.1", "ALLOW", "DENY", "STRICT", "*", "STATIC"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
WORKLOAD: dict[str, Any] = {
    "address": "a",
    "ports": {"http": 80},
    "labels": {"a": "b"},
    "network": "n",
    "locality": "r/z",
    "weight": 1,
    "serviceAccount": "s",
}
LABELS = {"matchLabels": {"a": "b"}}
SELECTOR = {**LABELS, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
FULL: dict[str, dict[str, Any]] = {
    "Pod": {
        "spec": {
            "serviceAccountName": "a",
            "nodeName": "n",
            "hostNetwork": False,
            "containers": [{"ports": [{"name": "a", "containerPort": 1, "protocol": "TCP"}]}],
            "initContainers": [{"restartPolicy": "Always", "ports": [{"containerPort": 2}]}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    },
    "Namespace": {},
    "Node": {},
    "Service": {
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "10.0.0.1",
            "clusterIPs": ["10.0.0.1"],
            "ports": [{"name": "a", "port": 1, "targetPort": "b", "protocol": "TCP", "appProtocol": "http"}],
            "selector": {"a": "b"},
            "ipFamilies": ["IPv4"],
            "publishNotReadyAddresses": True,
            "internalTrafficPolicy": "Local",
            "trafficDistribution": "PreferClose",
        },
        "status": {"loadBalancer": {"ingress": [{"ip": ""}]}},
    },
    "ConfigMap": {
        "data": {
            "mesh": "{trustDomain: a, discoverySelectors: [{matchLabels: {a: b}}]}",
        }
    },
    "EndpointSlice": {
        "addressType": "IPv4",
        "ports": [{"name": "a", "port": 1, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": ["10.0.0.1"],
                "conditions": {"ready": True},
                "targetRef": {"kind": "Pod", "namespace": "a", "name": "b", "uid": "c"},
            }
        ],
    },
    "ServiceEntry": {
        "spec": {
            "hosts": ["a"],
            "addresses": ["10.0.0.1"],
            "ports": [{"name": "a", "number": 1, "protocol": "TCP", "targetPort": 2}],
            "location": "MESH_INTERNAL",
            "resolution": "STATIC",
            "endpoints": [WORKLOAD],
            "workloadSelector": {"labels": {"a": "b"}},
            "subjectAltNames": ["a"],
        },
        "status": {"addresses": [{"value": "10.0.0.1", "host": "a"}]},
    },
    "WorkloadEntry": {"spec": WORKLOAD},
    "AuthorizationPolicy": {
        "spec": {
            "selector": LABELS,
            "targetRef": {"kind": "a", "name": "b", "group": "c", "namespace": "d"},
            "targetRefs": [{"kind": "a", "name": "b"}],
            "action": "DENY",
            "rules": [
                {
                    "from": [{"source": {"principals": ["a"], "notIpBlocks": ["10.0.0.1"], "trustDomains": ["a"]}}],
                    "to": [{"operation": {"ports": ["80"], "notPorts": ["81"], "hosts": ["a"]}}],
                    "when": [{"key": "destination.port", "values": ["80"], "notValues": ["81"]}],
                }
            ],
        }
    },
    "PeerAuthentication": {
        "spec": {"selector": LABELS, "mtls": {"mode": "STRICT"}, "portLevelMtls": {"80": {"mode": "DISABLE"}}}
    },
    "Gateway": {
        "spec": {
            "gatewayClassName": "a",
            "listeners": [
                {
                    "name": "a",
                    "port": 1,
                    "protocol": "HBONE",
                    "tls": {"mode": "Terminate"},
                    "allowedRoutes": {"namespaces": {"from": "Selector", "selector": SELECTOR}},
                }
            ],
        },
        "status": {"addresses": [{"type": "IPAddress", "value": "10.0.0.1"}]},
    },
    "GatewayClass": {"spec": {"controllerName": "a"}},
}
METADATA = {
    "name": "it",
    "namespace": "shop",
    "uid": "u",
    "generateName": "i",
    "generation": 1,
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "labels": {"a": "b", "topology.kubernetes.io/zone": "z"},
    "annotations": {"ambient.istio.io/redirection": "enabled", "istio.io/dry-run": "true"},
    "ownerReferences": [{"kind": "ReplicaSet", "name": "a", "controller": True}],
}


def full(kind: str) -> dict[str, Any]:
    return {"apiVersion": KINDS[kind][0], "kind": kind, "metadata": METADATA, **FULL[kind]}


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value in a manifest."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def replaced(value: Any, path: tuple[str | int, ...], by: Any) -> Any:
    if not path:
        return by
    copy: Any = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


PLACES = [(kind, path) for kind in KINDS for path in places(full(kind)) if path]


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_with_every_field_is_served_without_a_fault(kind: str) -> None:
    event = decode_manifest(full(kind), "east")
    assert isinstance(event, Put)
    assert event.faults == ()
    assert event.object.ref == Ref("east", kind, "" if kind in CLUSTER_KINDS else "shop", "it")


@settings(max_examples=600, deadline=None)
@given(place=st.sampled_from(PLACES), value=JSON)
def test_any_value_in_any_field_gives_an_object_or_a_named_fault(
    place: tuple[str, tuple[str | int, ...]], value: Any
) -> None:
    kind, path = place
    manifest = replaced(full(kind), path, value)
    faults: tuple[Fault, ...] = ()
    try:
        faults = decode(json.dumps(manifest).encode(), kind, "east")[1]
    except Undecodable as error:
        faults = error.faults
        assert faults
    assert all(fault.rule and fault.effect for fault in faults)
    content = read_manifests("a.json", json.dumps(manifest).encode(), "east")
    assert content.objects or content.faults
    for found in content.objects:
        assert isinstance(found.event, Put) or found.event.faults


MESH: dict[str, Any] = {
    "trustDomain": "a.b",
    "trustDomainAliases": ["c"],
    "rootNamespace": "d",
    "discoverySelectors": [SELECTOR],
    "serviceEntryVisibility": {
        "defaultVisibility": "PUBLIC",
        "policies": [{"visibility": "NONE", "matchingRules": [{"namespaceSelector": SELECTOR}]}],
    },
}


@settings(max_examples=200, deadline=None)
@given(path=st.sampled_from(list(places(MESH))), value=JSON)
def test_any_value_in_any_field_of_the_mesh_configuration_gives_one_or_faults(
    path: tuple[str | int, ...], value: Any
) -> None:
    try:
        mesh, _ = decode_mesh(json.dumps(replaced(MESH, path, value), ensure_ascii=False))
    except Undecodable as error:
        assert error.faults  # noqa: PT017  either outcome is right
    else:
        assert isinstance(mesh, MeshConfig)


SIGNS = "a: \n{}[],'\"|>#%!1~=@\t\\\x00"
WORDS = ("- ", "? ", "&a ", "*a", "<<: ", "---\n", "...\n", "!!str ", "!!binary ", "0x", "0b_", "1e999", ".inf", "\\x")
SNIPPETS = st.sampled_from([*SIGNS, *WORDS])


@settings(max_examples=400, deadline=None)
@given(st.lists(SNIPPETS, max_size=25).map("".join))
def test_any_text_is_documents_or_one_error_with_a_line(text: str) -> None:
    try:
        for document in yaml_documents(text.encode()):
            json.dumps(document.value, allow_nan=False)
    except TextError as error:
        assert 1 <= error.line <= text.count("\n") + 2  # noqa: PT017  either outcome is right
