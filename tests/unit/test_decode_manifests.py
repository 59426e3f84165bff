"""Manifests: YAML as kubectl reads it, and what an API server would have filled in (workloads.md 2.3)."""

from __future__ import annotations

from typing import Any

import pytest

from ambientd.resources.core import Namespace, Pod, Service, ServicePort
from ambientd.resources.discovery import EndpointSlice, SlicePort
from ambientd.resources.events import Invalid, Put
from ambientd.resources.faults import Undecodable
from ambientd.resources.gateway import Gateway, GatewayStatusAddress
from ambientd.resources.kinds import CLUSTER_KINDS, KINDS, Object
from ambientd.resources.manifest import UnknownKind, decode_manifest, items_of
from ambientd.resources.ref import Ref
from ambientd.resources.yaml_text import ALIASED_VALUES_LIMIT, TextError, json_documents, yaml_documents


def plain(text: str) -> Any:
    (document,) = yaml_documents(text.encode())
    return document.value


def served(text: str) -> Object:
    event = decode_manifest(plain(text), "east")
    assert isinstance(event, Put)
    return event.object


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01", "2026-01-01"),
        ("1:30:45", "1:30:45"),
        ("1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8"),
        ("=", "="),
        ("yes", True),
        ("off", False),
        ("y", "y"),
        ("'yes'", "yes"),
        ("010", 8),
        ("0x10", 16),
        ("1_000", 1000),
        ("1e3", 1000),
        ("08", 8),
        ("1.5", 1.5),
        ("~", None),
        ("", None),
        ("!!str 80", "80"),
        ("1.2.3.4", "1.2.3.4"),
    ],
)
def test_scalars_are_read_as_kubectl_reads_them(text: str, value: Any) -> None:
    read = plain(f"a: {text}")["a"]
    assert (read, type(read)) == (value, type(value))


def test_keys_become_text_and_merges_and_aliases_are_followed() -> None:
    text = """
80: a
true: b
base: &base {x: 1, y: 2}
more: {<<: *base, y: 3}
again: *base
"""
    assert plain(text) == {
        "80": "a",
        "true": "b",
        "base": {"x": 1, "y": 2},
        "more": {"x": 1, "y": 3},
        "again": {"x": 1, "y": 2},
    }


LAUGHS = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: b\n  c: d", 2),
        ("a: 1\nb: 2\na: 3", 3),
        ("a: &a [*a]", 1),
        (LAUGHS, 4),
        ("a: " + "[" * 101 + "]" * 101, 1),
        ("[" * 100_000, 1),
        ("a: .nan", 1),
        ("a: !!binary aGk=", 1),
        ("a: !thing {}", 1),
        ("? [a]\n: b", 1),
        ("a: \x07", 1),
        ("a: *unknown", 1),
        ("a: {<<: 3}", 1),
    ],
)
def test_text_that_would_mislead_or_explode_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(TextError) as caught:
        list(yaml_documents(text.encode()))
    assert caught.value.line == line
    assert len(str(caught.value)) < 300


def test_the_documents_before_a_broken_one_are_given() -> None:
    documents = yaml_documents(b"a: 1\n---\n---\nb: 2\n---\nc: [\n")
    assert [(next(documents).value, 1), next(documents).line] == [({"a": 1}, 1), 4]
    with pytest.raises(TextError, match="line 7"):
        next(documents)


