"""The gRPC servers, plain and over TLS: listener, limits and keepalive (xds.md 2.2, 2.4), health and reflection. Must
not know the protocol, nor where certificates come from."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio
from envoy.service.discovery.v3 import ads_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ambientd.settings import Address, Settings
from ambientd.xds.service import SERVICE, Guard, Service

assert ads_pb2.DESCRIPTOR is not None  # reflection finds the service through the pool that this import fills


class CannotListen(Exception):
    """An address that cannot be listened on; one line for the operator."""


def options(settings: Settings, receive_limit_bytes: int) -> list[tuple[str, Any]]:
    """Channel options of a server. ztunnel pings every 30 s, and gRPC's default policy would take that for abuse."""
    chosen: list[tuple[str, Any]] = [
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", settings.max_streams),
        ("grpc.max_receive_message_length", receive_limit_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", round(settings.keepalive_interval_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(settings.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
        # gRPC would take more and more ahead of whoever reads, up to megabytes of each call.
        ("grpc.http2.bdp_probe", 0),
    ]
    if settings.max_connection_age_s is not None:
        # gRPC spreads the age by 10 % either way.
        chosen.append(("grpc.max_connection_age_ms", round(settings.max_connection_age_s * 1000)))
        chosen.append(("grpc.max_connection_age_grace_ms", 10_000))
    return chosen


Handlers = Mapping[str, "grpc.GenericRpcHandler[Any, Any]"]
"""Handlers of gRPC services, by the full name of the service."""


class Server:
    """One listener, opened when there is something to serve."""

    def __init__(
        self,
        address: Address,
        flag: str,
        chosen: list[tuple[str, Any]],
        handlers: Handlers,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """`flag`: that gave the address; `chosen`: options of gRPC; `credentials`: None: there is no TLS."""
        self._address = address
        self._flag = flag
        self._credentials = credentials
        self._server = grpc.aio.server(options=chosen)
        self._server.add_generic_rpc_handlers(tuple(handlers.values()))
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs are older
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((*handlers, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        self._services = tuple(handlers)
        self.port = 0
        """What is listened on, once open."""

    async def open(self) -> None:
        """Raises CannotListen."""
        check_listen(self._address, self._flag)
        host = self._address.host or "[::]"
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        where = f"{host}:{self._address.port}"
        try:
            if self._credentials is None:
                self.port = self._server.add_insecure_port(where)
            else:
                self.port = self._server.add_secure_port(where, self._credentials)
        except RuntimeError as error:
            raise CannotListen(_cannot(self._flag, self._address, "it is in use or not ours")) from error
        await self._server.start()
        for name in (*self._services, ""):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def close(self, grace_s: float) -> None:
        """Refuses new streams, and ends the open ones after `grace_s` seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


def plain_server(settings: Settings, ads: Service, guard: Guard) -> Server:
    """The one on 15010."""
    chosen = options(settings, settings.receive_limit_bytes)
    return Server(settings.grpc_addr, "--grpc-addr", chosen, {SERVICE: ads.handlers(guard)})


def secure_server(
    settings: Settings, ads: Service, guard: Guard, credentials: grpc.ServerCredentials, others: Handlers
) -> Server:
    """The one on 15012, with TLS. `others`: what else is served there."""
    assert settings.secure_grpc_addr is not None
    chosen = options(settings, settings.secure_receive_limit_bytes)
    handlers = {SERVICE: ads.handlers(guard), **others}
    return Server(settings.secure_grpc_addr, "--secure-grpc-addr", chosen, handlers, credentials)


def check_listen(address: Address, flag: str) -> None:
    """Whether an address can be listened on now, since gRPC would tell only when it opens. Raises CannotListen."""
    try:
        infos = socket.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotListen(_cannot(flag, address, f"its host is not known ({error.strerror})")) from None
    family, kind, protocol, _, where = infos[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
        except OSError as error:
            raise CannotListen(_cannot(flag, address, (error.strerror or str(error)).lower())) from None


def _cannot(flag: str, address: Address, reason: str) -> str:
    return f"{flag}: cannot listen on {address}: {reason}; free the port or give another address"
