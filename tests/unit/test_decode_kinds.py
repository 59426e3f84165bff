"""Decoding of each kind from the JSON of an API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ambientd.resources.core import ConfigMap, ContainerPort, Namespace, Node, Owner, Pod, Service, ServicePort
from ambientd.resources.decode import decode, decode_head
from ambientd.resources.discovery import Endpoint, EndpointSlice, SlicePort, TargetRef
from ambientd.resources.faults import Fault, Undecodable
from ambientd.resources.gateway import Gateway, GatewayClass, GatewayStatusAddress, Listener
from ambientd.resources.kinds import Object
from ambientd.resources.mesh import LabelSelector, MeshConfig, Requirement
from ambientd.resources.networking import EntryEndpoint, EntryPort, HostAddress, ServiceEntry, WorkloadEntry
from ambientd.resources.ref import Ref

LAST_GOOD = "the last good version stays in force; without one it is not used"


def decoded(kind: str, **fields: Any) -> tuple[Object, tuple[Fault, ...]]:
    fields.setdefault("metadata", {"name": "it", "namespace": "shop"})
    return decode(json.dumps(fields).encode(), kind, "east")


def faults(kind: str, **fields: Any) -> tuple[Fault, ...]:
    with pytest.raises(Undecodable) as caught:
        decoded(kind, **fields)
    return caught.value.faults


def test_a_pod_has_what_the_rules_read_and_nothing_else() -> None:
    pod = {
        "metadata": {
            "name": "cart-1",
            "namespace": "shop",
            "uid": "u1",
            "generateName": "cart-",
            "labels": {"b": "2", "a": "1"},
            "annotations": {"ambient.istio.io/redirection": "enabled", "other": "x"},
            "ownerReferences": [
                {"kind": "Node", "name": "n"},
                {"kind": "ReplicaSet", "name": "cart", "controller": True},
            ],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "serviceAccountName": "cart",
            "nodeName": "n1",
            "hostNetwork": True,
            "initContainers": [
                {"name": "native", "restartPolicy": "Always", "ports": [{"name": "m", "containerPort": 9000}]},
                {"name": "once", "ports": [{"name": "x", "containerPort": 1}]},
            ],
            "containers": [{"ports": [{"name": "dns", "containerPort": 53, "protocol": "UDP"}]}, {"ports": None}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.5",
            "podIPs": [{"ip": "10.0.0.5"}, {"ip": "fd00::5"}],
            "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}],
        },
    }
    assert decoded("Pod", **pod) == (
        Pod(
            ref=Ref("east", "Pod", "shop", "cart-1"),
            uid="u1",
            labels=(("a", "1"), ("b", "2")),
            redirection="enabled",
            has_generate_name=True,
            owner=Owner("ReplicaSet", "cart"),
            service_account="cart",
            node="n1",
            host_network=True,
            ports=(ContainerPort("dns", "UDP", 53), ContainerPort("m", "TCP", 9000)),
            phase="Running",
            ips=("10.0.0.5", "fd00::5"),
            is_ready=True,
            is_deleting=True,
        ),
        (),
    )


def test_pods_with_equal_ports_and_labels_share_them() -> None:
    spec = {"containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]}
    first, second = (
        decoded("Pod", metadata={"name": name, "namespace": "shop", "labels": {"app": "a"}}, spec=spec)[0]
        for name in ("one", "two")
    )
    assert isinstance(first, Pod)
    assert isinstance(second, Pod)
    assert first.ports is second.ports
    assert first.labels is second.labels


def test_an_empty_entry_of_pod_ips_stays_and_the_single_ip_is_the_fallback() -> None:
    entries, _ = decoded("Pod", status={"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {}]})
    single, _ = decoded("Pod", status={"podIP": "10.0.0.1", "podIPs": []})
    assert isinstance(entries, Pod)
    assert isinstance(single, Pod)
    assert entries.ips == ("10.0.0.1", "")
    assert single.ips == ("10.0.0.1",)


def test_a_service_keeps_its_ports_as_written() -> None:
    spec = {
        "clusterIP": "10.8.0.1",
        "clusterIPs": ["10.8.0.1", "fd00::1"],
        "ipFamilies": ["IPv4", "IPv6"],
        "selector": {"app": "cart"},
        "internalTrafficPolicy": "Local",
        "trafficDistribution": "PreferClose",
        "publishNotReadyAddresses": True,
        "ports": [
            {"name": "http", "port": 80, "targetPort": "8080", "appProtocol": "", "protocol": "TCP"},
            {"port": 53, "targetPort": 5353, "protocol": "UDP"},
            {"port": 1},
        ],
    }
    metadata = {
        "name": "cart",
        "namespace": "shop",
        "creationTimestamp": "2026-01-01T01:00:00.5+01:00",
        "annotations": {"networking.istio.io/traffic-distribution": "PreferClose", "x": "y"},
    }
    service, left_out = decoded("Service", metadata=metadata, spec=spec)
    assert left_out == ()
    assert service == Service(
        ref=Ref("east", "Service", "shop", "cart"),
        labels=(),
        annotations=(("networking.istio.io/traffic-distribution", "PreferClose"),),
        created="2026-01-01T00:00:00Z",
        type="ClusterIP",
        cluster_ips=("10.8.0.1", "fd00::1"),
        ports=(
            ServicePort("http", 80, "TCP", 0, "8080", ""),
            ServicePort("", 53, "UDP", 5353, "", None),
            ServicePort("", 1, "TCP", 0, "", None),
        ),
        selector=(("app", "cart"),),
        ip_families=("IPv4", "IPv6"),
        publish_not_ready=True,
        internal_traffic_policy="Local",
        traffic_distribution="PreferClose",
    )


def test_cluster_kinds_have_no_namespace() -> None:
    metadata = {"name": "it", "namespace": "ignored", "labels": {"topology.kubernetes.io/zone": "z", "a": "b"}}
    assert decoded("Node", metadata=metadata)[0] == Node(Ref("east", "Node", "", "it"), "", "z", "")
    namespace, _ = decoded("Namespace", metadata=metadata)
    labels = (("a", "b"), ("topology.kubernetes.io/zone", "z"))
    assert namespace == Namespace(Ref("east", "Namespace", "", "it"), labels, ())
    gateway_class, _ = decoded("GatewayClass", metadata=metadata, spec={"controllerName": "istio.io/mesh-controller"})
    assert gateway_class == GatewayClass(Ref("east", "GatewayClass", "", "it"), labels, (), "istio.io/mesh-controller")


def test_a_slice_as_go_writes_it_with_null_lists() -> None:
    assert decoded("EndpointSlice", addressType="IPv4", ports=None, endpoints=None)[0] == EndpointSlice(
        Ref("east", "EndpointSlice", "shop", "it"), (), "IPv4", (), ()
    )


def test_a_slice_endpoint_is_ready_unless_it_says_no() -> None:
    target = {"kind": "Pod", "namespace": "shop", "name": "a", "uid": "u"}
    endpoint_slice, _ = decoded(
        "EndpointSlice",
        addressType="IPv4",
        ports=[{"name": "", "port": 80}, {}],
        endpoints=[
            {"addresses": ["10.0.0.1"], "conditions": {"ready": None}, "targetRef": target},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": False}},
            {},
        ],
    )
    assert isinstance(endpoint_slice, EndpointSlice)
    assert endpoint_slice.ports == (SlicePort("", 80, "TCP"), SlicePort(None, None, "TCP"))
    assert endpoint_slice.endpoints == (
        Endpoint(("10.0.0.1",), True, TargetRef("Pod", "shop", "a", "u")),
        Endpoint(("10.0.0.2",), False, None),
        Endpoint((), True, None),
    )


def test_one_bad_endpoint_of_a_service_entry_is_left_out_alone() -> None:
    spec = {
        "hosts": ["a.example"],
        "addresses": ["not an address"],
        "resolution": "STATIC",
        "ports": [{"number": 443, "name": "tls", "protocol": "TLS", "targetPort": 8443}],
        "workloadSelector": {},
        "endpoints": [
            {"address": "10.0.0.1", "ports": {"tls": 1, "b": 2}, "labels": {"a": "b"}, "weight": 3},
            {"address": "10.0.0.2", "ports": {"tls": "443"}},
            {"address": 7},
            None,
        ],
    }
    status = {"addresses": [{"value": "240.240.0.1", "host": "a.example"}, {"value": 1}]}
    entry, left_out = decoded("ServiceEntry", spec=spec, status=status)
    assert entry == ServiceEntry(
        ref=Ref("east", "ServiceEntry", "shop", "it"),
        labels=(),
        annotations=(),
        created="",
        generation=0,
        hosts=("a.example",),
        addresses=("not an address",),
        ports=(EntryPort("tls", 443, "TLS", 8443),),
        location="",
        resolution="STATIC",
        endpoints=(EntryEndpoint("10.0.0.1", (("b", 2), ("tls", 1)), (("a", "b"),), "", "", 3, ""),),
        workload_selector=(),
        subject_alt_names=(),
        status_addresses=(HostAddress("240.240.0.1", "a.example"),),
    )
    endpoint = "this endpoint is left out"
    assert left_out == (
        Fault('spec.endpoints[1].ports["tls"]', "must be a whole number", "'443'", endpoint),
        Fault("spec.endpoints[2].address", "must be a string", "7", endpoint),
        Fault("spec.endpoints[3]", "must be an object", "null", endpoint),
        Fault("status.addresses[1].value", "must be a string", "1", "this address is left out"),
    )


def test_a_status_that_is_none_does_not_lose_the_service_entry() -> None:
    entry, left_out = decoded("ServiceEntry", spec={"hosts": ["a"]}, status=["x"])
    assert isinstance(entry, ServiceEntry)
    assert entry.resolution == "NONE"
    assert entry.workload_selector is None
    assert left_out == (Fault("status", "must be an object", "a list", "the addresses in the status are left out"),)


def test_a_workload_entry_tells_absent_labels_from_empty_ones() -> None:
    entry, _ = decoded("WorkloadEntry", spec={"address": "a", "ports": {"b": 1}, "labels": {}, "locality": "r/z"})
    assert entry == WorkloadEntry(
        Ref("east", "WorkloadEntry", "shop", "it"), (), (), "", 0, (), "a", (("b", 1),), "", "r/z", 0, ""
    )
    bare, _ = decoded("WorkloadEntry")
    assert isinstance(bare, WorkloadEntry)
    assert bare.spec_labels is None


def test_a_gateway_listener_tells_unconfigured_routes_from_an_empty_selector() -> None:
    listeners = [
        {"name": "mesh", "port": 15008, "protocol": "HBONE", "tls": {"mode": "Terminate"}},
        {"name": "a", "port": 1, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "All"}}},
        {
            "name": "b",
            "port": 2,
            "protocol": "HTTP",
            "allowedRoutes": {"namespaces": {"from": "Selector", "selector": {}}},
        },
        {"name": "c", "allowedRoutes": {"namespaces": {"selector": {"matchExpressions": [{"key": "a"}]}}}},
    ]
    spec = {"gatewayClassName": "istio-waypoint", "listeners": listeners}
    gateway, left_out = decoded("Gateway", spec=spec, status={"addresses": [{"value": "10.0.0.1"}]})
    assert gateway == Gateway(
        ref=Ref("east", "Gateway", "shop", "it"),
        labels=(),
        annotations=(),
        created="",
        class_name="istio-waypoint",
        listeners=(
            Listener("mesh", 15008, "HBONE", "Terminate", None, None),
            Listener("a", 1, "HTTP", "", "All", None),
            Listener("b", 2, "HTTP", "", "Selector", LabelSelector()),
            Listener("c", 0, "", "", "Same", LabelSelector((), (Requirement("a", "Invalid", ()),))),
        ),
        addresses=(GatewayStatusAddress("", "10.0.0.1"),),
    )
    assert [str(fault) for fault in left_out] == [
        "spec.listeners[3].allowedRoutes.namespaces.selector.matchExpressions[0] must have the operator In or NotIn "
        "with values, or Exists or DoesNotExist without, got ' with 0 values'; the selector matches no namespace"
    ]


def test_a_config_map_without_mesh_configuration_is_no_fault() -> None:
    ref = Ref("east", "ConfigMap", "shop", "it")
    assert decoded("ConfigMap", data={"other": "x"})[0] == ConfigMap(ref, None)
    assert decoded("ConfigMap", data={"mesh": "trustDomain: td"})[0] == ConfigMap(ref, MeshConfig(trust_domain="td"))


def test_a_config_map_whose_mesh_configuration_is_invalid_is_undecodable() -> None:
    assert [str(fault) for fault in faults("ConfigMap", data={"mesh": "trustDomain: ''"})] == [
        "data.mesh: trustDomain must be a domain name, each of whose labels has 1 to 63 letters, digits or inner "
        "hyphens, got ''; the whole mesh configuration is left out, and the last good one stays in force"
    ]


@pytest.mark.parametrize(
    ("kind", "fields", "fault"),
    [
        ("Pod", {"metadata": "x"}, Fault("metadata", "must be an object", "'x'", LAST_GOOD)),
        ("Pod", {"status": {"podIPs": [{"ip": 5}]}}, Fault("status.podIPs[0].ip", "must be a string", "5", LAST_GOOD)),
        (
            "Pod",
            {"metadata": {"name": "a", "namespace": "b", "labels": {"good": "x", "a.b/c": 1}}},
            Fault('metadata.labels["a.b/c"]', "must be a string", "1", LAST_GOOD),
        ),
        (
            "Pod",
            {"metadata": {"name": "a", "annotations": {"ambient.istio.io/redirection": True}}},
            Fault('metadata.annotations["ambient.istio.io/redirection"]', "must be a string", "true", LAST_GOOD),
        ),
        (
            "Pod",
            {"spec": {"hostNetwork": "yes"}},
            Fault("spec.hostNetwork", "must be true or false", "'yes'", LAST_GOOD),
        ),
        (
            "Service",
            {"spec": {"ports": [{"port": 80}, {"port": 70000}]}},
            Fault("spec.ports[1].port", "must be a whole number <= 65535", "70000", LAST_GOOD),
        ),
        (
            "Service",
            {"spec": {"ports": [{"port": 80, "targetPort": 1.5}]}},
            Fault("spec.ports[0].targetPort", "must be a whole number or a string", "1.5", LAST_GOOD),
        ),
        (
            "Pod",
            {"metadata": {"namespace": "a"}},
            Fault("metadata.name", "must be set", "", "the object has no name and cannot be used"),
        ),
        (
            "Service",
            {"metadata": {"name": "a", "namespace": "b", "creationTimestamp": "soon"}},
            Fault(
                "metadata.creationTimestamp",
                "must be an RFC 3339 time such as 2026-01-31T12:00:00Z",
                "'soon'",
                LAST_GOOD,
            ),
        ),
        (
            "ServiceEntry",
            {"spec": {"resolution": "GUESS"}},
            Fault(
                "spec.resolution",
                "must be one of NONE, STATIC, DNS, DNS_ROUND_ROBIN, DYNAMIC_DNS",
                "'GUESS'",
                LAST_GOOD,
            ),
        ),
        (
            "ServiceEntry",
            {"spec": {"addresses": [1]}},
            Fault("spec.addresses[0]", "must be a string", "1", LAST_GOOD),
        ),
    ],
)
def test_a_wrong_type_is_named_with_its_field_and_what_came(kind: str, fields: dict[str, Any], fault: Fault) -> None:
    assert faults(kind, **fields) == (fault,)


@pytest.mark.parametrize(
    "raw", [b"", b"\xff", b"{", b'{"metadata":' + b"[" * 100_000, b'{"metadata":{"name":"\\ud800"}}']
)
def test_bytes_that_are_no_json_are_undecodable(raw: bytes) -> None:
    with pytest.raises(Undecodable):
        decode(raw, "Pod", "east")


def test_the_head_is_there_when_the_rest_cannot_be_decoded() -> None:
    raw = b'{"metadata":{"name":"a","namespace":"b","resourceVersion":"7","labels":3},"spec":1}'
    assert decode_head(raw, "Pod", "east") == (Ref("east", "Pod", "b", "a"), "7")
    with pytest.raises(Undecodable):
        decode_head(b'{"metadata":{"name":3}}', "Pod", "east")
