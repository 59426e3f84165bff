"""The signing process and its client: what it answers, and that it comes back (ca.md 6.2, 10.2, 17)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import NoReturn

import pytest
from cryptography import x509

from ambientd.ca import orders, signing
from ambientd.ca.authority import Authority, Lifetimes, Public, Unusable
from ambientd.ca.orders import Failed, Rejected, Sign, Signed, SignError, Use, Used
from ambientd.ca.signing import Busy, Signer, SigningFailed
from ambientd.ca.worker import Worker
from tests.unit.authorities import (
    DAY,
    ID,
    NOW,
    certify,
    common_name,
    csr,
    files,
    intermediate,
    key,
    key_pem,
    lasting,
    pem_of,
    plugged_in,
    root,
    self_signed,
)
from tests.unit.patience import until

CSR = pem_of(csr())

# The process's core, in this process: no pipe, and a clock that is handed in.


def worker(authority: Authority | None = None, lifetimes: Lifetimes | None = None) -> Worker:
    made = Worker()
    used = made.handle(Use(1, authority or self_signed(), lifetimes or Lifetimes()), NOW)
    assert used == Used(1, ())
    return made


def sign(requested_s: int = 0, text: str = CSR, *ids: str, is_limited: bool = True) -> Sign:
    return Sign(2, text, ids or (ID,), requested_s, is_limited)


def test_without_an_authority_nothing_is_signed() -> None:
    answer = Worker().handle(sign(), NOW)
    assert isinstance(answer, Failed)
    assert answer.error is SignError.NOT_READY


@pytest.mark.parametrize(
    ("order", "error"),
    [
        (sign(text=""), SignError.CSR),
        (sign(text=pem_of(csr("RSA-1024"))), SignError.CSR),
        (sign(7_776_001), SignError.LIFETIME),
        (sign(2**63 - 1), SignError.LIFETIME),
        (sign(2**63 - 1, ""), SignError.CSR),
        (sign(0, CSR, "a,b"), SignError.GENERATION),
        (Sign(2, CSR, (), 0), SignError.GENERATION),
    ],
)
def test_what_cannot_be_signed_says_why(order: Sign, error: SignError) -> None:
    answer = worker().handle(order, NOW)
    assert isinstance(answer, Failed)
    assert answer.error is error


def test_an_authority_that_expires_while_running_signs_nothing() -> None:
    answer = worker().handle(sign(), NOW + 4000 * DAY)
    assert isinstance(answer, Failed)
    assert answer.error is SignError.GENERATION


def test_the_default_lifetime_is_bounded_by_the_chain_and_an_asked_one_by_the_certificate() -> None:
    short = certify("short", "P-256/short", by=root(), ends=NOW + DAY / 24)
    made = worker(plugged_in(files(short, [short], [root()])))
    for requested_s in (0, 7200):
        answer = made.handle(sign(requested_s), NOW)
        assert isinstance(answer, Signed)
        assert answer.not_after_s == int((NOW + DAY / 24).timestamp())


def test_a_default_longer_than_the_maximum_is_given() -> None:
    answer = worker(lifetimes=Lifetimes(default_s=360_000, maximum_s=180_000)).handle(sign(), NOW)
    assert isinstance(answer, Signed)
    assert answer.not_after_s - answer.not_before_s == 360_000 + 120


def test_our_own_certificate_may_live_longer_than_any_workloads() -> None:
    order = sign(3650 * 86_400, CSR, "istiod.istio-system.svc", "istiod-x.istio-system.svc", is_limited=False)
    answer = worker().handle(order, NOW)
    assert isinstance(answer, Signed)
    names = x509.load_pem_x509_certificate(answer.elements[0].encode()).extensions
    assert names.get_extension_for_class(x509.SubjectAlternativeName).value == x509.SubjectAlternativeName(
        [x509.DNSName("istiod.istio-system.svc"), x509.DNSName("istiod-x.istio-system.svc")]
    )


def test_the_elements_are_leaf_chain_and_roots() -> None:
    answer = worker(plugged_in(files(intermediate(), [intermediate(), root()], [root()]))).handle(sign(), NOW)
    assert isinstance(answer, Signed)
    assert answer.elements[1:] == (intermediate().pem.decode(), root().pem.decode(), root().pem.decode())
    leaf = x509.load_pem_x509_certificate(answer.elements[0].encode())
    leaf.verify_directly_issued_by(intermediate().certificate)
    assert f"{leaf.serial_number:x}" == answer.serial


def test_a_common_name_that_was_asked_for_is_the_identity() -> None:
    answer = worker().handle(sign(0, pem_of(csr(subject=common_name("x")))), NOW)
    assert isinstance(answer, Signed)
    assert x509.load_pem_x509_certificate(answer.elements[0].encode()).subject == common_name(ID)


def test_a_set_that_is_not_sound_leaves_the_former_one_in_use() -> None:
    made = worker()
    wrong = plugged_in(files(certify("leaf", "P-256/leaf", by=root(), ca=False), [intermediate()], [root()]))
    answer = made.handle(Use(3, wrong, Lifetimes()), NOW)
    assert isinstance(answer, Rejected)
    assert answer.source == "/etc/cacerts"
    signed = made.handle(sign(), NOW)
    assert isinstance(signed, Signed)
    assert signed.elements[-1] == self_signed().roots


def test_a_panic_of_the_library_is_an_answer_that_quotes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        """As the library has one, which is no Exception."""

    def parse(text: str) -> NoReturn:
        raise Panic(text)

    made = worker()
    monkeypatch.setattr("ambientd.ca.worker.parse_request", parse)
    assert made.handle(sign(), NOW) == Failed(2, SignError.UNKNOWN, "Panic")


def test_messages_survive_the_pipe() -> None:
    order = Use(7, plugged_in(), Lifetimes(1, 2))
    framed = orders.frame(order)
    assert int.from_bytes(framed[:4], "big") == len(framed) - 4
    assert orders.read_order(framed[4:]) == order


# The process itself.


@pytest.fixture
async def signer() -> AsyncIterator[Signer]:
    async def load() -> Authority:
        return lasting()

    made = Signer(load)
    yield made
    await made.close()


async def test_many_at_a_time_get_their_own_certificates(signer: Signer) -> None:
    await signer.start()
    ids = [f"spiffe://cluster.local/ns/a/sa/sa-{number}" for number in range(16)]
    answers = await asyncio.gather(*(signer.sign(CSR, [each], 0) for each in ids))
    found = [
        x509.load_pem_x509_certificate(answer.elements[0].encode())
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value.get_values_for_type(x509.UniformResourceIdentifier)
        for answer in answers
    ]
    assert found == [[each] for each in ids]
    assert len({answer.serial for answer in answers}) == 16
    assert signer.queued == 0


async def test_errors_come_back_as_what_they_are(signer: Signer) -> None:
    await signer.start()
    for text, requested_s, error in [("x", 0, SignError.CSR), (CSR, 2**62, SignError.LIFETIME)]:
        with pytest.raises(SigningFailed) as caught:
            await signer.sign(text, [ID], requested_s)
        assert caught.value.error is error
    await signer.sign(CSR, [ID], 0)


async def test_before_its_start_nothing_is_signed(signer: Signer) -> None:
    with pytest.raises(SigningFailed) as caught:
        await signer.sign(CSR, [ID], 0)
    assert caught.value.error is SignError.NOT_READY


async def test_a_request_that_is_too_large_does_not_reach_the_process(signer: Signer) -> None:
    await signer.start()
    for text in ("x" * (3 << 20), CSR + "x" * signing.CSR_LIMIT_BYTES):
        with pytest.raises(SigningFailed, match="csr must be at most 65536 bytes") as caught:
            await signer.sign(text, [ID], 0)
        assert caught.value.error is SignError.CSR


async def test_a_start_with_an_unsound_set_says_so_and_leaves_no_process() -> None:
    async def load() -> Authority:
        return plugged_in({**files(intermediate(), [intermediate()], [root()]), "ca-key.pem": key_pem(key("P-256"))})

    signer = Signer(load)
    with pytest.raises(Unusable, match=r"ca-key\.pem must be the key"):
        await signer.start()
    assert signer.pid is None


async def test_a_process_that_dies_is_started_again_with_what_is_stored_then() -> None:
    loaded: list[Authority] = []

    async def load() -> Authority:
        loaded.append(lasting())
        return loaded[-1]

    signer = Signer(load)
    await signer.start()
    running = asyncio.create_task(signer.run())
    first = signer.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: signer.restarts == 1 and signer.is_ready)
    assert signer.pid != first
    answer = await signer.sign(CSR, [ID], 0)
    assert answer.elements[-1] == loaded[1].roots
    assert signer.public == loaded[1].public
    running.cancel()
    await asyncio.wait([running])
    assert signer.pid is None


async def test_who_waits_while_the_process_dies_is_told(signer: Signer) -> None:
    await signer.start()
    assert signer.pid is not None
    os.kill(signer.pid, signal.SIGSTOP)
    waiting = asyncio.create_task(signer.sign(CSR, [ID], 0))
    await until(lambda: signer.queued == 1)
    os.kill(signer.pid, signal.SIGKILL)
    with pytest.raises(SigningFailed) as caught:
        await waiting
    assert caught.value.error is SignError.UNKNOWN


async def test_who_waits_behind_them_is_told_too_and_at_once(signer: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "_ANSWER_S", 3600.0)
    await signer.start()
    assert signer.pid is not None
    os.kill(signer.pid, signal.SIGSTOP)
    waiting = [asyncio.create_task(signer.sign(CSR, [ID], 0)) for _ in range(20)]
    await until(lambda: signer.queued == len(waiting))
    os.kill(signer.pid, signal.SIGKILL)
    await until(lambda: all(each.done() for each in waiting))
    errors = [each.exception() for each in waiting]
    assert {error.error for error in errors if isinstance(error, SigningFailed)} == {
        SignError.UNKNOWN,
        SignError.NOT_READY,
    }
    assert signer.queued == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_the_whole_group_does_not_end_it(signer: Signer, number: signal.Signals) -> None:
    await signer.start()
    first = signer.pid
    assert first is not None
    os.kill(first, number)
    await signer.sign(CSR, [ID], 0)
    assert signer.pid == first


async def test_a_process_that_hangs_is_ended_and_started_again(signer: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    await signer.start()
    running = asyncio.create_task(signer.run())
    first = signer.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    with monkeypatch.context() as patience:
        patience.setattr(signing, "_ANSWER_S", 0.3)
        with pytest.raises(SigningFailed, match="took too long") as caught:
            await signer.sign(CSR, [ID], 0)
    assert caught.value.error is SignError.UNKNOWN
    await until(lambda: signer.restarts == 1 and signer.is_ready)
    assert signer.pid != first
    await signer.sign(CSR, [ID], 0)
    running.cancel()
    await asyncio.wait([running])


async def test_a_restart_whose_authority_cannot_be_fetched_is_tried_again() -> None:
    answers: list[Callable[[], Authority]] = [lasting, _raise, lasting]

    async def load() -> Authority:
        return answers.pop(0)()

    signer = Signer(load)
    await signer.start()
    running = asyncio.create_task(signer.run())
    assert signer.pid is not None
    os.kill(signer.pid, signal.SIGKILL)
    await until(lambda: not answers and signer.is_ready)
    await signer.sign(CSR, [ID], 0)
    running.cancel()
    await asyncio.wait([running])


def _raise() -> Authority:
    raise OSError("the API server does not answer")


async def test_the_queue_is_bounded() -> None:
    async def load() -> Authority:
        return lasting()

    signer = Signer(load, queue_limit=2)
    await signer.start()
    assert signer.pid is not None
    os.kill(signer.pid, signal.SIGSTOP)
    waiting = [asyncio.create_task(signer.sign(CSR, [ID], 0)) for _ in range(2)]
    await until(lambda: signer.queued == 2)
    with pytest.raises(Busy):
        await signer.sign(CSR, [ID], 0)
    os.kill(signer.pid, signal.SIGCONT)
    await asyncio.gather(*waiting)
    await signer.close()


async def test_a_caller_that_goes_away_leaves_nothing_behind(signer: Signer) -> None:
    await signer.start()
    waiting = asyncio.create_task(signer.sign(CSR, [ID], 0))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await signer.sign(CSR, [ID], 0)
    assert signer.queued == 0


async def test_callers_that_go_away_leave_no_more_orders_than_are_given_at_one_time(signer: Signer) -> None:
    await signer.start()
    assert signer.pid is not None
    os.kill(signer.pid, signal.SIGSTOP)
    for _ in range(20):
        asking = asyncio.create_task(signer.sign(CSR, (ID,), 3600))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
    assert signer.queued == 2
    os.kill(signer.pid, signal.SIGCONT)
    await signer.sign(CSR, (ID,), 3600)
    await until(lambda: signer.queued == 0)


async def test_every_response_during_a_reload_fits_together() -> None:
    heard: list[Public] = []
    first, second = lasting(), lasting()

    async def load() -> Authority:
        return first

    signer = Signer(load, changed=heard.append)
    await signer.start()

    signing = [asyncio.create_task(signer.sign(CSR, [ID], 0)) for _ in range(50)]
    for authority in (second, first, second):
        await signer.use(authority)
    signing += [asyncio.create_task(signer.sign(CSR, [ID], 0)) for _ in range(10)]
    for answer in await asyncio.gather(*signing):
        leaf, issuer = (x509.load_pem_x509_certificate(element.encode()) for element in answer.elements)
        leaf.verify_directly_issued_by(issuer)
    assert answer.elements[-1] == second.roots
    assert heard == [first.public, second.public, first.public, second.public]
    await signer.close()


async def test_an_authority_is_made_and_renewed_in_the_process(signer: Signer) -> None:
    await signer.start()
    made = await signer.create("my.td", lifetime_s=3600, source="Secret a/b")
    renewed = await signer.renew(made, trust_domain="my.td", lifetime_s=7200)
    assert (made.source, renewed.key) == ("Secret a/b", made.key)
    assert signer.public is not None
    assert signer.public.roots != made.roots
    await signer.use(renewed)
    assert signer.public == renewed.public


async def test_a_size_of_key_that_is_too_small_is_an_error_and_no_crash(signer: Signer) -> None:
    await signer.start()
    with pytest.raises(SigningFailed):
        await signer.create("my.td", key_bits=1024, source="x")
    await signer.sign(CSR, [ID], 0)
