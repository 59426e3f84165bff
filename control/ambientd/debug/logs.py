"""The log: one line per record on standard output, a constant sentence and fields (operations.md 14). Text is tab
separated as istiod's, or JSON. A logger's name is its scope; a level may be set for a scope, and holds for those below
it. Records of libraries go the same way."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, TextIO

import msgspec
import structlog

_NUMBERS = {
    "debug": 10,
    "info": 20,
    "warn": 30,
    "warning": 30,
    "error": 40,
    "exception": 40,
    "critical": 50,
    "fatal": 50,
}
_OFF = 100
_PREFIX = "ambientd."
_WORDY = ("aiohttp", "asyncio", "watchfiles")
"""Libraries that say much at info, and are heard when asked for."""
_UPSTREAM = {"delta": "ads", "krt": "index", "model": "index", "file": "sources.files"}
"""Names that operators of istiod know, and the scopes that say the same here."""


def configure_logs(levels: Iterable[tuple[str, str]], *, as_json: bool, stream: TextIO | None = None) -> None:
    """Sets up the log of the process. `levels`: scope and level, as `Settings.log_levels`; `default` holds where no
    other does, `all` for every scope."""
    thresholds = _thresholds(levels)
    render = _json_line if as_json else _text_line
    out = sys.stdout if stream is None else stream
    structlog.configure(
        processors=[
            _gate(thresholds),
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%S.%fZ", utc=True, key="time"),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.BoundLogger,
        logger_factory=lambda *names: _Writer(out, _scope(names)),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(_Forward())
    root.setLevel(min(thresholds.values()))


class _Writer:
    """Where a logger's lines go; carries its scope to the processors."""

    def __init__(self, out: TextIO, scope: str) -> None:
        self._out = out
        self.scope = scope

    def msg(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()

    debug = info = warn = warning = error = exception = critical = fatal = msg


class _Forward(logging.Handler):
    """Records of libraries, as records of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "info" if record.levelno < logging.WARNING else "warning" if record.levelno < logging.ERROR else "error"
        if record.levelno < logging.INFO:
            level = "debug"
        fields = {"exc_info": record.exc_info} if record.exc_info else {}
        getattr(structlog.get_logger(record.name.partition(".")[0]), level)(record.getMessage(), **fields)


def _scope(names: tuple[Any, ...]) -> str:
    name = str(names[0]) if names else "default"
    return name.removeprefix(_PREFIX)


def _thresholds(levels: Iterable[tuple[str, str]]) -> dict[str, int]:
    given = {scope: _NUMBERS.get(level, _OFF) for scope, level in levels}
    if "all" in given:
        return {"default": given["all"]}
    thresholds = {"default": _NUMBERS["info"], **dict.fromkeys(_WORDY, _NUMBERS["warn"])}
    return thresholds | {_UPSTREAM.get(scope, scope): number for scope, number in given.items()}


def _gate(thresholds: Mapping[str, int]) -> Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]:
    known: dict[str, int] = {}

    def threshold(scope: str) -> int:
        found = known.get(scope)
        if found is None:
            part = scope
            while part and part not in thresholds:
                part = part.rpartition(".")[0]
            found = known[scope] = thresholds[part or "default"]
        return found

    def gate(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        scope = getattr(logger, "scope", "default")
        if _NUMBERS.get(method, _NUMBERS["info"]) < threshold(scope):
            raise structlog.DropEvent
        event["scope"] = scope
        return event

    return gate


def _level(name: str) -> str:
    return {"warning": "warn", "exception": "error", "critical": "fatal"}.get(name, name)


def _text_line(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    parts = [event.pop("time"), _level(event.pop("level"))]
    scope = event.pop("scope")
    if scope != "default":
        parts.append(scope)
    parts.append(str(event.pop("event")))
    stack = event.pop("exception", "")
    if event:
        parts.append(" ".join(f"{key}={_field(value)}" for key, value in event.items()))
    line = "\t".join(parts)
    return f"{line}\n{stack}" if stack else line


def _field(value: Any) -> str:
    text = "; ".join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)
    # Anything that could be taken for another field, or for another record, is quoted.
    return repr(text) if not text or any(sign.isspace() or not sign.isprintable() for sign in text) else text


def _json_line(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    record: dict[str, Any] = {"level": _level(event.pop("level")), "time": event.pop("time")}
    scope = event.pop("scope")
    if scope != "default":
        record["scope"] = scope
    record["msg"] = event.pop("event")
    stack = event.pop("exception", "")
    if stack:
        record["stack"] = stack
    for key, value in event.items():
        record[f"{key}_" if key in record else key] = value
    return msgspec.json.encode(record, enc_hook=str).decode()
