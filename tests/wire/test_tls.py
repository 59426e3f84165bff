"""The TLS port of the real server process on a folder: a ztunnel gets xDS and certificates by its token, and nobody
gets anything without; what the port shows is renewed under open connections (xds.md 3, ca.md 2 to 5, 14)."""

from __future__ import annotations

import datetime
import json
import os
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.struct_pb2 import Struct

from ambientd.ctl.ztunnel import SimulatedZtunnel
from ambientd_api.ca_pb2 import IstioCertificateRequest, IstioCertificateResponse
from ambientd_api.ca_pb2_grpc import IstioCertificateServiceStub
from tests.e2e.tls_front import make_certificate
from tests.kube.processes import free_port
from tests.unit.authorities import Link, certify, files
from tests.unit.certificate_server import METHOD
from tests.wire.process import ServerProcess, WireClient, eventually, serving


def pod(namespace: str, name: str, account: str, ip: str, *, uid: str = "", node: str = "node-a") -> str:
    return f"""\
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, uid: {uid or name}}}
spec: {{nodeName: {node}, serviceAccountName: {account}}}
status: {{phase: Running, podIP: {ip}}}
---
"""


MESH = (
    pod("istio-system", "ztunnel-a", "ztunnel", "10.1.0.1", uid="uid-a")
    + pod("shop", "cart-0", "cart", "10.1.0.2", uid="uid-cart")
    + pod("shop", "till-0", "till", "10.1.0.3", node="node-b")
)
LATE = pod("istio-system", "late", "ztunnel", "10.1.0.4")

TOKENS = """\
tokens:
- {token: secret-of-node-a, namespace: istio-system, serviceAccount: ztunnel, pod: ztunnel-a, uid: uid-a, node: node-a}
- {token: secret-of-cart, namespace: shop, serviceAccount: cart, pod: cart-0, uid: uid-cart, node: node-a}
"""

OF_NODE_A = (("authorization", "Bearer secret-of-node-a"), ("clusterid", "Kubernetes"))
CART, TILL, ZTUNNEL = (
    f"spiffe://cluster.local/ns/{account}" for account in ("shop/sa/cart", "shop/sa/till", "istio-system/sa/ztunnel")
)


class Secured:
    """A server with a TLS port."""

    def __init__(self, server: ServerProcess, port: int) -> None:
        self.server = server
        self.port = port

    def page(self, name: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.monitoring_port}/{name}", timeout=5) as answer:
            return answer.read().decode()

    @property
    def root(self) -> bytes:
        roots: str = json.loads(self.page("debug/ca"))["authority"]["roots"]
        return roots.encode()

    def channel(self, *options: tuple[str, int], root: bytes | None = None) -> grpc.Channel:
        credentials = grpc.ssl_channel_credentials(root or self.root)
        options = (("grpc.use_local_subchannel_pool", 1), *options)
        return grpc.secure_channel(f"localhost:{self.port}", credentials, options=options)

    def stub(self, root: bytes | None = None) -> IstioCertificateServiceStub:
        return IstioCertificateServiceStub(self.channel(root=root))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mesh"
    folder.mkdir()
    (folder / "mesh.yaml").write_text(MESH)
    (tmp_path / "tokens.yaml").write_text(TOKENS)
    return folder


@pytest.fixture
def secured(folder: Path, tmp_path: Path) -> Iterator[Secured]:
    port = free_port()
    flags = ("--secure-grpc-addr", f"127.0.0.1:{port}", "--token-review", f"static:{tmp_path / 'tokens.yaml'}")
    with serving(
        folder,
        tmp_path / "log",
        *flags,
        CA_TRUSTED_NODE_ACCOUNTS="istio-system/ztunnel",
        ROOT_CA_DIR=str(tmp_path / "no-ca"),
    ) as server:
        yield Secured(server, port)


