"""The evaluator of a ztunnel's decisions against the table of verdicts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cases.loader import DEFAULTS, HERE
from tests.cases.rows import MESH
from tests.model.model import expected
from tests.model.verdict import Connection, allows

DOCUMENT = json.loads((HERE / "policies" / "evaluation.json").read_bytes())


@pytest.mark.parametrize("row", DOCUMENT["rows"], ids=lambda row: row["id"])
def test_the_verdict_is_that_of_the_table(row: dict[str, Any]) -> None:
    objects, environment = [MESH], dict(DEFAULTS)
    for name in row["policies"]:
        objects += DOCUMENT["policies"][name]["objects"]
        environment |= DOCUMENT["policies"][name].get("environment", {})
    authorizations = expected(objects, environment).authorizations
    workload = {"namespace": row["namespace"], "authorization_policies": row["lists"]}
    connection = Connection(row["source"], row["destination"], row["port"], row["identity"])
    assert allows(workload, authorizations, connection) is (row["verdict"] == "allow")


def test_a_peer_with_a_mapped_address_is_seen_as_ipv4() -> None:
    matches = [{"source_ips": [{"address": "192.0.2.0", "length": 24}]}]
    policy = {"name": "a", "namespace": "shop", "scope": "NAMESPACE", "groups": [{"rules": [{"matches": matches}]}]}
    for source, is_allowed in (("::ffff:192.0.2.9", True), ("::ffff:192.0.3.9", False)):
        connection = Connection(source, "10.2.0.9", 80)
        assert allows({"namespace": "shop"}, {"shop/a": policy}, connection) is is_allowed
