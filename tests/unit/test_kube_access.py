"""Where the API server is and who we are to it, from files as people have them."""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ambientd.kube.access import Origin, find_origin, load_access
from ambientd.kube.credentials import Credentials, refusal
from ambientd.kube.errors import Misconfigured

SERVER = "https://10.0.0.1:6443"


def write(folder: Path, name: str = "config", **changes: Any) -> Path:
    """A kubeconfig with changes to its parts; None removes one."""
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "east", "user": "me"}}],
        "clusters": [{"name": "east", "cluster": {"server": SERVER}}],
        "users": [{"name": "me", "user": {"token": "secret"}}],
    }
    for key, value in changes.items():
        document[key.replace("_", "-")] = value
    path = folder / name
    path.write_text(json.dumps(document))
    return path


def user(**content: Any) -> list[dict[str, Any]]:
    return [{"name": "me", "user": content}]


def cluster(**content: Any) -> list[dict[str, Any]]:
    return [{"name": "east", "cluster": {"server": SERVER, **content}}]


def account(folder: Path) -> Origin:
    (folder / "token").write_text("first\n")
    (folder / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\n")
    return Origin(token_file=str(folder / "token"), ca_file=str(folder / "ca.crt"))


IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


# Which one.


def test_the_flag_comes_first_then_the_variable_then_the_service_account_then_the_home(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    flag, variable = write(tmp_path, "flag"), write(tmp_path, "variable")
    home = write(tmp_path / ".kube")
    environ = {"KUBECONFIG": str(variable), "HOME": str(tmp_path), **IN_CLUSTER}
    mounted = account(tmp_path)
    assert find_origin(str(flag), environ, mounted).kubeconfig == str(flag)
    assert find_origin("", environ, mounted).kubeconfig == str(variable)
    environ["KUBECONFIG"] = str(tmp_path / "optional mount" / "config")
    assert find_origin("", environ, mounted) is mounted
    del environ["KUBERNETES_SERVICE_HOST"]
    assert find_origin("", environ, mounted).kubeconfig == str(home)
    home.unlink()
    with pytest.raises(Misconfigured, match=r"^no kubeconfig, and no service account is mounted here; give "):
        find_origin("", environ, mounted)


def test_a_kubeconfig_that_is_not_there_is_no_other_one(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"^--kubeconfig: .*/none: no such file; give a kubeconfig file"):
        find_origin(str(tmp_path / "none"), {"KUBECONFIG": str(write(tmp_path))})


# What it says.


def test_a_token_and_a_server(tmp_path: Path) -> None:
    access = load_access(Origin(str(write(tmp_path))), {})
    assert (access.server, access.authorization, access.can_renew) == (SERVER, "Bearer secret", False)
    assert (access.ca_file, access.proxy, access.checks_certificate) == ("", "", True)


def test_certificates_in_the_file_and_beside_it(tmp_path: Path) -> None:
    (tmp_path / "me.crt").write_text("certificate")
    (tmp_path / "me.key").write_text("key")
    data = base64.b64encode(b"the root").decode()
    path = write(
        tmp_path,
        clusters=cluster(**{"certificate-authority-data": data, "tls-server-name": "api.internal"}),
        users=user(**{"client-certificate": "me.crt", "client-key": "me.key"}),
    )
    access = load_access(Origin(str(path)), {})
    assert Path(access.ca_file).read_text() == "the root"
    assert (access.cert_file, access.key_file) == (str(tmp_path / "me.crt"), str(tmp_path / "me.key"))
    assert (access.server_name, access.authorization) == ("api.internal", "")


def test_a_check_of_certificates_may_be_switched_off_and_a_proxy_be_named(tmp_path: Path) -> None:
    clusters = cluster(**{"insecure-skip-tls-verify": True, "proxy-url": "http://proxy:3128"})
    access = load_access(Origin(str(write(tmp_path, clusters=clusters))), {})
    assert (access.checks_certificate, access.proxy) == (False, "http://proxy:3128")


def test_a_password_is_sent_as_such(tmp_path: Path) -> None:
    path = write(tmp_path, users=user(username="me", password="pass"))
    expected = "Basic " + base64.b64encode(b"me:pass").decode()
    assert load_access(Origin(str(path)), {}).authorization == expected


def test_several_files_are_one_configuration(tmp_path: Path) -> None:
    first = write(tmp_path, "first", users=[], contexts=[], clusters=[])
    second = write(tmp_path, "second")
    origin = find_origin("", {"KUBECONFIG": f"{first}{os.pathsep}{tmp_path / 'none'}{os.pathsep}{second}"})
    assert load_access(origin, {}).authorization == "Bearer secret"


def test_a_service_account_is_read_with_its_root(tmp_path: Path) -> None:
    access = load_access(account(tmp_path), IN_CLUSTER)
    assert (access.server, access.authorization) == ("https://10.96.0.1:443", "Bearer first")
    assert (access.ca_file, access.can_renew) == (str(tmp_path / "ca.crt"), True)


def test_an_ipv6_cluster_is_reached_by_brackets(tmp_path: Path) -> None:
    access = load_access(account(tmp_path), {**IN_CLUSTER, "KUBERNETES_SERVICE_HOST": "fd00::1"})
    assert access.server == "https://[fd00::1]:443"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"current_context": "other"}, "the current context 'other' is not in it (there: main); correct the file"),
        ({"current_context": ""}, "no current context; choose one with 'kubectl config use-context'"),
        ({"clusters": []}, "the cluster of the context 'east' is not in it (there: none); correct the file"),
        ({"users": []}, "the user of the context 'me' is not in it (there: none); correct the file"),
        ({"clusters": [{"name": "east", "cluster": {"x": 1}}]}, "the cluster of the current context has no server"),
        ({"contexts": [{"name": "main"}]}, "the context 'main' is empty; correct the file"),
        ({"contexts": 7}, "cannot be used: "),
        ({"users": [{"user": {}}]}, "the user of the context 'me' is not in it"),
    ],
)
def test_what_is_wrong_with_a_kubeconfig_is_said_in_one_line(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(Misconfigured) as raised:
        load_access(Origin(str(path)), {})
    assert str(raised.value).startswith(f"{path}: {expected}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", ["", "[]", "7", "{", "a: [", "\x00", "clusters: {}"])
def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(Misconfigured, match="config: "):
        load_access(Origin(str(path)), {})


@pytest.mark.parametrize("server", ["10.0.0.1:6443", "ftp://10.0.0.1", "https://"])
def test_a_server_that_is_no_url_is_refused(tmp_path: Path, server: str) -> None:
    with pytest.raises(Misconfigured, match="must be a URL such as"):
        load_access(Origin(str(write(tmp_path, clusters=cluster(server=server)))), {})


# Plugins.


def plugin(folder: Path, script: str) -> list[dict[str, Any]]:
    """A user whose credentials come from a program; it counts its runs in a file."""
    program = folder / "plugin.py"
    program.write_text(f"import json, sys, os\nopen({str(folder / 'runs')!r}, 'a').write('x')\n{script}\n")
    execution = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(program)],
    }
    return user(exec=execution)


