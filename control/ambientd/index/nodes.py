"""Where nodes are. Must not let anything else of a Node through: heartbeats change nothing (workloads.md 3.10)."""

from __future__ import annotations

from msgspec import Struct

from ambientd.index.declarations import Derived, Reader, derive
from ambientd.index.inputs import NODES
from ambientd.resources.core import Node
from ambientd.resources.ref import Ref


class Locality(Struct, frozen=True, gc=False):
    region: str
    zone: str
    subzone: str


def _gather_locality(node: Node, _: Reader) -> Locality | None:
    if node.region or node.zone or node.subzone:
        return Locality(node.region, node.zone, node.subzone)
    return None


LOCALITIES: Derived[Ref, Locality] = derive("localities", NODES, _gather_locality)
"""By Ref of the Node; none when all three parts are empty."""


def parse_locality(text: str) -> Locality | None:
    """`region/zone/subzone`, further parts dropped; None when all are empty (workloads.md 4.2)."""
    region, zone, subzone = (*text.split("/"), "", "")[:3]
    return Locality(region, zone, subzone) if region or zone or subzone else None


DECLARATIONS = (NODES, LOCALITIES)
