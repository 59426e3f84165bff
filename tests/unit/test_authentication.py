"""Who a caller is: which token counts, what an API server's answer means, how long it is believed, and that no token
ever shows (xds.md 3.2, 3.4; ca.md 4)."""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ambientd.ca.caller import Caller, CannotTell, Unauthenticated
from ambientd.kube.api import Api
from ambientd.kube.errors import Forbidden, Refused, Unreachable
from ambientd.xds.authentication import (
    BELIEVED_S,
    DEADLINE_S,
    DISBELIEVED_S,
    Authenticator,
    Denied,
    Refusal,
    Reviewed,
    bearer_token,
    mismatch,
)
from ambientd.xds.node import Node
from ambientd.xds.static_tokens import BadTokenFile, load_tokens
from ambientd.xds.token_review import TokenReviews, read_review

TOKEN = "a.secret.token-5f1c"
ZTUNNEL = Reviewed("istio-system", "ztunnel", "ztunnel-a", "12345", "n1")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Reviews:
    """Answers as told, and counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: Reviewed | Exception = ZTUNNEL
        self.gate: asyncio.Event | None = None

    async def review(self, token: str) -> Reviewed:
        self.asked.append(token)
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Setup:
    def __init__(self) -> None:
        self.clock = Clock()
        self.reviews = Reviews()
        self.outcomes: list[str] = []
        self.trust_domain = "cluster.local"
        self.authenticator = self.make()

    def make(self, deadline_s: float = 8.0) -> Authenticator:
        return Authenticator(
            self.reviews,
            self,
            cluster_id="c1",
            cluster_aliases={"east": "c1", "west": "c2"},
            trust_domain=lambda: self.trust_domain,
            now_s=self.clock,
            wall_s=self.clock,
            deadline_s=deadline_s,
        )

    def authenticated(self, outcome: str) -> None:
        self.outcomes.append(outcome)

    async def call(self, token: str = TOKEN, *more: tuple[str, str]) -> Caller:
        return await self.authenticator.authenticate([("authorization", f"Bearer {token}"), *more])


@pytest.fixture
def setup() -> Setup:
    return Setup()


def jwt(**claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


async def test_a_token_becomes_a_caller_with_the_trust_domain_of_the_moment(setup: Setup) -> None:
    assert await setup.call() == Caller("istio-system", "ztunnel", "cluster.local", "ztunnel-a", "12345", "n1")
    setup.trust_domain = "td@x"
    assert (await setup.call()).identity == "spiffe://td.x/ns/istio-system/sa/ztunnel"


@pytest.mark.parametrize(
    ("values", "token"),
    [
        (["Bearer tok"], "tok"),
        (["Basic x", "Bearer tok"], "tok"),
        (["Bearer bad", "Bearer tok"], "bad"),
        (["Bearer  tok"], " tok"),
        (["Bearer tok "], "tok "),
    ],
)
def test_the_first_value_that_begins_as_it_should_is_final(values: list[str], token: str) -> None:
    assert bearer_token([("authorization", value) for value in values], ("Bearer ",)) == token


@pytest.mark.parametrize(
    "values", [[], ["Basic x"], ["bearer tok"], ["Bearer"], ["Bearer "], ["Bearer  "], ["Istio tok"], [b"Bearer x"]]
)
async def test_a_call_without_a_bearer_token_is_of_nobody(setup: Setup, values: list[Any]) -> None:
    with pytest.raises(Unauthenticated, match="no bearer token"):
        await setup.authenticator.authenticate([("authorization", value) for value in values])
    assert (setup.reviews.asked, setup.outcomes) == ([], ["no_token"])


async def test_debug_pages_take_another_prefix_too(setup: Setup) -> None:
    headers = [("authorization", "Istio tok")]
    assert (await setup.authenticator.authenticate(headers, prefixes=("Bearer ", "Istio "))).account == "ztunnel"


@pytest.mark.parametrize(
    "named", [[], [("clusterid", "c1")], [("clusterid", "east")], [("clusterid", "")], [("clusterid", "no")] * 2]
)
async def test_a_cluster_that_is_ours_or_not_said_is_accepted(setup: Setup, named: list[tuple[str, str]]) -> None:
    assert (await setup.call(TOKEN, *named)).account == "ztunnel"


@pytest.mark.parametrize("named", ["nope", "west", "c2", "C1"])
async def test_another_cluster_is_refused_before_anybody_is_asked(setup: Setup, named: str) -> None:
    with pytest.raises(Unauthenticated, match=r"unknown cluster: .* is not 'c1'"):
        await setup.call(TOKEN, ("clusterid", named))
    assert setup.reviews.asked == []


async def test_an_answer_is_believed_for_a_short_time(setup: Setup) -> None:
    await setup.call()
    setup.clock.now_s += BELIEVED_S - 0.1
    await setup.call()
    assert len(setup.reviews.asked) == 1
    setup.clock.now_s += 0.2
    await setup.call()
    assert len(setup.reviews.asked) == 2
    assert setup.outcomes == ["ok", "remembered", "ok"]


async def test_an_answer_is_never_believed_past_the_end_of_the_token(setup: Setup) -> None:
    token = jwt(exp=setup.clock.now_s + 2)
    await setup.call(token)
    setup.clock.now_s += 1.9
    await setup.call(token)
    setup.clock.now_s += 0.2
    await setup.call(token)
    await setup.call(token)
    assert len(setup.reviews.asked) == 3


@pytest.mark.parametrize(
    "claims",
    [
        '{"x":' + "[" * 3000 + "]" * 3000 + "}",
        "[" * 10_000,
        '{"exp":"soon"}',
        '{"exp":null}',
        '{"exp":1e999}',
        '{"exp":[1]}',
        "[1]",
        "{",
        "\xff",
    ],
    ids=["deep", "deep and cut off", "a text", "null", "infinite", "a list", "no object", "cut off", "no UTF-8"],
)
async def test_a_token_whose_claims_cannot_be_read_is_the_reviewers_to_judge(setup: Setup, claims: str) -> None:
    token = f"e30.{base64.urlsafe_b64encode(claims.encode('latin-1')).decode()}.x"
    assert (await setup.call(token)).account == "ztunnel"
    setup.reviews.answer = Denied(Refusal.REFUSED, "not known")
    with pytest.raises(Unauthenticated):
        await setup.call(token + "y")


async def test_a_refusal_is_remembered_briefly(setup: Setup) -> None:
    setup.reviews.answer = Denied(Refusal.REFUSED, "not known")
    for _ in range(2):
        with pytest.raises(Unauthenticated, match="the token is refused: not known"):
            await setup.call()
    assert len(setup.reviews.asked) == 1
    setup.clock.now_s += DISBELIEVED_S + 0.1
    setup.reviews.answer = ZTUNNEL
    assert (await setup.call()).account == "ztunnel"


@pytest.mark.fault(81)
async def test_a_token_that_has_ended_has_a_reason_of_its_own(setup: Setup) -> None:
    setup.reviews.answer = Denied(Refusal.REFUSED, "invalid bearer token")
    with pytest.raises(Unauthenticated, match="the token has expired: 60 s ago; invalid bearer token"):
        await setup.call(jwt(exp=setup.clock.now_s - 60))
    assert setup.outcomes == ["expired"]


async def test_an_outage_is_told_apart_and_not_remembered(setup: Setup) -> None:
    setup.reviews.answer = CannotTell("the API server is away")
    with pytest.raises(CannotTell, match="the API server is away"):
        await setup.call()
    setup.reviews.answer = ZTUNNEL
    assert (await setup.call()).account == "ztunnel"
    assert setup.outcomes == ["cannot_tell", "ok"]


async def test_a_review_that_hangs_ends_at_the_deadline(setup: Setup) -> None:
    setup.authenticator = setup.make(deadline_s=0.01)
    setup.reviews.gate = asyncio.Event()
    with pytest.raises(CannotTell, match=r"no review of the token within 0\.01 s"):
        await setup.call()


async def test_callers_with_one_token_share_one_review_and_one_that_goes_leaves_it_to_the_others(setup: Setup) -> None:
    setup.reviews.gate = asyncio.Event()
    calls = [asyncio.create_task(setup.call()) for _ in range(8)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    calls[0].cancel()
    setup.reviews.gate.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert {result.account for result in results[1:] if isinstance(result, Caller)} == {"ztunnel"}
    assert len(setup.reviews.asked) == 1


async def test_what_is_remembered_is_bounded_and_the_oldest_goes(setup: Setup) -> None:
    for number in range(10_001):
        await setup.call(f"token-{number}")
    await setup.call("token-10000")
    assert len(setup.reviews.asked) == 10_001
    await setup.call("token-0")
    assert len(setup.reviews.asked) == 10_002


async def test_reviews_at_one_time_are_bounded_and_more_are_told_to_come_again(setup: Setup) -> None:
    setup.reviews.gate = asyncio.Event()
    calls = [asyncio.create_task(setup.call(f"token-{number}")) for number in range(2_000)]
    await asyncio.sleep(0)
    with pytest.raises(CannotTell, match="2000 reviews of tokens are under way already"):
        await setup.call("one-more")
    setup.reviews.gate.set()
    await asyncio.gather(*calls)
    await setup.call("one-more")


def test_a_whole_call_has_less_than_ten_seconds() -> None:
    assert DEADLINE_S < 10


# What an API server answers (ca.md 4.6).


def review(**changes: Any) -> bytes:
    status: dict[str, Any] = {
        "authenticated": True,
        "user": {
            "username": "system:serviceaccount:istio-system:ztunnel",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:istio-system", "system:authenticated"],
            "extra": {
                "authentication.kubernetes.io/pod-name": ["ztunnel-a"],
                "authentication.kubernetes.io/pod-uid": ["12345"],
                "authentication.kubernetes.io/node-name": ["n1"],
            },
        },
        "audiences": ["istio-ca"],
    }
    user = {name: changes.pop(name) for name in ("username", "groups", "extra") if name in changes}
    status["user"].update(user)
    status.update(changes)
    return json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status}).encode()


def test_a_bound_token_tells_pod_and_node() -> None:
    assert read_review(review(), TOKEN, ("istio-ca",)) == ZTUNNEL


def test_a_token_that_is_bound_to_nothing_tells_its_account_only() -> None:
    found = read_review(review(extra={}, audiences=None), TOKEN, ("istio-ca",))
    assert found == Reviewed("istio-system", "ztunnel")


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"authenticated": False}, Refusal.REFUSED),
        ({"error": "something", "authenticated": True}, Refusal.REFUSED),
        ({"groups": ["system:serviceaccounts:istio-system"]}, Refusal.NO_ACCOUNT),
        ({"groups": None}, Refusal.NO_ACCOUNT),
        ({"username": "system:serviceaccount:x"}, Refusal.NO_ACCOUNT),
        ({"username": "system:serviceaccount:x:"}, Refusal.NO_ACCOUNT),
        ({"username": "system:serviceaccount::y"}, Refusal.NO_ACCOUNT),
        ({"username": "system:node:a:b"}, Refusal.NO_ACCOUNT),
        ({"username": "system:serviceaccount:a:b:c"}, Refusal.NO_ACCOUNT),
        ({"username": "admin"}, Refusal.NO_ACCOUNT),
        ({"audiences": ["vault"]}, Refusal.REFUSED),
    ],
)
def test_every_condition_refuses_by_itself(changes: dict[str, Any], refusal: Refusal) -> None:
    with pytest.raises(Denied) as denied:
        read_review(review(**changes), TOKEN, ("istio-ca",))
    assert denied.value.refusal is refusal


def test_the_first_of_several_pods_counts() -> None:
    names = {f"authentication.kubernetes.io/{name}": [name, "other"] for name in ("pod-name", "pod-uid", "node-name")}
    found = read_review(review(extra=names), TOKEN, ("istio-ca",))
    assert found == Reviewed("istio-system", "ztunnel", "pod-name", "pod-uid", "node-name")
    nothing: Any = {"authentication.kubernetes.io/pod-name": [], "authentication.kubernetes.io/pod-uid": None}
    assert read_review(review(extra=nothing), TOKEN, ("istio-ca",)) == Reviewed("istio-system", "ztunnel")


def test_one_of_several_audiences_is_enough() -> None:
    found = read_review(review(audiences=["vault", "istio-ca"]), TOKEN, ("istio-ca", "x"))
    assert found == ZTUNNEL


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"[]", b"{}", b'{"status":1}', b'{"status":{"user":{"username":1}}}', b"\xff"),
        b'{"status":{"x":' + b"[" * 100_000,
    ],
)
def test_what_is_no_review_is_an_outage_and_not_a_refusal(raw: bytes) -> None:
    with pytest.raises(CannotTell, match="no TokenReview"):
        read_review(raw, TOKEN, ("istio-ca",))


def test_a_token_that_an_answer_quotes_does_not_get_out() -> None:
    with pytest.raises(Denied) as denied:
        read_review(review(error=f"cannot parse {TOKEN} at 3"), TOKEN, ("istio-ca",))
    assert str(denied.value) == "the token is refused: cannot parse … at 3"


class Answering:
    """Takes the place of `Api`."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.asked: Any = None
        self._answer = answer

    async def send(self, method: str, path: str, *, body: bytes, **_: Any) -> bytes:
        self.asked = json.loads(body)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