def request(identity: str = "") -> IstioCertificateRequest:
    key = ec.generate_private_key(ec.SECP256R1())
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    metadata = Struct()
    if identity:
        metadata.update({"ImpersonatedIdentity": identity})
    text = csr.public_bytes(serialization.Encoding.PEM).decode()
    return IstioCertificateRequest(csr=text, validity_duration=86400, metadata=metadata)


def names_of(response: IstioCertificateResponse) -> list[str]:
    leaf = x509.load_pem_x509_certificate(response.cert_chain[0].encode())
    return [str(name.value) for name in leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]


def refusal(stub: IstioCertificateServiceStub, identity: str, *metadata: tuple[str, str]) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as refused:
        stub.CreateCertificate(request(identity), metadata=metadata, timeout=10)
    return refused.value.code().name, str(refused.value.details())


def test_a_ztunnel_gets_its_mesh_and_the_identities_of_its_node_by_its_token(secured: Secured) -> None:
    stub = secured.stub()
    for identity in (ZTUNNEL, CART):
        response = stub.CreateCertificate(request(identity), metadata=OF_NODE_A, timeout=10)
        assert names_of(response) == [identity]
        assert response.cert_chain[-1].encode() == secured.root
    client = WireClient(secured.port, root=secured.root, metadata=OF_NODE_A)
    eventually(lambda: client.ztunnel.is_ready, "the first answers over TLS")
    assert "Kubernetes//Pod/shop/cart-0" in client.ztunnel.workloads
    client.close()


def test_whoever_may_not_have_an_identity_learns_nothing_and_the_operator_everything(secured: Secured) -> None:
    stub = secured.stub()
    refused = ("UNAUTHENTICATED", "authentication failure")
    assert refusal(stub, TILL, *OF_NODE_A) == refused
    assert refusal(stub, CART) == refused
    assert refusal(stub, CART, ("authorization", "Bearer wrong")) == refused
    assert refusal(stub, CART, ("authorization", "Bearer secret-of-node-a")) == refused
    assert refusal(stub, TILL, ("authorization", "Bearer secret-of-cart"), ("clusterid", "Kubernetes")) == refused
    own = stub.CreateCertificate(request(), metadata=(("authorization", "Bearer secret-of-cart"),), timeout=10)
    assert names_of(own) == [CART]
    reasons = [refusal["reason"] for refusal in json.loads(secured.page("debug/ca"))["refusals"]]
    assert reasons == ["not_on_node", "unauthenticated", "unauthenticated", "unknown_cluster", "untrusted_account"]
    metrics = secured.page("metrics")
    assert 'ambientd_ca_refusals{reason="not_on_node"} 1' in metrics
    assert 'ambientd_authentications{outcome="no_token"} 1' in metrics
    assert "citadel_server_success_cert_issuance_count 1" in metrics


def test_what_a_caller_sends_before_its_turn_stays_with_it(secured: Secured) -> None:
    """Calls are read one after the other, and here the first never ends."""
    channel = secured.channel(("grpc.max_send_message_length", -1))
    method: Any = channel.stream_stream
    may_end = threading.Event()
    first = method(METHOD)(_until(may_end), metadata=OF_NODE_A)
    first.initial_metadata()
    before_mib = memory_mib(secured.server.pid)
    large = bytes(16 << 20)
    calls = [method(METHOD)(iter([large]), metadata=OF_NODE_A) for _ in range(32)]
    for call in calls:
        call.initial_metadata()
    time.sleep(1.0)  # for what should not come
    assert memory_mib(secured.server.pid) < before_mib + 64
    for call in (first, *calls):
        call.cancel()
    may_end.set()


def _until(event: threading.Event) -> Iterator[bytes]:
    event.wait()
    yield from ()


def memory_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmRSS"))


def test_no_token_and_no_key_gets_into_the_log_or_onto_a_page(secured: Secured) -> None:
    stub = secured.stub()
    stub.CreateCertificate(request(CART), metadata=OF_NODE_A, timeout=10)
    refusal(stub, TILL, *OF_NODE_A)
    refusal(stub, CART, ("authorization", "Bearer secret-guess"))
    texts = [secured.server.log(), *(secured.page(f"debug/{name}") for name in ("ca", "problems", "adsz"))]
    for text in texts:
        assert "secret-" not in text
        assert "PRIVATE" not in text


