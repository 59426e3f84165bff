"""The real server over a folder, on a rig with a real ztunnel on each of two nodes. No test stands here."""

from __future__ import annotations

import datetime
import json
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from msgspec import Struct

from tests.dataplane.held import certificates
from tests.dataplane.rig import CONTROL_PLANE, Node, Pod, Rig
from tests.unit.authorities import DAY, Link, certify, files
from tests.wire.process import eventually, serving

NAMESPACE = "shop"
_NODES = ("node-a", "node-b")


class Plugged(Struct, frozen=True):
    """A root, and the authority under it that signs."""

    root: Link
    signer: Link


def authority(name: str) -> Plugged:
    """A new one, valid by the real clock."""
    starts = datetime.datetime.now(datetime.UTC) - DAY
    root = certify(f"root {name}", f"P-256/root-{name}", starts=starts, ends=starts + 30 * DAY)
    signer = certify(f"signer {name}", f"P-256/{name}", by=root, starts=starts, ends=starts + 20 * DAY)
    return Plugged(root, signer)


class Mesh:
    """Two nodes, `node-a` and `node-b`, whose ztunnels are ready, and a third, `node-c`, whose ztunnel has not been
    started; and the pods that a test adds."""

    def __init__(self, rig: Rig, folder: Path, binary: Path) -> None:
        self.rig = rig
        self.authority = authority("first")
        self._folder = folder
        self._binary = binary
        self.objects = folder / "mesh"
        self.objects.mkdir()
        (folder / "ca").mkdir()
        # By itself, as a volume is: a ztunnel watches the folder, and connects anew whenever something changes in it.
        (folder / "roots").mkdir()
        self.plug_in(self.authority, trusting=[self.authority])
        for name in (*_NODES, "node-c"):
            node = rig.add_node(name)
            self.apply(node.proxy.name, [node.proxy.manifest()])
        (folder / "tokens.yaml").write_text(yaml.safe_dump(rig.tokens()))

    @contextmanager
    def running(self) -> Iterator[None]:
        """The calling thread is where the control plane is meanwhile."""
        flags = (
            *("--secure-grpc-addr", f"{CONTROL_PLANE}:15012"),
            *("--token-review", f"static:{self._folder / 'tokens.yaml'}"),
        )
        variables = {**self.rig.environment(), "ROOT_CA_DIR": str(self._folder / "ca")}
        with (
            self.rig.control_plane.entered(),
            serving(self.objects, self._folder / "log", *flags, **variables) as self.server,
        ):
            for name in _NODES:
                self.start(self.rig.nodes[name])
            yield

    def start(self, node: Node, **environment: str) -> None:
        """Starts a node's ztunnel, and waits until it is ready."""
        node.start(self._binary, self._root_file, f"of-{node.name}", **environment)
        eventually(node.is_ready, f"the ztunnel of {node.name} is ready")

    def restart(self) -> None:
        """Ends the control plane, and starts it again."""
        self.server.stop()
        self.server.start()

    def until_served(self, *pods: Pod) -> None:
        """Waits until every ztunnel that runs holds these pods, and the certificates of those of its node."""

        def served() -> bool:
            for name in _NODES:
                held = certificates(self.rig.nodes[name])
                for pod in pods:
                    if pod.is_enrolled and pod.node.name == name and held.get(pod.identity) != "Available":
                        return False
            return True

        eventually(served, "certificates for all pods")

    @property
    def _root_file(self) -> Path:
        return self._folder / "roots" / "root-cert.pem"

    def plug_in(self, signing: Plugged, *, trusting: Sequence[Plugged]) -> None:
        """Changes the plugged-in authority: who signs, and whom everybody trusts from now on."""
        roots = [each.root for each in trusting]
        for name, content in files(signing.signer, [signing.signer], roots).items():
            _write(self._folder / "ca" / name, content)
        # What distribution does: a ztunnel has its roots from a ConfigMap of its namespace.
        _write(self._root_file, b"".join(root.pem for root in roots))

    def apply(self, name: str, manifests: Iterable[Mapping[str, Any]]) -> None:
        """Writes a file of manifests; without any it is removed."""
        path = self.objects / f"{name}.yaml"
        if documents := list(manifests):
            _write(path, yaml.safe_dump_all(documents).encode())
        else:
            path.unlink(missing_ok=True)

    def add_pod(self, node: str, name: str, address: str, *, namespace: str = NAMESPACE, enrolled: bool = True) -> Pod:
        """A pod with an account of its own name."""
        pod = self.rig.add_pod(self.rig.nodes[node], name, address, name, namespace)
        if enrolled:
            self.rig.enrol(pod)
        self.apply(name, [pod.manifest()])
        return pod

    def trusted(self) -> set[int]:
        """Serial numbers of the roots that the server gives out."""
        roots = self.debug("ca")["authority"]["roots"].encode()
        return {certificate.serial_number for certificate in x509.load_pem_x509_certificates(roots)}

    def debug(self, page: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.http_port}/debug/{page}", timeout=5) as answer:
            return json.load(answer)


def _write(path: Path, content: bytes) -> None:
    """At once, so that nobody reads half of it."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.rename(path)
