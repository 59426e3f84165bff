"""What kubectl would have refused in a policy, and a file of manifests must not let through as something wider."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ambientd.resources.decode import to_json
from ambientd.resources.events import Invalid, Put
from ambientd.resources.faults import Undecodable
from ambientd.resources.manifest import UnknownKind, decode_manifest
from ambientd.sources.manifest_file import read_manifests


def _policy(spec: str, kind: str = "AuthorizationPolicy") -> dict[str, Any]:
    metadata = {"name": "till", "namespace": "shop"}
    return {"apiVersion": "security.istio.io/v1", "kind": kind, "metadata": metadata, "spec": yaml.safe_load(spec)}


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ("{rules: [{form: [{source: {principals: [a]}}]}]}", "spec.rules[0].form"),
        ("{actoin: DENY, rules: [{}]}", "spec.actoin"),
        (
            "{rules: [{from: [{source: {principals: [a], notPrincipal: [b]}}]}]}",
            "spec.rules[0].from[0].source.notPrincipal",
        ),
        ("{selecter: {matchLabels: {a: b}}}", "spec.selecter"),
        ("{selector: {matchLabel: {a: b}}}", "spec.selector.matchLabel"),
        ("{selector: {app: x}}", "spec.selector.app"),
        ("{rules: [{from: }]}", "spec.rules[0].from"),
        ("{rules: [{to: }]}", "spec.rules[0].to"),
        ("{selector: , action: DENY}", "spec.selector"),
        ("{action: , rules: [{}]}", "spec.action"),
        ("{rules: }", "spec.rules"),
        ("", "spec"),
    ],
)
def test_a_field_that_is_misspelt_or_cut_off_makes_a_policy_invalid(spec: str, path: str) -> None:
    found = decode_manifest(_policy(spec), "Kubernetes")
    assert isinstance(found, Invalid)
    assert [fault.path for fault in found.faults] == [path]


@pytest.mark.parametrize("spec", ["{mtsl: {mode: STRICT}}", "{mtls: {mod: STRICT}}", "{mtls: {mode: }}", "{mtls: }"])
def test_the_same_of_a_peer_authentication(spec: str) -> None:
    assert isinstance(decode_manifest(_policy(spec, "PeerAuthentication"), "Kubernetes"), Invalid)


def test_every_field_that_exists_is_known() -> None:
    source = "{principals: [a], notRequestPrincipals: [b], ipBlocks: [10.0.0.1], notTrustDomains: [c]}"
    operation, when = "{ports: ['80'], notPaths: [/x]}", "{key: source.ip, values: ['10.0.0.1']}"
    rule = f"{{from: [{{source: {source}}}], to: [{{operation: {operation}}}], when: [{when}]}}"
    assert isinstance(decode_manifest(_policy(f"{{selector: {{matchLabels: {{a: b}}}}, rules: [{rule}]}}"), "c"), Put)
    spec = "{selector: {matchLabels: {a: b}}, mtls: {mode: STRICT}, portLevelMtls: {'80': {mode: DISABLE}}}"
    assert isinstance(decode_manifest(_policy(spec, "PeerAuthentication"), "c"), Put)


def test_a_misspelt_kind_of_ours_keeps_the_file_as_it_was() -> None:
    text = b"apiVersion: security.istio.io/v1\nkind: AuthorizationPolcy\nmetadata: {name: till, namespace: shop}\n"
    assert not read_manifests("a.yaml", text, "c").is_whole
    with pytest.raises(UnknownKind):
        decode_manifest({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}}, "c")
    with pytest.raises(UnknownKind):
        decode_manifest(_policy("{}", "RequestAuthentication"), "c")


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_a_number_that_json_does_not_have_is_refused(number: float) -> None:
    with pytest.raises(Undecodable):
        to_json({"spec": {"action": number}})