def test_a_ztunnel_that_runs_as_another_account_is_told_of_at_the_start(folder: Path, tmp_path: Path) -> None:
    labelled = MESH.replace("name: ztunnel-a,", "name: ztunnel-a, labels: {app: ztunnel},")
    (folder / "mesh.yaml").write_text(labelled)
    flags = ("--secure-grpc-addr", "127.0.0.1:0", "--token-review", f"static:{tmp_path / 'tokens.yaml'}")
    variables = {"CA_TRUSTED_NODE_ACCOUNTS": "kube-system/ztunnel", "ROOT_CA_DIR": "none"}
    with serving(folder, tmp_path / "log", *flags, **variables) as server:
        (line,) = (line for line in server.log().splitlines() if "an account that is not trusted" in line)
    for part in ("istio-system/ztunnel", "kube-system/ztunnel", "CA_TRUSTED_NODE_ACCOUNTS"):
        assert part in line


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),)])
def test_a_stream_without_a_good_token_ends_before_anything_is_read(
    secured: Secured, metadata: tuple[tuple[str, str], ...]
) -> None:
    client = WireClient(secured.port, root=secured.root, metadata=metadata)
    eventually(lambda: client.ended is not None, "the end of the stream")
    assert (client.ended, client.detail) == (grpc.StatusCode.UNAUTHENTICATED, "authentication failure")
    assert client.responses == []


def test_a_stream_of_another_namespace_than_its_token_is_refused(secured: Secured) -> None:
    metadata = (("authorization", "Bearer secret-of-cart"),)
    client = WireClient(secured.port, SimulatedZtunnel(namespace="istio-system"), root=secured.root, metadata=metadata)
    eventually(lambda: client.ended is not None, "the end of the stream")
    assert client.ended is grpc.StatusCode.PERMISSION_DENIED
    assert client.detail.startswith(f"authorization failed: no identities ([{CART}]) matched istio-system/")


def test_a_ztunnel_of_an_unexpected_account_is_served_and_told_of(secured: Secured) -> None:
    metadata = (("authorization", "Bearer secret-of-cart"),)
    client = WireClient(secured.port, SimulatedZtunnel(namespace="shop"), root=secured.root, metadata=metadata)
    eventually(lambda: client.ztunnel.is_ready, "the first answers")
    assert "ambientd_unexpected_ztunnels 1" in secured.page("metrics")
    assert "a client of an unexpected account calls itself a ztunnel" in secured.server.log()
    client.close()


