"""CreateCertificate as clients see it (ca.md 2, 5, 8, 9; tables 21.1 to 21.4 and 21.8)."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from ambientd.ca.authority import Lifetimes
from ambientd.ca.orders import Signed
from ambientd.ca.service import REFUSED
from ambientd.ca.waiting import LIMIT_PER_CALLER, WAIT_S
from ambientd.resources.events import Delete, Event
from ambientd.resources.mesh import LabelSelector
from ambientd_api.ca_pb2 import IstioCertificateRequest, IstioCertificateResponse
from tests.unit.authorities import certify, csr, files, intermediate, key, pem_of, plugged_in, root, usage
from tests.unit.certificate_server import (
    CSR,
    METHOD,
    Z2,
    A,
    Inline,
    Served,
    Z,
    code_of,
    identity,
    leaf_of,
    lifetime_of,
    names_of,
    pod,
    serve,
)
from tests.unit.patience import until
from tests.unit.test_ca_decide import ask_of, every_row, history_of, trust_in
from tests.unit.test_ca_requests import by_hand, uri_san
from tests.unit.worlds import CLUSTER, events, ref

OF_A = identity("ns-a", "sa-a")
OF_Z = identity("istio-system", "ztunnel")
NOBODY = ("UNAUTHENTICATED", REFUSED)
Z_HEADERS = [("authorization", "Bearer token-of-z"), ("clusterid", CLUSTER)]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serve(Z, A) as running:
        yield running


# Who calls.


async def test_without_a_token_nothing_is_issued_and_it_is_counted(served: Served) -> None:
    assert await code_of(served.ask(token=None)) == NOBODY
    assert served.counts() == {
        "citadel_server_csr_count": 1,
        "citadel_server_authentication_failure_count": 1,
        "ambientd_ca_refusals{unauthenticated}": 1,
    }


async def test_an_ordinary_workload_gets_its_own_identity_and_no_other_name(served: Served) -> None:
    response = await served.ask(token="token-of-a")
    assert names_of(response) == [OF_A]
    assert leaf_of(response).subject == x509.Name([])


async def test_two_values_of_clusterid_count_as_none(served: Served) -> None:
    assert names_of(await served.ask(token="token-of-a", cluster=["a", "b"])) == [OF_A]
    assert await code_of(served.ask(OF_A, cluster=[CLUSTER, CLUSTER])) == NOBODY


@pytest.mark.parametrize("cluster", [[], [""], ["nope"]])
async def test_who_names_no_cluster_of_ours_may_not_ask_for_others(served: Served, cluster: list[str]) -> None:
    assert await code_of(served.ask(OF_A, cluster=cluster)) == NOBODY
    assert names_of(await served.ask(cluster=cluster)) == [OF_Z]


async def test_an_outage_of_the_api_server_is_told_from_a_refusal(served: Served) -> None:
    served.outage = "no answer within 10 s"
    code, text = await code_of(served.ask())
    assert code == "UNAVAILABLE"
    assert "10 s" not in text
    assert served.counts()["ambientd_ca_refusals{cannot_tell}"] == 1


# On whose behalf.


async def test_a_node_proxy_gets_exactly_the_identity_that_it_asks_for(served: Served) -> None:
    response = await served.ask(OF_A)
    assert names_of(response) == [OF_A]
    assert len(response.cert_chain) == 2
    assert names_of(await served.ask(OF_Z)) == [OF_Z]


@pytest.mark.parametrize("wanted", [5, True, None, "", [OF_A], {"a": OF_A}])
async def test_an_identity_that_is_no_text_is_ignored(served: Served, wanted: object) -> None:
    assert names_of(await served.ask(fields={"ImpersonatedIdentity": wanted})) == [OF_Z]


@pytest.mark.parametrize("key", ["impersonatedIdentity", "impersonated_identity", "ImpersonatedIdentity "])
async def test_other_keys_and_headers_ask_for_nobody(served: Served, key: str) -> None:
    header = [("impersonatedidentity", OF_A), ("x-forwarded-client-cert", f"URI={OF_A}")]
    assert names_of(await served.ask(fields={key: OF_A}, headers=header)) == [OF_Z]


async def test_the_last_value_of_a_key_counts_for_the_check_and_for_the_name(served: Served) -> None:
    """The map key twice, in two `metadata` fields that the parser joins."""
    first, second = IstioCertificateRequest(csr=CSR), IstioCertificateRequest()
    first.metadata.update({"ImpersonatedIdentity": identity("none", "none")})
    second.metadata.update({"ImpersonatedIdentity": OF_A})
    raw = first.SerializeToString() + second.SerializeToString()
    assert names_of(await served.send(raw, Z_HEADERS)) == [OF_A]
    raw = second.SerializeToString() + first.SerializeToString()
    assert await code_of(served.send(raw, Z_HEADERS)) == NOBODY


@pytest.mark.parametrize("signer", ["", "x"])
async def test_the_name_of_a_signer_changes_nothing(served: Served, signer: str) -> None:
    assert names_of(await served.ask(OF_A, fields={"CertSigner": signer, "Other": 1})) == [OF_A]


async def test_a_key_that_is_twice_in_one_message_counts_with_its_last_value(served: Served) -> None:
    first, last = IstioCertificateRequest(), IstioCertificateRequest()
    first.metadata.update({"ImpersonatedIdentity": identity("none", "none")})
    last.metadata.update({"ImpersonatedIdentity": OF_A})
    for one, other, expected in ((first, last, "OK"), (last, first, "UNAUTHENTICATED")):
        entries = one.metadata.SerializeToString() + other.metadata.SerializeToString()
        raw = IstioCertificateRequest(csr=CSR).SerializeToString() + b"\x22" + varint(len(entries)) + entries
        assert (await code_of(served.send(raw, Z_HEADERS)))[0] == expected


def varint(number: int) -> bytes:
    """As protobuf writes a length."""
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


async def test_where_a_request_says_that_it_runs_is_not_looked_at(served: Served) -> None:
    served.emit(Z2)
    fields = {"ImpersonatedIdentity": OF_A, "NodeName": "n1", "node": "n1", "PodName": "ztunnel-a"}
    headers = [("node", "n1"), ("nodename", "n1"), ("podname", "ztunnel-a"), ("x-forwarded-client-cert", f"URI={OF_Z}")]
    assert await code_of(served.ask(fields=fields, token="token-of-z2", headers=headers)) == NOBODY
    assert served.service.refusals()[0].reason == "not_on_node"


SIGNER = Inline()


@every_row
async def test_a_client_gets_what_was_decided_and_learns_nothing_else(row: dict[str, Any]) -> None:
    ask = ask_of(row)
    served = Served(SIGNER, wait_s=0.001)
    served.callers["token"] = ask.caller
    served.trust = trust_in(row)
    served.emit(history_of(row))
    request = IstioCertificateRequest(csr=CSR)
    if ask.identity:
        request.metadata.update({"ImpersonatedIdentity": ask.identity})
    metadata = [("authorization", "Bearer token"), ("clusterid", ask.cluster)]
    answer, response = await served.answer(request.SerializeToString(), metadata)
    if row["gets"] == "issue":
        assert response is not None
        assert names_of(response) == [row.get("identity", row["asks"])]
        return
    assert (answer.status, answer.details) == NOBODY
    reason = "not_on_node" if row["gets"] == "await" else row["gets"].lower()
    assert served.counts() == {
        "citadel_server_csr_count": 1,
        "citadel_server_authentication_failure_count": 1,
        f"ambientd_ca_refusals{{{reason}}}": 1,
    }


@pytest.mark.parametrize(
    ("wanted", "token", "cluster", "reason"),
    [
        (identity("none", "none"), "token-of-z", CLUSTER, "not_on_node"),
        (OF_A, "token-of-z2", CLUSTER, "caller_unknown"),
        (OF_A, "unbound", CLUSTER, "no_pod_in_token"),
        (OF_A, "token-of-a", CLUSTER, "untrusted_account"),
        ("not-spiffe", "token-of-z", CLUSTER, "malformed_identity"),
        ("spiffe://other.td/ns/ns-a/sa/sa-a", "token-of-z", CLUSTER, "foreign_trust_domain"),
        ("x" * (1 << 20), "token-of-z", CLUSTER, "malformed_identity"),
        (OF_A, "token-of-z", "x", "unknown_cluster"),
    ],
)
async def test_every_refusal_looks_the_same_and_has_its_own_reason_inside(
    served: Served, wanted: str, token: str, cluster: str, reason: str
) -> None:
    assert await code_of(served.ask(wanted, token=token, cluster=[cluster])) == NOBODY
    assert served.counts() == {
        "citadel_server_csr_count": 1,
        "citadel_server_authentication_failure_count": 1,
        f"ambientd_ca_refusals{{{reason}}}": 1,
    }
    (refusal,) = served.service.refusals()
    assert refusal.reason == reason
    assert len(refusal.identity) <= 300


async def test_who_may_not_ask_is_refused_before_the_request_is_looked_at(served: Served) -> None:
    assert await code_of(served.ask(token=None, text="", requested_s=2**62)) == NOBODY
    assert await code_of(served.ask(identity("none", "none"), text="", requested_s=2**62)) == NOBODY
    assert await code_of(served.send(b"\xff" * 100, [])) == NOBODY


# A pod that is just appearing.


@pytest.mark.parametrize(
    "late",
    [
        [A],
        [pod("ns-a", "a-1", uid="a1", account="sa-a", node=""), A],
        [pod("ns-a", "a-1", uid="a1", account="sa-a", phase="Failed"), A],
    ],
)
async def test_a_request_ahead_of_its_pod_is_answered_when_the_pod_is_seen(late: list[list[Event]]) -> None:
    async with serve(Z, wait_s=30) as served:
        asking = asyncio.create_task(served.ask(OF_A))
        while not served.waiters:
            await asyncio.sleep(0.001)
        for happened in late:
            assert not asking.done()
            served.emit(happened)
        assert names_of(await asking) == [OF_A]
        assert len(served.waiters) == 0
        assert "12345" not in repr(vars(served.waiters))


async def test_a_pod_that_comes_within_two_seconds_is_waited_for_and_no_longer() -> None:
    async with serve(Z, wait_s=WAIT_S) as served:
        asking = asyncio.create_task(served.ask(OF_A))
        await asyncio.sleep(0.7)
        served.emit(A)
        assert names_of(await asking) == [OF_A]
        started_s = time.monotonic()
        assert await code_of(served.ask(identity("none", "none"))) == NOBODY
        assert 1.9 <= time.monotonic() - started_s <= 10.0


async def test_a_request_that_waits_hears_of_its_own_pod_only() -> None:
    async with serve(Z, Z2, wait_s=0.2) as served:
        asking = asyncio.create_task(code_of(served.ask(OF_A)))
        while not served.waiters:
            await asyncio.sleep(0.001)
        served.emit(pod("ns-a", "a-2", uid="a2", account="sa-a", node="n2"))
        served.emit(pod("ns-b", "b", uid="b", account="sa-a"))
        assert await asking == NOBODY


async def test_a_caller_that_goes_while_it_waits_gets_nothing() -> None:
    async with serve(Z, wait_s=30) as served:
        asking = asyncio.create_task(code_of(served.ask(OF_A)))
        while not served.waiters:
            await asyncio.sleep(0.001)
        served.emit([Delete(ref("Pod", "istio-system", "ztunnel-a")), *A])
        assert await asking == NOBODY
        assert served.service.refusals()[0].reason == "caller_unknown"


async def test_requests_that_wait_hold_up_no_other() -> None:
    async with serve(Z, A, wait_s=30) as served:
        waiting = [asyncio.create_task(code_of(served.ask(identity("none", f"n{number}")))) for number in range(40)]
        while len(served.waiters) < 40:
            await asyncio.sleep(0.001)
        assert names_of(await served.ask(OF_A)) == [OF_A]
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        while served.waiters:
            await asyncio.sleep(0.001)


async def test_a_caller_has_a_limit_of_waiting_requests_and_others_are_not_touched() -> None:
    async with serve(Z, Z2, wait_s=30) as served:
        waiting = [
            asyncio.create_task(code_of(served.ask(identity("none", f"n{number}"))))
            for number in range(LIMIT_PER_CALLER)
        ]
        while len(served.waiters) < LIMIT_PER_CALLER:
            await asyncio.sleep(0.001)
        assert await code_of(served.ask(identity("none", "one-more"))) == NOBODY
        assert served.service.refusals()[0].reason == "too_many_wait"
        other = asyncio.create_task(code_of(served.ask(identity("none", "x"), token="token-of-z2")))
        while len(served.waiters) <= LIMIT_PER_CALLER:
            await asyncio.sleep(0.001)
        for task in (*waiting, other):
            task.cancel()
        await asyncio.wait([*waiting, other])


async def test_an_account_elsewhere_and_one_that_does_not_exist_are_refused_after_the_same_wait() -> None:
    async with serve(Z, A, pod("ns-b", "b", uid="b", account="sa-b", node="n2"), wait_s=0.2) as served:
        for wanted in (identity("ns-b", "sa-b"), identity("none", "none")):
            started_s = time.monotonic()
            assert await code_of(served.ask(wanted)) == NOBODY
            assert time.monotonic() - started_s >= 0.2


async def test_a_pod_that_goes_takes_its_identity_with_it(served: Served) -> None:
    assert names_of(await served.ask(OF_A)) == [OF_A]
    served.emit([Delete(ref("Pod", "ns-a", "a-1"))])
    assert await code_of(served.ask(OF_A)) == NOBODY


async def test_a_caller_made_again_under_its_name_is_another(served: Served) -> None:
    served.emit(pod("istio-system", "ztunnel-a", uid="54321", account="ztunnel"))
    assert await code_of(served.ask(OF_A)) == NOBODY
    served.emit(Z)
    assert names_of(await served.ask(OF_A)) == [OF_A]


async def test_a_namespace_counts_from_when_it_is_discovered(served: Served) -> None:
    served.change_trust(discovery_selectors=(LabelSelector((("mesh", "on"),)),))
    served.emit(events("{kind: Namespace, metadata: {name: istio-system, labels: {mesh: 'on'}}}"))
    assert await code_of(served.ask(OF_A)) == NOBODY
    served.emit(events("{kind: Namespace, metadata: {name: ns-a, labels: {mesh: 'on'}}}"))
    assert names_of(await served.ask(OF_A)) == [OF_A]


async def test_a_changed_trust_domain_holds_from_the_next_request(served: Served) -> None:
    served.change_trust(trust_domains=frozenset({"new.td"}))
    assert await code_of(served.ask(OF_A)) == NOBODY
    assert names_of(await served.ask("spiffe://new.td/ns/ns-a/sa/sa-a")) == ["spiffe://new.td/ns/ns-a/sa/sa-a"]


# The request itself.


OTHER_NAMES: dict[str, list[x509.GeneralName]] = {
    "other ids": [x509.UniformResourceIdentifier(identity("other", name)) for name in ("one", "two")],
    "a DNS name and an address": [
        x509.DNSName("istiod.istio-system.svc"),
        x509.IPAddress(ipaddress.ip_address("10.0.0.1")),
    ],
    "an e-mail address": [x509.RFC822Name("a@b.c")],
    "as many names as fit": [x509.DNSName(f"n{number}.example") for number in range(2000)],
}
GREEDY = {says: pem_of(csr(names=names)) for says, names in OTHER_NAMES.items()} | {
    "to be an authority": pem_of(
        csr(extensions=[x509.BasicConstraints(ca=True, path_length=None), usage(key_cert_sign=True, crl_sign=True)])
    ),
    "other usages": pem_of(csr(extensions=[x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])])),
    "its own key id": pem_of(csr(extensions=[x509.SubjectKeyIdentifier(b"x" * 20)])),
    "an extension twice": by_hand(uri_san(b"spiffe://x/ns/a/sa/b") * 2),
    "a name that cannot be read": by_hand(uri_san("spiffe://\xe9/".encode())),
}


@pytest.mark.parametrize("text", GREEDY.values(), ids=GREEDY.keys())
@pytest.mark.parametrize(("token", "wanted"), [("token-of-a", None), ("token-of-z", OF_A), ("token-of-z", OF_Z)])
async def test_whatever_a_request_asks_for_the_certificate_is_as_without(
    served: Served, text: str, token: str, wanted: str | None
) -> None:
    usual = leaf_of(await served.ask(wanted, token=token))
    got = leaf_of(await served.ask(wanted, token=token, text=text))
    assert list(got.extensions) == list(usual.extensions)
    assert got.subject == usual.subject == x509.Name([])


async def test_a_request_of_twenty_thousand_names_is_read_or_refused(served: Served) -> None:
    text = pem_of(csr(names=[x509.DNSName(f"n{number}.example") for number in range(20_000)]))
    code, _ = await code_of(served.ask(OF_A, text=text))
    assert code in ("OK", "INVALID_ARGUMENT")
    assert names_of(await served.ask(OF_A)) == [OF_A]


@pytest.mark.parametrize("kind", ["RSA-2048", "P-256/own", "P-384", "P-521", "Ed25519"])
async def test_a_certificate_is_about_the_key_of_the_request(served: Served, kind: str) -> None:
    assert leaf_of(await served.ask(OF_A, text=pem_of(csr(kind)))).public_key() == key(kind).public_key()


@pytest.mark.parametrize("text", ["", "garbage", CSR[:-40], pem_of(csr("RSA-1024")), "x" * (3 << 20)])
async def test_a_bad_request_is_an_invalid_argument(served: Served, text: str) -> None:
    code, _ = await code_of(served.ask(OF_A, text=text))
    assert code == "INVALID_ARGUMENT"
    assert served.counts()["citadel_server_csr_sign_err_count{CSR_ERROR}"] == 1
    assert served.counts()["citadel_server_csr_parsing_err_count"] == 1


@pytest.mark.parametrize("requested_s", [7_776_001, 9_223_372_037, 2**40, 2**63 - 1])
async def test_a_lifetime_beyond_the_maximum_is_an_invalid_argument(served: Served, requested_s: int) -> None:
    code, _ = await code_of(served.ask(OF_A, requested_s=requested_s))
    assert code == "INVALID_ARGUMENT"
    assert served.counts()["citadel_server_csr_sign_err_count{TTL_ERROR}"] == 1


@pytest.mark.parametrize(
    ("requested_s", "expected_s"), [(600, 600), (0, 86_400), (-1, 86_400), (1, 1), (7_776_000, 7_776_000)]
)
async def test_a_lifetime_is_given_as_asked_or_by_default(served: Served, requested_s: int, expected_s: int) -> None:
    assert lifetime_of(await served.ask(OF_A, requested_s=requested_s)).total_seconds() == expected_s


async def test_a_default_above_the_maximum_is_given() -> None:
    async with serve(Z, signer=Inline(lifetimes=Lifetimes(360_000, 180_000))) as served:
        assert lifetime_of(await served.ask(requested_s=0)).total_seconds() == 360_000


async def test_an_authority_that_expired_is_an_internal_error() -> None:
    signer = Inline(plugged_in())
    signer.now = intermediate().certificate.not_valid_after_utc
    async with serve(Z, signer=signer) as served:
        assert (await code_of(served.ask()))[0] == "INTERNAL"
        assert served.counts()["citadel_server_csr_sign_err_count{CERT_GEN_ERROR}"] == 1


async def test_a_message_beyond_four_mebibytes_is_refused_and_the_connection_goes_on(served: Served) -> None:
    assert (await code_of(served.ask(text="x" * (5 << 20))))[0] == "RESOURCE_EXHAUSTED"
    assert names_of(await served.ask(OF_A)) == [OF_A]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"\xff" * 20, "INTERNAL"),
        (b"", "INVALID_ARGUMENT"),
        (b"\x0a\x02\xff\xfe", "INTERNAL"),
        (b"\x0a\x80\x80\x80\x80\x80\x20", "INTERNAL"),
        (IstioCertificateRequest(csr=CSR).SerializeToString() + b"\xf8\x07\x01", "OK"),
    ],
    ids=["no message", "empty", "not UTF-8", "cut off", "unknown field"],
)
async def test_bytes_of_a_known_caller_are_read_or_refused(served: Served, raw: bytes, code: str) -> None:
    assert (await code_of(served.send(raw, Z_HEADERS)))[0] == code


async def test_an_unknown_method_does_not_exist(served: Served) -> None:
    method = served.channel.unary_unary("/istio.v1.auth.IstioCertificateService/Other", None, None)
    assert (await code_of(method(b"", metadata=Z_HEADERS)))[0] == "UNIMPLEMENTED"


async def test_an_error_of_ours_is_an_internal_error_that_tells_nothing(served: Served) -> None:
    del served.trust
    assert await code_of(served.ask(OF_A)) == ("INTERNAL", "internal error")


# A ztunnel sends head and body of a request apart, and its system holds the body back until the head is acknowledged.


def opened(served: Served) -> Any:
    """A call of which only the head was sent."""
    method: Any = served.channel.stream_stream
    return method(METHOD)(metadata=Z_HEADERS, timeout=20)


async def test_the_head_of_a_request_is_answered_at_once(served: Served) -> None:
    call = opened(served)
    async with asyncio.timeout(10):
        await call.initial_metadata()
    await call.write(IstioCertificateRequest(csr=CSR).SerializeToString())
    await call.done_writing()
    assert names_of(IstioCertificateResponse.FromString(await call.read())) == [OF_Z]
    assert await call.code() is grpc.StatusCode.OK


async def test_a_call_without_a_request_is_refused(served: Served) -> None:
    call = opened(served)
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.INTERNAL


async def test_whoever_is_not_known_cannot_keep_a_call_open(served: Served) -> None:
    method: Any = served.channel.stream_stream
    call = method(METHOD)(metadata=[("authorization", "Bearer of-nobody")], timeout=20)
    assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_request_that_does_not_come_is_not_waited_for_long() -> None:
    async with serve(Z, read_s=0.05) as served:
        call = opened(served)
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert names_of(await served.ask()) == [OF_Z]


async def test_calls_without_a_request_count_as_in_flight(served: Served) -> None:
    waiting = [opened(served) for _ in range(256)]
    for call in waiting:
        await call.initial_metadata()
    assert (await code_of(served.ask()))[0] == "RESOURCE_EXHAUSTED"
    for call in waiting:
        call.cancel()
    async with asyncio.timeout(10):
        while (await code_of(served.ask()))[0] != "OK":
            await asyncio.sleep(0.01)


async def test_calls_of_one_caller_count_together_whatever_their_connections() -> None:
    signer = Gated()
    async with serve(Z, Z2, signer=signer) as served:
        raw = IstioCertificateRequest(csr=CSR).SerializeToString()
        asking = [asyncio.create_task(served.call(raw, Z_HEADERS, f"ipv4:10.0.0.1:{number}")) for number in range(256)]
        await until(lambda: signer.waiting == len(asking))
        assert await served.call(raw, Z_HEADERS, "ipv4:10.0.0.1:256") == ("RESOURCE_EXHAUSTED", None)
        other = asyncio.create_task(served.ask(token="token-of-z2"))
        await until(lambda: signer.waiting == len(asking) + 1)
        signer.opens.set()
        assert {status for status, _ in await asyncio.gather(*asking)} == {"OK"}
        assert names_of(await other) == names_of(await served.ask()) == [OF_Z]


class Gated(Inline):
    """Signs nothing before it opens."""

    def __init__(self) -> None:
        super().__init__()
        self.opens = asyncio.Event()
        self.waiting = 0

    async def sign(self, csr: str, subject_ids: Sequence[str], requested_s: int, *, is_limited: bool = True) -> Signed:
        self.waiting += 1
        await self.opens.wait()
        return await super().sign(csr, subject_ids, requested_s, is_limited=is_limited)


async def test_a_caller_has_one_request_read_at_a_time_and_others_are_not_touched() -> None:
    async with serve(Z, Z2, read_s=0.5) as served:
        stuck = opened(served)
        await stuck.initial_metadata()
        asking = asyncio.create_task(code_of(served.ask()))
        assert names_of(await served.ask(token="token-of-z2")) == [OF_Z]
        assert not asking.done()
        stuck.cancel()
        assert await asking == ("OK", "")


async def test_of_two_requests_in_one_call_the_first_counts(served: Served) -> None:
    call = opened(served)
    for text in (CSR, "no request"):
        await call.write(IstioCertificateRequest(csr=text).SerializeToString())
    await call.done_writing()
    assert names_of(IstioCertificateResponse.FromString(await call.read())) == [OF_Z]
    assert await call.code() is grpc.StatusCode.OK


# The response.


async def test_a_plugged_in_authority_sends_its_chain_and_then_all_roots() -> None:
    other = certify("root 2", "P-256/x")
    authority = plugged_in(files(intermediate(), [intermediate(), root()], [root(), other]))
    async with serve(Z, A, signer=Inline(authority)) as served:
        response = await served.ask(OF_A)
        leaf_of(response).verify_directly_issued_by(intermediate().certificate)
        assert list(response.cert_chain[1:]) == [
            intermediate().pem.decode(),
            root().pem.decode(),
            (root().pem + other.pem).decode(),
        ]


async def test_callers_at_one_time_get_each_their_own(served: Served) -> None:
    accounts = [f"sa-{number}" for number in range(8)]
    for account in accounts:
        served.emit(pod("ns-c", account, uid=account, account=account))
    responses = await asyncio.gather(
        *(served.ask(identity("ns-c", account), text=pem_of(csr(f"P-256/{account}"))) for account in accounts)
    )
    assert [names_of(response) for response in responses] == [[identity("ns-c", account)] for account in accounts]
    for account, response in zip(accounts, responses, strict=True):
        assert leaf_of(response).public_key() == key(f"P-256/{account}").public_key()
    assert len({leaf_of(response).serial_number for response in responses}) == 8
    assert served.counts()["citadel_server_success_cert_issuance_count"] == 8
