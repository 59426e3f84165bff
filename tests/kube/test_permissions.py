"""What `deploy/` grants is what the program asks for: enough for every kind to be read, and nothing that is never
asked."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ambientd.kube.resources import Permission, permissions, resources
from ambientd.sources.watches import State
from tests.kube.apiserver import ApiServer
from tests.kube.client import Client, Refused
from tests.kube.following import following
from tests.kube.mesh import REAL_PACE

DEPLOY = Path(__file__).parents[2] / "deploy"

OTHERS = frozenset(
    {
        Permission("authentication.k8s.io", "tokenreviews", "create"),
        Permission("", "configmaps", "create"),
        *(
            Permission("", "configmaps", verb, name=name)
            for verb in ("get", "list", "watch", "update")
            for name in ("istio-ca-root-cert", "istio-ca-crl")
        ),
        Permission("", "secrets", "create", "istio-system"),
        *(
            Permission("", "secrets", verb, "istio-system", name)
            for verb in ("get", "update")
            for name in ("istio-ca-secret", "cacerts")
        ),
    }
)
"""What the certificate authority asks for."""


def manifests(file: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((DEPLOY / file).read_text()) if each]


def granted() -> Iterator[Permission]:
    for role in manifests("rbac.yaml"):
        for rule in role.get("rules", ()):
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        for name in rule.get("resourceNames", [""]):
                            namespace = role["metadata"].get("namespace", "")
                            yield Permission(group, resource, verb, namespace, name)


def test_the_manifests_grant_what_is_asked_for_and_no_more() -> None:
    assert sorted(granted()) == sorted(permissions(resources("istio-system", "istio")) | OTHERS)


def test_the_roles_are_bound_to_the_account_of_the_deployment() -> None:
    (deployment,) = [each for each in manifests("deployment.yaml") if each["kind"] == "Deployment"]
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    bindings = [each for each in manifests("rbac.yaml") if each["kind"].endswith("Binding")]
    subject = {"kind": "ServiceAccount", "name": account, "namespace": deployment["metadata"]["namespace"]}
    assert [each["subjects"] for each in bindings] == [[subject], [subject]]


def test_the_service_and_the_probe_name_ports_of_the_deployment() -> None:
    by_kind = {each["kind"]: each for each in manifests("deployment.yaml")}
    pod = by_kind["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    ports = {port["containerPort"] for port in container["ports"]}
    assert {port["port"] for port in by_kind["Service"]["spec"]["ports"]} <= ports
    assert container["readinessProbe"]["httpGet"]["port"] in ports
    assert by_kind["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


@pytest.mark.peer
@pytest.mark.slow
async def test_a_real_server_lets_us_read_every_kind_with_these_permissions(
    api_server: ApiServer, client: Client, namespace: str, tmp_path: Path
) -> None:
    with contextlib.suppress(Refused):  # it may be there already
        await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "istio-system"}})
    for manifest in manifests("rbac.yaml"):
        metadata = manifest["metadata"]
        if "namespace" in metadata:
            # The role for the system namespace is needed where the mesh configuration is.
            metadata["namespace"] = "istio-system" if manifest["kind"].startswith("Role") else namespace
        metadata["name"] = f"{metadata['name']}-{namespace}" if manifest["kind"] != "ServiceAccount" else "ambientd"
        if "roleRef" in manifest:
            manifest["roleRef"]["name"] = metadata["name"]
        for subject in manifest.get("subjects", ()):
            subject["namespace"] = namespace
        await client.create(manifest)
    audience = "https://kubernetes.default.svc.cluster.local"
    configuration = json.loads(api_server.kubeconfig().read_text())
    configuration["users"][0]["user"] = {"token": await client.token(namespace, "ambientd", audience=audience)}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(configuration))
    await client.remove_crds(["Gateway"])
    try:
        async with following(kubeconfig, pace=REAL_PACE) as follower:
            await follower.until_listed()
            gateways = follower.watch("Gateway")
            assert gateways.state is State.ABSENT
            await client.install_crds(["Gateway"])
            await follower.reader.until(lambda: {watch.state for watch in follower.cluster.watches} == {State.WATCHING})
            # Its definition may be a moment late, and a server that has just got definitions opens its storage anew and
            # says so; nothing may be forbidden.
            failed = [watch for watch in follower.cluster.watches if watch.failures and watch is not gateways]
            assert [watch.reason for watch in failed if "storage is (re)initializing" not in watch.reason] == []
            assert "forbidden" not in gateways.reason
    finally:
        await client.install_crds(["Gateway"])
