"""No key and no token in anything that is written, shown or passed on (ca.md 16.2, 18)."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client.registry import CollectorRegistry
from structlog.testing import capture_logs

from ambientd.ca.authority import Authority, Unusable
from ambientd.ca.signing import Signer, SigningFailed
from ambientd.debug.series import ExactNames, exposition
from tests.unit.authorities import ID, good_files, key, key_pem, lasting, plugged_in
from tests.unit.certificate_server import A, Z, code_of, identity, names_of, serve
from tests.unit.worlds import CLUSTER

TOKENS = ("token-of-z", "token-of-z2", "token-of-a", "unbound", "no-such-token")


def secrets_of(pem: bytes) -> list[str]:
    """Every line of a key, and its start as other ways of writing bytes would show it."""
    lines = [line for line in pem.decode().splitlines() if line and "-----" not in line]
    return [*lines, "PRIVATE KEY-----"]


def found_in(text: str, secrets: Sequence[str]) -> list[str]:
    return [secret for secret in secrets if secret in text]


@pytest.fixture(autouse=True)
def _loud() -> None:
    structlog.reset_defaults()


async def test_no_token_is_in_a_log_a_metric_a_refusal_or_a_status() -> None:
    shown: list[str] = []
    with capture_logs() as logs:
        async with serve(Z, A) as served:
            for token in TOKENS:
                for wanted in (None, identity("ns-a", "sa-a"), identity("none", "none"), "junk"):
                    shown.extend(await code_of(served.ask(wanted, token=token)))
                shown.extend(await code_of(served.ask(token=token, text="junk")))
            for header in ("bearer token-of-z", "Basic token-of-z", "Bearertoken-of-z", "Bearer  token-of-z"):
                shown.extend(await code_of(served.send(b"", [("authorization", header), ("clusterid", CLUSTER)])))
            del served.trust
            shown.extend(await code_of(served.ask()))
            registry = CollectorRegistry()
            registry.register(ExactNames(served.metrics.series))
            shown.append(exposition(registry).decode())
            shown.extend(repr(refusal) for refusal in served.service.refusals())
    assert len(logs) > 20
    text = "\n".join([*shown, *(repr(entry) for entry in logs)])
    assert found_in(text, TOKENS) == []


async def test_a_log_line_cannot_be_forged_and_is_short() -> None:
    with capture_logs() as logs:
        async with serve(Z) as served:
            await code_of(served.ask("spiffe://x\nlevel=info certificate issued" + "y" * 5000, cluster=["x" * 5000]))
    (entry,) = [entry for entry in logs if entry["event"] == "certificate refused"]
    assert "\n" not in repr(entry["identity"]).replace("\\n", "")
    assert len(repr(entry)) < 1500


async def test_what_is_logged_of_an_issue_answers_who_got_what_from_where() -> None:
    with capture_logs() as logs:
        async with serve(Z, A) as served:
            assert names_of(await served.ask(ID)) == [ID]
    (entry,) = [entry for entry in logs if entry["event"] == "certificate issued"]
    assert {key: entry[key] for key in ("caller", "pod_uid", "identity", "node", "cluster")} == {
        "caller": "istio-system/ztunnel (pod ztunnel-a)",
        "pod_uid": "12345",
        "identity": ID,
        "node": "n1",
        "cluster": repr(CLUSTER),
    }
    assert {"peer", "serial", "not_before_s", "not_after_s", "public_key_sha256"} <= entry.keys()


async def test_what_is_logged_of_a_refusal_answers_who_asked_what_from_where_and_why() -> None:
    with capture_logs() as logs:
        async with serve(Z, A) as served:
            await code_of(served.ask(identity("none", "none")))
            await code_of(served.ask(token=None))
    asked, unknown = (entry for entry in logs if entry["event"] == "certificate refused")
    assert {key: asked[key] for key in ("log_level", "caller", "cluster", "identity", "node", "reason")} == {
        "log_level": "warning",
        "caller": "istio-system/ztunnel (pod ztunnel-a)",
        "cluster": repr(CLUSTER),
        "identity": repr(identity("none", "none")),
        "node": "n1",
        "reason": "no pod of that account is on the caller's node",
    }
    assert (unknown["log_level"], unknown["caller"]) == ("warning", "")
    assert unknown["reason"] == "there is no bearer token"
    assert all(entry["peer"].startswith("ipv4:127.0.0.1:") for entry in (asked, unknown))


async def test_no_key_is_in_a_log_or_an_error_whatever_goes_wrong(capfd: pytest.CaptureFixture[str]) -> None:
    authority = lasting()
    other = key_pem(key("P-256/other"))
    secrets = [*secrets_of(authority.key.pem), *secrets_of(other)]
    answers: list[Authority | Exception] = [authority, ValueError(authority.key.pem.decode()), authority]

    async def load() -> Authority:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    shown: list[str] = []
    with capture_logs() as logs:
        signer = Signer(load)
        await signer.start()
        process = Path(f"/proc/{signer.pid}")
        shown.append((process / "cmdline").read_bytes().decode("utf-8", "replace"))
        shown.append((process / "environ").read_bytes().decode("utf-8", "replace"))
        assert "Max core file size        0                    0" in (process / "limits").read_text()
        running = asyncio.create_task(signer.run())
        for broken in (other, b"garbage", other[:-40], other.replace(b"M", b"N")):
            with pytest.raises(Unusable) as unusable:
                await signer.use(plugged_in({**good_files(), "ca-key.pem": broken}))
            shown.append("".join(traceback.format_exception(unusable.value)))
        with pytest.raises(SigningFailed) as failed:
            await signer.sign("junk", [ID], 0)
        shown.append("".join(traceback.format_exception(failed.value)))
        assert signer.pid is not None
        os.kill(signer.pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            while answers or not signer.is_ready:
                await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.wait([running])
    captured = capfd.readouterr()
    text = "\n".join([*shown, captured.out, captured.err, *(repr(entry) for entry in logs), repr(vars(signer))])
    assert any(entry["event"].startswith("the signing process ended") for entry in logs)
    assert found_in(text, secrets) == []


async def test_the_server_keeps_no_key_once_it_was_handed_on() -> None:
    async def load() -> Authority:
        return plugged_in()

    signer = Signer(load)
    await signer.start()
    assert not _holds_key(signer, set())
    await signer.close()


def _holds_key(value: Any, seen: set[int]) -> bool:
    """Whether an authority with its key can be reached from the attributes of an object of ours."""
    if id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, Authority):
        return True
    if isinstance(value, dict):
        return any(_holds_key(each, seen) for each in value.values())
    if isinstance(value, list | tuple | set):
        return any(_holds_key(each, seen) for each in value)
    if type(value).__module__.startswith("ambientd"):
        held = getattr(value, "__dict__", None) or {name: getattr(value, name) for name in _fields(value)}
        return _holds_key(held, seen)
    return False


def _fields(value: Any) -> tuple[str, ...]:
    return tuple(getattr(value, "__struct_fields__", ()))
