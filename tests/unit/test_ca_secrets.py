"""Secrets of the authority: what is read and written, and that nothing that they hold gets out (ca.md 10.3, 16.2)."""

from __future__ import annotations

import base64
import json
import traceback
from typing import Any, cast

import pytest

from ambientd.ca.secrets import Conflict, Data, Secret, Secrets
from ambientd.kube.api import Api
from ambientd.kube.errors import ApiError, Forbidden, Garbled, NotDefined, NotFound, Refused
from tests.unit.authorities import key, key_pem

KEY = key_pem(key("P-256"))
ENCODED = base64.b64encode(KEY).decode()
PATH = "/api/v1/namespaces/istio-system/secrets"


class Answers:
    """Takes the place of `Api`: gives what it is told, and remembers what it was asked."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, str, Any]] = []

    async def get(self, path: str, **_: Any) -> bytes:
        return await self.send("GET", path)

    async def send(self, method: str, path: str, *, body: bytes = b"null", **_: Any) -> bytes:
        self.asked.append((method, path, json.loads(body)))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def secrets_with(*answers: bytes | Exception) -> tuple[Secrets, Answers]:
    api = Answers(*answers)
    return Secrets(cast("Api", api), "istio-system"), api


def held(version: str = "7", **data: str) -> bytes:
    metadata = {"name": "s", "resourceVersion": version, "labels": {"a": "b"}}
    return json.dumps({"kind": "Secret", "metadata": metadata, "type": "istio.io/ca-root", "data": data}).encode()


async def test_a_secret_is_read_with_its_version() -> None:
    secrets, api = secrets_with(held(key=ENCODED, empty=""), b'{"metadata":{"resourceVersion":"8"}}')
    assert await secrets.read("s") == Secret("s", Data({"key": KEY, "empty": b""}), "7")
    assert await secrets.read("s") == Secret("s", Data({}), "8")
    assert api.asked[0] == ("GET", f"{PATH}/s", None)


async def test_only_the_api_servers_own_word_is_that_there_is_none() -> None:
    secrets, _ = secrets_with(NotDefined("there is no secret s"), NotFound("404 of a proxy"))
    assert await secrets.read("s") is None
    with pytest.raises(NotFound):
        await secrets.read("s")


async def test_a_secret_is_made_with_type_and_empty_values_as_texts() -> None:
    secrets, api = secrets_with(b"{}")
    await secrets.create("s", "istio.io/ca-root", Data({"key": KEY, "empty": b""}))
    metadata = {"name": "s", "namespace": "istio-system"}
    data = {"key": ENCODED, "empty": ""}
    expected = {"apiVersion": "v1", "kind": "Secret", "type": "istio.io/ca-root", "metadata": metadata, "data": data}
    assert api.asked == [("POST", PATH, expected)]


async def test_keys_are_replaced_in_what_was_read_and_the_rest_stays() -> None:
    secrets, api = secrets_with(held(key="b2xk", other="eA=="), b"{}")
    await secrets.replace(Secret("s", Data({}), "7"), Data({"key": KEY}))
    method, path, body = api.asked[1]
    assert (method, path) == ("PUT", f"{PATH}/s")
    assert body == json.loads(held(key=ENCODED, other="eA=="))


async def test_what_somebody_wrote_meanwhile_is_not_overwritten() -> None:
    secrets, api = secrets_with(held(version="8"), Refused("it exists", status=409))
    with pytest.raises(Conflict):
        await secrets.replace(Secret("s", Data({}), "7"), Data({"key": KEY}))
    with pytest.raises(Conflict):
        await secrets.create("s", "x", Data({}))
    assert [method for method, *_ in api.asked] == ["GET", "POST"]


@pytest.mark.parametrize(
    "answer",
    [
        Refused(f"Secret is invalid: data: Invalid value: {ENCODED}", status=422),
        Refused(KEY.decode(), status=500),
        Forbidden("secrets is forbidden"),
    ],
)
async def test_an_error_of_a_write_holds_nothing_of_what_was_written(answer: Exception) -> None:
    secrets, _ = secrets_with(answer)
    with pytest.raises(ApiError) as refused:
        await secrets.create("s", "x", Data({"key": KEY}))
    assert_is_clean("".join(traceback.format_exception(refused.value)))


@pytest.mark.parametrize(
    "raw",
    [
        json.dumps({"data": {"key": KEY.decode()}}).encode(),
        json.dumps({"data": {"key": [ENCODED]}}).encode(),
        json.dumps({"data": ENCODED}).encode(),
        json.dumps({"metadata": {"resourceVersion": 7}, "data": {"key": ENCODED}}).encode(),
        ENCODED.encode(),
        KEY,
    ],
)
async def test_an_answer_that_is_no_secret_does_not_show_in_the_error(raw: bytes) -> None:
    secrets, _ = secrets_with(raw, raw)
    with pytest.raises(Garbled, match="Secret istio-system/s: the API server's answer is no secret") as garbled:
        await secrets.read("s")
    assert_is_clean("".join(traceback.format_exception(garbled.value)))


def test_no_text_of_a_secret_shows_what_it_holds() -> None:
    secret = Secret("s", Data({"key": KEY}), "7")
    assert_is_clean(f"{secret}{secret!r}{secret.data}{[secret.data]}")


def assert_is_clean(text: str) -> None:
    for line in (*KEY.decode().splitlines(), ENCODED[:40], ENCODED[-40:]):
        assert line not in text
