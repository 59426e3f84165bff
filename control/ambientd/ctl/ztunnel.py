"""What a ztunnel does with what it is told (xds.md 17), without a connection: requests and answers as values. Used by
`ambientctl watch`, and by tests as the client that the server has to please. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from msgspec import Struct

from ambientd_api.security_pb2 import Authorization
from ambientd_api.workload_pb2 import Address, GatewayAddress, LoadBalancing, Service, TunnelProtocol, Workload

ADDRESS = "type.googleapis.com/istio.workload.Address"
AUTHORIZATION = "type.googleapis.com/istio.security.Authorization"
_TYPES = (ADDRESS, AUTHORIZATION)

Held = Workload | Service | Authorization


class Change(Struct, frozen=True):
    """One resource that was added (`before` is None), replaced, or removed (`after` is None)."""

    kind: str
    """`workload`, `service` or `policy`."""
    name: str
    before: Held | None
    after: Held | None


class Applied(Struct, frozen=True):
    """What one response did, and the request that acknowledges or rejects it."""

    answer: DeltaDiscoveryRequest
    changes: tuple[Change, ...]
    unchanged: int = 0
    """Resources that were sent although the client held exactly them."""


class Rejected(Exception):
    """A resource that a ztunnel does not take; the text is what it reports."""


class SimulatedZtunnel:
    """One client: what it holds survives its streams. Workloads are held by uid, services and policies by
    `<namespace>/<hostname or name>`."""

    def __init__(
        self,
        name: str = "ztunnel-simulated",
        namespace: str = "istio-system",
        *,
        node_name: str = "",
        ip: str = "1.1.1.1",
        is_on_demand: bool = False,
    ) -> None:
        self.workloads: dict[str, Workload] = {}
        self.services: dict[str, Service] = {}
        self.policies: dict[str, Authorization] = {}
        self.versions: dict[str, dict[str, str]] = {type_url: {} for type_url in _TYPES}
        """Per type: names that are claimed at the next connection, with their versions."""
        self.last_rejection = ""
        """Message of the last NACK; empty when the last response was acknowledged."""
        self._is_on_demand = is_on_demand
        self._acknowledged: set[str] = set()
        self._node = Node(id=f"ztunnel~{ip}~{name}.{namespace}~{namespace}.svc.cluster.local")
        self._node.metadata.update(
            {
                "NAME": name,
                "NAMESPACE": namespace,
                "CLUSTER_ID": "Kubernetes",
                "NODE_NAME": node_name,
                "INSTANCE_IPS": ip,
            }
        )

    @property
    def is_ready(self) -> bool:
        """Every type that is not on demand was answered once, and that answer was acknowledged."""
        needed = {AUTHORIZATION} if self._is_on_demand else set(_TYPES)
        return needed <= self._acknowledged

    def first_requests(self) -> tuple[DeltaDiscoveryRequest, ...]:
        """What opens a new stream: Address, then Authorization, each with what is held of it."""
        requests = tuple(
            DeltaDiscoveryRequest(node=self._node, type_url=type_url, initial_resource_versions=self.versions[type_url])
            for type_url in _TYPES
        )
        if self._is_on_demand:
            # Both at once means: nothing yet.
            requests[0].resource_names_subscribe.append("*")
            requests[0].resource_names_unsubscribe.append("*")
        return requests

    def ask(self, key: str) -> DeltaDiscoveryRequest:
        """The request of an on-demand client that needs this key now: `<network>/<ip>`, a uid or a service's name."""
        self.versions[ADDRESS].setdefault(key, "")
        return DeltaDiscoveryRequest(type_url=ADDRESS, resource_names_subscribe=[key])

    def apply(self, response: DeltaDiscoveryResponse) -> Applied:
        """Takes a response: updates first, then removals. What cannot be taken is rejected by name, the rest counts."""
        answer = DeltaDiscoveryRequest(type_url=response.type_url, response_nonce=response.nonce)
        if response.type_url not in _TYPES:
            return Applied(answer, ())
        changes: list[Change] = []
        rejections: list[str] = []
        unchanged = 0
        versions = self.versions[response.type_url]
        for resource in response.resources:
            try:
                change = self._update(response.type_url, resource)
            except Rejected as rejected:
                rejections.append(f"{resource.name}: {rejected}")
                continue
            versions[resource.name] = resource.version
            if change.before == change.after:
                unchanged += 1
            else:
                changes.append(change)
        for name in response.removed_resources:
            versions.pop(name, None)
            changes.extend(self._remove(response.type_url, name))
        self.last_rejection = "; ".join(rejections)
        if rejections:
            answer.error_detail.message = self.last_rejection
        else:
            self._acknowledged.add(response.type_url)
        return Applied(answer, tuple(changes), unchanged)

    def _update(self, type_url: str, resource: Resource) -> Change:
        """Raises Rejected."""
        if not resource.HasField("resource"):
            raise Rejected("missing resource")
        if type_url == AUTHORIZATION:
            policy = decode_policy(resource.resource.value)
            name = f"{policy.namespace}/{policy.name}"
            before_policy = self.policies.get(name)
            self.policies[name] = policy
            return Change("policy", name, before_policy, policy)
        item = decode_address(resource.resource.value)
        if isinstance(item, Workload):
            before_workload = self.workloads.get(item.uid)
            self.workloads[item.uid] = item
            return Change("workload", item.uid, before_workload, item)
        name = f"{item.namespace}/{item.hostname}"
        before_service = self.services.get(name)
        self.services[name] = item
        return Change("service", name, before_service, item)

    def _remove(self, type_url: str, name: str) -> Iterator[Change]:
        if type_url == AUTHORIZATION:
            policy = self.policies.pop(name, None)
            if policy is not None:
                yield Change("policy", name, policy, None)
            return
        workload = self.workloads.pop(name, None)
        if workload is not None:
            yield Change("workload", name, workload, None)
            return
        service = self.services.pop(name, None)
        if service is not None:
            yield Change("service", name, service, None)


