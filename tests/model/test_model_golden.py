"""The naive model against the golden cases: what a real control plane was seen to serve, or what we do on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.cases.loader import (
    Cluster,
    Served,
    differences,
    expected_pushed,
    load,
    marked_cases,
    pushed,
    wrong_conditions,
)
from tests.cases.rows import wrong_conversions, wrong_modes
from tests.model.manifests import Manifest
from tests.model.model import World, expected


@pytest.mark.parametrize("case_id", marked_cases("model"))
def test_the_model_serves_what_the_case_expects(case_id: str) -> None:
    case = load(case_id)
    cluster = Cluster(case)
    world = expected(cluster.manifests(), case.environment)
    for number, step in enumerate(case.steps, start=1):
        cluster.play(step)
        cluster.written(step)
        before, world = world, expected(cluster.manifests(), case.environment)
        found = differences(Served(world.addresses, world.authorizations), step.expect)
        found += wrong_conditions(world.conditions, case, number, cluster)
        assert not found, f"step {number}:\n" + "\n".join(found)
        wanted = expected_pushed(step)
        if wanted is not None:
            assert pushed(by_field(before), by_field(world)) == wanted, f"step {number}"


def by_field(world: World) -> dict[str, Mapping[str, Any]]:
    return {"address": world.addresses, "authorization": world.authorizations}


def serve(manifests: Sequence[Manifest], environment: Mapping[str, str]) -> Served:
    world = expected(manifests, environment)
    return Served(world.addresses, world.authorizations)


def test_the_model_converts_every_row_of_random_policies() -> None:
    assert not wrong_conversions(serve)


def test_the_model_gives_every_row_of_the_matrix_of_modes() -> None:
    assert not wrong_modes(serve)


def test_the_model_gives_the_aliases_that_lookups_showed() -> None:
    case = load("workloads-lookup")
    cluster = Cluster(case)
    cluster.play(case.steps[0])
    aliases = expected(cluster.manifests(), case.environment).aliases
    wanted = {
        primary: listed for lookup in case.steps[0].fields["lookups"] for primary, listed in lookup["resources"].items()
    }
    assert {primary: list(aliases[primary]) for primary in wanted} == wanted
