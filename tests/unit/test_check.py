"""What `ambientctl check` says of a server, and with which exit code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner, Result

from ambientd.ctl.checking import Health, complaints, verdict
from ambientd.ctl.main import cli
from ambientd.sources.watches import State, Watch


def watch(kind: str, *, state: State = State.WATCHING, reason: str = "", outdated_s: float = 0.0) -> dict[str, Any]:
    """As the page has it at the time 1,000."""
    made = Watch("c1", kind, 1_000.0 - outdated_s)
    made.listed(1_000.0 - outdated_s, "start")
    if state in (State.ABSENT, State.UNSUPPORTED):
        made.absent(state, reason)
    elif state is State.WATCHING:
        made.watched(1_000.0 - outdated_s)
    else:
        made.interrupted(1_000.0 - outdated_s, reason, 1.0)
    return made.plain(1_000.0)


def unlisted(kind: str, reason: str = "") -> dict[str, Any]:
    made = Watch("c1", kind, 990.0)
    if reason:
        made.failed(995.0, reason, 1.0)
    return made.plain(1_000.0)


PROBLEM = {"object": "Pod shop/a", "is_served": False, "faults": ["status.podIP must be an IP address", "other"]}


def test_a_server_that_is_well_gets_one_line() -> None:
    health = Health(True, [watch("Pod"), watch("Gateway", state=State.ABSENT)], [])
    assert complaints(health) == []
    assert verdict(health, []) == "all is well: ready, 1 kinds watched, Gateway not installed"
    assert verdict(Health(True, [], []), []) == "all is well: ready"


def test_a_kind_that_cannot_be_read_is_named_with_its_reason() -> None:
    health = Health(False, [watch("Node"), unlisted("Pod", "pods is forbidden"), unlisted("Service")], [])
    lines = complaints(health)
    assert lines == [
        "not ready: waits for Pod, Service",
        "Pod in c1: not listed yet (waiting): pods is forbidden",
        "Service in c1: not listed yet (starting): no answer so far",
    ]
    assert verdict(health, lines) == "3 things to look at"


def test_a_watch_that_is_interrupted_for_long_is_told_and_a_short_one_is_not() -> None:
    long = watch("Pod", state=State.WAITING, reason="connection refused", outdated_s=90.0)
    short = watch("Node", state=State.WAITING, reason="connection refused", outdated_s=5.0)
    assert complaints(Health(True, [long, short], [])) == ["Pod in c1: may be out of date for 90 s: connection refused"]


def test_a_kind_that_is_left_out_and_a_problem_are_told() -> None:
    gateway = watch("Gateway", state=State.UNSUPPORTED, reason="gateways are served in v1alpha2; v1 is needed")
    assert complaints(Health(True, [gateway], [PROBLEM])) == [
        "Gateway in c1: left out: gateways are served in v1alpha2; v1 is needed",
        "Pod shop/a (not served): status.podIP must be an IP address; other",
    ]


class Pages:
    """A server's answers."""

    def __init__(self) -> None:
        self.ready = 200
        self.watches: list[dict[str, Any]] = [watch("Pod")]
        self.problems: list[dict[str, Any]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/ready":
            return web.Response(status=self.ready)
        pages = {"/debug/watches": self.watches, "/debug/problems": self.problems}
        return web.Response(text=json.dumps(pages[request.path]), content_type="application/json")

    async def check(self, *arguments: str) -> Result:
        given = arguments or ("--ready-url", self.url, "--debug-url", self.url)
        return await asyncio.to_thread(CliRunner().invoke, cli, ["check", *given])


@pytest.fixture
async def pages() -> AsyncIterator[Pages]:
    pages = Pages()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", pages.answer)
    async with TestServer(app) as server:
        pages.url = str(server.make_url("")).rstrip("/")
        yield pages


async def test_a_server_that_is_well_is_exit_code_0(pages: Pages) -> None:
    result = await pages.check()
    assert (result.exit_code, result.output) == (0, "all is well: ready, 1 kinds watched\n")


async def test_anything_that_is_wrong_is_exit_code_1(pages: Pages) -> None:
    pages.ready = 503
    pages.problems = [PROBLEM]
    result = await pages.check()
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "not ready: it starts or ends just now",
        "Pod shop/a (not served): status.podIP must be an IP address; other",
        "2 things to look at",
    ]


async def test_another_server_is_told_from_ours(pages: Pages) -> None:
    pages.ready = 404
    result = await pages.check()
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert f"{pages.url}/ready answered 404 Not Found; is it ambientd?" in result.output


async def test_a_server_that_does_not_answer_is_exit_code_1(pages: Pages) -> None:
    result = await pages.check("--ready-url", "http://127.0.0.1:1", "--debug-url", pages.url)
    assert result.exit_code == 1
    assert "http://127.0.0.1:1/ready does not answer: Connection refused; start a server" in result.output


@pytest.mark.parametrize("option", ["--ready-url", "--debug-url"])
async def test_what_is_no_url_is_exit_code_2(pages: Pages, option: str) -> None:
    result = await pages.check(option, "localhost:8080")
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
