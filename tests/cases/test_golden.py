"""The index of the product against the golden cases: objects in, resources out, with no server around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest

from ambientd.debug.pages import plain_conditions
from ambientd.index.authorization import VERDICTS
from ambientd.index.authorization_conversion import Verdict
from ambientd.index.rendered import Rendered
from ambientd.index.rules import Rules
from ambientd.index.world import World
from ambientd.resources.decode import decode, to_json
from ambientd.resources.events import Delete, Event, Invalid, Put
from ambientd.resources.faults import Undecodable
from ambientd.resources.kinds import KINDS
from ambientd.resources.ref import Ref
from ambientd.settings import load as load_settings
from ambientd_api.security_pb2 import Authorization
from ambientd_api.workload_pb2 import Address
from tests.cases.loader import (
    Cluster,
    Conditions,
    Served,
    case_ids,
    differences,
    expected_pushed,
    golden,
    load,
    marked_cases,
    pushed,
    wrong_conditions,
)
from tests.cases.rows import wrong_conversions, wrong_modes
from tests.model.manifests import Change, Manifest, defaulted, ref_of


@pytest.mark.parametrize("case_id", marked_cases("product"))
def test_the_index_serves_what_the_case_expects(case_id: str) -> None:
    case = load(case_id)
    cluster = Cluster(case)
    rules = rules_of(case.environment)
    world = World(rules)
    world.apply(events_of(cluster.begun, rules))
    for number, step in enumerate(case.steps, start=1):
        before = versions(world)
        world.apply(events_of(cluster.play(step), rules))
        world.apply(events_of(cluster.written(step), rules))
        found = differences(served(world), step.expect) + wrong_conditions(deserved(world), case, number, cluster)
        assert not found, f"step {number}:\n" + "\n".join(found)
        wanted = expected_pushed(step)
        if wanted is not None:
            assert pushed(before, versions(world)) == wanted, f"step {number}"


@pytest.mark.parametrize("case_id", [each for each in case_ids() if "verdict" in load(each).fields])
def test_the_verdict_is_the_one_of_the_case(case_id: str) -> None:
    case = load(case_id)
    rules = rules_of(case.environment)
    world = World(rules)
    world.apply(events_of(Cluster(case).play(case.steps[0]), rules))
    ((_, found),) = world.graph.items(VERDICTS)
    text = f"{found.is_accepted}/{found.reason}"
    if found.verdict is not Verdict.ACCEPTED:
        action = case.steps[0].apply[-1]["spec"]["action"] if found.verdict is Verdict.ACTION else ""
        detail = ", ".join(found.attributes) or action
        text += f" ({found.verdict.value}{': ' if detail else ''}{detail})"
    assert text == case.fields["verdict"]


def test_without_the_setting_nothing_has_conditions() -> None:
    case = load("waypoints-p13")
    rules = rules_of({**case.environment, "AMBIENT_ENABLE_STATUS": "false"})
    world = World(rules)
    world.apply(events_of(Cluster(case).play(case.steps[0]), rules))
    assert world.addresses()
    assert world.conditions() == {}


def test_the_index_converts_every_row_of_random_policies() -> None:
    assert not wrong_conversions(serve)


def test_the_index_gives_every_row_of_the_matrix_of_modes() -> None:
    assert not wrong_modes(serve)


def serve(manifests: Sequence[Manifest], environment: Mapping[str, str]) -> Served:
    rules = rules_of(environment)
    world = World(rules)
    world.apply(events_of([Change(ref_of(each), defaulted(each)) for each in manifests], rules))
    return served(world)


def rules_of(environment: Mapping[str, str]) -> Rules:
    return load_settings({}, environment, strict=False)[0].rules()


def events_of(changes: Iterable[Change], rules: Rules) -> list[Event]:
    """What a source that follows an API server emits for the changes."""
    return [event_of(change, rules.cluster_id) for change in changes if change.ref[0] in KINDS]


def event_of(change: Change, cluster: str) -> Event:
    ref = Ref(cluster, *change.ref)
    if change.manifest is None:
        return Delete(ref)
    try:
        value, faults = decode(to_json(dict(change.manifest)), ref.kind, cluster)
    except Undecodable as error:
        return Invalid(ref, error.faults)
    return Put(value, faults=faults)


def served(world: World) -> Served:
    return Served(
        address={name: golden(Address.FromString(each.body)) for name, each in world.addresses().items()},
        authorization={
            name: golden(Authorization.FromString(each.body)) for name, each in world.authorizations().items()
        },
    )


def deserved(world: World) -> Conditions:
    return {
        f"{ref.kind}/{ref.namespace}/{ref.name}": plain_conditions(conditions)
        for ref, conditions in world.conditions().items()
    }


def versions(world: World) -> dict[str, Mapping[str, str]]:
    def by_name(resources: Mapping[str, Rendered]) -> Mapping[str, str]:
        return {name: each.version for name, each in resources.items()}

    return {"address": by_name(world.addresses()), "authorization": by_name(world.authorizations())}
