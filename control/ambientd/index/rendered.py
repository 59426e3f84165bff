"""What the index hands to those who push: a resource as deterministic bytes, with the few facts about it that ordering
and lookups need. Must not know streams, frames or positions."""

from __future__ import annotations

import xxhash
from msgspec import Struct

from ambientd_api.security_pb2 import Authorization
from ambientd_api.workload_pb2 import Address


class RenderedAddress(Struct, frozen=True, gc=False):
    """An `istio.workload.Address`, a workload or a service."""

    name: str
    """Primary name (wire-contract.md 3.1)."""
    body: bytes
    version: str
    """XXH64 of `body`, lower-case hexadecimal without leading zeros (wire-contract.md 4.3)."""
    namespace: str
    aliases: tuple[str, ...] = ()
    """wire-contract.md 3.3."""
    policies: tuple[str, ...] = ()
    """`authorization_policies` of a workload."""
    services: tuple[str, ...] = ()
    """Keys of `services` of a workload."""
    node: str = ""
    is_workload: bool = True
    is_canonical: bool = False
    """`canonical` of a service."""
    references: tuple[str, ...] = ()
    """Primary names or aliases of the waypoints and network gateways that it names (xds.md 8.5.7)."""


class RenderedPolicy(Struct, frozen=True, gc=False):
    """An `istio.security.Authorization`."""

    name: str
    body: bytes
    version: str
    namespace: str
    scope: int
    """Number of the enum `istio.security.Scope`."""
    action: int
    """Number of the enum `istio.security.Action`."""
    rules: str
    """Equal where action and rules are equal, whatever the scope."""
    is_dry_run: bool = False


Rendered = RenderedAddress | RenderedPolicy


def render_policy(policy: Authorization) -> RenderedPolicy:
    """An `Authorization` with its bytes, version and the facts that ordering needs."""
    body = deterministic(policy)
    says = Authorization(action=policy.action, groups=policy.groups)
    return RenderedPolicy(
        name=f"{policy.namespace}/{policy.name}",
        body=body,
        version=version_of(body),
        namespace=policy.namespace,
        scope=int(policy.scope),
        action=int(policy.action),
        is_dry_run=policy.dry_run,
        rules=version_of(deterministic(says)),
    )


def version_of(body: bytes) -> str:
    """The version of a resource whose deterministic bytes are `body`."""
    return f"{xxhash.xxh64_intdigest(body):x}"


def deterministic(message: Address | Authorization) -> bytes:
    """The bytes of a message, map entries sorted, the same on every replica (wire-contract.md 4.3)."""
    return message.SerializeToString(deterministic=True)
