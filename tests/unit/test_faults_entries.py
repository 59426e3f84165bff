"""Faults that control planes of this kind have had with ServiceEntries, their addresses and DNS (28 to 37)."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from rich.console import Console

from ambientd.ctl import tables
from ambientd.debug import readable
from ambientd_api import workload_pb2 as api
from ambientd_api.security_pb2 import Authorization
from tests.unit.mesh_of_one import Mesh, Sent, service_name
from tests.unit.worlds import CLUSTER

NAMESPACES = """
kind: Namespace
metadata: {name: shop}
---
kind: Namespace
metadata: {name: bank}
"""


def entry(
    name: str, namespace: str = "shop", *, host: str = "db.test", second: int = 0, spec: str = "", labels: str = ""
) -> str:
    return f"""
kind: ServiceEntry
metadata:
  namespace: {namespace}
  name: {name}
  creationTimestamp: "2026-01-01T00:00:{second:02}Z"
  labels: {{{labels}}}
spec: {{hosts: [{host}], resolution: STATIC, ports: [{{name: sql, number: 5432}}], {spec}}}
"""


def waypoint(name: str, namespace: str) -> str:
    return f"""
kind: Gateway
metadata: {{namespace: {namespace}, name: {name}}}
spec: {{gatewayClassName: istio-waypoint, listeners: [{{name: mesh, port: 15008, protocol: HBONE}}]}}
status: {{addresses: [{{type: Hostname, value: {name}.{namespace}.svc.cluster.local}}]}}
"""


def addresses(service: api.Service) -> list[str]:
    return [".".join(map(str, item.address)) + (f"/{item.length}" if item.length else "") for item in service.addresses]


def ip(text: str) -> str:
    return f"addresses: [{text}]"


@pytest.mark.fault(28)
def test_of_two_entries_for_a_host_in_a_namespace_the_older_is_served_and_the_younger_told_so() -> None:
    """Fault 28: two ServiceEntries for one host behaved unpredictably. In any order of arrival the same one wins: the
    older, then the first by name."""
    texts = [entry("b", second=1, spec=ip("10.9.0.2")), entry("a", second=2, spec=ip("10.9.0.1")), entry("c", second=1)]
    for order in itertools.permutations(texts):
        mesh = Mesh(NAMESPACES, *order)
        assert addresses(mesh.host("db.test")) == ["10.9.0.2"]
        assert any("served from the older ServiceEntry shop/b" in fault for fault in mesh.problems("ServiceEntry", "a"))
        assert mesh.problems("ServiceEntry", "b") == ()
        mesh.delete("ServiceEntry", "shop", "b", "c")
        assert addresses(mesh.host("db.test")) == ["10.9.0.1"]


@pytest.mark.fault(28)
def test_of_two_namespaces_both_are_served_and_the_older_is_canonical() -> None:
    """Fault 28: a client uses the entry of its own namespace, and clients of other namespaces the canonical one; so
    both are sent, and one is marked."""
    texts = [entry("a", "shop", second=2), entry("a", "bank", second=1)]
    for order in itertools.permutations(texts):
        mesh = Mesh(NAMESPACES, *order)
        assert (mesh.host("db.test", "bank").canonical, mesh.host("db.test", "shop").canonical) == (True, False)
        (told,) = mesh.problems("ServiceEntry", "a")
        assert "clients of other namespaces use the one of namespace bank" in told
        assert mesh.delete("ServiceEntry", "bank", "a") == Sent({"shop/db.test"}, {"bank/db.test"})
        assert mesh.host("db.test", "shop").canonical


@pytest.mark.fault(28)
def test_a_kubernetes_service_wins_over_entries_of_its_host() -> None:
    """Fault 28: the Service of a host is the canonical one, however old an entry is."""
    host = "cart.shop.svc.cluster.local"
    cart = """