def test_plain_streams_need_no_token_and_give_no_certificates(secured: Secured) -> None:
    client = WireClient(secured.server.grpc_port)
    eventually(lambda: client.ztunnel.is_ready, "the first answers in the clear")
    client.close()
    channel = grpc.insecure_channel(f"127.0.0.1:{secured.server.grpc_port}")
    with pytest.raises(grpc.RpcError) as refused:
        IstioCertificateServiceStub(channel).CreateCertificate(request(CART), metadata=OF_NODE_A, timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_server_with_files_shows_new_ones_without_ending_connections(folder: Path, tmp_path: Path) -> None:
    port = free_port()
    certificate, key = make_certificate(tmp_path)
    first = certificate.read_bytes()
    flags = (
        *("--secure-grpc-addr", f"127.0.0.1:{port}", "--token-review", f"static:{tmp_path / 'tokens.yaml'}"),
        *("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--ca-cert-file", str(certificate)),
    )
    with serving(folder, tmp_path / "log", *flags, ROOT_CA_DIR=str(tmp_path / "no-ca")) as server:
        old = WireClient(port, root=first, metadata=OF_NODE_A)
        eventually(lambda: old.ztunnel.is_ready, "the first answers")

        (tmp_path / "new").mkdir()
        new_certificate, new_key = make_certificate(tmp_path / "new")
        os.replace(new_key, key)
        eventually(lambda: "must be the key of" in server.log(), "half of a pair is refused")
        again = WireClient(port, root=first, metadata=OF_NODE_A)
        eventually(lambda: again.ztunnel.is_ready, "the former pair still stands")
        again.close()

        second = new_certificate.read_bytes()
        os.replace(new_certificate, certificate)
        eventually(lambda: server.log().count("serving certificate\t") == 2, "the new pair is shown")
        new = WireClient(port, root=second, metadata=OF_NODE_A)
        eventually(lambda: new.ztunnel.is_ready, "a connection with the new pair")
        (folder / "late.yaml").write_text(LATE)
        for client in (old, new):
            eventually(
                lambda client=client: "Kubernetes//Pod/istio-system/late" in client.ztunnel.workloads,  # type: ignore[misc]
                "both connections live",
            )
            client.close()


def plug_in(folder: Path, name: str, root: Link) -> None:
    """An intermediate under a root, as a mount would have it."""
    folder.mkdir(exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    starts, ends = now - datetime.timedelta(days=1), now + datetime.timedelta(days=30)
    signer = certify(name, f"P-256/{name}", by=root, starts=starts, ends=ends)
    for file, content in files(signer, [signer], [root]).items():
        (folder / f"{file}.new").write_bytes(content)
        os.replace(folder / f"{file}.new", folder / file)


def lasting_root() -> Link:
    now = datetime.datetime.now(datetime.UTC)
    starts, ends = now - datetime.timedelta(days=2), now + datetime.timedelta(days=60)
    return certify("root", "P-256/of-all", starts=starts, ends=ends)


def test_another_intermediate_signs_and_is_shown_without_ending_connections(folder: Path, tmp_path: Path) -> None:
    port, authority = free_port(), tmp_path / "cacerts"
    root = lasting_root()
    plug_in(authority, "first", root)
    flags = ("--secure-grpc-addr", f"127.0.0.1:{port}", "--token-review", f"static:{tmp_path / 'tokens.yaml'}")
    variables = {"CA_TRUSTED_NODE_ACCOUNTS": "istio-system/ztunnel", "ROOT_CA_DIR": str(authority)}
    with serving(folder, tmp_path / "log", *flags, **variables) as server:
        secured = Secured(server, port)

        def issuers() -> tuple[str, str]:
            """Of the certificate that is shown to a new connection, and of one that is issued."""
            shown = ssl.get_server_certificate(("localhost", port)).encode()
            stub = secured.stub(root.pem)
            response = stub.CreateCertificate(request(CART), metadata=OF_NODE_A, timeout=10)
            assert response.cert_chain[-1].encode() == root.pem
            held = (x509.load_pem_x509_certificate(each) for each in (shown, response.cert_chain[0].encode()))
            first, second = (each.issuer.rfc4514_string() for each in held)
            return first, second

        assert issuers() == ("CN=first", "CN=first")
        client = WireClient(port, root=root.pem, metadata=OF_NODE_A)
        eventually(lambda: client.ztunnel.is_ready, "the first answers")
        plug_in(authority, "second", root)
        eventually(lambda: issuers() == ("CN=second", "CN=second"), "the other intermediate signs and is shown")
        (folder / "late.yaml").write_text(LATE)
        eventually(lambda: "Kubernetes//Pod/istio-system/late" in client.ztunnel.workloads, "the old connection lives")
        client.close()


def test_with_tokens_on_plain_streams_a_token_is_needed_there_too(folder: Path, tmp_path: Path) -> None:
    flags = ("--secure-grpc-addr", "127.0.0.1:0", "--token-review", f"static:{tmp_path / 'tokens.yaml'}")
    with serving(folder, tmp_path / "log", *flags, XDS_AUTH_PLAINTEXT="true", ROOT_CA_DIR="none") as server:
        nobody, somebody = WireClient(server.grpc_port), WireClient(server.grpc_port, metadata=OF_NODE_A)
        eventually(lambda: somebody.ztunnel.is_ready, "the first answers")
        eventually(lambda: nobody.ended is grpc.StatusCode.UNAUTHENTICATED, "the end of the other")
        somebody.close()


def test_sigterm_ends_server_and_streams_with_success(secured: Secured) -> None:
    client = WireClient(secured.port, root=secured.root, metadata=OF_NODE_A)
    eventually(lambda: client.ztunnel.is_ready, "the first answers")
    assert secured.server.stop() == 0
    eventually(lambda: client.ended is grpc.StatusCode.UNAVAILABLE, "the end of the stream")
    # By these words a ztunnel comes back at once.
    assert "transport is closing" in client.detail
    assert "Traceback" not in secured.server.log()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ca-cert.pem": None, "ca-key.pem": None, "cert-chain.pem": None}, r"ca-cert\.pem must be there"),
        ({"ca-key.pem": b"x"}, r"ca-key\.pem must be an unencrypted private key"),
        ({"ca-cert.pem": b"x"}, r"ca-cert\.pem must hold a certificate"),
    ],
    ids=["a lone root", "no key", "no certificate"],
)
def test_an_unusable_plugged_in_authority_ends_the_start_with_file_and_reason(
    folder: Path, tmp_path: Path, changes: dict[str, bytes | None], said: str
) -> None:
    authority = tmp_path / "cacerts"
    plug_in(authority, "first", certify("root", "P-256/of-all"))
    for name, content in changes.items():
        (authority / name).unlink()
        if content is not None:
            (authority / name).write_bytes(content)
    flags = ("--secure-grpc-addr", "127.0.0.1:0", "--token-review", f"static:{tmp_path / 'tokens.yaml'}")
    with pytest.raises(AssertionError, match=rf"there is no certificate authority: .*cacerts: .*{said}"):
        ServerProcess(folder, tmp_path / "log", *flags, ROOT_CA_DIR=str(authority))


