"""How a server starts that has an API server for a source: what it waits for, what it gives up, and in which words."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ambientd.app import App
from ambientd.kube.access import find_origin
from ambientd.kube.api import Api
from ambientd.kube.credentials import Credentials
from ambientd.settings import load as load_settings
from ambientd.sources.kubernetes import Cluster, Hopeless
from ambientd.sources.watches import Watch
from tests.kube.certificates import write_cluster_files
from tests.kube.following import QUICK, following
from tests.kube.processes import free_port
from tests.kube.scripted import ScriptedServer, fails

ROOT = Path(__file__).parents[2]


def kubeconfig(folder: Path, server: str, *, user: dict[str, Any] | None = None, ca: Path | None = None) -> Path:
    cluster: dict[str, Any] = {"server": server}
    if ca is not None:
        cluster["certificate-authority-data"] = base64.b64encode(ca.read_bytes()).decode()
    path = folder / "kubeconfig"
    document = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "secret"} if user is None else user}],
    }
    path.write_text(json.dumps(document))
    return path


def token(**claims: Any) -> str:
    return "e30." + base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=") + ".sig"


async def given_up(path: Path) -> str:
    """The line with which the source ends."""
    api = Api(Credentials(find_origin(str(path), {}), {}))
    cluster = Cluster(api, "c1", lambda _: None, namespace="istio-system", mesh_config_map="istio", pace=QUICK)
    async with api, asyncio.timeout(30):
        with pytest.raises(Hopeless) as raised:
            await cluster.run()
    assert "\n" not in str(raised.value)
    return str(raised.value)


@asynccontextmanager
async def answering(status: int, text: str, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that says the same to everybody; its URL."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    server = TestServer(app, scheme="https" if context else "http")
    await server.start_server(ssl=context)
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        await server.close()


async def test_a_server_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    port = free_port()
    path = kubeconfig(tmp_path, f"http://127.0.0.1:{port}")
    async with following(path) as follower:
        await asyncio.sleep(0.1)
        async with ScriptedServer(port=port):
            await follower.until_listed()


async def test_a_storm_of_errors_at_the_start_is_waited_out(tmp_path: Path) -> None:
    async with ScriptedServer() as server:
        server.script("", "version", *[fails(503)] * 3, fails(429), fails(500))
        async with following(server.kubeconfig(tmp_path)) as follower:
            await follower.until_listed()


async def test_an_expired_token_that_nobody_renews_is_given_up_with_its_date(tmp_path: Path) -> None:
    async with answering(401, "Unauthorized") as url:
        line = await given_up(kubeconfig(tmp_path, url, user={"token": token(exp=1577836800)}))
    assert line == f"{url}: the token expired at 2020-01-01T00:00:00Z; renew them in {tmp_path / 'kubeconfig'}"


async def test_a_token_that_may_be_renewed_is_waited_for(tmp_path: Path) -> None:
    async with ScriptedServer() as server:
        (tmp_path / "token").write_text("whatever")
        server.script("", "version", *[fails(401)] * 3)
        async with following(kubeconfig(tmp_path, server.url, user={"tokenFile": str(tmp_path / "token")})) as follower:
            await follower.until_listed()


async def test_a_certificate_that_is_not_trusted_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    files, others = write_cluster_files(tmp_path), write_cluster_files(tmp_path / "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.serving_certificate, files.serving_key)
    async with answering(200, '{"gitVersion":"v1"}', context) as url:
        line = await given_up(kubeconfig(tmp_path, url, ca=others.ca))
    assert line.startswith(f"{url}: its certificate is refused: ")
    assert line.endswith(f"; check certificate-authority and server in {tmp_path / 'kubeconfig'}")


async def test_a_certificate_for_another_name_is_given_up(tmp_path: Path) -> None:
    files = write_cluster_files(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.serving_certificate, files.serving_key)
    async with answering(200, '{"gitVersion":"v1"}', context) as url:
        path = kubeconfig(tmp_path, url, ca=files.ca)
        document = json.loads(path.read_text())
        document["clusters"][0]["cluster"]["tls-server-name"] = "elsewhere.example"
        path.write_text(json.dumps(document))
        assert "its certificate is refused: Hostname mismatch" in await given_up(path)


@pytest.mark.parametrize(("status", "text"), [(200, "<html>welcome</html>"), (200, "{}"), (404, "not found")])
async def test_a_server_that_is_no_api_server_is_given_up(tmp_path: Path, status: int, text: str) -> None:
    async with answering(status, text) as url:
        line = await given_up(kubeconfig(tmp_path, url))
    assert line.startswith("GET /version: ")
    assert line.endswith(f"; check that the server in {tmp_path / 'kubeconfig'} is an API server")


async def test_a_wrong_context_is_given_up(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "http://127.0.0.1:1")
    document = json.loads(path.read_text())
    document["current-context"] = "other"
    path.write_text(json.dumps(document))
    assert await given_up(path) == f"{path}: the current context 'other' is not in it (there: x); correct the file"


async def test_a_server_that_hides_its_version_is_used(tmp_path: Path) -> None:
    async with ScriptedServer() as server:
        server.script("", "version", fails(403, "Forbidden"))
        async with following(server.kubeconfig(tmp_path)) as follower:
            await follower.until_listed()


async def test_requests_that_are_refused_together_read_the_token_once_and_go_on(tmp_path: Path) -> None:
    async with ScriptedServer() as server:
        (tmp_path / "token").write_text("first")
        path = kubeconfig(tmp_path, server.url, user={"tokenFile": str(tmp_path / "token")})
        for kind in server.objects:
            server.script(kind, "list", fails(401), fails(401))
        async with following(path) as follower:
            await follower.until_listed()


# The whole server.


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[App]:
    flags = {
        "kubeconfig": str(path),
        "http-addr": "127.0.0.1:0",
        "grpc-addr": "127.0.0.1:0",
        "monitoring-addr": "",
        "secure-grpc-addr": "",
        "https-addr": "",
    }
    app = App(load_settings(flags, {"ENABLE_CA_SERVER": "false"}, strict=True)[0])
    stop = asyncio.Event()
    task = asyncio.create_task(app.run(stop))
    try:
        yield app
    finally:
        stop.set()
        await task


async def test_a_server_is_ready_when_every_kind_was_listed_and_its_port_accepts(tmp_path: Path) -> None:
    async with ScriptedServer() as server:
        await server.put("Pod", "a", status={"phase": "Running", "podIP": "10.0.0.1"})
        server.script("AuthorizationPolicy", "list", forever=fails(403, "Forbidden", "authorizationpolicies: no"))
        async with running(server.kubeconfig(tmp_path)) as app, asyncio.timeout(60):
            while app.pump.missing() != ["AuthorizationPolicy"] or not _watch(app, "AuthorizationPolicy").failures:
                await asyncio.sleep(0.02)
            assert (app.is_ready(), app.grpc.port, app.feed.addresses.served) == (False, 0, 0)
            assert "authorizationpolicies: no" in _watch(app, "AuthorizationPolicy").reason
            server.calm()
            while not app.is_ready():
                await asyncio.sleep(0.02)
            assert (app.grpc.port > 0, app.feed.addresses.served) == (True, 1)


def _watch(app: App, kind: str) -> Watch:
    return next(watch for watch in app.watches() if watch.kind == kind)


# The command.


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "import sys; from ambientd.cli import main; sys.exit(main())", *arguments]


# The scripted server keeps no secrets, so there is nothing that a certificate authority could begin with.
ENVIRONMENT = {**os.environ, "ENABLE_CA_SERVER": "false", "PYTHONPATH": f"{ROOT / 'control'}{os.pathsep}{ROOT / 'api'}"}
LOOPBACK = (
    "--http-addr=127.0.0.1:0",
    "--grpc-addr=127.0.0.1:0",
    "--monitoring-addr=",
    "--secure-grpc-addr=",
    "--https-addr=",
)


def test_what_cannot_be_mended_by_waiting_ends_the_command_with_2_and_a_line(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "http://127.0.0.1:1")
    path.write_text(path.read_text().replace('"current-context": "x"', '"current-context": "y"'))
    ended = subprocess.run(
        command("serve", f"--kubeconfig={path}", *LOOPBACK),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr == f"ambientd: {path}: the current context 'y' is not in it (there: x); correct the file\n"


async def test_a_server_follows_an_api_server_from_the_command_line(tmp_path: Path) -> None:
    async with ScriptedServer() as server:
        await server.put("Pod", "a", spec={"nodeName": "n1"}, status={"phase": "Running", "podIP": "10.0.0.1"})
        process = await asyncio.create_subprocess_exec(
            *command("serve", f"--kubeconfig={server.kubeconfig(tmp_path)}", *LOOPBACK, "--log-json"),
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(60):
                async for line in process.stdout:
                    if json.loads(line).get("msg") == "ready":
                        break
                else:
                    pytest.fail("the server ended before it was ready")
        finally:
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