def answer(**status: Any) -> str:
    document = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    return f"print({json.dumps(json.dumps(document))})"


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text())


def test_a_plugin_gives_a_token(tmp_path: Path) -> None:
    path = write(tmp_path, users=plugin(tmp_path, answer(token="fresh", expirationTimestamp="2030-01-01T00:00:00Z")))
    access = load_access(Origin(str(path)), {})
    assert (access.authorization, access.can_renew) == ("Bearer fresh", True)
    assert access.plugin is not None
    assert access.plugin.expires_at_s == 1893456000.0
    assert load_access(Origin(str(path)), {}, access.plugin) == access
    assert runs(tmp_path) == 1


def test_a_plugin_gives_a_certificate(tmp_path: Path) -> None:
    users = plugin(tmp_path, answer(clientCertificateData="the certificate", clientKeyData="the key"))
    access = load_access(Origin(str(write(tmp_path, users=users))), {})
    assert Path(access.cert_file).read_text() == "the certificate"
    assert Path(access.key_file).read_text() == "the key"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("sys.exit('please log in first')", "failed: exec: process returned 1. please log in first; run it by hand"),
        ("print('{')", "failed: exec: failed to decode process output"),
        (answer(), "gave neither a token nor a certificate and its key"),
        (answer(clientCertificateData="only"), "gave neither a token nor a certificate and its key"),
    ],
)
def test_a_plugin_that_fails_is_named_with_its_reason(tmp_path: Path, script: str, expected: str) -> None:
    path = write(tmp_path, users=plugin(tmp_path, script))
    with pytest.raises(Misconfigured) as raised:
        load_access(Origin(str(path)), {})
    assert f"the exec plugin {sys.executable!r} {expected}" in str(raised.value)


