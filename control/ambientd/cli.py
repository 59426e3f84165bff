"""`ambientd` and `pilot-discovery`: which command was given, and how its failures look to a shell (operations.md 1.1).
Parsing is in `settings.py`, running in `app.py`; imports of what only one command needs are in that command, so that
the others start fast."""

from __future__ import annotations

import http.client
import json
import os
import sys
from collections.abc import Sequence

from ambientd.settings import FLAGS, Notice, Settings, SettingsError, load, parse_arguments

_USAGE = """\
ambientd: a control plane for Istio ambient mode

  ambientd serve [FLAGS]                  serve the mesh; 'ambientd serve --help' lists the flags
  ambientd discovery [FLAGS]              the same with istiod's flags; unknown ones are ignored
  ambientd request METHOD PATH [BODY]     ask the running server on this machine: 'request GET /debug/syncz'
  ambientd version [--short] [-o json|yaml]
"""
_COMMANDS = ("serve", "discovery", "request", "version")

MONITORING_PORT = 15014
REQUEST_TIMEOUT_S = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script `ambientd`; the exit code: 0, 1 when something failed, 2 when what was asked for is wrong."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("help", "--help", "-h"):
        print(_USAGE, end="")
        return 0 if given else 2
    return _run(given[0], given[1:])


def discovery_main(arguments: Sequence[str] | None = None) -> int:
    """The console script `pilot-discovery`, for charts and tools that know istiod: flags may stand before the command,
    and unknown ones are ignored."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for index, argument in enumerate(given):
        if argument in _COMMANDS:
            return _run(argument, [*given[:index], *given[index + 1 :]])
    return _refuse(f"the command must be one of {', '.join(_COMMANDS)}; for a server: pilot-discovery discovery")


def _run(command: str, arguments: list[str]) -> int:
    match command:
        case "serve":
            return _serve(arguments, is_upstream=False)
        case "discovery":
            return _serve(arguments, is_upstream=True)
        case "request":
            return _request(arguments)
        case "version":
            return _version(arguments)
    return _refuse(f"{command!r}: no such command; 'ambientd --help' lists them")


def _serve(arguments: list[str], *, is_upstream: bool) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(_flags_text(is_upstream=is_upstream), end="")
        return 0
    try:
        flags, notices = parse_arguments(arguments, "discovery" if is_upstream else "serve")
        settings, more = load(flags, os.environ, strict=not is_upstream)
    except SettingsError as error:
        return _refuse(str(error))
    if "config-dir" in flags and not settings.config_dir:
        # Somebody's variable was empty; an API server is not what they meant.
        return _refuse("--config-dir: must be a folder of manifests, got ''; leave it out to read an API server")
    return _serve_settings(settings, (*notices, *more))


def _serve_settings(settings: Settings, notices: Sequence[Notice]) -> int:
    import structlog

    from ambientd import app
    from ambientd.debug.logs import configure_logs

    configure_logs(settings.log_levels, as_json=settings.log_json)
    log = structlog.get_logger("default")
    for notice in notices:
        value = {"value": notice.value} if notice.value else {}
        log.warning(notice.sentence, name=notice.name, **value)
    try:
        app.serve(settings)
    except app.CannotStart as error:
        return _refuse(str(error))
    return 0


def _flags_text(*, is_upstream: bool) -> str:
    lines = [f"ambientd {'discovery' if is_upstream else 'serve'} [FLAGS]", ""]
    for flag in FLAGS:
        name = flag.upstream or flag.name if is_upstream else flag.name
        if name and flag.help:
            short = f"-{flag.short}, " if flag.short else ""
            value = "" if flag.is_boolean else f" {flag.value}"
            lines.append(f"  {short}--{name}{value}\n        {flag.help}")
    lines.append("\nEnvironment variables and defaults: docs/settings.md")
    return "\n".join(lines) + "\n"


def _request(arguments: list[str]) -> int:
    """One request to the server on this machine, which trusts loopback."""
    if len(arguments) not in (2, 3):
        return _refuse("request: METHOD and PATH must be given, and may be followed by a body")
    method, path, *body = arguments
    connection = http.client.HTTPConnection("127.0.0.1", MONITORING_PORT, timeout=REQUEST_TIMEOUT_S)
    try:
        connection.request(method.upper(), f"/{path.removeprefix('/')}", body[0].encode() if body else None)
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _fail(f"request: 127.0.0.1:{MONITORING_PORT} does not answer: {error}; is the server running?")
    finally:
        connection.close()
    if response.status > 399 and response.status != 404:
        text = content.decode(errors="replace").strip()
        return _fail(f"request: {method.upper()} {path} was answered with {response.status} {response.reason}: {text}")
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
    return 0


def _version(arguments: list[str]) -> int:
    from ambientd.debug.version import current

    version = current()
    fields = {"version": version.version, "revision": version.revision, "status": version.status}
    match arguments:
        case []:
            print(version)
        case ["-s"] | ["--short"]:
            print(version.version)
        case ["-o", "json"] | ["-ojson"] | ["-o=json"] | ["--output", "json"] | ["--output=json"]:
            print(json.dumps({"clientVersion": fields}, indent=2))
        case ["-o", "yaml"] | ["-oyaml"] | ["-o=yaml"] | ["--output", "yaml"] | ["--output=yaml"]:
            print("clientVersion:")
            for name, value in fields.items():
                print(f"  {name}: {json.dumps(value)}")
        case _:
            return _refuse(f"version: takes --short or -o json|yaml, got {' '.join(arguments)!r}")
    return 0


def _refuse(line: str) -> int:
    """What was asked for cannot be done: one line, and exit code 2."""
    print(f"ambientd: {line}", file=sys.stderr)
    return 2


def _fail(line: str) -> int:
    print(f"ambientd: {line}", file=sys.stderr)
    return 1
