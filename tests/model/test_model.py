"""What the model promises of itself."""

from __future__ import annotations

import copy
from random import Random

from tests.model.histories import Histories
from tests.model.manifests import Manifest
from tests.model.mesh import configuration, in_force
from tests.model.model import expected


def test_the_order_of_the_manifests_does_not_matter() -> None:
    for seed in range(5):
        histories = Histories(seed)
        for _ in range(60):
            histories.batch()
        manifests = list(histories.state.values())
        world = expected(manifests, histories.environment)
        Random(seed).shuffle(manifests)
        assert expected(manifests, histories.environment) == world


def test_the_manifests_are_not_changed() -> None:
    histories = Histories(5)
    for _ in range(60):
        histories.batch()
    manifests: list[Manifest] = list(histories.state.values())
    before = copy.deepcopy(manifests)
    expected(manifests, histories.environment)
    assert manifests == before


def test_an_invalid_mesh_configuration_changes_nothing_at_all() -> None:
    former = configuration("rootNamespace: mesh-root\ntrustDomain: corp.example\n")
    for document in ("rootNamespace: other\ntrustDomain: a@b\n", "rootNamespace: [x\n", "trustDomain: ''\n"):
        assert in_force(former, document) == former


def test_a_malformed_selector_keeps_only_what_is_built_from_it() -> None:
    former = configuration("discoverySelectors: [{matchLabels: {mesh: 'on'}}]\n")
    document = "rootNamespace: other\ndiscoverySelectors: [{matchExpressions: [{key: mesh, operator: Bogus}]}]\n"
    assert in_force(former, document) == {**former, "rootNamespace": "other"}
    assert in_force(None, document) == {"rootNamespace": "other"}
