"""Callers by the tokens that a real API server gives and reviews (ca.md 4.6)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from ambientd.ca.caller import Caller, CannotTell, Unauthenticated
from ambientd.kube.access import find_origin
from ambientd.kube.api import Api
from ambientd.kube.credentials import Credentials
from ambientd.kube.turns import Urgency
from ambientd.xds.authentication import Authenticator
from ambientd.xds.token_review import TokenReviews
from tests.kube.apiserver import ADMIN_TOKEN, NOBODY_TOKEN, ApiServer
from tests.kube.client import Client, Manifest
from tests.kube.proxy import ChaosProxy, Hangup, Stall

pytestmark = [pytest.mark.peer, pytest.mark.slow]

_NO_ALGORITHM = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').decode().rstrip("=")


class Outcomes:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def authenticated(self, outcome: str) -> None:
        self.seen.append(outcome)


def api_of(server: ApiServer, *, url: str = "", token: str = "") -> Api:
    kubeconfig = server.kubeconfig(server=url, token=token or ADMIN_TOKEN)
    return Api(Credentials(find_origin(str(kubeconfig), {}), {}))


def authenticator_of(api: Api, *audiences: str, deadline_s: float = 8.0) -> Authenticator:
    return Authenticator(
        TokenReviews(api, audiences or ("istio-ca",)),
        Outcomes(),
        cluster_id="Kubernetes",
        cluster_aliases={},
        trust_domain=lambda: "cluster.local",
        deadline_s=deadline_s,
    )


@pytest_asyncio.fixture
async def api(api_server: ApiServer) -> AsyncIterator[Api]:
    async with api_of(api_server) as api:
        yield api


async def who(authenticator: Authenticator, token: str) -> Caller:
    return await authenticator.authenticate([("authorization", f"Bearer {token}"), ("clusterid", "Kubernetes")])


async def make_account(client: Client, namespace: str, name: str) -> None:
    metadata = {"namespace": namespace, "name": name}
    await client.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})


async def make_pod(client: Client, namespace: str, name: str, account: str, node: str) -> Manifest:
    return await client.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {
                "nodeName": node,
                "serviceAccountName": account,
                "automountServiceAccountToken": False,
                "containers": [{"name": "app", "image": "x"}],
            },
        }
    )


async def token_of(api: Api, namespace: str, account: str, **spec: Any) -> str:
    """With a spec of its own."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    answer = await api.send("POST", path, urgency=Urgency.CALLER, body=json.dumps(request).encode())
    return str(json.loads(answer)["status"]["token"])


async def test_a_bound_token_tells_account_pod_and_node(api: Api, client: Client, namespace: str) -> None:
    node = f"node-of-{namespace}"
    await client.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    await make_account(client, namespace, "ztunnel")
    pod = await make_pod(client, namespace, "z", "ztunnel", node)
    caller = await who(authenticator_of(api), await client.token(namespace, "ztunnel", pod=pod))
    assert caller == Caller(namespace, "ztunnel", "cluster.local", "z", pod["metadata"]["uid"], node)


async def test_a_token_of_an_account_alone_tells_no_pod(api: Api, client: Client, namespace: str) -> None:
    await make_account(client, namespace, "app")
    caller = await who(authenticator_of(api), await client.token(namespace, "app"))
    assert caller == Caller(namespace, "app", "cluster.local")


async def test_a_token_for_another_audience_is_refused(api: Api, client: Client, namespace: str) -> None:
    await make_account(client, namespace, "app")
    token = await client.token(namespace, "app", audience="vault")
    with pytest.raises(Unauthenticated, match="the token is refused"):
        await who(authenticator_of(api), token)
    assert (await who(authenticator_of(api, "istio-ca", "vault"), token)).account == "app"


async def test_the_audience_of_the_api_server_itself_is_another(api: Api, client: Client, namespace: str) -> None:
    await make_account(client, namespace, "app")
    token = await client.token(namespace, "app", audience="https://kubernetes.default.svc.cluster.local")
    with pytest.raises(Unauthenticated, match="the token is refused"):
        await who(authenticator_of(api), token)


async def test_a_token_for_our_audience_and_another_is_accepted(api: Api, client: Client, namespace: str) -> None:
    await make_account(client, namespace, "app")
    token = await token_of(api, namespace, "app", audiences=["vault", "istio-ca"])
    assert (await who(authenticator_of(api), token)).account == "app"


