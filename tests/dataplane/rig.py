"""Nodes and pods without a kubelet: each a network namespace on one bridge, with a real ztunnel on each node,
redirection in each captured pod, and servers and callers in them. The bridge's own namespace is where the control plane
runs. Must not know what the control plane is told about the pods, nor what a test proves."""

from __future__ import annotations

import os
import re
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.dataplane.agent import EnrolledPod, NodeAgent
from tests.dataplane.namespaces import FOLDER, Bridge, Namespace, run
from tests.dataplane.redirection import capture
from tests.dataplane.traffic import Servers
from tests.e2e.ztunnel import Ztunnel

CONTROL_PLANE = "10.255.0.1"
"""Address of the control plane."""

PORTS = (8080, 9090)
"""On which every pod answers."""

PORT = PORTS[0]

# Lives of the certificates that the nodes' ztunnels ask for. They begin two minutes before they are issued (ca.md 6.3),
# and a ztunnel renews them when half of their life is over: after five seconds, and after eight. So one node is often
# ahead of the other.
_LIVES = ("130s", "136s")

_LENGTH = 8
_PREFIX = "amb"
_SERVER_NAME = "istiod.istio-system.svc"


class Pod:
    """A network namespace of its own, in which a server answers with the pod's name."""

    def __init__(self, inside: Namespace, node: Node, name: str, address: str, namespace: str, account: str) -> None:
        self.inside = inside
        self.node = node
        self.name = name
        self.address = address
        self.namespace = namespace
        self.account = account
        self.uid = str(uuid.uuid4())
        self.is_enrolled = False

    def __repr__(self) -> str:
        return f"<{self.namespace}/{self.name} on {self.node.name}>"

    @property
    def identity(self) -> str:
        return f"spiffe://cluster.local/ns/{self.namespace}/sa/{self.account}"

    def manifest(self) -> dict[str, Any]:
        """The pod as a cluster would show it; that it is enrolled is how istio-cni says it."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "namespace": self.namespace,
                "name": self.name,
                "uid": self.uid,
                "labels": {"app": self.name},
                "annotations": {"ambient.istio.io/redirection": "enabled"} if self.is_enrolled else {},
            },
            "spec": {
                "nodeName": self.node.name,
                "serviceAccountName": self.account,
                "containers": [{"name": "app", "image": "app", "ports": [{"containerPort": port} for port in PORTS]}],
            },
            "status": {
                "phase": "Running",
                "podIP": self.address,
                "podIPs": [{"ip": self.address}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }


class Node:
    """A network namespace with a ztunnel's pod in it, and the socket over which that learns of the node's pods."""

    def __init__(self, inside: Namespace, name: str, address: str, folder: Path, life: str) -> None:
        self.inside = inside
        self.name = name
        self.folder = folder
        self._life = life
        self.agent = NodeAgent(folder / "agent.sock")
        self.proxy = Pod(inside, self, f"ztunnel-{name}", address, "istio-system", "ztunnel")
        self.ztunnel: Ztunnel | None = None

    def start(self, binary: Path, root: Path, token: str, **environment: str) -> None:
        """Starts its ztunnel. `root`: PEM file of the control plane's root; `environment`: of the ztunnel, beside what
        it needs here."""
        variables = {
            "ALT_XDS_HOSTNAME": _SERVER_NAME,
            "ALT_CA_HOSTNAME": _SERVER_NAME,
            "INPOD_UDS": str(self.agent.path),
            "SECRET_TTL": self._life,
            # Tunnels are not kept for later calls, so that each call shows its certificates anew.
            "POOL_MAX_STREAMS_PER_CONNECTION": "1",
            "POOL_UNUSED_RELEASE_TIMEOUT": "1ms",
            **environment,
        }
        server = f"{CONTROL_PLANE}:15012"
        with self.inside.entered():
            self.ztunnel = Ztunnel(
                binary, server, root, self.folder, self.name, token=token, pod=self.proxy.name, environment=variables
            )

    def is_ready(self) -> bool:
        """Its ztunnel has had its first answers from the control plane, and knows the node's pods. Raises
        AssertionError when that has ended by itself."""
        if self.ztunnel is not None:
            self.ztunnel.check()
        return self.inside.call(_is_ready)

    def dump(self) -> dict[str, Any]:
        """What its ztunnel holds."""
        return {} if self.ztunnel is None else self.inside.call(self.ztunnel.dump)

    def log(self) -> str:
        return "" if self.ztunnel is None else self.ztunnel.log.read_text()

    def close(self) -> None:
        if self.ztunnel is not None:
            self.ztunnel.stop()
        self.agent.close()


def _remove_left_over() -> None:
    """Removes the namespaces of runs that were killed."""
    for name in os.listdir(FOLDER) if FOLDER.exists() else ():
        found = re.fullmatch(rf"{_PREFIX}(\d+)-.*", name)
        if found and not Path(f"/proc/{found[1]}").exists():
            run("ip", "netns", "delete", name)


def _is_ready() -> bool:
    try:
        with urllib.request.urlopen("http://localhost:15021/healthz/ready", timeout=5):
            return True
    except OSError:
        return False


class Rig:
    """Everything of one test; gone with `close`."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for logs and sockets; its path must be short enough for a socket's."""
        self._folder = folder
        _remove_left_over()
        self._bridge = Bridge(f"{_PREFIX}{os.getpid()}", CONTROL_PLANE, _LENGTH)
        self._servers = Servers()
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}

    def namespaces(self) -> tuple[Namespace, ...]:
        """All that there are now."""
        pods = (pod.inside for pod in self.pods.values())
        return (self.control_plane, *(node.inside for node in self.nodes.values()), *pods)

    @property
    def control_plane(self) -> Namespace:
        return self._bridge.inside

    def add_node(self, name: str) -> Node:
        folder = self._folder / name
        folder.mkdir()
        address = f"10.254.0.{len(self.nodes) + 1}"
        life = _LIVES[len(self.nodes) % len(_LIVES)]
        node = self.nodes[name] = Node(self._bridge.join(name, address), name, address, folder, life)
        return node

    def add_pod(self, node: Node, name: str, address: str, account: str, namespace: str = "shop") -> Pod:
        """A pod that answers, and that no ztunnel knows yet."""
        pod = self.pods[name] = Pod(self._bridge.join(name, address), node, name, address, namespace, account)
        for port in PORTS:
            self._servers.serve(pod.inside, name, port)
        return pod

    def enrol(self, pod: Pod) -> None:
        """What istio-cni does: sets redirection, and hands the pod to its node's ztunnel."""
        pod.is_enrolled = True
        capture(pod.inside)
        pod.node.agent.add(EnrolledPod(pod.uid, pod.name, pod.namespace, pod.account, pod.inside.file))

    def remove_pod(self, pod: Pod) -> None:
        if pod.is_enrolled:
            pod.node.agent.remove(pod.uid)
        del self.pods[pod.name]
        self._servers.stop(pod.name)
        self._bridge.leave(pod.inside)

    def tokens(self) -> dict[str, Any]:
        """Who is who where no API server says it: each node's ztunnel has `of-NODE`."""
        return {
            "tokens": [
                {
                    "token": f"of-{node.name}",
                    "namespace": node.proxy.namespace,
                    "serviceAccount": node.proxy.account,
                    "pod": node.proxy.name,
                    "uid": node.proxy.uid,
                    "node": node.name,
                }
                for node in self.nodes.values()
            ]
        }

    def environment(self) -> Mapping[str, str]:
        """What a control plane for this rig is told."""
        return {"CA_TRUSTED_NODE_ACCOUNTS": "istio-system/ztunnel"}

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
        self._servers.close()
        self._bridge.close()

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
