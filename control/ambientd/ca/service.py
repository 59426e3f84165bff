"""The gRPC service of the certificate authority (ca.md 2, 8, 9): who asks, whether they may, and the certificate. Holds
the order of these steps and what a client is told of each failure; must not decide (decide.py does), sign, or know how
a caller proves who it is."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError
from msgspec import Struct

from ambientd.ca.caller import Caller, CannotTell, Unauthenticated, cluster_named
from ambientd.ca.decide import Ask, Await, Issue, Reason, Refuse, Trust, decide
from ambientd.ca.limits import InFlight, TooMany, Turns
from ambientd.ca.orders import Signed, SignError
from ambientd.ca.signing import Busy, SigningFailed
from ambientd.ca.waiting import WAIT_S, Waiters
from ambientd.index.pods import Placement, PodIndex
from ambientd.resources.faults import quote
from ambientd_api.ca_pb2 import IstioCertificateRequest, IstioCertificateResponse

log = structlog.get_logger("serverca")

SERVICE = "istio.v1.auth.IstioCertificateService"
MESSAGE_LIMIT_BYTES = 4 << 20
"""What gRPC allows by default, and every client of this service keeps within; the port allows more, for xDS."""
REFUSED = "authentication failure"
"""All that a caller who is refused is told, whatever the reason: more would tell a node what runs elsewhere."""
READ_S = 10.0
"""Head and body of a request are milliseconds apart."""
_IN_FLIGHT_EACH = 256
_IN_FLIGHT = 8192
_REFUSALS_KEPT = 64
_QUOTED = 300

Context = grpc.aio.ServicerContext[Any, Any]
Authenticate = Callable[[Context], Awaitable[Caller]]
"""Finds out who calls. Raises Unauthenticated, CannotTell."""

_CODES = {
    SignError.NOT_READY: grpc.StatusCode.INTERNAL,
    SignError.CSR: grpc.StatusCode.INVALID_ARGUMENT,
    SignError.LIFETIME: grpc.StatusCode.INVALID_ARGUMENT,
    SignError.GENERATION: grpc.StatusCode.INTERNAL,
    SignError.UNKNOWN: grpc.StatusCode.INTERNAL,
}


class Observer(Protocol):
    """Who counts what happens to requests; the metrics are behind it."""

    def certificate_requested(self) -> None: ...

    def certificate_refused(self, reason: str) -> None:
        """`reason` is one of a closed set: `unauthenticated`, `cannot_tell`, or a `Reason` in small letters."""

    def certificate_failed(self, error: str) -> None:
        """`error` is the value of a `SignError`."""

    def certificate_turned_away(self) -> None:
        """There was too much to do."""

    def certificate_issued(self, took_s: float) -> None: ...


class Signing(Protocol):
    """What this service needs of a `Signer`."""

    async def sign(self, csr: str, subject_ids: Sequence[str], requested_s: int) -> Signed:
        """Raises SigningFailed, Busy."""


class Refusal(Struct, frozen=True):
    """One request that was refused, for operators."""

    at_s: float
    """Unix time."""
    peer: str
    caller: str
    """Empty: nobody whom we know."""
    cluster: str
    identity: str
    """Quoted and shortened; empty: its own."""
    node: str
    reason: str
    """Of `Observer.certificate_refused`."""
    text: str


class _Status(Exception):
    """How a call ends, other than with a certificate."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Certificates:
    """Answers CreateCertificate."""

    def __init__(
        self,
        authenticate: Authenticate,
        pods: PodIndex,
        trust: Callable[[], Trust],
        signer: Signing,
        waiters: Waiters,
        observer: Observer,
        *,
        wait_s: float = WAIT_S,
        read_s: float = READ_S,
    ) -> None:
        """`trust` gives what holds at the moment, mesh configuration included. `waiters` is woken by whoever feeds
        `pods`. `wait_s`: how long a pod that is just appearing is waited for, seconds; `read_s`: how long the
        body of a request is."""
        self._authenticate = authenticate
        self._pods = pods
        self._trust = trust
        self._signer = signer
        self._waiters = waiters
        self._observer = observer
        self._wait_s = wait_s
        self._read_s = read_s
        self._of_peers = InFlight(_IN_FLIGHT_EACH, _IN_FLIGHT)
        self._of_callers = InFlight(_IN_FLIGHT_EACH)
        self._reading = Turns()
        self._refusals: deque[Refusal] = deque(maxlen=_REFUSALS_KEPT)

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """For a server. Requests arrive as bytes, so that nothing of a stranger is parsed before it is known."""
        # On the wire a call of one message each way is a stream; for this one we are called before its message is here.
        method = grpc.stream_stream_rpc_method_handler(self._call)
        return grpc.method_handlers_generic_handler(SERVICE, {"CreateCertificate": method})

    def refusals(self) -> tuple[Refusal, ...]:
        """The last ones, oldest first."""
        return tuple(self._refusals)

    async def _call(self, _: object, context: Context) -> None:
        # A ztunnel writes the head of a request and its body one after the other, and its system holds the body back
        # until the head is acknowledged; ours takes 40 ms for that, unless there is something to send.
        await context.send_initial_metadata(())
        await context.write(await self._create(context))

    async def _create(self, context: Context) -> bytes:
        peer, started_s = context.peer(), time.monotonic()
        self._observer.certificate_requested()
        try:
            with self._of_peers.one(peer):
                caller = await self._known(context, peer)
                with self._of_callers.one(caller):
                    answer = await self._answer(context, peer, caller)
            self._observer.certificate_issued(time.monotonic() - started_s)
            return answer
        except TooMany:
            self._observer.certificate_turned_away()
            code, text = grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests at one time"
        except _Status as status:
            code, text = status.code, str(status)
        except Exception as error:
            # Only its type: the text of an error that we do not know may quote anything.
            log.error("a certificate request failed by an error of ours", peer=peer, error=type(error).__name__)
            self._observer.certificate_failed(SignError.UNKNOWN.value)
            code, text = grpc.StatusCode.INTERNAL, "internal error"
        await context.abort(code, text)
        raise AssertionError("abort raises")

    async def _known(self, context: Context, peer: str) -> Caller:
        """Who calls: before anything is read, so that nobody unknown can keep a call open. Raises _Status."""
        try:
            return await self._authenticate(context)
        except Unauthenticated as error:
            self._refuse(peer, "unauthenticated", error.reason)
            raise _Status(grpc.StatusCode.UNAUTHENTICATED, REFUSED) from None
        except CannotTell as error:
            self._refuse(peer, "cannot_tell", error.reason)
            raise _Status(grpc.StatusCode.UNAVAILABLE, "cannot authenticate at the moment") from None

    async def _answer(self, context: Context, peer: str, caller: Caller) -> bytes:
        """Raises _Status."""
        raw = await self._read(context, caller)
        try:
            request = IstioCertificateRequest.FromString(raw)
        except DecodeError:
            raise _Status(grpc.StatusCode.INTERNAL, "the request is no IstioCertificateRequest") from None
        ask = Ask(caller, cluster_named(context.invocation_metadata() or ()), _impersonated(request))
        issue = await self._decide(ask, peer)
        signed = await self._sign(request, issue, ask, peer)
        log.info(
            "certificate issued",
            peer=peer,
            caller=str(caller),
            pod_uid=caller.pod_uid,
            cluster=quote(ask.cluster, _QUOTED),
            identity=issue.identity,
            node=issue.node,
            serial=signed.serial,
            not_before_s=signed.not_before_s,
            not_after_s=signed.not_after_s,
            public_key_sha256=signed.key_sha256,
        )
        return IstioCertificateResponse(cert_chain=signed.elements).SerializeToString()

    async def _read(self, context: Context, caller: Caller) -> bytes:
        """The request. Its size is seen only once all of it is in memory, so that a caller has one read at a time.
        Raises _Status."""
        try:
            async with asyncio.timeout(self._read_s), self._reading.turn(caller):
                raw = await context.read()
        except TimeoutError:
            text = f"the request did not come within {self._read_s:g} s"
            raise _Status(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None
        if not isinstance(raw, bytes):
            raise _Status(grpc.StatusCode.INTERNAL, "there is no request")
        if len(raw) > MESSAGE_LIMIT_BYTES:
            raise _Status(grpc.StatusCode.RESOURCE_EXHAUSTED, f"a request may have {MESSAGE_LIMIT_BYTES} bytes")
        return raw

    async def _decide(self, ask: Ask, peer: str) -> Issue:
        """Raises _Status. What a request waits for is waited for until one moment, however often it is woken."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._wait_s
        while True:
            trust = self._trust()
            decision = decide(ask, self._pods, trust)
            if isinstance(decision, Issue):
                return decision
            refuse: Refuse | None
            if isinstance(decision, Await):
                refuse = await self._wait(decision.placement, ask, until_s - loop.time())
            else:
                refuse = decision
            if refuse is not None:
                reason = refuse.reason
                self._refuse(peer, reason.name.lower(), reason.value, ask=ask, node=refuse.node, trust=trust)
                raise _Status(grpc.StatusCode.UNAUTHENTICATED, REFUSED)

    async def _wait(self, placement: Placement, ask: Ask, left_s: float) -> Refuse | None:
        """None: decide again."""
        if left_s <= 0:
            return Refuse(Reason.NOT_ON_NODE, placement.node)
        try:
            await self._waiters.wait(placement, ask.caller.pod_uid, left_s)
        except TooMany:
            return Refuse(Reason.TOO_MANY_WAIT, placement.node)
        return None

    async def _sign(self, request: IstioCertificateRequest, issue: Issue, ask: Ask, peer: str) -> Signed:
        """Raises _Status."""
        try:
            signed = await self._signer.sign(request.csr, (issue.identity,), request.validity_duration)
        except Busy as error:
            self._observer.certificate_turned_away()
            raise _Status(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)) from None
        except SigningFailed as error:
            self._observer.certificate_failed(error.error.value)
            log.error(
                "certificate not signed",
                peer=peer,
                caller=str(ask.caller),
                identity=issue.identity,
                error=error.error.value,
                reason=str(error),
            )
            raise _Status(_CODES[error.error], str(error)) from None
        if signed.lacks_common_name:
            log.error("certificate without the common name that was asked for: too long", identity=issue.identity)
        return signed

    def _refuse(
        self,
        peer: str,
        reason: str,
        text: str,
        *,
        ask: Ask | None = None,
        node: str = "",
        trust: Trust | None = None,
    ) -> None:
        self._observer.certificate_refused(reason)
        refusal = Refusal(
            at_s=time.time(),
            peer=peer,
            caller="" if ask is None else str(ask.caller),
            cluster="" if ask is None else quote(ask.cluster, _QUOTED),
            identity="" if ask is None or not ask.identity else quote(ask.identity, _QUOTED),
            node=node,
            reason=reason,
            text=text,
        )
        self._refusals.append(refusal)
        fields: dict[str, object] = {}
        if trust is not None and reason == Reason.UNTRUSTED_ACCOUNT.name.lower():
            fields["trusted"] = [str(account) for account in sorted(trust.accounts)]
        if trust is not None and reason == Reason.UNKNOWN_CLUSTER.name.lower():
            fields["known"] = sorted(trust.clusters)
        log.warning(
            "certificate refused",
            peer=peer,
            caller=refusal.caller,
            cluster=refusal.cluster,
            identity=refusal.identity,
            node=node,
            reason=text,
            **fields,
        )


def _impersonated(request: IstioCertificateRequest) -> str:
    """The identity on whose behalf the caller asks; a value that is no text counts as absent (ca.md 2)."""
    fields = request.metadata.fields
    # The text of a value of another kind is empty.
    return fields["ImpersonatedIdentity"].string_value if "ImpersonatedIdentity" in fields else ""
