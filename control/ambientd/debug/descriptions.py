"""A description of one object as the plain values of JSON. Formats only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ambientd.debug.pages import plain_conditions, plain_ref
from ambientd.debug.readable import plain
from ambientd.explain.attachments import Line
from ambientd.explain.describe import Description
from ambientd.index.rendered import RenderedAddress, RenderedPolicy
from ambientd_api.security_pb2 import Authorization
from ambientd_api.workload_pb2 import Address


def plain_description(description: Description) -> dict[str, Any]:
    outcome = description.outcome
    joined = "hosts" if description.object.kind == "ServiceEntry" else "services"
    return {
        **plain_ref(description.object),
        "is_read": description.is_read,
        "summary": outcome.summary,
        "waypoints": _plain_lines(outcome.waypoints),
        joined: _plain_lines(outcome.joined),
        "policies": _plain_lines(outcome.enforced),
        "conditions": plain_conditions(description.conditions),
        "problems": list(description.problems),
        "served": [
            *(_plain_address(item) for item in outcome.addresses),
            *(_plain_policy(item) for item in outcome.policies),
        ],
    }


def _plain_lines(lines: Iterable[Line]) -> list[dict[str, str]]:
    return [{"what": line.what, "why": line.why} for line in lines]


def _plain_address(item: RenderedAddress) -> dict[str, Any]:
    address = Address.FromString(item.body)
    kind, message = ("workload", address.workload) if item.is_workload else ("service", address.service)
    return {"type": kind, "name": item.name, "version": item.version, "resource": plain(message)}


def _plain_policy(item: RenderedPolicy) -> dict[str, Any]:
    resource = plain(Authorization.FromString(item.body))
    return {"type": "policy", "name": item.name, "version": item.version, "resource": resource}