def test_a_plugin_that_is_not_there_is_named(tmp_path: Path) -> None:
    execution = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/nowhere/aws"}
    with pytest.raises(Misconfigured, match=r"the exec plugin '/nowhere/aws' failed: .*No such file"):
        load_access(Origin(str(write(tmp_path, users=user(exec=execution)))), {})


# In time.


class Clock:
    """A monotonic clock that tests move."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def plain(folder: Path, **changes: Any) -> Path:
    """Without TLS, so that no certificate needs to be good."""
    return write(folder, **{"clusters": [{"name": "east", "cluster": {"server": "http://10.0.0.1:8080"}}], **changes})


async def test_a_token_is_read_again_every_minute(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    path, clock = plain(tmp_path, users=user(tokenFile=str(tmp_path / "token"))), Clock()
    credentials = Credentials(Origin(str(path)), {}, now_s=clock)
    assert (await credentials.current()).access.authorization == "Bearer first"
    (tmp_path / "token").write_text("second")
    assert (await credentials.current()).access.authorization == "Bearer first"
    clock.now_s += 61
    assert (await credentials.current()).access.authorization == "Bearer second"


async def test_a_refused_token_is_read_again_at_once_but_not_in_a_loop(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    path, clock = plain(tmp_path, users=user(tokenFile=str(tmp_path / "token"))), Clock()
    credentials = Credentials(Origin(str(path)), {}, now_s=clock)
    first = await credentials.current()
    (tmp_path / "token").write_text("second")
    assert await credentials.renew(first) is first
    clock.now_s += 6
    second = await credentials.renew(first)
    assert second.access.authorization == "Bearer second"
    assert await credentials.renew(first) is second


async def test_what_is_good_stays_in_use_while_the_files_are_broken(tmp_path: Path) -> None:
    path, clock = plain(tmp_path), Clock()
    credentials = Credentials(Origin(str(path)), {}, now_s=clock)
    first = await credentials.current()
    path.write_text("{")
    clock.now_s += 61
    assert await credentials.current() is first
    plain(tmp_path, users=user(token="other"))
    clock.now_s += 61
    assert (await credentials.current()).access.authorization == "Bearer other"


async def test_a_plugin_is_asked_again_only_when_its_credentials_are_refused(tmp_path: Path) -> None:
    path, clock = plain(tmp_path, users=plugin(tmp_path, answer(token="fresh"))), Clock()
    credentials = Credentials(Origin(str(path)), {}, now_s=clock)
    first = await credentials.current()
    for _ in range(3):
        clock.now_s += 61
        assert await credentials.current() is first
    assert runs(tmp_path) == 1
    clock.now_s += 6
    await credentials.renew(first)
    assert runs(tmp_path) == 2


async def test_a_plugin_is_asked_again_before_its_credentials_expire(tmp_path: Path) -> None:
    path, clock = (
        plain(tmp_path, users=plugin(tmp_path, answer(token="x", expirationTimestamp="2020-01-01T00:00:00Z"))),
        Clock(),
    )
    credentials = Credentials(Origin(str(path)), {}, now_s=clock)
    await credentials.current()
    clock.now_s += 61
    await credentials.current()
    assert runs(tmp_path) == 2


async def test_certificates_that_do_not_load_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, clusters=cluster(**{"certificate-authority-data": base64.b64encode(b"none").decode()}))
    with pytest.raises(Misconfigured, match=f"^the certificates for {SERVER} cannot be used: "):
        await Credentials(Origin(str(path)), {}).current()


def token(**claims: Any) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.sig"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (token(exp=1577836800), "the token expired at 2020-01-01T00:00:00Z"),
        (token(exp=4102444800), "the credentials are refused"),
        (token(), "the credentials are refused"),
        (token(exp="soon"), "the credentials are refused"),
        ("e30.!!!.x", "the credentials are refused"),
        ("opaque", "the credentials are refused"),
        ("", "no credentials are configured, and the server wants some"),
    ],
)
def test_a_refusal_is_explained(tmp_path: Path, given: str, expected: str) -> None:
    users = user(token=given) if given else user()
    access = load_access(Origin(str(write(tmp_path, users=users))), {})
    assert refusal(access) == expected
    assert given == "" or given not in refusal(access)