kind: Service
metadata: {namespace: shop, name: cart, creationTimestamp: "2026-01-02T00:00:00Z"}
spec: {clusterIP: 10.8.0.1, ports: [{port: 80}]}
"""
    texts = [cart, entry("same", host=host), entry("far", "bank", host=host)]
    for order in itertools.permutations(texts):
        mesh = Mesh(NAMESPACES, *order)
        assert (mesh.service("cart").name, mesh.service("cart").canonical) == ("cart", True)
        assert not mesh.host(host, "bank").canonical
        assert "served from the Service of that name" in mesh.problems("ServiceEntry", "same")[0]


@pytest.mark.fault(30)
def test_entries_of_a_host_in_two_namespaces_keep_their_own_waypoints() -> None:
    """Fault 30: of two entries for one host, each with an egress waypoint, traffic took the wrong one."""
    use = "istio.io/use-waypoint: egress"
    mesh = Mesh(
        NAMESPACES,
        waypoint("egress", "shop"),
        waypoint("egress", "bank"),
        entry("a", "shop", second=2, labels=use, spec=ip("10.9.0.1")),
        entry("a", "bank", second=1, labels=use, spec=ip("10.9.0.2")),
    )
    for namespace in ("shop", "bank"):
        bound = mesh.host("db.test", namespace).waypoint.hostname
        assert (bound.namespace, bound.hostname) == (namespace, f"egress.{namespace}.svc.cluster.local")
        condition = mesh.conditions("ServiceEntry", "a", namespace)["istio.io/WaypointBound"]
        assert f"{namespace}/egress" in condition.message
    assert "namespace bank" in mesh.problems("ServiceEntry", "a", "shop")[0]


STATUS = """
status:
  addresses:
  - {host: a.test, value: 240.240.0.7}
  - {host: a.test, value: "2001:2::7"}
  - {host: b.test, value: 240.240.0.9}