def test_material_that_cannot_be_used_shows_as_a_metric_and_on_the_page_until_it_can(
    folder: Path, tmp_path: Path
) -> None:
    port, authority = free_port(), tmp_path / "cacerts"
    root = lasting_root()
    plug_in(authority, "first", root)
    flags = ("--secure-grpc-addr", f"127.0.0.1:{port}", "--token-review", f"static:{tmp_path / 'tokens.yaml'}")
    with serving(folder, tmp_path / "log", *flags, ROOT_CA_DIR=str(authority)) as server:
        secured = Secured(server, port)

        def shows() -> tuple[str, int]:
            (line,) = (line for line in secured.page("metrics").splitlines() if line.startswith(UNUSABLE))
            return line.removeprefix(UNUSABLE), len(json.loads(secured.page("debug/ca"))["troubles"])

        assert shows() == ("0", 0)
        expires_s = round(root.certificate.not_valid_after_utc.timestamp())
        assert f"citadel_server_root_cert_expiry_timestamp {expires_s}" in secured.page("metrics")
        (authority / "ca-key.pem").write_bytes(b"half")
        eventually(lambda: shows() == ("1", 1), "what cannot be used is shown")
        own = (("authorization", "Bearer secret-of-cart"),)
        assert names_of(secured.stub(root.pem).CreateCertificate(request(), metadata=own, timeout=10)) == [CART]
        plug_in(authority, "second", root)
        eventually(lambda: shows() == ("0", 0), "and no longer")


UNUSABLE = "ambientd_ca_unusable_material "


