"""The messages on the wire are those of the contract: names, numbers and types (`fields.json`), and bytes and versions
(`vectors.json`). Both files are data from the contract; nothing in them is made by the code under test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import Message

from ambientd_api import ca_pb2, security_pb2, workload_pb2

CASES = Path(__file__).parents[1] / "cases" / "wire"
CONTRACT: dict[str, Any] = json.loads((CASES / "fields.json").read_text())
VECTORS: list[dict[str, Any]] = json.loads((CASES / "vectors.json").read_text())
FILES: tuple[FileDescriptor, ...] = (workload_pb2.DESCRIPTOR, security_pb2.DESCRIPTOR, ca_pb2.DESCRIPTOR)
TYPES: dict[str, type[Message]] = {
    "istio.workload.Address": workload_pb2.Address,
    "istio.security.Authorization": security_pb2.Authorization,
}
SCALARS = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_INT64: "int64",
}


def messages() -> Iterator[Descriptor]:
    for file in FILES:
        yield from file.message_types_by_name.values()


def enums() -> Iterator[EnumDescriptor]:
    for file in FILES:
        yield from file.enum_types_by_name.values()
    for message in messages():
        yield from message.enum_types_by_name.values()


def type_of(field: FieldDescriptor) -> str:
    """The field's type as the contract writes it: names of its own package without the package."""
    assert field.containing_type is not None
    own = f"{field.containing_type.file.package}."
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields_by_number[1], field.message_type.fields_by_number[2]
        return f"map<{type_of(key)}, {type_of(value)}>"
    if field.message_type is not None:
        return field.message_type.full_name.removeprefix(own)
    if field.enum_type is not None:
        return f"enum {field.enum_type.full_name.removeprefix(own)}"
    return SCALARS[field.type]


def label_of(field: FieldDescriptor) -> str:
    if type_of(field).startswith("map<"):
        return "map"
    if field.is_repeated:
        return "repeated (packed)" if field.is_packed and field.enum_type is None else "repeated"
    if field.containing_oneof is not None and len(field.containing_oneof.fields) > 1:
        return f"oneof {field.containing_oneof.name}"
    # A sub-message always has presence; the contract says so only of scalars.
    return "optional with presence" if field.has_presence and field.message_type is None else "optional"


def shape_of(message: Descriptor) -> dict[str, Any]:
    copied = descriptor_pb2.DescriptorProto()
    message.CopyToProto(copied)
    shape: dict[str, Any] = {
        "fields": sorted([f.number, f.name, f.json_name, type_of(f), label_of(f)] for f in message.fields)
    }
    if numbers := [n for span in copied.reserved_range for n in range(span.start, span.end)]:
        shape["reserved_numbers"] = numbers
    if copied.reserved_name:
        shape["reserved_names"] = list(copied.reserved_name)
    return shape


def serialised(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def test_the_contract_and_the_descriptors_name_the_same_messages() -> None:
    assert sorted(m.full_name for m in messages()) == sorted(CONTRACT["messages"])


@pytest.mark.parametrize("message", list(messages()), ids=lambda m: m.full_name)
def test_a_message_has_exactly_the_fields_of_the_contract(message: Descriptor) -> None:
    assert shape_of(message) == CONTRACT["messages"][message.full_name]


def test_enums_have_exactly_the_values_of_the_contract() -> None:
    assert {e.full_name: {v.name: v.number for v in e.values} for e in enums()} == CONTRACT["enums"]


def test_the_certificate_service_has_exactly_the_methods_of_the_contract() -> None:
    found = {
        service.full_name: {m.name: [m.input_type.full_name, m.output_type.full_name] for m in service.methods}
        for service in ca_pb2.DESCRIPTOR.services_by_name.values()
    }
    assert found == CONTRACT["methods"]


def test_descriptors_are_registered_under_the_name_of_our_package() -> None:
    assert [f.name for f in FILES] == [
        "ambientd_api/workload.proto",
        "ambientd_api/security.proto",
        "ambientd_api/ca.proto",
    ]


@pytest.mark.parametrize("name", CONTRACT["envoy"])
def test_published_envoy_messages_number_the_fields_that_we_use_as_the_contract_does(name: str) -> None:
    # Importing the module is what puts its messages, and those that they hold, in the pool.
    assert discovery_pb2.DESCRIPTOR.package == "envoy.service.discovery.v3"
    published = descriptor_pool.Default().FindMessageTypeByName(name).fields_by_number
    assert [[number, published[number].name] for number, _ in CONTRACT["envoy"][name]] == CONTRACT["envoy"][name]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["label"])
def test_a_resource_is_named_by_its_content(vector: dict[str, Any]) -> None:
    message = json_format.ParseDict(vector["object"], TYPES[vector["type"]]())
    if isinstance(message, security_pb2.Authorization):
        name = f"{message.namespace}/{message.name}"
    elif isinstance(message, workload_pb2.Address) and message.HasField("service"):
        name = f"{message.service.namespace}/{message.service.hostname}"
    else:
        assert isinstance(message, workload_pb2.Address)
        name = message.workload.uid
    assert name == vector["name"]


@pytest.mark.parametrize("vector", [v for v in VECTORS if "version" in v], ids=lambda v: v["label"])
def test_the_version_is_the_hash_of_the_deterministic_bytes(vector: dict[str, Any]) -> None:
    resource = serialised(json_format.ParseDict(vector["object"], TYPES[vector["type"]]()))
    assert f"{xxhash.xxh64_intdigest(resource):x}" == vector["version"]


@pytest.mark.parametrize("vector", [v for v in VECTORS if "hex" in v], ids=lambda v: v["label"])
def test_the_bytes_are_those_of_the_contract(vector: dict[str, Any]) -> None:
    assert serialised(json_format.ParseDict(vector["object"], TYPES[vector["type"]]())).hex() == vector["hex"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["label"])
def test_no_field_is_lost_on_the_way_through_the_wire(vector: dict[str, Any]) -> None:
    sent = json_format.ParseDict(vector["object"], TYPES[vector["type"]]())
    assert json_format.MessageToDict(TYPES[vector["type"]].FromString(serialised(sent))) == vector["object"]


def test_the_hash_of_nothing_is_that_of_seed_0() -> None:
    assert f"{xxhash.xxh64_intdigest(b''):x}" == "ef46db3751d8e999"


def test_bytes_do_not_depend_on_the_order_in_which_a_map_was_filled() -> None:
    names = [f"shop/{letter}.shop.svc.cluster.local" for letter in "dbecaf"]
    forth, back = workload_pb2.Workload(), workload_pb2.Workload()
    for name in names:
        forth.services[name].ports.add(service_port=80)
    for name in reversed(names):
        back.services[name].ports.add(service_port=80)
    assert serialised(forth) == serialised(back)
    assert [serialised(forth).index(name.encode()) for name in sorted(names)] == sorted(
        serialised(forth).index(name.encode()) for name in names
    )


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (workload_pb2.Workload(application_tunnel=workload_pb2.ApplicationTunnel()), "ba0100"),
        (workload_pb2.Workload(services={"a/b": workload_pb2.PortList()}), "b201070a03612f621200"),
        (security_pb2.Authorization(groups=[security_pb2.Group()]), "2a00"),
        (security_pb2.StringMatch(presence=empty_pb2.Empty()), "2200"),
        (workload_pb2.NetworkAddress(length=0), "1800"),
    ],
    ids=["tunnel", "service without ports", "group without rules", "presence", "length"],
)
def test_what_is_present_and_empty_is_written(message: Message, expected: str) -> None:
    assert serialised(message).hex() == expected