"""


@pytest.mark.fault(31)
def test_an_allocated_address_is_what_the_status_says_per_entry_and_host() -> None:
    """Fault 31: automatic addresses moved when another entry came. What is served is what the status of each entry
    holds, so a restart or another entry moves none. That they are allocated without collisions is for the writer of
    that status, which this server does not have yet."""
    first = entry("a", host="a.test, b.test") + STATUS
    mesh = Mesh(NAMESPACES, first)
    held = {host: [item.address for item in mesh.host(host).addresses] for host in ("a.test", "b.test")}
    assert [[len(raw) for raw in raws] for raws in held.values()] == [[4, 16], [4]]
    second = entry("b", host="a.test, c.test", second=9) + STATUS.replace("b.test", "c.test")
    assert mesh.apply(second) == Sent({"shop/c.test"})
    mesh.delete("ServiceEntry", "shop", "b")
    assert held == {host: [item.address for item in mesh.host(host).addresses] for host in ("a.test", "b.test")}
    restarted = Mesh(NAMESPACES, first)
    assert restarted.ztunnel.holds.services == mesh.ztunnel.holds.services


@pytest.mark.fault(31)
def test_explicit_addresses_come_before_allocated_ones() -> None:
    """Fault 31: an entry that has addresses of its own gets no others."""
    mesh = Mesh(NAMESPACES, entry("a", host="a.test", spec=ip("10.9.0.1")) + STATUS)
    assert addresses(mesh.host("a.test")) == ["10.9.0.1"]


@pytest.mark.fault(33)
def test_an_entry_without_resolution_passes_traffic_through() -> None:
    """Fault 33: `resolution: NONE` gave an address that nobody stood behind."""
    mesh = Mesh(NAMESPACES, entry("a", spec=ip("10.9.0.1")).replace("STATIC", "NONE"))
    assert mesh.host("db.test").load_balancing.mode == api.LoadBalancing.PASSTHROUGH
    assert addresses(mesh.host("db.test")) == ["10.9.0.1"]


@pytest.mark.fault(34)
def test_ranges_are_sent_with_their_length() -> None:
    """Fault 34: ranges of addresses were not supported. Overlapping ones are all sent; a client takes the longest
    prefix that holds an address."""
    mesh = Mesh(
        NAMESPACES,
        entry("a", host="a.test", spec=ip("10.9.0.0/24")),
        entry("b", host="b.test", spec=ip("10.9.0.0/16")),
        entry("c", host="c.test", spec=ip("10.9.0.7/32")),
    )
    assert [addresses(mesh.host(f"{name}.test")) for name in "abc"] == [["10.9.0.0/24"], ["10.9.0.0/16"], ["10.9.0.7"]]


def full(message: Message) -> Message:
    """The message with every field set, of a oneof the last one."""
    for field in message.DESCRIPTOR.fields:
        value: Any = {
            FieldDescriptor.CPPTYPE_STRING: b"1234" if field.type == FieldDescriptor.TYPE_BYTES else "text",
            FieldDescriptor.CPPTYPE_BOOL: True,
            FieldDescriptor.CPPTYPE_ENUM: 1,
        }.get(field.cpp_type, 7)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            full(getattr(message, field.name)["key"])
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            full(inner.add() if field.is_repeated else inner)
            if not field.is_repeated:
                inner.SetInParent()
        elif field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    return message


SHOWN_AS_VALUES = ("google.protobuf.UInt32Value", "google.protobuf.Empty")


def paths(message: Message, *, above: str = "") -> Iterator[str]:
    """The fields that are set, as paths of their names in JSON."""
    for field, value in message.ListFields():
        path = f"{above}.{field.json_name}"
        yield path
        kind = field.message_type
        if kind is not None and not kind.GetOptions().map_entry and kind.full_name not in SHOWN_AS_VALUES:
            yield from paths(value[0] if field.is_repeated else value, above=path)


def shown_paths(shown: Any, *, above: str = "") -> Iterator[str]:
    if isinstance(shown, list):
        yield from shown_paths(shown[0], above=above)
    elif isinstance(shown, dict):
        for key, value in shown.items():
            yield f"{above}.{key}"
            if key != "services":
                yield from shown_paths(value, above=f"{above}.{key}")


@pytest.mark.fault(34)
@pytest.mark.parametrize("kind", [api.Workload, api.Service, Authorization])
def test_tools_show_every_field_of_the_protocol(kind: type[Message]) -> None:
    """Fault 34: a tool left out of its output what was added to the protocol later. Ours shows what the message has, by
    reflection."""
    message = full(kind())
    assert set(shown_paths(readable.plain(message))) == set(paths(message))
    assert len(message.ListFields()) >= len(kind.DESCRIPTOR.fields) - 1, "one of a oneof is not set, all others are"


@pytest.mark.fault(34)
def test_the_table_of_services_shows_ranges() -> None:
    """Fault 34: ranges were sent, and missing from what the command line showed."""
    mesh = Mesh(NAMESPACES, entry("a", spec=ip("10.9.0.0/24")))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(tables.services_table([readable.plain(mesh.host("db.test"))], []))
    assert "10.9.0.0/24" in console.export_text()


@pytest.mark.fault(36)
def test_an_entry_without_an_address_is_told_that_it_bypasses_its_waypoint() -> None:
    """Fault 36: traffic to an entry without addresses did not pass its waypoint, and nobody said so."""
    use = "istio.io/use-waypoint: egress"
    mesh = Mesh(NAMESPACES, waypoint("egress", "shop"), entry("a", labels=use))
    (told,) = mesh.problems("ServiceEntry", "a")
    assert "must have an address for its traffic to pass the waypoint shop/egress" in told
    mesh.apply(entry("a", labels=use, spec=ip("10.9.0.1")))
    assert mesh.problems("ServiceEntry", "a") == ()


@pytest.mark.fault(37)
def test_an_external_name_is_not_published_and_takes_no_name_from_others() -> None:
    """Fault 37: ExternalName services broke the resolution of names."""
    alias = """
kind: Service
metadata: {namespace: shop, name: db}
spec: {type: ExternalName, externalName: db.example.org, ports: [{port: 5432}], selector: {app: db}}
"""
    pod = """
kind: Pod
metadata: {namespace: shop, name: db-0, labels: {app: db}}
status: {phase: Running, podIP: 10.0.0.1}
"""
    mesh = Mesh(NAMESPACES, pod)
    before = mesh.ztunnel.holds.workloads[f"{CLUSTER}//Pod/shop/db-0"]
    assert mesh.apply(alias) == Sent()
    assert not before.services
    mesh.apply(alias.replace("type: ExternalName, externalName: db.example.org", "clusterIP: 10.8.0.1"))
    assert list(mesh.pod("db-0").services) == [service_name("db")]
    assert mesh.apply(alias).removed == {service_name("db")}
    assert not mesh.pod("db-0").services