def test_aliases_within_the_limit_cost_no_error() -> None:
    values = ", ".join(["1"] * 100)
    uses = "\n".join("- *a" for _ in range(ALIASED_VALUES_LIMIT // 101 - 1))
    assert len(plain(f"- &a [{values}]\n{uses}")) == ALIASED_VALUES_LIMIT // 101


def test_a_field_path_has_a_line() -> None:
    (document,) = yaml_documents(b"# x\nspec:\n  ports:\n  - a: 1\n  - b: 2\n    c.d/e:\n      f: 3\n")
    lines = [document.line_of(path) for path in ("", "spec.ports[1].b", 'spec.ports[1]["c.d/e"].f', "spec.ports[1].x")]
    assert lines == [2, 5, 7, 5]


@pytest.mark.parametrize("text", [b'{"a": 1', b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\xff", b"[" * 100_000])
def test_json_that_cannot_be_read_is_refused(text: bytes) -> None:
    with pytest.raises(TextError):
        list(json_documents(text))


def test_json_values_may_follow_each_other() -> None:
    documents = list(json_documents(b'{"a": 1}\n\n{"b": 2} null'))
    assert [(document.value, document.line) for document in documents] == [({"a": 1}, 1), ({"b": 2}, 3)]


def test_a_pod_gets_what_an_api_server_fills_in() -> None:
    pod = served("""
apiVersion: v1
kind: Pod
metadata: {name: a}
spec: {containers: [{ports: [{containerPort: 80}]}]}
""")
    assert isinstance(pod, Pod)
    assert pod.ref == Ref("east", "Pod", "default", "a")
    assert pod.service_account == "default"
    assert pod.ports[0].protocol == "TCP"
    bare = served("{apiVersion: v1, kind: Pod, metadata: {name: a}}")
    assert isinstance(bare, Pod)
    assert bare.service_account == "default"


def test_a_service_gets_what_an_api_server_fills_in() -> None:
    service = served("""
apiVersion: v1
kind: Service
metadata: {name: a, namespace: b, creationTimestamp: 2026-01-01T00:00:00Z}
spec: {clusterIP: 10.0.0.1, ports: [{port: 80}, {port: 81, targetPort: web}, {port: 82, targetPort: 0}]}
""")
    assert isinstance(service, Service)
    assert service.ports == (
        ServicePort("", 80, "TCP", 80, "", None),
        ServicePort("", 81, "TCP", 0, "web", None),
        ServicePort("", 82, "TCP", 82, "", None),
    )
    assert service.cluster_ips == ("10.0.0.1",)
    assert service.created == "2026-01-01T00:00:00Z"


def test_namespaces_slices_and_gateways_get_what_an_api_server_fills_in() -> None:
    namespace = served("{apiVersion: v1, kind: Namespace, metadata: {name: a, namespace: b, labels: {c: d}}}")
    assert isinstance(namespace, Namespace)
    assert namespace.labels == (("c", "d"), ("kubernetes.io/metadata.name", "a"))
    endpoint_slice = served("""
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a}
addressType: IPv4
ports: [{port: 80}]
""")
    assert isinstance(endpoint_slice, EndpointSlice)
    assert endpoint_slice.ports == (SlicePort("", 80, "TCP"),)
    gateway = served("""
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: a}
spec: {listeners: [{name: x, port: 1, protocol: HBONE, tls: {}}]}
status: {addresses: [{value: 10.0.0.1}, {type: Hostname, value: a.example}]}
""")
    assert isinstance(gateway, Gateway)
    assert gateway.addresses == (
        GatewayStatusAddress("IPAddress", "10.0.0.1"),
        GatewayStatusAddress("Hostname", "a.example"),
    )
    assert gateway.listeners[0].tls_mode == "Terminate"


def test_the_manifest_is_not_changed_and_equal_content_has_an_equal_version() -> None:
    text = "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 80}]}}"
    document = plain(text)
    first = decode_manifest(document, "east")
    assert document == plain(text)
    assert first == decode_manifest(document, "east")
    assert first.resource_version


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a", "must be a Kubernetes object, got a list"),
        ("{kind: Pod}", "apiVersion must be the text that names what the object is"),
        ("{apiVersion: v1, kind: {}}", "kind must be the text that names what the object is, got an object"),
        ("{apiVersion: v1, kind: Pod}", "metadata.name must be the name of an object"),
        ("{apiVersion: v1, kind: Pod, metadata: x}", "metadata must be an object, got 'x'"),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a/b}}",
            "metadata.name must be the name of an object, got 'a/b'",
        ),
        ("{apiVersion: v1, kind: Pod, metadata: {name: 7}}", "metadata.name must be the name of an object, got 7"),
        ("{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: 7}}", "metadata.namespace must be the name"),
    ],
)
def test_a_document_without_a_usable_name_is_undecodable(text: str, problem: str) -> None:
    with pytest.raises(Undecodable) as caught:
        decode_manifest(plain(text), "east")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{apiVersion: apps/v1, kind: Deployment}", "must be a kind that is read, got 'Deployment of apps/v1'"),
        (
            "{apiVersion: networking.istio.io/v1, kind: Gateway}",
            "must be of gateway.networking.k8s.io/v1 or gateway.networking.k8s.io/v1beta1 to be read",
        ),
    ],
)
def test_a_kind_that_is_not_read_is_told_apart(text: str, problem: str) -> None:
    with pytest.raises(UnknownKind) as caught:
        decode_manifest(plain(text), "east")
    assert problem in str(caught.value)


def test_an_object_with_a_name_is_invalid_under_it() -> None:
    event = decode_manifest(plain("{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {b: 1}}}"), "east")
    assert isinstance(event, Invalid)
    assert event.ref == Ref("east", "Pod", "default", "a")
    assert str(event.faults[0]).startswith('metadata.labels["b"] must be a string, got 1')


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_needs_no_more_than_a_name(kind: str) -> None:
    for version in KINDS[kind]:
        event = decode_manifest({"apiVersion": version, "kind": kind, "metadata": {"name": "a"}}, "east")
        assert isinstance(event, Put)
        assert event.object.ref == Ref("east", kind, "" if kind in CLUSTER_KINDS else "default", "a")


def test_lists_give_their_items() -> None:
    assert list(items_of(plain("{apiVersion: v1, kind: List, items: [{kind: Pod}, 3]}"))) == [
        ("items[0]", {"kind": "Pod"}),
        ("items[1]", 3),
    ]
    assert list(items_of(plain("{apiVersion: v1, kind: PodList, items: [{metadata: {}}]}"))) == [
        ("items[0]", {"apiVersion": "v1", "kind": "Pod", "metadata": {}}),
    ]
    assert list(items_of(plain("{apiVersion: v1, kind: List}"))) == []
    with pytest.raises(Undecodable):
        list(items_of(plain("{apiVersion: v1, kind: List, items: {}}")))