async def test_a_review_asks_for_the_audiences() -> None:
    api = Answering(review())
    assert await TokenReviews(cast("Api", api), ("istio-ca", "vault")).review(TOKEN) == ZTUNNEL
    assert api.asked["spec"] == {"token": TOKEN, "audiences": ["istio-ca", "vault"]}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Unreachable(f"nobody answered about {TOKEN}"), CannotTell),
        (Forbidden(f"who sends {TOKEN} may not"), CannotTell),
        (Refused(f"cannot store {TOKEN}", status=500), CannotTell),
        (Refused(f"cannot read {TOKEN}", status=400), Denied),
        (Refused(f"too long: {TOKEN}", status=413), Denied),
        (Refused(f"invalid: {TOKEN}", status=422), Denied),
    ],
)
async def test_an_api_server_that_quotes_a_token_does_not_get_it_into_an_error(
    answer: Exception, error: type[Exception]
) -> None:
    with pytest.raises(error) as raised:
        await TokenReviews(cast("Api", Answering(answer)), ("istio-ca",)).review(TOKEN)
    assert TOKEN not in "".join(traceback.format_exception(raised.value))


# Tokens in a file.


def token_file(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "tokens.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


async def test_a_file_gives_tokens_to_callers(tmp_path: Path) -> None:
    entry = "{token: aa, namespace: istio-system, serviceAccount: ztunnel, pod: ztunnel-a, uid: '12345', node: n1}"
    tokens = load_tokens(token_file(tmp_path, f"tokens:\n- {entry}\n- {{token: b, namespace: n, serviceAccount: s}}\n"))
    assert await tokens.review("aa") == ZTUNNEL
    assert await tokens.review("b") == Reviewed("n", "s")
    for other in ("a", "aaa", "", "é\udcff"):
        with pytest.raises(Denied):
            await tokens.review(other)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tokens: [", "cannot be read as YAML at line "),
        ("tokens: 5-secret", "must have one field, tokens, with a list"),
        ("[]", "must have one field, tokens, with a list"),
        ("tokens: [secret]", "tokens[0] at line 1 must be an object"),
        ("tokens: [{token: secret, namespace: a}]", "tokens[0] at line 1: serviceAccount must be there"),
        ("tokens: [{token: 12, namespace: a, serviceAccount: b}]", "tokens[0] at line 1: token must be a text"),
        ("tokens: [{token: secret, namespace: a, serviceAccount: b, x: y}]", "must have no field but token"),
        ("tokens:\n- {secret: {namespace: a}}", "tokens[0] at line 2 must have no field but token"),
        ("tokens: [{token: s, namespace: a, serviceAccount: b}, {token: s, namespace: c, serviceAccount: d}]", "once"),
        ("", "must have one field, tokens, with a list"),
        ("tokens: []\n---\ntokens: [secret]", "must have one field, tokens, with a list"),
        ("tokens: [2026-99-99]", "tokens[0] at line 1 must be an object"),
        ("tokens: [{token: 0x5ec, namespace: a, serviceAccount: b}]", "tokens[0] at line 1: token must be a text"),
        (f"tokens: [{'9' * 9000}]", "cannot be read as YAML at line 1"),
        ("tokens: [.inf]", "cannot be read as YAML at line 1"),
        ("tokens: [!secret x]", "cannot be read as YAML at line 1"),
        ("tokens: [!!python/object/apply:os.abort []]", "tokens[0] at line 1 must be an object"),
        ("tokens: []\ntokens: [secret]", "cannot be read as YAML at line 2"),
        ("tokens:\n- {secret: a, secret: b}", "cannot be read as YAML at line 2"),
        ("tokens:\n- token: s\0secret", "cannot be read as YAML at line 2"),
        (b"tokens:\n- token: s\xffsecret", "cannot be read as YAML at line 2"),
        ('tokens:\n- token: "\\ud800secret"', "cannot be read as YAML at line 2"),
        ("tokens: " + "[" * 3000 + "]" * 3000, "cannot be read as YAML at line 1"),
        ("tokens: " + "[" * 200_000, "cannot be read as YAML at line 1"),
        ("\n".join(["tokens:"] + [" " * depth + "- a:" for depth in range(0, 6000, 2)]), "cannot be read as YAML at"),
        ("tokens: &a [*a]", "cannot be read as YAML at line 1"),
        (
            "a: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
            "cannot be read as YAML at line ",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_saying_a_token(
    tmp_path: Path, text: str | bytes, line: str
) -> None:
    with pytest.raises(BadTokenFile) as refused:
        load_tokens(token_file(tmp_path, text))
    assert line in str(refused.value)
    assert "secret" not in str(refused.value)
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)


_YAML = st.text("tokens: [{}]-&*!\n\0'\"#%|>?,é").map(str.encode)


@given(st.one_of(st.binary(), _YAML, _YAML.map(b"tokens: ".__add__)))
def test_no_content_of_a_file_gives_another_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            load_tokens(token_file(Path(folder), content))
        except BadTokenFile:
            pass


def test_a_file_of_tokens_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "is a directory"), (tmp_path / "none", "no such file or directory")):
        with pytest.raises(BadTokenFile) as refused:
            load_tokens(path)
        assert str(refused.value) == f"{path}: cannot be read: {reason}"


