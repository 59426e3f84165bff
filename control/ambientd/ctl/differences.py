"""What changed between two plain values, in words that fit on one line. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """One text per field that differs: `status HEALTHY → UNHEALTHY`, `authorizationPolicies +shop/deny`,
    `services[shop/cart] added`. The default of proto-JSON, absent, is shown as `-`."""
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from differences(before.get(key), after.get(key), _below(path, key))
    elif isinstance(before, list) or isinstance(after, list):
        yield from _list_differences(before or [], after or [], path)
    elif before is None and after == {}:
        yield f"{path} added"
    elif after is None and before == {}:
        yield f"{path} removed"
    elif isinstance(before, dict) or isinstance(after, dict):
        for key in before or after:
            yield from differences((before or {}).get(key), (after or {}).get(key), _below(path, key))
    else:
        yield f"{path} {_text(before)} → {_text(after)}"


def _below(path: str, key: str) -> str:
    if not path:
        return key
    # Keys of maps are names of objects, and would be lost among the dots.
    return f"{path}[{key}]" if "/" in key else f"{path}.{key}"


def _list_differences(before: list[Any], after: list[Any], path: str) -> Iterator[str]:
    gone = [item for item in before if item not in after]
    new = [item for item in after if item not in before]
    if not gone and not new:
        yield f"{path} reordered"
        return
    signs = [f"-{_text(item)}" for item in gone] + [f"+{_text(item)}" for item in new]
    yield f"{path} {' '.join(signs)}"


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    return str(value)
