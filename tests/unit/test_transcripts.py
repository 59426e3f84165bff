"""The transcripts of the protocol (xds.md 18), played against a stream. Each is a file in `tests/cases/transcripts`,
and says in `differs` where we do something else than what was recorded."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from envoy.config.core.v3.base_pb2 import Node as NodeMessage
from google.protobuf.json_format import ParseDict

from ambientd.index.rendered import render_policy
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.xds.protocol import Advanced, Requested, Woke
from ambientd.xds.requests import Request
from ambientd_api.security_pb2 import Authorization
from ambientd_api.workload_pb2 import Address
from tests.unit.conversation import Mesh, Peer, Rendered, Response, node_message, rendered_address

HERE = Path(__file__).parent.parent / "cases" / "transcripts"
NODE = "node-a"

TYPES = {"Address": ADDRESS, "Authorization": AUTHORIZATION}

_objects: Mapping[str, Mapping[str, Any]] = json.loads((HERE / "objects.json").read_text())


def _served(label: str) -> Rendered:
    fields = _objects[label]["message"]
    if "workload" in fields or "service" in fields:
        return rendered_address(ParseDict(fields, Address()))
    return render_policy(ParseDict(fields, Authorization()))


@pytest.mark.parametrize("label", _objects)
def test_an_object_has_the_name_the_alias_and_the_version_that_were_recorded(label: str) -> None:
    recorded, rendered = _objects[label], _served(label)
    assert rendered.name == recorded["name"]
    assert rendered.version == recorded.get("version", rendered.version)
    assert "alias" not in recorded or getattr(rendered, "aliases", None) == (recorded["alias"],)


class Player:
    """Plays one transcript."""

    def __init__(self, transcript: Mapping[str, Any]) -> None:
        self._mesh = Mesh()
        self._mesh.change(*(_served(label) for label in transcript["served"]))
        self.peer = Peer(
            self._mesh,
            node=node_message(node_name=NODE),
            is_on_demand=transcript["start"] == "on-demand",
        )
        self.responses: deque[Response] = deque()
        self._nonces: dict[str, str] = {}
        self._has_changed = False
        if transcript["start"] != "new":
            for request in self.peer.first_requests():
                self.peer.hear(Requested(request))
        for step in transcript.get("setup", ()):
            self.peer.hear(Requested(self._request(step["client"])))

    def play(self, step: Mapping[str, Any]) -> None:
        match step:
            case {"change": change}:
                put = [_served(label) for label in change.get("put", ())]
                self._mesh.change(*put, gone=change.get("remove", ()))
                self._has_changed = True  # told when somebody looks, so that changes in a row are told at once
            case {"client": client}:
                self._look()
                request = self._request(client)
                if request is not None:
                    self.responses.extend(self.peer.hear(Requested(request)))
            case {"server": expected}:
                self._look()
                self._compare(expected)
            case {"end": expected}:
                assert self.peer.end is not None
                assert {"code": self.peer.end.code.name, "message": self.peer.end.message} == expected

    def _look(self) -> None:
        if self._has_changed:
            self.responses.extend(self.peer.hear(Advanced()))
            self._has_changed = False

    def _request(self, client: Mapping[str, Any]) -> Request:
        node = client.get("node")
        nonce = client.get("nonce", "")
        return Request(
            TYPES[client["type"]],
            self.peer.node if node is True else NodeMessage(id=node) if node else None,
            tuple(client.get("subscribe", ())),
            tuple(client.get("unsubscribe", ())),
            client.get("claims", {}),
            self._nonces.get(nonce, nonce),
            client.get("error"),
        )

    def _compare(self, expected: Mapping[str, Any]) -> None:
        labels = {rendered.name: rendered for rendered in map(_served, expected.get("resources", ()))}
        removed, optional = set(expected.get("removed", ())), self._optional(expected)
        if not self.responses and self.peer.wakes:
            self.responses.extend(self.peer.hear(Woke()))
        if not self.responses:
            assert not expected.get("first"), "a first answer is missing"
            assert (labels.keys() | removed) <= optional, f"missing: {expected}"
            return
        response = self.responses.popleft()
        self._nonces[expected["nonce"]] = response.nonce
        assert response.type_url == TYPES[expected["type"]]
        assert response.resources.keys() | optional == labels.keys() | optional
        assert set(response.removed) | optional == removed | optional
        for name, resource in response.resources.items():
            assert (resource.body, resource.version) == (labels[name].body, labels[name].version)
            aliases = getattr(labels[name], "aliases", ()) if expected.get("aliases") else ()
            assert resource.aliases == aliases

    def _optional(self, expected: Mapping[str, Any]) -> set[str]:
        return {_objects[label]["name"] if label in _objects else label for label in expected.get("optional", ())}


@pytest.mark.parametrize(
    "path", sorted(path for path in HERE.glob("*.json") if path.stem != "objects"), ids=lambda path: path.stem
)
def test_a_transcript_goes_as_written(path: Path) -> None:
    player = Player(json.loads(path.read_text()))
    for step in json.loads(path.read_text())["steps"]:
        player.play(step)
    assert not player.responses, f"more was sent than written: {player.responses}"
    player.peer.stream.close()
