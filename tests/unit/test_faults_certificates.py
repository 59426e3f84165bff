"""Faults that control planes of this kind have had with certificates and node authorisation (76 to 87; 78 is the table
of `test_ca_decide.py`, 84 and 85 stand with rotation and profile)."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from ambientd.ca.authority import Authority
from ambientd.ca.signing import Signer
from ambientd.index.pods import AccountRef
from tests.unit.authorities import csr, lasting, pem_of
from tests.unit.certificate_server import A, Inline, Served, Z, code_of, identity, names_of, serve

OF_A = identity("ns-a", "sa-a")


@pytest.mark.fault(76)
async def test_a_ztunnel_of_an_account_that_is_not_trusted_is_told_apart_in_the_log() -> None:
    def elsewhere(served: Served) -> None:
        served.change_trust(accounts=frozenset({AccountRef("kube-system", "ztunnel")}))

    with capture_logs() as logs:
        async with serve(Z, A, prepare=elsewhere) as served:
            assert (await code_of(served.ask(OF_A)))[0] == "UNAUTHENTICATED"
    (entry,) = logs
    assert entry["caller"] == "istio-system/ztunnel (pod ztunnel-a)"
    assert entry["trusted"] == ["kube-system/ztunnel"]
    assert "CA_TRUSTED_NODE_ACCOUNTS" in entry["reason"]


@pytest.mark.fault(76)
async def test_a_ztunnel_that_names_no_cluster_is_told_which_there_are_in_the_log() -> None:
    with capture_logs() as logs:
        async with serve(Z, A) as served:
            assert (await code_of(served.ask(OF_A, cluster=[""])))[0] == "UNAUTHENTICATED"
    (entry,) = logs
    assert (entry["cluster"], entry["known"]) == ("''", ["Kubernetes"])
    assert "clusterid" in entry["reason"]


@pytest.mark.fault(79)
async def test_the_name_in_a_request_is_compared_with_nothing() -> None:
    """A ztunnel puts the identity that it asks for into the request, which is not its own."""
    async with serve(Z, A) as served:
        for uri in (OF_A, identity("other", "other"), identity("istio-system", "ztunnel")):
            text = pem_of(csr(names=[x509.UniformResourceIdentifier(uri)]))
            assert names_of(await served.ask(OF_A, text=text)) == [OF_A]


@pytest.mark.fault(81)
async def test_a_token_that_is_refused_is_unauthenticated_with_a_reason_and_a_metric() -> None:
    with capture_logs() as logs:
        async with serve(Z, A) as served:
            assert (await code_of(served.ask(OF_A, token="expired")))[0] == "UNAUTHENTICATED"
            assert served.counts()["ambientd_ca_refusals{unauthenticated}"] == 1
    assert [entry["reason"] for entry in logs] == ["the API server does not know the token"]


@pytest.mark.fault(82)
async def test_an_outage_of_the_signing_process_fails_fast_and_ends_by_itself() -> None:
    """Clients keep what they have when they are refused in a way that says try again, and at once."""
    authority = lasting()
    gate = asyncio.Event()
    gate.set()

    async def load() -> Authority:
        await gate.wait()
        return authority

    signer = Signer(load)
    await signer.start()
    running = asyncio.create_task(signer.run())
    with capture_logs():
        async with serve(Z, A, signer=signer) as served:
            gate.clear()
            assert signer.pid is not None
            os.kill(signer.pid, signal.SIGKILL)
            codes = set()
            async with asyncio.timeout(20):
                while signer.is_ready:
                    await asyncio.sleep(0.001)
                codes.add((await code_of(served.ask(OF_A)))[0])
                gate.set()
                while not signer.is_ready:
                    await asyncio.sleep(0.001)
            assert codes == {"INTERNAL"}
            assert served.counts()["citadel_server_csr_sign_err_count{CA_NOT_READY}"] == 1
            assert names_of(await served.ask(OF_A)) == [OF_A]
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.fault(82)
async def test_an_outage_of_the_api_server_may_be_tried_again_at_once() -> None:
    with capture_logs():
        async with serve(Z, A) as served:
            served.outage = "it does not answer"
            assert (await code_of(served.ask(OF_A)))[0] == "UNAVAILABLE"
            served.outage = ""
            assert (await code_of(served.ask(OF_A)))[0] == "OK"


@pytest.mark.fault(87)
async def test_a_burst_is_signed_off_the_loop_and_none_is_lost() -> None:
    async def load() -> Authority:
        return lasting()

    signer = Signer(load)
    await signer.start()
    with capture_logs():
        async with serve(Z, A, signer=signer) as served:
            responses = await asyncio.gather(*(served.ask(OF_A) for _ in range(200)))
    assert len({response.cert_chain[0] for response in responses}) == 200
    assert signer.pid not in (None, os.getpid())
    await signer.close()


@pytest.mark.fault(87)
async def test_a_burst_beyond_the_queue_is_told_to_come_again() -> None:
    async def load() -> Authority:
        return lasting()

    signer = Signer(load, queue_limit=4)
    await signer.start()
    assert signer.pid is not None
    with capture_logs():
        async with serve(Z, A, signer=signer) as served:
            os.kill(signer.pid, signal.SIGSTOP)
            asking = [asyncio.create_task(code_of(served.ask(OF_A))) for _ in range(12)]
            async with asyncio.timeout(20):
                while sum(task.done() for task in asking) < 8:
                    await asyncio.sleep(0.001)
            os.kill(signer.pid, signal.SIGCONT)
            codes = sorted(code for code, _ in await asyncio.gather(*asking))
    assert codes == ["OK"] * 4 + ["RESOURCE_EXHAUSTED"] * 8
    assert served.counts()["ambientd_ca_turned_away"] == 8
    await signer.close()


@pytest.mark.fault(87)
async def test_one_connection_has_a_limit_of_requests_at_one_time() -> None:
    with capture_logs():
        served = Served(Inline(), wait_s=0.01)
        served.is_open.clear()
        served.emit([*Z, *A])
        calls = [asyncio.create_task(served.call(b"", [("authorization", "Bearer token-of-z")])) for _ in range(300)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [call.result()[0] for call in calls if call.done()] == ["RESOURCE_EXHAUSTED"] * 44
        served.is_open.set()
        codes = [code for code, _ in await asyncio.gather(*calls)]
        assert codes.count("INVALID_ARGUMENT") == 256
        assert (await served.call(b"", [("authorization", "Bearer token-of-z")]))[0] == "INVALID_ARGUMENT"


@pytest.mark.fault(87)
async def test_all_connections_together_have_a_limit_of_requests_at_one_time() -> None:
    with capture_logs():
        served = Served(Inline(), wait_s=0.01)
        served.is_open.clear()
        headers = [("authorization", "Bearer token-of-z")]
        calls = [asyncio.create_task(served.call(b"", headers, f"ipv4:10.0.0.{at // 256}:1")) for at in range(8192)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not any(call.done() for call in calls)
        assert (await served.call(b"", headers, "ipv4:10.0.1.0:1"))[0] == "RESOURCE_EXHAUSTED"
        served.is_open.set()
        assert {code for code, _ in await asyncio.gather(*calls)} == {"INVALID_ARGUMENT"}
