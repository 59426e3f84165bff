"""YAML and JSON text as the plain values that JSON knows, with the lines they stand on. Scalars are read as `kubectl`
reads them: YAML 1.1 booleans and octal numbers, but times and base-60 numbers stay text. Stricter than YAML where a
mistake would change a meaning: a key that occurs twice is an error. Bounded: neither aliases nor nesting can make a
small file large. Must not know any kind."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml
from msgspec import Struct

ALIASED_VALUES_LIMIT = 100_000
"""How many values the aliases of one document may repeat; real manifests repeat a handful."""
NESTING_LIMIT = 100
"""Levels; a pod has about ten."""


class TextError(Exception):
    """Text that is no YAML or JSON: the line (from 1), and what is wrong there."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line
        self.problem = problem


class Document(Struct, frozen=True):
    """One document of a file."""

    value: Any
    """A plain JSON value: str, int, float, bool, None, list, or dict with str keys."""
    line: int
    """Where it begins, from 1."""
    node: yaml.Node | None = None
    """The tree that it was made of, for `line_of`; None for JSON."""

    def line_of(self, path: str) -> int:
        """The line of a field path such as `spec.ports[0].name`, or of the nearest parent that is there."""
        node, line = self.node, self.line
        for quoted, index, key in _STEP.findall(path):
            node = _child(node, key or quoted, index)
            if node is None:
                break
            line = node.start_mark.line + 1
        return line


_STEP = re.compile(r'\["([^"]*)"\]|\[(\d+)\]|\.?([^.\[]+)')


def _child(node: yaml.Node | None, key: str, index: str) -> yaml.Node | None:
    if index:
        if isinstance(node, yaml.SequenceNode) and int(index) < len(node.value):
            element: yaml.Node = node.value[int(index)]
            return element
    elif isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == key:
                found: yaml.Node = value
                return found
    return None


class _Loader(yaml.CSafeLoader):
    """The parser of PyYAML's C library, with its own resolution of plain scalars."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  PyYAML's own form


def _resolve(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z"), list(first))


_resolve("bool", r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO")
_resolve("int", r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)", "-+0123456789")
_resolve("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+0123456789.")
_resolve("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+.")
_resolve("merge", r"<<", "<")
_resolve("null", r"~|null|Null|NULL", "~nN")
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"\Z"), [""])


def yaml_documents(content: bytes) -> Iterator[Document]:
    """The documents of a YAML text in their order; empty ones are passed over. Raises TextError at the first one that
    cannot be read, after those before it were given."""
    text = _decode(content)
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None
            value = _Plain().value(node, 0)
            if value is not None:
                yield Document(value, node.start_mark.line + 1, node)
    except yaml.reader.ReaderError as error:
        problem = f"a character that YAML does not allow: {error.reason}"
        raise TextError(_line_at(text, error.position), problem) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise TextError(mark.line + 1 if mark else 1, problem) from None
    except yaml.YAMLError as error:
        raise TextError(1, str(error)) from None
    finally:
        loader.dispose()


def json_documents(content: bytes) -> Iterator[Document]:
    """As `yaml_documents`, for JSON values one after another."""
    text = _decode(content)
    at = _after_space(text, 0)
    while at < len(text):
        line = _line_at(text, at)
        try:
            value, end = _JSON.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise TextError(error.lineno, error.msg) from None
        except ValueError as error:
            raise TextError(line, str(error)) from None
        except RecursionError:
            raise TextError(line, "nested too deeply") from None
        if value is not None:
            yield Document(value, line)
        at = _after_space(text, end)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} occurs twice")
    return values


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON value")


_JSON = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(content.count(b"\n", 0, error.start) + 1, "must be UTF-8") from None


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _line_at(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


class _Plain:
    """Makes plain values of the nodes of one document. PyYAML's own constructor does not see a key that occurs twice,
    keeps keys that are no text, and expands aliases without a bound."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[Any, int]] = {}
        self._open: set[int] = set()
        self._aliased = 0
        self._count = 0

    def value(self, node: yaml.Node, depth: int) -> Any:
        self._count += 1
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        held = self._done.get(id(node))
        if held is not None:
            self._add_aliased(node, held[1])
            return held[0]
        if id(node) in self._open:
            _refuse(node, "an alias of a value that contains it")
        if depth > NESTING_LIMIT:
            _refuse(node, f"more than {NESTING_LIMIT} levels")
        self._open.add(id(node))
        before = self._count + self._aliased
        if isinstance(node, yaml.SequenceNode):
            plain: Any = [self.value(element, depth + 1) for element in node.value]
        elif isinstance(node, yaml.MappingNode):
            plain = self._mapping(node, depth)
        else:
            _refuse(node, f"a value of type {node.tag}")
        self._open.discard(id(node))
        self._done[id(node)] = plain, self._count + self._aliased - before + 1
        return plain

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Any]:
        if node.tag != "tag:yaml.org,2002:map":
            _refuse(node, f"a value of type {node.tag}")
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for name, value in node.value:
            if name.tag == "tag:yaml.org,2002:merge":
                self._merge(merged, self.value(value, depth + 1), value)
                continue
            key = _key(name)
            if key in own:
                _refuse(name, f"the key {key!r} occurs twice")
            own[key] = self.value(value, depth + 1)
        return {**merged, **own} if merged else own

    def _merge(self, into: dict[str, Any], value: Any, node: yaml.Node) -> None:
        for source in value if isinstance(value, list) else [value]:
            if not isinstance(source, dict):
                _refuse(node, "a merge of something that is no mapping")
            self._add_aliased(node, len(source))
            for key, merged in source.items():
                into.setdefault(key, merged)

    def _add_aliased(self, node: yaml.Node, count: int) -> None:
        self._aliased += count
        if self._aliased > ALIASED_VALUES_LIMIT:
            _refuse(node, f"aliases that repeat more than {ALIASED_VALUES_LIMIT} values")


def _refuse(node: yaml.Node, problem: str) -> NoReturn:
    raise TextError(node.start_mark.line + 1, problem)


def _key(node: yaml.Node) -> str:
    value = _scalar(node) if isinstance(node, yaml.ScalarNode) else None
    if value is None:
        _refuse(node, "a key that is no text")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _scalar(node: yaml.ScalarNode) -> Any:
    text: str = node.value
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind == "str":
        return text
    try:
        match kind:
            case "null":
                return None
            case "bool":
                return {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}[text.lower()]
            case "int":
                return _int(text)
            case "float":
                return _float(text)
    except (KeyError, ValueError, OverflowError):
        pass
    _refuse(node, f"a value of type {node.tag} that JSON does not have: {text[:60]!r}")


def _int(text: str) -> int:
    digits = text.replace("_", "").lstrip("+-")
    sign = -1 if text.startswith("-") else 1
    if digits.startswith("0") and len(digits) > 1 and digits[1] in "01234567":
        return sign * int(digits, 8)
    return sign * int(digits, 0)


def _float(text: str) -> int | float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    # Go writes a whole float64 without a fraction, so that a whole number is what the decoders see.
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else value
