"""A reader of a scripted server, and what it must come to."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from msgspec import structs

from ambientd.resources.ref import Ref
from ambientd.sources.reflector import Sleep
from tests.kube.following import QUICK, Following, following
from tests.kube.scripted import ScriptedServer


def follow(
    server: ScriptedServer, tmp_path: Path, *, sleep: Sleep = asyncio.sleep, **pace: float
) -> AbstractAsyncContextManager[Following]:
    def exists(ref: Ref) -> bool:
        return (ref.namespace, ref.name) in server.objects[ref.kind]

    return following(server.kubeconfig(tmp_path), pace=structs.replace(QUICK, **pace), exists=exists, sleep=sleep)


async def agrees(server: ScriptedServer, follower: Following, kind: str = "Pod") -> None:
    """Returns when the reader holds what exists, each in its version; nothing that exists was ever taken away."""

    def holds() -> bool:
        held = {
            (ref.namespace, ref.name): version for ref, version in follower.reader.versions.items() if ref.kind == kind
        }
        return held == {key: item["metadata"]["resourceVersion"] for key, item in server.objects[kind].items()}

    await follower.reader.until(holds)
    assert follower.reader.wrongly_removed == []