async def test_a_token_that_is_bound_to_something_else_tells_no_pod(api: Api, client: Client, namespace: str) -> None:
    await make_account(client, namespace, "app")
    metadata = {"namespace": namespace, "name": "bound"}
    secret = await client.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    node = await client.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n-{namespace}"}})
    for found in (secret, node):
        about = {"apiVersion": "v1", "kind": found["kind"], "name": found["metadata"]["name"]}
        token = await token_of(api, namespace, "app", audiences=["istio-ca"], boundObjectRef=about)
        caller = await who(authenticator_of(api), token)
        assert (caller.account, caller.pod_name, caller.pod_uid) == ("app", "", "")


async def test_the_token_of_an_account_that_is_gone_is_refused(api: Api, client: Client, namespace: str) -> None:
    await make_account(client, namespace, "app")
    token = await client.token(namespace, "app")
    metadata = {"namespace": namespace, "name": "app"}
    await client.delete({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    with pytest.raises(Unauthenticated, match="the token is refused"):
        await who(authenticator_of(api), token)


@pytest.mark.parametrize(
    "change",
    [
        lambda head, body, signature: f"{head}.{body[:20]}{'A' if body[20] != 'A' else 'B'}{body[21:]}.{signature}",
        lambda head, body, signature: f"{head}.{body}.{signature[:-8]}",
        lambda head, body, signature: f"{head}.{body}.",
        lambda head, body, signature: f"{_NO_ALGORITHM}.{body}.",
        lambda head, body, signature: f"{_NO_ALGORITHM}.{body}.{signature}",
        lambda head, body, signature: f" {head}.{body}.{signature}",
        lambda head, body, signature: f"null{head}.{body}.{signature}",
        lambda head, body, signature: "null",
    ],
    ids=["altered", "cut off", "unsigned", "alg none", "alg none, signed", "a blank", "null before", "null"],
)
async def test_a_token_that_was_changed_is_refused(
    api: Api, client: Client, namespace: str, change: Callable[[str, str, str], str]
) -> None:
    await make_account(client, namespace, "app")
    token = await client.token(namespace, "app")
    with pytest.raises(Unauthenticated, match=r"the token is (refused|not of a service account)"):
        await who(authenticator_of(api), change(*token.split(".")))
    assert (await who(authenticator_of(api), token)).account == "app"


async def test_whoever_is_no_service_account_is_refused(api: Api) -> None:
    # The server knows this one by name, for whatever audience.
    with pytest.raises(Unauthenticated, match="the token is"):
        await who(authenticator_of(api), NOBODY_TOKEN)


async def test_the_token_of_a_pod_that_is_gone_is_refused(api: Api, client: Client, namespace: str) -> None:
    await make_account(client, namespace, "app")
    pod = await make_pod(client, namespace, "a", "app", "")
    token = await client.token(namespace, "app", pod=pod)
    await client.delete(pod)
    with pytest.raises(Unauthenticated, match="the token is refused"):
        await who(authenticator_of(api), token)


@pytest.mark.parametrize("token", ["x", "a.b.c", "é" * 50, "x" * 50_000, "\0", "..", '"}{'])
async def test_any_text_is_refused_and_breaks_nothing(api: Api, token: str) -> None:
    with pytest.raises(Unauthenticated) as refused:
        await who(authenticator_of(api), token)
    assert len(token) < 4 or token not in str(refused.value)


async def test_without_the_right_to_ask_nobody_is_taken_for_a_liar(api_server: ApiServer) -> None:
    async with api_of(api_server, token=NOBODY_TOKEN) as api:
        with pytest.raises(CannotTell, match="tokenreviews"):
            await who(authenticator_of(api), "x.y.z")


@pytest.mark.parametrize("fault", [Hangup(), Stall()])
async def test_an_api_server_that_gives_no_answer_is_an_outage(
    api_server: ApiServer, proxy: ChaosProxy, fault: Hangup | Stall
) -> None:
    async with api_of(api_server, url=proxy.url) as api:
        authenticator = authenticator_of(api, deadline_s=1.0)
        proxy.inject(fault, times=None)
        async with asyncio.timeout(10):
            with pytest.raises(CannotTell):
                await who(authenticator, "x.y.z")
