"""Kinds of gateway.networking.k8s.io (waypoints.md 1 to 5; workloads.md 7.2)."""

from __future__ import annotations

from msgspec import Struct

from ambientd.resources.mesh import LabelSelector
from ambientd.resources.ref import Labels, Ref


class GatewayStatusAddress(Struct, frozen=True, gc=False):
    type: str
    """`IPAddress` (the API server's default), `Hostname`, or what was written."""
    value: str


class Listener(Struct, frozen=True, gc=False):
    name: str
    port: int
    protocol: str
    tls_mode: str
    allowed_from: str | None
    """`allowedRoutes.namespaces.from`; None: nothing is configured."""
    allowed_selector: LabelSelector | None


class Gateway(Struct, frozen=True, gc=False):
    ref: Ref
    labels: Labels
    annotations: Labels
    created: str
    class_name: str
    listeners: tuple[Listener, ...]
    addresses: tuple[GatewayStatusAddress, ...]
    """`status.addresses`."""


class GatewayClass(Struct, frozen=True, gc=False):
    ref: Ref
    labels: Labels
    annotations: Labels
    controller: str
