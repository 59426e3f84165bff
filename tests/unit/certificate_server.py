"""A certificate service on a real port, with callers that are known by made-up tokens, and a signing process's core in
this process. No test stands here."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from cryptography import x509
from msgspec import Struct
from msgspec.structs import replace

from ambientd.ca.authority import Authority, Lifetimes, Unusable
from ambientd.ca.caller import Caller, CannotTell, Unauthenticated
from ambientd.ca.decide import Trust
from ambientd.ca.orders import Failed, Rejected, Sign, Signed, Use
from ambientd.ca.service import READ_S, SERVICE, Certificates, Context, Signing
from ambientd.ca.signing import SigningFailed
from ambientd.ca.waiting import Waiters
from ambientd.ca.worker import Worker
from ambientd.debug.certificate_metrics import CertificateMetrics
from ambientd.index.pods import AccountRef, PodIndex
from ambientd.resources.events import Event
from ambientd_api.ca_pb2 import IstioCertificateRequest, IstioCertificateResponse
from tests.unit.authorities import NOW, csr, pem_of, self_signed
from tests.unit.worlds import CLUSTER, events

METHOD = f"/{SERVICE}/CreateCertificate"
CSR = pem_of(csr())
ZTUNNEL = AccountRef("istio-system", "ztunnel")
CALLERS: Mapping[str, Caller] = {
    "token-of-z": Caller("istio-system", "ztunnel", "cluster.local", "ztunnel-a", "12345"),
    "token-of-z2": Caller("istio-system", "ztunnel", "cluster.local", "ztunnel-b", "23456"),
    "token-of-a": Caller("ns-a", "sa-a", "cluster.local", "a-1", "a1"),
    "unbound": Caller("istio-system", "ztunnel", "cluster.local"),
}
Metadata = Sequence[tuple[str, str]]


def identity(namespace: str, account: str) -> str:
    return f"spiffe://cluster.local/ns/{namespace}/sa/{account}"


def pod(namespace: str, name: str, *, uid: str, account: str, node: str = "n1", phase: str = "Running") -> list[Event]:
    return list(
        events(
            f"""
            kind: Pod
            metadata: {{namespace: {namespace}, name: {name}, uid: "{uid}"}}
            spec: {{serviceAccountName: {account}, nodeName: "{node}", containers: []}}
            status: {{phase: {phase}}}
            """
        )
    )


Z = pod("istio-system", "ztunnel-a", uid="12345", account="ztunnel")
Z2 = pod("istio-system", "ztunnel-b", uid="23456", account="ztunnel", node="n2")
A = pod("ns-a", "a-1", uid="a1", account="sa-a")


class Inline:
    """Signs in this process, at a fixed time."""

    def __init__(self, authority: Authority | None = None, lifetimes: Lifetimes | None = None) -> None:
        self.worker = Worker()
        self.authority = self_signed() if authority is None else authority
        self.use(self.authority, lifetimes)
        self.signed: list[Sign] = []
        self.now = NOW

    def use(self, authority: Authority, lifetimes: Lifetimes | None = None) -> None:
        answer = self.worker.handle(Use(0, authority, lifetimes or Lifetimes()), NOW)
        if isinstance(answer, Rejected):
            raise Unusable(answer.source, answer.faults)

    async def sign(self, csr: str, subject_ids: Sequence[str], requested_s: int, *, is_limited: bool = True) -> Signed:
        order = Sign(0, csr, tuple(subject_ids), requested_s, is_limited)
        self.signed.append(order)
        answer = self.worker.handle(order, self.now)
        if isinstance(answer, Failed):
            raise SigningFailed(answer.error, answer.text)
        assert isinstance(answer, Signed)
        return answer


class Aborted(Exception):
    """What a context does at `abort`."""


class Call:
    """A context without a connection, for calls by the thousand."""

    def __init__(self, raw: bytes, metadata: Metadata, peer: str) -> None:
        self._raw = raw
        self._metadata = metadata
        self._peer = peer
        self.status = self.details = ""
        self.written = b""

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        pass

    async def read(self) -> bytes:
        return self._raw

    async def write(self, raw: bytes) -> None:
        self.written = raw

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        self.status, self.details = code.name, details
        raise Aborted


class _Details(Struct):
    method: str
    invocation_metadata: Metadata = ()


class Served:
    """A running service, and how to ask it."""

    def __init__(self, signer: Signing, wait_s: float, read_s: float = READ_S) -> None:
        self.pods = PodIndex(CLUSTER)
        self.waiters = Waiters()
        self.metrics = CertificateMetrics()
        self.trust = Trust(frozenset({ZTUNNEL}), frozenset({CLUSTER}))
        self.callers = dict(CALLERS)
        """By their tokens."""
        self.outage = ""
        self.is_open = asyncio.Event()
        """Callers are looked at."""
        self.is_open.set()
        self.service = Certificates(
            self._authenticate,
            self.pods,
            lambda: self.trust,
            signer,
            self.waiters,
            self.metrics,
            wait_s=wait_s,
            read_s=read_s,
        )
        self.channel: grpc.aio.Channel

    async def _authenticate(self, context: Context) -> Caller:
        await self.is_open.wait()
        if self.outage:
            raise CannotTell(self.outage)
        for key, value in context.invocation_metadata() or ():
            if key == "authorization" and isinstance(value, str) and value.startswith("Bearer "):
                caller = self.callers.get(value.removeprefix("Bearer "))
                if caller is None:
                    raise Unauthenticated("the API server does not know the token")
                return caller
        raise Unauthenticated("there is no bearer token")

    def change_trust(self, **changes: Any) -> None:
        self.trust = replace(self.trust, **changes)

    def emit(self, happened: Sequence[Event]) -> None:
        self.waiters.appeared(self.pods.apply(happened))

    async def call(
        self, raw: bytes, metadata: Metadata, peer: str = "ipv4:10.0.0.1:40000"
    ) -> tuple[str, IstioCertificateResponse | None]:
        """As `send`, without a connection: the status, and what came."""
        context, response = await self.answer(raw, metadata, peer)
        return context.status or "OK", response

    async def answer(
        self, raw: bytes, metadata: Metadata, peer: str = "ipv4:10.0.0.1:40000"
    ) -> tuple[Call, IstioCertificateResponse | None]:
        """As `call`, with all that the caller is told."""
        context = Call(raw, metadata, peer)
        method: Any = self.service.handlers().service(_Details(METHOD))  # type: ignore[arg-type]
        try:
            await method.stream_stream(None, context)
        except Aborted:
            return context, None
        return context, IstioCertificateResponse.FromString(context.written)

    async def send(self, raw: bytes, metadata: Metadata) -> IstioCertificateResponse:
        method = self.channel.unary_unary(METHOD, None, None)
        return IstioCertificateResponse.FromString(await method(raw, metadata=metadata, timeout=20))

    async def ask(
        self,
        wanted: Any = None,
        *,
        token: str | None = "token-of-z",
        text: str = CSR,
        requested_s: int = 86_400,
        cluster: Sequence[str] = (CLUSTER,),
        fields: Mapping[str, Any] | None = None,
        headers: Metadata = (),
    ) -> IstioCertificateResponse:
        request = IstioCertificateRequest(csr=text, validity_duration=requested_s)
        if wanted is not None:
            request.metadata.update({"ImpersonatedIdentity": wanted})
        if fields is not None:
            request.metadata.update(fields)
        metadata = [("clusterid", each) for each in cluster] + list(headers)
        if token is not None:
            metadata.append(("authorization", f"Bearer {token}"))
        return await self.send(request.SerializeToString(), metadata)

    def counts(self) -> dict[str, float]:
        return {
            sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
            for series in self.metrics.series
            for sample in series.samples()
            if series.kind == "counter"
        }


async def code_of(call: Any) -> tuple[str, str]:
    """Name of the status that a call ends with, and its text."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


def leaf_of(response: IstioCertificateResponse) -> x509.Certificate:
    return x509.load_pem_x509_certificate(response.cert_chain[0].encode())


def names_of(response: IstioCertificateResponse) -> list[str]:
    """All subject alternative names of the leaf."""
    names = leaf_of(response).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


@asynccontextmanager
async def serve(
    *happened: Sequence[Event],
    signer: Signing | None = None,
    wait_s: float = 0.05,
    read_s: float = READ_S,
    prepare: Callable[[Served], None] | None = None,
) -> AsyncIterator[Served]:
    served = Served(Inline() if signer is None else signer, wait_s, read_s)
    for each in happened:
        served.emit(each)
    if prepare is not None:
        prepare(served)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 << 20), ("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((served.service.handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        served.channel = channel
        yield served
    await server.stop(None)


def lifetime_of(response: IstioCertificateResponse) -> datetime.timedelta:
    leaf = leaf_of(response)
    return leaf.not_valid_after_utc - NOW