def decode_address(raw: bytes) -> Workload | Service:
    """The workload or service of an Address, checked as a ztunnel checks it (xds.md 17, item 8). Raises Rejected."""
    address = Address()
    _parse(address, raw)
    match address.WhichOneof("type"):
        case "workload":
            _check_workload(address.workload)
            return address.workload
        case "service":
            _check_service(address.service)
            return address.service
    raise Rejected("an address must be a workload or a service")


def decode_policy(raw: bytes) -> Authorization:
    """Raises Rejected. Addresses in matches are not checked: a ztunnel silently drops those that it cannot read."""
    policy = Authorization()
    _parse(policy, raw)
    _check_enums(policy)
    return policy


def _parse(message: Message, raw: bytes) -> None:
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise Rejected(f"failed to decode: {error}") from None


def _check_workload(workload: Workload) -> None:
    _check_enums(workload)
    if workload.tunnel_protocol == TunnelProtocol.LEGACY_ISTIO_MTLS:
        raise Rejected("failed to parse enum: unsupported tunnel protocol: legacy istio mtls")
    for raw in workload.addresses:
        _check_ip(raw)
    for field in ("waypoint", "network_gateway"):
        if workload.HasField(field):
            _check_gateway(getattr(workload, field))
    for name in workload.services:
        if "/" not in name:
            raise Rejected(f"failed to parse namespaced hostname: {name}")


def _check_service(service: Service) -> None:
    _check_enums(service)
    for address in service.addresses:
        _check_ip(address.address)
    if service.HasField("waypoint"):
        _check_gateway(service.waypoint)
    for weighted in service.weighted_waypoints:
        _check_gateway(weighted.destination)
    if LoadBalancing.Scope.UNSPECIFIED_SCOPE in service.load_balancing.routing_preference:
        raise Rejected("failed to parse enum: unspecified scope of load balancing")


def _check_gateway(gateway: GatewayAddress) -> None:
    match gateway.WhichOneof("destination"):
        case None:
            raise Rejected("a gateway address must have a destination")
        case "address":
            _check_ip(gateway.address.address)


def _check_ip(raw: bytes) -> None:
    if len(raw) not in (4, 16):
        raise Rejected(f"byte address must be 4 or 16 bytes, got {len(raw)}")


def _check_enums(message: Message) -> None:
    """Numbers that a ztunnel does not know, anywhere in the message. The visibility of a service falls back."""
    for field, value in message.ListFields():
        if field.enum_type is not None:
            numbers = value if field.is_repeated else (value,)
            unknown = [number for number in numbers if number not in field.enum_type.values_by_number]
            if unknown and field.full_name != "istio.workload.Service.visibility":
                raise Rejected(f"failed to parse enum: {field.name} {unknown[0]}")
        elif field.message_type is not None:
            for inner in _messages(field, value):
                _check_enums(inner)


def _messages(field: FieldDescriptor, value: Any) -> Iterator[Message]:
    if isinstance(value, Message):
        yield value
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        yield from (inner for inner in value.values() if isinstance(inner, Message))
    else:
        yield from value
