"""The mesh configuration: valid or invalid as a whole (operations.md 6)."""

from __future__ import annotations

import pytest

from ambientd.resources.faults import Undecodable
from ambientd.resources.mesh import (
    LabelSelector,
    MeshConfig,
    Requirement,
    ServiceEntryVisibility,
    VisibilityPolicy,
    settled,
)
from ambientd.resources.mesh_decode import decode_mesh


@pytest.mark.parametrize("text", ["", "# nothing", "{}", "trustDomain:\nrootNamespace: ''", "unknown: [1, {a: b}]"])
def test_what_is_absent_or_unknown_leaves_the_defaults(text: str) -> None:
    assert decode_mesh(text) == (MeshConfig(), ())


def test_every_field_that_matters_in_either_spelling() -> None:
    camel = """
trustDomain: td.example
trustDomainAliases: [b, a, b]
rootNamespace: root
discoverySelectors:
- matchLabels: {mesh: "on"}
  matchExpressions: [{key: example.com/env, operator: In, values: [prod, test]}, {key: x, operator: DoesNotExist}]
serviceEntryVisibility:
  defaultVisibility: NAMESPACE
  policies:
  - visibility: PUBLIC
    matchingRules: [{namespaceSelector: {}}, {other: {}}]
"""
    snake = camel
    for name in ("trustDomainAliases", "trustDomain", "rootNamespace", "discoverySelectors", "matchLabels"):
        snake = snake.replace(name, "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name))
    expected = MeshConfig(
        trust_domain="td.example",
        trust_domain_aliases=("a", "b"),
        root_namespace="root",
        discovery_selectors=(
            LabelSelector(
                (("mesh", "on"),),
                (
                    Requirement("example.com/env", "In", ("prod", "test")),
                    Requirement("x", "DoesNotExist", ()),
                ),
            ),
        ),
        service_entry_visibility=ServiceEntryVisibility(
            "NAMESPACE", (VisibilityPolicy("PUBLIC", (LabelSelector(), None)),)
        ),
    )
    assert decode_mesh(camel) == (expected, ())
    assert decode_mesh(snake) == (expected, ())


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("trustDomain: ''", ["trustDomain"]),
        ("trustDomain: a@b", ["trustDomain"]),
        ("trustDomain: 7", ["trustDomain"]),
        ("trustDomainAliases: [ok., '', a..b]", ["trustDomainAliases[1]", "trustDomainAliases[2]"]),
        ("trustDomainAliases: a", ["trustDomainAliases"]),
        ("rootNamespace: {}", ["rootNamespace"]),
        ("discoverySelectors: {}", ["discoverySelectors"]),
        ("discoverySelectors: [{matchLabels: {a: 1}}]", ['discoverySelectors[0].matchLabels["a"]']),
        ("serviceEntryVisibility: {defaultVisibility: SOME}", ["serviceEntryVisibility.defaultVisibility"]),
        ("trustDomain: a\ntrust_domain: b", ["trust_domain"]),
        ("- a", [""]),
        ("a: b\n---\nc: d", ["line 3"]),
        ("a: b\nc: [", ["line 3"]),
        ("trustDomain: a\ntrustDomain: b", ["line 2"]),
    ],
)
def test_one_invalid_field_makes_the_whole_invalid(text: str, paths: list[str]) -> None:
    with pytest.raises(Undecodable) as caught:
        decode_mesh(text)
    assert [fault.path for fault in caught.value.faults] == paths


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("discoverySelectors: [{matchLabels: {'-a': b}}]", ['discoverySelectors[0].matchLabels["-a"]']),
        (
            "discoverySelectors: [{matchExpressions: [{key: a, operator: Is}]}]",
            ["discoverySelectors[0].matchExpressions[0].operator"],
        ),
        (
            "discoverySelectors: [{matchExpressions: [{key: a, operator: In}, {key: a, operator: Exists, "
            "values: [b]}]}]",
            [
                "discoverySelectors[0].matchExpressions[0].values",
                "discoverySelectors[0].matchExpressions[1].values",
            ],
        ),
    ],
)
def test_a_malformed_selector_leaves_the_rest_in_force(text: str, paths: list[str]) -> None:
    mesh, faults = decode_mesh(f"trustDomain: corp.example\n{text}")
    assert [fault.path for fault in faults] == paths
    assert mesh.malformed == {"discovery_selectors"}
    assert mesh.trust_domain == "corp.example"


def test_a_field_with_a_malformed_selector_stays_as_it_was() -> None:
    held, _ = decode_mesh("discoverySelectors: [{matchLabels: {a: b}}]")
    new, _ = decode_mesh("rootNamespace: other\ndiscoverySelectors: [{matchExpressions: [{key: a, operator: Is}]}]")
    assert settled(new, held).discovery_selectors == held.discovery_selectors
    assert settled(new, held).root_namespace == "other"
    assert settled(new, None).discovery_selectors == ()