def test_another_trust_domain_holds_from_the_next_certificate_and_an_illegal_one_never(
    secured: Secured, folder: Path
) -> None:
    own = (("authorization", "Bearer secret-of-cart"),)

    def issued() -> str:
        (name,) = names_of(secured.stub().CreateCertificate(request(), metadata=own, timeout=10))
        return name

    def configure(trust_domain: str) -> None:
        metadata = {"name": "istio", "namespace": "istio-system"}
        mesh = f"trustDomain: '{trust_domain}'\n"
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"mesh": mesh}}
        (folder / "mesh-configuration.yaml").write_text(json.dumps(manifest))

    assert issued() == CART
    configure("corp.example")
    eventually(lambda: issued() == CART.replace("cluster.local", "corp.example"), "the other trust domain")
    for illegal in ("td@x", "a,b", "x_y"):
        configure(illegal)
        eventually(lambda illegal=illegal: illegal in secured.server.log(), "it is refused")  # type: ignore[misc]
        assert issued() == CART.replace("cluster.local", "corp.example")


def test_without_authentication_streams_are_served_and_nobody_gets_a_certificate(folder: Path, tmp_path: Path) -> None:
    port = free_port()
    flags = ("--secure-grpc-addr", f"127.0.0.1:{port}", "--token-review", f"static:{tmp_path / 'tokens.yaml'}")
    variables = {"XDS_AUTH": "false", "CA_TRUSTED_NODE_ACCOUNTS": "istio-system/ztunnel", "ROOT_CA_DIR": "none"}
    with serving(folder, tmp_path / "log", *flags, **variables) as server:
        secured = Secured(server, port)
        assert refusal(secured.stub(), CART, *OF_NODE_A) == ("UNAUTHENTICATED", "authentication failure")
        client = WireClient(port, root=secured.root)
        eventually(lambda: client.ztunnel.is_ready, "the first answers without a token")
        client.close()


def test_files_serve_streams_where_nothing_is_signed(folder: Path, tmp_path: Path) -> None:
    port = free_port()
    certificate, key = make_certificate(tmp_path)
    flags = (
        *("--secure-grpc-addr", f"127.0.0.1:{port}", "--token-review", f"static:{tmp_path / 'tokens.yaml'}"),
        *("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--ca-cert-file", str(certificate)),
    )
    with serving(folder, tmp_path / "log", *flags, ENABLE_CA_SERVER="false") as server:
        root = certificate.read_bytes()
        client = WireClient(port, root=root, metadata=OF_NODE_A)
        eventually(lambda: client.ztunnel.is_ready, "the first answers")
        assert refusal(Secured(server, port).stub(root), CART, *OF_NODE_A)[0] == "UNIMPLEMENTED"
        client.close()


@pytest.mark.parametrize("variables", [{"PILOT_CERT_PROVIDER": "none"}, {"ENABLE_CA_SERVER": "false"}])
def test_without_a_certificate_there_is_no_tls_port_and_the_rest_is_served(
    folder: Path, tmp_path: Path, variables: dict[str, str]
) -> None:
    port = free_port()
    flags = ("--secure-grpc-addr", f"127.0.0.1:{port}", "--token-review", f"static:{tmp_path / 'tokens.yaml'}")
    with serving(folder, tmp_path / "log", *flags, ROOT_CA_DIR="none", **variables) as server:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        assert "there is no serving certificate, so the TLS port is not opened" in server.log()


@pytest.mark.parametrize(
    ("version", "is_served"),
    [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_tls_begins_with_1_2(secured: Secured, version: ssl.TLSVersion, is_served: bool) -> None:
    context = ssl.create_default_context(cadata=secured.root.decode())
    # A client of today would not even ask for the old one.
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", secured.port), timeout=5) as plain:
        if not is_served:
            with pytest.raises(ssl.SSLError):
                context.wrap_socket(plain, server_hostname="localhost")
            return
        with context.wrap_socket(plain, server_hostname="localhost") as secure:
            assert (secure.version(), secure.selected_alpn_protocol()) == (version.name.replace("_", "."), "h2")


def test_a_client_that_pings_an_idle_stream_keeps_it(secured: Secured) -> None:
    """Once a second here, where ztunnel does it every 30 s; by default the third ping would end the connection."""
    client = WireClient(secured.port, root=secured.root, metadata=OF_NODE_A)
    eventually(lambda: client.ztunnel.is_ready, "the first answers")
    time.sleep(5)
    assert client.ended is None
    client.close()
