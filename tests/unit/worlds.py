"""A world fed with manifests as people write them, through the real decoder. No test stands here."""

from __future__ import annotations

from typing import Any

import yaml

from ambientd.index.rules import Rules
from ambientd.index.world import World
from ambientd.resources.events import Delete, Invalid, Put
from ambientd.resources.kinds import KINDS
from ambientd.resources.manifest import decode_manifest
from ambientd.resources.ref import Ref
from ambientd_api.workload_pb2 import Address, Service, Workload

CLUSTER = "Kubernetes"


def events(text: str) -> list[Put | Invalid]:
    """One event per YAML document; API versions are filled in."""
    return [decode_manifest(_with_version(document), CLUSTER) for document in yaml.safe_load_all(text)]


def _with_version(document: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": KINDS.get(document["kind"], ("v1",))[0], **document}


def world(*texts: str, rules: Rules | None = None) -> World:
    """A world of these manifests; a derivation that raises fails the test."""
    made = World(rules or Rules(), is_strict=True)
    for text in texts:
        made.apply(events(text))
    return made


def ref(kind: str, namespace: str, name: str) -> Ref:
    return Ref(CLUSTER, kind, namespace, name)


def delete(made: World, kind: str, namespace: str, name: str) -> None:
    made.apply([Delete(ref(kind, namespace, name))])


def service(made: World, name: str) -> Service:
    return Address.FromString(made.addresses()[name].body).service


def workload(made: World, name: str) -> Workload:
    return Address.FromString(made.addresses()[name].body).workload
