"""The rig itself, without a ztunnel: what the tests on it rely on."""

from __future__ import annotations

import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.dataplane.agent import MESSAGES
from tests.dataplane.redirection import INBOUND_PORT, MARK, OUTBOUND_PORT, TUNNEL_PORT
from tests.dataplane.rig import PORT, Pod, Rig
from tests.dataplane.traffic import Connection, Traffic, call
from tests.kube.processes import Program
from tests.wire.process import eventually

_ORIGINAL_DESTINATION = 80


@pytest.fixture
def pods(rig: Rig) -> tuple[Pod, Pod]:
    """Two pods on two nodes, not captured."""
    one, other = rig.add_node("node-a"), rig.add_node("node-b")
    return rig.add_pod(one, "cart", "10.1.0.1", "cart"), rig.add_pod(other, "till", "10.1.0.2", "till")


def listening(pod: Pod, port: int) -> socket.socket:
    def listen() -> socket.socket:
        made = socket.create_server(("", port))
        made.settimeout(5)
        return made

    return pod.inside.call(listen)


def network_namespace() -> str:
    """Of the calling thread."""
    return os.readlink("/proc/thread-self/ns/net")


def original_destination(connection: socket.socket) -> tuple[str, int]:
    raw = connection.getsockopt(socket.SOL_IP, _ORIGINAL_DESTINATION, 16)
    port, address = struct.unpack("!2xH4s8x", raw)
    return socket.inet_ntoa(address), port


def test_a_program_is_where_the_main_thread_is_or_where_the_tests_began(rig: Rig, tmp_path: Path) -> None:
    def start(log: str) -> str:
        program = Program(Path("/bin/readlink"), ["/proc/self/ns/net"], tmp_path / log)
        assert program.wait(5) == 0
        return program.last_words()

    before, inside = network_namespace(), rig.control_plane.call(network_namespace)
    with rig.control_plane.entered(), ThreadPoolExecutor(1) as threads:
        assert start("main") == inside
        assert threads.submit(network_namespace).result() == inside
        assert threads.submit(start, "other").result() == before


def test_pods_of_two_nodes_reach_each_other_while_nothing_is_captured(pods: tuple[Pod, Pod]) -> None:
    cart, till = pods
    assert call(cart.inside, till.address, PORT) == "till"
    assert call(till.inside, cart.address, PORT) == "cart"


def test_what_a_captured_pod_opens_arrives_in_the_pod_with_its_destination(rig: Rig, pods: tuple[Pod, Pod]) -> None:
    cart, till = pods
    rig.enrol(cart)
    with listening(cart, OUTBOUND_PORT) as outbound, Connection(cart.inside, till.address, PORT):
        taken, _ = outbound.accept()
        with taken:
            assert original_destination(taken) == (till.address, PORT)


def test_what_is_opened_to_a_captured_pod_is_taken_unless_it_is_a_tunnel(rig: Rig, pods: tuple[Pod, Pod]) -> None:
    cart, till = pods
    rig.enrol(till)
    with listening(till, INBOUND_PORT) as inbound, listening(till, TUNNEL_PORT) as tunnels:
        with Connection(cart.inside, till.address, PORT):
            taken, (caller, _) = inbound.accept()
            with taken:
                assert (caller, original_destination(taken)) == (cart.address, (till.address, PORT))
        with Connection(cart.inside, till.address, TUNNEL_PORT):
            taken, (caller, _) = tunnels.accept()
            taken.close()
            assert caller == cart.address


def test_what_a_ztunnel_marks_passes(rig: Rig, pods: tuple[Pod, Pod]) -> None:
    cart, till = pods
    rig.enrol(cart)

    def marked() -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
        made.settimeout(5)
        made.connect((till.address, PORT))
        return made

    with cart.inside.call(marked) as connection:
        connection.sendall(b"hello\n")
        assert connection.recv(100) == b"till hello\n"


def test_a_pod_that_is_removed_takes_its_connections_with_it(rig: Rig, pods: tuple[Pod, Pod]) -> None:
    cart, till = pods
    with Traffic(cart.inside, till.address, PORT, within_s=1) as traffic:
        eventually(lambda: traffic.answered > 3 and traffic.calls > 3, "traffic")
        assert traffic.failures == []
        rig.remove_pod(till)
        with pytest.raises(OSError, match=r"unreachable|No route|timed out"):
            call(cart.inside, till.address, PORT, within_s=1)
    assert traffic.failures


class ScriptedZtunnel:
    """The other side of the node agent's socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(5)
        self._socket.connect(str(path))
        self._socket.send(MESSAGES["Hello"](version=1).SerializeToString())

    def takes(self, error: str = "") -> tuple[str, str, int | None]:
        """Kind and uid of the next request, and the inode of the namespace that came with it. Answered."""
        raw, files, _, _ = socket.recv_fds(self._socket, 65536, 4)
        request = MESSAGES["Request"].FromString(raw)
        kind = next(field.name for field, _ in request.ListFields())
        inodes = [os.fstat(file).st_ino for file in files]
        for file in files:
            os.close(file)
        ack = MESSAGES["Ack"](error=error)
        self._socket.send(MESSAGES["Response"](ack=ack).SerializeToString())
        return kind, getattr(getattr(request, kind), "uid", ""), inodes[0] if inodes else None

    def close(self) -> None:
        self._socket.close()


def test_the_agent_tells_a_ztunnel_all_pods_and_then_what_changes(rig: Rig, pods: tuple[Pod, Pod]) -> None:
    cart, _ = pods
    agent = cart.node.agent
    rig.enrol(cart)
    inode = os.fstat(cart.inside.file).st_ino
    ztunnel = ScriptedZtunnel(agent.path)
    assert [ztunnel.takes(), ztunnel.takes()] == [("add", cart.uid, inode), ("snapshot_sent", "", None)]

    late = rig.add_pod(cart.node, "late", "10.1.0.3", "late")
    rig.enrol(late)
    assert ztunnel.takes("no such account")[:2] == ("add", late.uid)
    eventually(lambda: agent.failures == ["no such account"], "its complaint is kept")

    agent.remove(cart.uid)
    assert ztunnel.takes() == ("delete", cart.uid, None)
    ztunnel.close()

    again = ScriptedZtunnel(agent.path)
    assert [again.takes()[:2], again.takes()[:2]] == [("add", late.uid), ("snapshot_sent", "")]
    again.close()
