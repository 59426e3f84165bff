"""Whatever a stranger or a known caller sends, nothing is issued that should not be, and nothing crashes (ca.md 2, 6,
18.1 G3)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ambientd.ca import pem
from ambientd.ca.authority import Lifetimes, Unusable
from ambientd.ca.orders import Failed, Rejected, Sign, Signed, SignError, Use
from ambientd.ca.requests import CsrError, parse_request
from ambientd.ca.roots import Adopt, expiries, next_step, read_plugged_in, read_self_signed
from ambientd.ca.verification import verify
from ambientd.ca.worker import Worker
from ambientd_api.ca_pb2 import IstioCertificateRequest
from tests.unit.authorities import ID, NOW, csr, good_files, intermediate, pem_of, revocations
from tests.unit.certificate_server import CALLERS, CSR, A, Inline, Served, Z, code_of, names_of, serve
from tests.unit.worlds import CLUSTER

_some = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
OWN = "spiffe://cluster.local/ns/istio-system/sa/ztunnel"

GOOD = csr()
SIGNER = Inline()


@st.composite
def _mangled(draw: st.DrawFn, good: bytes = GOOD) -> bytes:
    """A good request with some bytes changed, cut out or put in."""
    raw = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        match draw(st.sampled_from(["change", "cut", "insert", "repeat"])):
            case "change" if raw:
                raw[at] = draw(st.integers(0, 255))
            case "cut":
                del raw[at : at + draw(st.integers(1, 30))]
            case "insert":
                raw[at:at] = draw(st.binary(min_size=1, max_size=10))
            case _:
                raw[at:at] = raw[at : at + 20]
    return bytes(raw)


_texts = st.one_of(
    _mangled().map(pem_of),
    st.binary(max_size=300).map(pem_of),
    st.text(max_size=200),
    st.tuples(st.text(max_size=20), st.just(CSR), st.text(max_size=20)).map("".join),
)


@_some
@given(_texts)
def test_a_request_is_good_and_unchanged_or_refused_in_the_declared_way(text: str) -> None:
    try:
        parsed = parse_request(text)
    except CsrError:
        return
    assert parsed.public_key == parse_request(CSR).public_key


@_some
@given(_texts, st.integers(-(2**63), 2**63 - 1), st.one_of(st.just(ID), st.text(max_size=30)))
def test_the_signing_process_answers_whatever_it_is_asked(text: str, requested_s: int, subject: str) -> None:
    answer = SIGNER.worker.handle(Sign(1, text, (subject,), requested_s), NOW)
    assert isinstance(answer, Signed | Failed)
    assert not isinstance(answer, Failed) or answer.error is not SignError.NOT_READY
    if isinstance(answer, Signed):
        assert subject.isascii()
        assert "," not in subject
        assert requested_s <= 7_776_000


@_some
@given(
    st.sampled_from(["ca-cert.pem", "ca-key.pem", "cert-chain.pem", "root-cert.pem", "ca-crl.pem"]),
    st.integers(0, 2000),
    st.binary(max_size=30),
)
def test_broken_files_are_refused_in_the_declared_way(name: str, at: int, junk: bytes) -> None:
    files = good_files()
    whole = files.get(name, b"")
    files[name] = whole[: at % (len(whole) + 1)] + junk + whole[at % (len(whole) + 1) + len(junk) :]
    try:
        authority = read_plugged_in(files, "/etc/cacerts")
        assert authority is not None
        verify(authority, NOW)
        verify(read_self_signed(files, "Secret a/b"), NOW)
    except Unusable:
        return


FILES = {**good_files(), "ca-crl.pem": revocations(intermediate())}
BLOCKS = {name: next(pem.blocks(content)) for name, content in FILES.items()}


@_some
@given(st.data())
def test_a_file_with_a_block_that_is_not_what_it_says_is_refused_by_its_name(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(FILES)))
    block = BLOCKS[name]
    mangled = pem.encode(block.label, data.draw(_mangled(block.der))).encode()
    authority = read_plugged_in({**FILES, name: mangled}, "/etc/cacerts")
    assert authority is not None
    expiries(authority.public)
    assert next_step(authority.certificate, authority.certificate, NOW, 20) != Adopt()
    worker = Worker()
    used = worker.handle(Use(0, authority, Lifetimes()), NOW)
    if isinstance(used, Rejected):
        assert {fault.path for fault in used.faults} <= FILES.keys()
    else:
        assert isinstance(worker.handle(Sign(1, CSR, (ID,), 0), NOW), Signed)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with capture_logs():
        yield


def fed() -> Served:
    served = Served(SIGNER, wait_s=0.001)
    served.emit([*Z, *A])
    return served


KNOWN_VALUES = {f"Bearer {token}" for token in CALLERS}
KNOWN = [("authorization", "Bearer token-of-z"), ("clusterid", CLUSTER)]


_tokens = st.one_of(
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60),
    st.sampled_from(sorted(CALLERS)).flatmap(
        lambda token: st.sampled_from(
            [token.upper(), f" {token}", f"{token} ", f"{token}x", token[:-1], f"{token},{token}", f'"{token}"']
        )
    ),
)
_schemes = st.sampled_from(["Bearer ", "bearer ", "Basic ", "", "Bearer", "BEARER ", "Istio "])


@_some
@given(st.lists(st.tuples(_schemes, _tokens), max_size=6))
def test_no_made_up_token_gets_a_certificate(attempts: list[tuple[str, str]]) -> None:
    async def attempt() -> None:
        served = fed()
        request = IstioCertificateRequest(csr=CSR).SerializeToString()
        for scheme, token in attempts:
            value = scheme + token
            if value not in KNOWN_VALUES:
                status, _ = await served.call(request, [("authorization", value), ("clusterid", CLUSTER)])
                assert status == "UNAUTHENTICATED"
        assert (await served.call(request, KNOWN))[0] == "OK"

    asyncio.run(attempt())


_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_keys = st.sampled_from(["ImpersonatedIdentity", "CertSigner", "impersonatedIdentity", "x"])
_fields = st.one_of(
    st.dictionaries(_keys, _json, max_size=3),
    st.text(max_size=40).map(lambda text: {"ImpersonatedIdentity": f"{ID}{text}"}),
    st.text(max_size=40).map(lambda text: {"ImpersonatedIdentity": f"{text}{ID}"}),
)


@_some
@given(st.lists(_fields, max_size=6))
def test_no_metadata_gets_an_identity_that_is_not_on_the_node(attempts: list[dict[str, Any]]) -> None:
    async def attempt() -> None:
        served = fed()
        for fields in attempts:
            request = IstioCertificateRequest(csr=CSR)
            request.metadata.update(fields)
            status, response = await served.call(request.SerializeToString(), KNOWN)
            if response is None:
                assert status == "UNAUTHENTICATED"
                continue
            wanted = fields.get("ImpersonatedIdentity")
            is_asked = isinstance(wanted, str) and wanted != ""
            assert names_of(response) == [wanted if is_asked else OWN]
            assert not is_asked or wanted in (ID, OWN)

    asyncio.run(attempt())


@_some
@given(st.lists(st.binary(max_size=200), max_size=8))
def test_bytes_that_are_no_message_end_in_a_declared_status(attempts: list[bytes]) -> None:
    async def attempt() -> None:
        served = fed()
        for raw in attempts:
            status, _ = await served.call(raw, KNOWN)
            assert status in ("INTERNAL", "INVALID_ARGUMENT", "UNAUTHENTICATED")

    asyncio.run(attempt())


@pytest.mark.parametrize("size", [10_000, 100_000, 1_000_000])
async def test_a_token_of_any_size_is_refused_and_the_service_goes_on(size: int) -> None:
    async with serve(Z, A) as running:
        code, _ = await code_of(running.ask(token="x" * size))
        assert code in ("UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "INTERNAL")
        assert (await code_of(running.ask()))[0] == "OK"
