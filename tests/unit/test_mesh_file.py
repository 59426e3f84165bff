"""The mesh configuration as a file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ambientd.index.mesh import MESH
from ambientd.index.rules import Rules
from ambientd.index.world import World
from ambientd.resources.core import MESH_FILE
from ambientd.resources.decode import decode
from ambientd.resources.events import Event, Invalid, Put
from ambientd.sources.mesh_file import look, read_mesh, watch_mesh_file


def trust_domain(world: World) -> str:
    mesh = world.graph.get(MESH, ())
    assert mesh is not None
    return mesh.trust_domain


def test_a_file_takes_the_place_of_the_config_map_and_keeps_its_last_good_state() -> None:
    world = World(Rules(has_mesh_file=True))
    world.apply([read_mesh(b"trustDomain: one.example"), POD])
    assert trust_domain(world) == "one.example"
    world.apply([read_mesh(b"trustDomain: [")])
    assert trust_domain(world) == "one.example"
    assert [problem.object for problem in world.problems()] == [MESH_FILE]
    world.apply([read_mesh(b"trustDomain: two.example")])
    assert trust_domain(world) == "two.example"
    assert world.problems() == []


def test_without_the_setting_the_file_means_nothing() -> None:
    world = World(Rules())
    world.apply([read_mesh(b"trustDomain: one.example"), POD])
    assert trust_domain(world) == "cluster.local"


def test_what_cannot_be_read_is_said_with_the_reason(tmp_path: Path) -> None:
    for found in (look(tmp_path / "none"), look(tmp_path), read_mesh(b"\xff")):
        assert isinstance(found, Invalid)
        assert "the last good one stays in force" in str(found.faults[0])


async def test_a_changed_file_is_emitted_once_it_stands_still(tmp_path: Path) -> None:
    path = tmp_path / "mesh"
    path.write_text("trustDomain: one.example")
    batches: list[list[Event]] = []
    task = asyncio.create_task(watch_mesh_file(path, batches.append, poll_s=0.01))
    try:
        async with asyncio.timeout(5):
            while len(batches) < 1:
                await asyncio.sleep(0.01)
            path.write_text("trustDomain: two.example")
            while len(batches) < 2:
                await asyncio.sleep(0.01)
            path.unlink()
            while len(batches) < 3:
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
    assert [type(batch[0]) for batch in batches] == [Put, Put, Invalid]


POD = Put(
    decode(
        b'{"metadata": {"name": "p", "namespace": "n"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}}',
        "Pod",
        "Kubernetes",
    )[0]
)
"""Something that reads the mesh, which is derived on demand."""
