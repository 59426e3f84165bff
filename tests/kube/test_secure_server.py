"""The real server process over a real API server, with nothing but the TLS port: a node's proxy gets its mesh and the
identities of its node with a bound token (ca.md 5.3), from roots that it finds in its namespace."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import yaml
from cryptography import x509

from ambientd.ctl.ztunnel import SimulatedZtunnel
from ambientd_api.ca_pb2_grpc import IstioCertificateServiceStub
from tests.kube.apiserver import ApiServer
from tests.kube.client import Client, Refused
from tests.kube.processes import free_port
from tests.kube.test_tokens import make_account, make_pod
from tests.unit.authorities import Link, revocations, signing_key
from tests.wire.process import ServerProcess, WireClient, eventually
from tests.wire.test_tls import lasting_root, names_of, plug_in, refusal, request

DEPLOY = Path(__file__).parents[2] / "deploy"

pytestmark = [pytest.mark.peer, pytest.mark.slow]


def _id(namespace: str, account: str) -> str:
    return f"spiffe://cluster.local/ns/{namespace}/sa/{account}"


async def test_a_node_s_proxy_gets_its_identities_and_nobody_else_s(
    api_server: ApiServer, client: Client, namespace: str, tmp_path: Path
) -> None:
    node, other_node = f"a-{namespace}", f"b-{namespace}"
    for each in (node, other_node):
        await client.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": each}})
    for account in ("ztunnel", "cart", "till"):
        await make_account(client, namespace, account)
    proxy = await make_pod(client, namespace, "z", "ztunnel", node)
    await make_pod(client, namespace, "cart", "cart", node)
    await make_pod(client, namespace, "till", "till", other_node)
    token = await client.token(namespace, "ztunnel", pod=proxy)
    of_the_node = (("authorization", f"Bearer {token}"), ("clusterid", "Kubernetes"))

    port, https_port = free_port(), free_port()
    root_map = f"root-{namespace}"
    flags = (
        *("--secure-grpc-addr", f"127.0.0.1:{port}", "--https-addr", f"127.0.0.1:{https_port}"),
        *("--namespace", namespace),
    )
    environment = {
        "CA_TRUSTED_NODE_ACCOUNTS": f"{namespace}/ztunnel",
        "ROOT_CA_DIR": str(tmp_path / "none"),
        "PILOT_CA_CERT_CONFIGMAP": root_map,
        "PILOT_CRL_CONFIGMAP": f"crl-{namespace}",
        "ISTIOD_CUSTOM_HOST": "localhost",
    }
    kubeconfig = await _granted_kubeconfig(api_server, client, namespace, tmp_path, root_map, f"crl-{namespace}")
    server = await asyncio.to_thread(
        ServerProcess, kubeconfig, tmp_path / "log", *flags, **environment, HOME=os.environ.get("HOME", "/")
    )
    try:
        root = (await _root_in(client, namespace, root_map)).encode()
        assert root == (await _root_in(client, "kube-system", root_map)).encode()
        assert await _held_in(client, namespace, f"crl-{namespace}", "ca-crl.pem") == ""

        def talk() -> None:
            credentials = grpc.ssl_channel_credentials(root)
            stub = IstioCertificateServiceStub(grpc.secure_channel(f"localhost:{port}", credentials))
            for account in ("ztunnel", "cart"):
                asked = request(_id(namespace, account))
                response = stub.CreateCertificate(asked, metadata=of_the_node, timeout=10)
                assert names_of(response) == [_id(namespace, account)]
            assert refusal(stub, _id(namespace, "till"), *of_the_node)[0] == "UNAUTHENTICATED"
            xds = WireClient(port, SimulatedZtunnel(namespace=namespace), root=root, metadata=of_the_node)
            eventually(lambda: xds.ztunnel.is_ready, "the first answers over TLS")
            xds.close()
            assert token not in server.log()

        await _in_thread(talk)
        # Gone, and so is the identity: the token's own review is believed for some seconds only.
        await client.delete(proxy)

        def is_refused() -> bool:
            credentials = grpc.ssl_channel_credentials(root)
            stub = IstioCertificateServiceStub(grpc.secure_channel(f"localhost:{port}", credentials))
            try:
                stub.CreateCertificate(request(_id(namespace, "cart")), metadata=of_the_node, timeout=10)
            except grpc.RpcError as error:
                return bool(error.code() is grpc.StatusCode.UNAUTHENTICATED)
            return False

        await _in_thread(lambda: eventually(is_refused, "the pod is gone"))
    finally:
        await asyncio.to_thread(server.stop)


async def test_a_revocation_list_is_given_to_namespaces_and_stays_and_the_roots_with_it(
    api_server: ApiServer, client: Client, namespace: str, tmp_path: Path
) -> None:
    folder, root = tmp_path / "cacerts", lasting_root()
    plug_in(folder, "first", root)
    root_map, crl_map = f"root-{namespace}", f"crl-{namespace}"
    variables = {"ROOT_CA_DIR": str(folder), "PILOT_CA_CERT_CONFIGMAP": root_map, "PILOT_CRL_CONFIGMAP": crl_map}
    flags = ("--secure-grpc-addr", "127.0.0.1:0", "--https-addr", "", "--namespace", namespace)
    server = await asyncio.to_thread(ServerProcess, api_server.kubeconfig(), tmp_path / "log", *flags, **variables)
    try:
        assert (await _root_in(client, namespace, root_map)).encode() == root.pem
        assert await _held_in(client, namespace, crl_map, "ca-crl.pem") == ""
        before = await client.get("v1", "ConfigMap", root_map, namespace)

        (signer,) = x509.load_pem_x509_certificates((folder / "ca-cert.pem").read_bytes())
        lists = revocations(Link(signer, signing_key("P-256/first"))).decode()
        (folder / "ca-crl.pem").write_text(lists)
        async with asyncio.timeout(30):
            while await _held_in(client, namespace, crl_map, "ca-crl.pem") != lists:
                await asyncio.sleep(0.05)

        (folder / "ca-crl.pem").unlink()
        await asyncio.to_thread(plug_in, folder, "second", root)
        reloaded = "the plugged-in certificate authority was reloaded"
        await asyncio.to_thread(lambda: eventually(lambda: server.log().count(reloaded) >= 2, "the next set is used"))
        await asyncio.sleep(0.5)
        assert await _held_in(client, namespace, crl_map, "ca-crl.pem") == lists
        assert await client.get("v1", "ConfigMap", root_map, namespace) == before
        written = await client.list("v1", "ConfigMap", namespace)
        assert {each["metadata"]["name"] for each in written["items"]} == {root_map, crl_map}
    finally:
        await asyncio.to_thread(server.stop)


async def _granted_kubeconfig(
    server: ApiServer, client: Client, namespace: str, folder: Path, *config_maps: str
) -> Path:
    """Of an account that may do what the manifests of the product grant, and nothing else."""
    for manifest in yaml.safe_load_all((DEPLOY / "rbac.yaml").read_text()):
        renamed = manifest["metadata"]
        if "namespace" in renamed:
            renamed["namespace"] = namespace
        else:
            renamed["name"] = manifest["metadata"]["name"] = f"ambientd-{namespace}"
            if "roleRef" in manifest:
                manifest["roleRef"]["name"] = renamed["name"]
        for subject in manifest.get("subjects", ()):
            subject["namespace"] = namespace
        for rule in manifest.get("rules", ()):
            if "istio-ca-root-cert" in rule.get("resourceNames", ()):
                rule["resourceNames"] = list(config_maps)
        await client.create(manifest)
    audience = "https://kubernetes.default.svc.cluster.local"
    configuration = json.loads(server.kubeconfig().read_text())
    configuration["users"][0]["user"] = {"token": await client.token(namespace, "ambientd", audience=audience)}
    path = folder / "kubeconfig.json"
    path.write_text(json.dumps(configuration))
    return path


async def _in_thread(work: Callable[[], None]) -> None:
    await asyncio.to_thread(work)


async def _root_in(client: Client, namespace: str, name: str) -> str:
    return await _held_in(client, namespace, name, "root-cert.pem")


async def _held_in(client: Client, namespace: str, name: str, key: str) -> str:
    async with asyncio.timeout(30):
        while True:
            try:
                return str((await client.get("v1", "ConfigMap", name, namespace))["data"][key])
            except Refused:
                await asyncio.sleep(0.1)
