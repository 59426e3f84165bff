"""The parts of the client of the API server that need no server: how long to wait, whose turn it is, what answers mean,
where things are."""

from __future__ import annotations

import asyncio
import json

import pytest

from ambientd.kube.backoff import Backoff
from ambientd.kube.errors import (
    Ahead,
    ApiError,
    Busy,
    Forbidden,
    Garbled,
    Gone,
    NotDefined,
    NotFound,
    Refused,
    Unauthorized,
)
from ambientd.kube.resources import resources
from ambientd.kube.turns import Turns, Urgency
from ambientd.kube.wire import (
    LONGEST_LINE_BYTES,
    Lines,
    decode_bookmark,
    decode_definition,
    decode_line,
    decode_page,
    error_of,
)
from ambientd.resources.kinds import KINDS
from ambientd.sources.kubernetes import decode_version, stuck
from ambientd.sources.watches import State, Watch


def test_waits_double_up_to_the_ceiling_and_never_fall_below_half_a_step() -> None:
    least = Backoff(0.5, 4.0, lambda: 0.0)
    most = Backoff(0.5, 4.0, lambda: 1.0)
    assert [least.next_s() for _ in range(6)] == [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]
    assert [most.next_s() for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    most.reset()
    assert most.next_s() == 0.5


def test_a_thousand_failures_are_no_overflow() -> None:
    backoff = Backoff(0.5, 30.0, lambda: 1.0)
    assert [backoff.next_s() for _ in range(2_000)][-1] == 30.0


@pytest.mark.parametrize(("asked_s", "waited_s"), [(0, 0.25), (5, 5.0), (100_000, 300.0)])
def test_the_server_may_ask_for_a_longer_wait_within_reason(asked_s: float, waited_s: float) -> None:
    assert Backoff(0.5, 4.0, lambda: 0.0).next_s(asked_s) == waited_s


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_the_most_urgent_request_goes_first() -> None:
    turns = Turns(per_s=1_000.0, burst=10, at_once=1, now_s=Clock())
    went: list[str] = []

    async def request(name: str, urgency: Urgency) -> None:
        async with turns.turn(urgency):
            went.append(name)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for name, urgency in (
            ("first", Urgency.WRITE),
            ("write", Urgency.WRITE),
            ("read", Urgency.READ),
            ("watch", Urgency.WATCH),
            ("other watch", Urgency.WATCH),
            ("caller", Urgency.CALLER),
        ):
            tasks.create_task(request(name, urgency))
    assert went == ["first", "caller", "watch", "other watch", "read", "write"]


async def test_no_more_go_than_the_bucket_has_tokens_for() -> None:
    clock = Clock()
    turns = Turns(per_s=10.0, burst=3, at_once=100, now_s=clock)
    went = 0

    async def request() -> None:
        nonlocal went
        async with turns.turn(Urgency.READ):
            went += 1

    tasks = [asyncio.create_task(request()) for _ in range(6)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert went == 3
    clock.now_s = 0.2
    while went < 5:
        await asyncio.sleep(0.01)
    clock.now_s = 0.25
    await asyncio.sleep(0.05)
    assert went == 5
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_request_that_gives_up_leaves_its_turn_to_others() -> None:
    turns = Turns(per_s=1_000.0, burst=10, at_once=1, now_s=Clock())
    holding, ended = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with turns.turn(Urgency.READ):
            holding.set()
            await ended.wait()

    async def request() -> None:
        async with turns.turn(Urgency.READ):
            pass

    held = asyncio.create_task(hold())
    await holding.wait()
    given_up, patient = asyncio.create_task(request()), asyncio.create_task(request())
    await asyncio.sleep(0)
    ended.set()
    await held
    # In the moment in which it would be its turn.
    given_up.cancel()
    await asyncio.wait([given_up])
    await patient


def status(code: int, **more: object) -> bytes:
    return json.dumps({"kind": "Status", "code": code, **more}).encode()


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (401, status(401, message="Unauthorized"), Unauthorized),
        (403, status(403, reason="Forbidden"), Forbidden),
        (404, b"404 page not found", NotFound),
        (404, status(404, reason="NotFound"), NotFound),
        (404, status(404, reason="NotFound", details={"name": "gateways.gateway.networking.k8s.io"}), NotDefined),
        (410, status(410, reason="Expired"), Gone),
        (429, b"", Busy),
        (500, status(500, message="Too large resource version: 9, current: 5"), Ahead),
        (504, status(504, details={"causes": [{"reason": "ResourceVersionTooLarge"}]}), Ahead),
        (500, b"<html>", Refused),
        (503, b"", Refused),
        (301, b"", Refused),
    ],
)
def test_an_answer_that_is_no_success_has_one_meaning(code: int, body: bytes, expected: type[ApiError]) -> None:
    assert type(error_of("GET /x", body, code)) is expected


def test_a_server_that_says_when_to_come_back_is_busy() -> None:
    by_header = error_of("GET /x", b"", 503, "7")
    in_body = error_of("GET /x", status(503, details={"retryAfterSeconds": 5}), 503)
    assert (type(by_header), by_header.retry_after_s) == (Busy, 7.0)
    assert (type(in_body), in_body.retry_after_s) == (Busy, 5.0)
    assert error_of("GET /x", b"", 429, "Wed, 21 Oct 2026 07:28:00 GMT").retry_after_s == 0.0


def test_a_refusal_says_what_was_asked_and_what_to_do() -> None:
    message = 'pods is forbidden: User "u" cannot list resource "pods"'
    assert str(error_of("GET /api/v1/pods", status(403, message=message), 403)) == (
        f"GET /api/v1/pods: {message}; grant it in the ClusterRole of the server"
    )