# Whether a stream is its caller's (xds.md 3.4).


def node(namespace: str = "istio-system", account: str | None = "ztunnel") -> Node:
    metadata = {} if account is None else {"SERVICE_ACCOUNT": account}
    return Node("ztunnel", "z.istio-system", ("10.0.0.1",), namespace, "c1", "n1", "1.31", account or "", metadata)


CALLER = Caller("istio-system", "ztunnel", "cluster.local")


@pytest.mark.parametrize("claimed", [node(), node(account=None), node(namespace="")])
def test_a_node_of_its_caller_is_served(claimed: Node) -> None:
    assert mismatch(CALLER, claimed) is None


def test_anybody_is_served_where_nobody_is_known() -> None:
    assert mismatch(None, node("other", "other")) is None


@pytest.mark.parametrize(
    ("claimed", "text"), [(node("other"), "other/ztunnel"), (node(account="other"), "istio-system/other")]
)
def test_a_node_of_somebody_else_is_refused_in_upstream_s_words(claimed: Node, text: str) -> None:
    identity = "spiffe://cluster.local/ns/istio-system/sa/ztunnel"
    assert mismatch(CALLER, claimed) == f"authorization failed: no identities ([{identity}]) matched {text}"


@pytest.mark.parametrize("how", [repr, str])
async def test_no_token_shows_in_what_remains_of_a_call(setup: Setup, how: Callable[[object], str]) -> None:
    token = jwt(sub="5f1c-secret")
    setup.reviews.answer = Denied(Refusal.REFUSED, "not known")
    with pytest.raises(Unauthenticated) as refused:
        await setup.call(token)
    held = [refused.value, refused.value.__cause__, refused.value.__context__, vars(setup.authenticator)]
    assert token not in "".join(how(each) for each in held)
