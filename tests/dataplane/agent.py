"""The node agent's side of a ztunnel's socket: which pods are on this node, each with the file of its network
namespace. In Kubernetes this is istio-cni. Must not know how a namespace came to be.

The socket keeps the bounds of messages (SEQPACKET). A ztunnel connects and says which version it speaks. The agent then
sends one request after another and reads an answer to each: first all pods that it has, then "that was all", then what
comes and goes. A ztunnel that comes back is told everything anew."""

from __future__ import annotations

import queue
import socket
import threading
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from msgspec import Struct

_PACKAGE = "ambientd.tests.node_agent"
_STRING, _MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_STRING, descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
_VERSION = descriptor_pb2.FieldDescriptorProto.TYPE_INT32

# Message, and its fields as (name, number, message or scalar type). Requests and answers are one-ofs on paper; on the
# wire that is nothing but one field present.
_MESSAGES: dict[str, tuple[tuple[str, int, str | int], ...]] = {
    "Hello": (("version", 1, _VERSION),),
    "PodInfo": (("name", 1, _STRING), ("namespace", 2, _STRING), ("service_account", 3, _STRING)),
    "Add": (("uid", 1, _STRING), ("info", 2, "PodInfo")),
    "Delete": (("uid", 2, _STRING),),
    "SnapshotSent": (),
    "Request": (("add", 1, "Add"), ("delete", 2, "Delete"), ("snapshot_sent", 3, "SnapshotSent")),
    "Ack": (("error", 1, _STRING),),
    "Response": (("ack", 1, "Ack"),),
}
_MESSAGE_BYTES = 65536


def _classes() -> dict[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(name="node_agent.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(
                name=field, number=number, label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
            )
            if isinstance(kind, str):
                added.type, added.type_name = _MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                added.type = kind  # type: ignore[assignment]  # an enum's member, by number
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


MESSAGES = _classes()
"""Class of each message of the protocol, by name."""


class EnrolledPod(Struct, frozen=True):
    """A pod whose connections a ztunnel is to take. `namespace_file` is an open file of its network namespace."""

    uid: str
    name: str
    namespace: str
    service_account: str
    namespace_file: int


class NodeAgent:
    """Listens until it is closed; one ztunnel at a time, and the newest one wins, as when a new one takes over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failures: list[str] = []
        """What ztunnels could not do, in their words."""
        self._pods: dict[str, EnrolledPod] = {}
        self._lock = threading.Lock()
        self._changes: queue.SimpleQueue[tuple[Message, int | None] | None] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(path))
        self._socket.listen()
        threading.Thread(target=self._accept, name=f"agent-{path.name}", daemon=True).start()

    def add(self, pod: EnrolledPod) -> None:
        with self._lock:
            self._pods[pod.uid] = pod
            self._tell(*_add(pod))

    def remove(self, uid: str) -> None:
        with self._lock:
            del self._pods[uid]
            self._tell(MESSAGES["Request"](delete=MESSAGES["Delete"](uid=uid)), None)

    def close(self) -> None:
        with self._lock:
            if self._changes is not None:
                self._changes.put(None)
            # Also wakes the thread that waits for somebody to come.
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        self.path.unlink()

    def _tell(self, request: Message, file: int | None) -> None:
        if self._changes is not None:
            self._changes.put((request, file))

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with self._lock:
                if self._changes is not None:
                    self._changes.put(None)
                changes = self._changes = queue.SimpleQueue()
                for pod in self._pods.values():
                    changes.put(_add(pod))
                changes.put((MESSAGES["Request"](snapshot_sent=MESSAGES["SnapshotSent"]()), None))
            threading.Thread(target=self._serve, args=(connection, changes), daemon=True).start()

    def _serve(self, connection: socket.socket, changes: queue.SimpleQueue[tuple[Message, int | None] | None]) -> None:
        with connection:
            try:
                MESSAGES["Hello"].FromString(connection.recv(_MESSAGE_BYTES))
                while (change := changes.get()) is not None:
                    request, file = change
                    socket.send_fds(connection, [request.SerializeToString()], [] if file is None else [file])
                    if not (raw := connection.recv(_MESSAGE_BYTES)):
                        return
                    if error := MESSAGES["Response"].FromString(raw).ack.error:  # type: ignore[attr-defined]
                        self.failures.append(error)
            except OSError:
                pass


def _add(pod: EnrolledPod) -> tuple[Message, int]:
    info = MESSAGES["PodInfo"](name=pod.name, namespace=pod.namespace, service_account=pod.service_account)
    return MESSAGES["Request"](add=MESSAGES["Add"](uid=pod.uid, info=info)), pod.namespace_file