def test_a_long_answer_that_nobody_can_read_is_cut_to_a_line() -> None:
    text = str(error_of("GET /x", b"<html>\n\n" + b"x" * 10_000, 502))
    assert len(text) < 400
    assert "\n" not in text


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_lines_are_the_same_however_the_bytes_are_cut(size: int) -> None:
    content = b'{"a":1}\n{"b":"\xc3\xa4"}\n\n \n{"c":3}\n{"unfinished'
    lines = Lines()
    found = [line for start in range(0, len(content), size) for line in lines.feed(content[start : start + size])]
    assert found == [b'{"a":1}', b'{"b":"\xc3\xa4"}', b'{"c":3}']


def test_a_line_without_an_end_is_given_up() -> None:
    lines = Lines()
    for _ in range(LONGEST_LINE_BYTES >> 20):
        assert lines.feed(b"x" * (1 << 20)) == []
    with pytest.raises(Garbled, match="longer than"):
        lines.feed(b"x")


def test_an_empty_list_may_have_null_for_items() -> None:
    page = decode_page(b'{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":null}')
    assert (page.version, page.items, page.after) == ("7", (), "")


def test_a_definition_tells_what_is_served_and_whether_it_is_there_yet() -> None:
    versions = [{"name": "v1", "served": True, "storage": True}, {"name": "v1beta1", "served": False}]
    definition = decode_definition(json.dumps({"spec": {"versions": versions}}).encode())
    assert (definition.served, definition.is_established) == (("v1",), False)
    with pytest.raises(Garbled):
        decode_definition(b'{"kind":"Status"}')


def test_every_kind_has_a_place() -> None:
    places = {each.kind: each.path(each.versions[0]) for each in resources("istio-system", "istio-canary")}
    assert places.keys() == KINDS.keys()
    assert places["Pod"] == "/api/v1/pods"
    assert places["ConfigMap"] == "/api/v1/namespaces/istio-system/configmaps"
    assert places["EndpointSlice"] == "/apis/discovery.k8s.io/v1/endpointslices"
    assert places["GatewayClass"] == "/apis/gateway.networking.k8s.io/v1/gatewayclasses"
    (mesh,) = [each for each in resources("istio-system", "istio-canary") if each.kind == "ConfigMap"]
    assert mesh.field_selector == "metadata.name=istio-canary"


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b"{}", b'{"gitVersion":7}'])
def test_what_has_no_version_is_no_api_server(answer: bytes) -> None:
    with pytest.raises(Garbled):
        decode_version(answer)


def test_a_kind_that_is_not_listed_in_time_is_named() -> None:
    late, listed, absent = Watch("c", "Pod", 0.0), Watch("c", "Node", 0.0), Watch("c", "Gateway", 0.0)
    listed.listed(5.0, "start")
    absent.absent(State.ABSENT, "no definition")
    assert [watch.kind for watch in stuck([late, listed, absent], 29.0, 30.0)] == []
    assert [watch.kind for watch in stuck([late, listed, absent], 30.0, 30.0)] == ["Pod"]


def test_the_same_failure_again_and_again_is_told_once_a_minute() -> None:
    watch = Watch("c", "Pod", 0.0)
    told = [watch.failed(float(at_s), "connection refused", 1.0) for at_s in range(0, 180, 10)]
    assert [at for at, is_told in enumerate(told) if is_told] == [0, 6, 12]
    assert watch.failed(181.0, "503", 1.0)
    assert watch.failures == 19


DEEP = b'{"a":' * 5_000 + b'"]}"' + b"}" * 5_000
"""More levels than the decoder has stack for; an API server stores twice as many, where a definition of a kind keeps
fields that it does not know."""


def test_an_object_that_is_nested_too_deeply_does_not_take_the_others_of_its_page_with_it() -> None:
    before, after = b'{"metadata":{"name":"a\\"["}}', b'{"metadata":{"name":"c"}}'
    deep = b'{"metadata":{"name":"b"},"status":%b,"spec":{"x":[1]}}' % DEEP
    raw = b'{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[%b,%b,%b]}' % (before, deep, after)
    first, second, third = map(bytes, decode_page(raw).items)
    assert (first, third) == (before, after)
    told = json.loads(second)
    assert (told["metadata"], told["spec"]) == ({"name": "b"}, {"x": [1]})


def test_what_is_nested_too_deeply_ends_no_watch() -> None:
    told = decode_line(b'{"type":"MODIFIED","object":{"metadata":{"name":"b"},"status":%b}}' % DEEP)
    assert (told.type, json.loads(bytes(told.object))["metadata"]) == ("MODIFIED", {"name": "b"})
    assert decode_bookmark(b'{"spec":%b,"metadata":{"resourceVersion":"8"}}' % DEEP) == "8"
    definition = decode_definition(b'{"spec":{"versions":[{"name":"v1","served":true,"schema":%b}]}}' % DEEP)
    assert definition.served == ("v1",)
    assert isinstance(error_of("GET /x", b'{"details":{"group":%b}}' % DEEP, 404), NotFound)


@pytest.mark.parametrize("raw", [b"[" * 5_000, b"]" * 5_000, b'{"a":"' + b"[" * 5_000, DEEP + b"]", DEEP + b'"'])
def test_deep_nonsense_is_garbled_like_any_other(raw: bytes) -> None:
    with pytest.raises(Garbled):
        decode_line(raw)
    with pytest.raises(Garbled):
        decode_version(raw)
