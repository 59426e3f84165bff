"""The commands as a shell sees them. Bad input is exit code 2 and exactly one line, which says what and what to do."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ambientd import cli
from ambientd.arguments import FLAGS
from ambientd.debug.version import current
from ambientd.settings import Settings

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "shop"
ENVIRONMENT = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": f"{ROOT / 'control'}:{ROOT / 'api'}"}


def command(entry: str, *arguments: str) -> list[str]:
    module, name = entry.split(":")
    return [sys.executable, "-c", f"import sys; from {module} import {name}; sys.exit({name}())", *arguments]


def run(entry: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(entry, *arguments), capture_output=True, text=True, timeout=60, env=ENVIRONMENT, check=False
    )


def refused(*arguments: str, entry: str = "ambientd.cli:main") -> str:
    """The one line of a run that must be refused."""
    result = run(entry, *arguments)
    lines = [*result.stdout.splitlines(), *result.stderr.splitlines()]
    assert (result.returncode, len(lines)) == (2, 1), (result.returncode, lines)
    return lines[0]


def test_an_unknown_flag_of_serve_is_refused() -> None:
    assert refused("serve", "--config-dri", "x") == (
        "ambientd: --config-dri: no such flag; see 'ambientd serve --help'"
    )


@pytest.mark.parametrize("command", ["serve", "discovery"])
def test_a_server_without_a_source_is_refused(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    assert refused(command) == (
        "ambientd: no kubeconfig, and no service account is mounted here; give --kubeconfig FILE, or --config-dir DIR "
        "to serve a folder of manifests"
    )


def test_an_empty_folder_name_is_refused() -> None:
    assert refused("serve", "--config-dir", "").startswith("ambientd: --config-dir: must be a folder of manifests, ")


def test_an_unreadable_folder_is_refused(tmp_path: Path) -> None:
    line = refused("serve", "--config-dir", str(tmp_path / "none"))
    assert line.startswith(f"ambientd: --config-dir: cannot read {tmp_path}/none: no such file or directory; ")


@pytest.mark.parametrize("flag", ["--grpc-addr", "--http-addr", "--monitoring-addr"])
def test_an_invalid_address_is_refused(flag: str) -> None:
    line = refused("serve", "--config-dir", str(SHOP), flag, "127.0.0.1")
    assert line.startswith(f"ambientd: {flag}: must be an address such as ")


@pytest.mark.parametrize("flag", ["--grpc-addr", "--http-addr", "--monitoring-addr"])
def test_a_port_in_use_is_refused(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        others = {"--grpc-addr": "127.0.0.1:0", "--http-addr": "127.0.0.1:0", "--monitoring-addr": "127.0.0.1:0"}
        arguments = [part for pair in {**others, flag: address}.items() for part in pair]
        line = refused("serve", "--config-dir", str(SHOP), *arguments)
    assert line.startswith(f"ambientd: {flag}: ")
    assert address in line
    assert " in use; " in line


@pytest.mark.parametrize(
    "content", [b"tokens: [2026-99-99]", b"tokens: " + b"[" * 3000, b"tokens: [\0]", b"\xff", None]
)
def test_a_file_of_tokens_that_cannot_be_used_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokens.yaml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    line = refused("serve", "--config-dir", str(SHOP), *FREE_PORTS, "--token-review", f"static:{path}")
    assert line.startswith(f"ambientd: --token-review: {path}: ")


@pytest.mark.parametrize("path", ["/", "/dev/null"])
def test_a_mesh_configuration_that_is_no_file_is_refused(path: str) -> None:
    line = refused("serve", "--config-dir", str(SHOP), *FREE_PORTS, "--mesh-config", path)
    what = "a folder" if path == "/" else "something else"
    assert line == f"ambientd: --mesh-config: must be a file, and {path} is {what}; give the file, or remove the flag"


def test_a_mesh_configuration_that_cannot_be_looked_at_is_refused() -> None:
    path = "/" + "a" * 300
    line = refused("serve", "--config-dir", str(SHOP), *FREE_PORTS, "--mesh-config", path)
    assert line.startswith(f"ambientd: --mesh-config: cannot read {path}: file name too long; ")


@pytest.mark.parametrize("is_served", [True, False])
@pytest.mark.parametrize("absent", ["ca-cert-file", "tls-cert-file", "tls-key-file"])
def test_a_serving_certificate_that_is_not_there_is_refused_whether_or_not_it_would_be_shown(
    tmp_path: Path, absent: str, is_served: bool
) -> None:
    (tmp_path / "some").write_text("")
    names = ("ca-cert-file", "tls-cert-file", "tls-key-file")
    arguments = [
        part for name in names for part in (f"--{name}", str(tmp_path / ("none" if name == absent else "some")))
    ]
    (tmp_path / "tokens.yaml").write_text("tokens: []")
    if is_served:
        arguments += ["--secure-grpc-addr", "127.0.0.1:0", "--token-review", f"static:{tmp_path / 'tokens.yaml'}"]
    assert refused("serve", "--config-dir", str(SHOP), *FREE_PORTS, *arguments) == (
        "ambientd: --ca-cert-file, --tls-cert-file and --tls-key-file: the serving certificate cannot be used: "
        f"{tmp_path / 'none'}: cannot be read: no such file or directory"
    )


def test_a_tls_port_in_use_is_refused_in_one_line_after_what_was_logged(tmp_path: Path) -> None:
    (tmp_path / "tokens.yaml").write_text("tokens: []")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = ("--secure-grpc-addr", address, "--token-review", f"static:{tmp_path / 'tokens.yaml'}")
        result = run("ambientd.cli:main", "serve", "--config-dir", str(SHOP), *FREE_PORTS, *flags)
    assert (result.returncode, result.stderr) == (
        2,
        f"ambientd: --secure-grpc-addr: cannot listen on {address}: address already in use; "
        "free the port or give another address\n",
    )


def test_a_folder_of_an_authority_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokens.yaml").write_text("tokens: []")
    monkeypatch.setitem(ENVIRONMENT, "ROOT_CA_DIR", "/dev/null")
    flags = ("--secure-grpc-addr", "127.0.0.1:0", "--token-review", f"static:{tmp_path / 'tokens.yaml'}")
    assert refused("serve", "--config-dir", str(SHOP), *FREE_PORTS, *flags) == (
        "ambientd: ROOT_CA_DIR: must be a folder, and /dev/null is none"
    )


def test_an_unknown_command_is_refused() -> None:
    assert refused("sevre") == "ambientd: 'sevre': no such command; 'ambientd --help' lists them"
    line = refused("--foo", entry="ambientd.cli:discovery_main")
    assert line.startswith("ambientd: the command must be one of serve, discovery, request, version")


def serve(*arguments: str, entry: str = "ambientd.cli:main") -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(entry, *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT
    )


FREE_PORTS = ("--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--monitoring-addr", "127.0.0.1:0")


def test_serve_says_when_it_is_ready_and_ends_well_when_it_is_told_to() -> None:
    with serve("serve", "--config-dir", str(SHOP), *FREE_PORTS, "--log-json") as server:
        assert server.stdout is not None
        record: dict[str, Any] = {}
        for line in server.stdout:
            record = json.loads(line)
            if record["msg"] == "ready":
                break
        assert (record["workloads_and_services"], record["policies"]) == (10, 4)
        server.send_signal(signal.SIGTERM)
        server.communicate()
    assert server.returncode == 0


def test_discovery_ignores_unknown_flags_with_one_line_wherever_they_stand() -> None:
    arguments = ("--oldFlag=1", "discovery", "--config-dir", str(SHOP), *FREE_PORTS, "--olderFlag")
    with serve(*arguments, entry="ambientd.cli:discovery_main") as server:
        assert server.stdout is not None
        said = []
        for line in server.stdout:
            said.append(line.rstrip("\n").split("\t"))
            if "ready" in said[-1]:
                break
        server.send_signal(signal.SIGTERM)
        server.communicate()
    ignored = [parts for parts in said if "unknown flags are ignored" in parts]
    assert [parts[1:] for parts in ignored] == [
        ["warn", "unknown flags are ignored", "name='--oldFlag, --olderFlag'"],
    ]


def test_help_lists_every_flag_that_may_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--help"]) == 0
    assert "--config-dir DIR" in capsys.readouterr().out
    assert cli.main(["discovery", "--help"]) == 0
    assert "--grpcAddr ADDRESS" in capsys.readouterr().out
    assert cli.main(["--help"]) == 0
    assert "ambientd serve [FLAGS]" in capsys.readouterr().out


def test_version_has_a_short_and_structured_forms(capsys: pytest.CaptureFixture[str]) -> None:
    version = current()
    for arguments, said in (
        ([], str(version)),
        (["--short"], version.version),
        (["-o", "yaml"], f'clientVersion:\n  version: "{version.version}"'),
    ):
        assert cli.main(["version", *arguments]) == 0
        assert capsys.readouterr().out.startswith(said)
    assert cli.main(["version", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["clientVersion"]["version"] == version.version
    assert cli.main(["version", "-o", "xml"]) == 2
    assert capsys.readouterr().err == "ambientd: version: takes --short or -o json|yaml, got '-o xml'\n"


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, bytes]]]:
    """A server on the monitoring port; the requests that it got."""
    seen: list[tuple[str, str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            seen.append((self.command, self.path, self.rfile.read(int(self.headers.get("Content-Length", 0)))))
            self.send_response({"/missing": 404, "/forbidden": 403}.get(self.path, 200))
            self.end_headers()
            self.wfile.write(b"text of " + self.path.encode())

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    monkeypatch.setattr(cli, "MONITORING_PORT", server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield seen
    server.shutdown()
    thread.join()
    server.server_close()


def test_request_prints_the_answer(
    answering: list[tuple[str, str, bytes]], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert cli.main(["request", "GET", "debug/syncz"]) == 0
    assert cli.main(["request", "post", "/x", "body"]) == 0
    assert answering == [("GET", "/debug/syncz", b""), ("POST", "/x", b"body")]
    assert capfdbinary.readouterr().out == b"text of /debug/syncztext of /x"


def test_request_takes_a_404_for_an_answer_and_other_errors_for_failures(
    answering: list[tuple[str, str, bytes]], capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["request", "GET", "/missing"]) == 0
    assert capfd.readouterr().out == "text of /missing"
    assert cli.main(["request", "GET", "/forbidden"]) == 1
    error = capfd.readouterr().err
    assert error == "ambientd: request: GET /forbidden was answered with 403 Forbidden: text of /forbidden\n"


def test_request_without_a_server_or_a_path_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "MONITORING_PORT", 1)
    assert cli.main(["request", "GET", "/x"]) == 1
    assert capsys.readouterr().err.startswith("ambientd: request: 127.0.0.1:1 does not answer: ")
    assert cli.main(["request", "GET"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_every_flag_is_documented() -> None:
    documented = (ROOT / "docs" / "settings.md").read_text()
    names = {name for flag in FLAGS for name in (flag.name, flag.upstream) if name and name != "configDir"}
    assert [name for name in sorted(names) if f"--{name}" not in documented] == []


def test_the_largest_request_of_either_port_is_documented() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| `ISTIO_GPRC_MAXRECVMSGSIZE` |"))
    plain, secure = (Settings().receive_limit_bytes, Settings().secure_receive_limit_bytes)
    assert f"| {plain >> 20} MiB; over TLS {secure >> 20} MiB |" in row
