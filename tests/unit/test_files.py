"""A folder of manifests as a source: histories of listings without a disk or a clock, then real folders."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ambientd.resources.events import Delete, Event, Invalid, Put, Synced
from ambientd.resources.faults import Fault
from ambientd.resources.kinds import KINDS
from ambientd.resources.ref import Ref
from ambientd.sources import files
from ambientd.sources.files import list_folder, watch_folder
from ambientd.sources.folder import FolderState, Listing, Lost, Patience, Unreadable
from ambientd.sources.manifest_file import read_manifests


def pod(name: str, ip: str = "10.0.0.1") -> str:
    return f"---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop}}\nstatus: {{podIP: {ip}}}\n"


A, B, C = pod("a"), pod("b"), pod("c")


class Folder:
    """A folder that exists only as text; a step lets time pass, looks, and gives the events in short."""

    def __init__(self) -> None:
        self.files: dict[str, str | bytes | Unreadable] = {}
        self.unreadable: dict[str, str] = {}
        self.is_there = True
        self.restless: set[str] = set()
        """Files that are others whenever they are read."""
        self.now_s = 100.0
        self.state = FolderState("east", Patience())
        self._stamps: dict[str, tuple[object, int]] = {}
        self._stamp = 0

    def look(self, after_s: float) -> list[Event]:
        self.now_s += after_s
        listing = Listing({path: self._signature(path) for path in sorted(self.files)}, dict(self.unreadable))
        due = self.state.observe(listing if self.is_there else Lost("no such folder"), self.now_s)
        contents = {}
        for path in due:
            if path in self.restless:
                continue
            text = self.files[path]
            raw = text.encode() if isinstance(text, str) else text
            contents[path] = raw if isinstance(raw, Unreadable) else read_manifests(path, raw, "east")
        return self.state.take(contents, self.now_s)

    def _signature(self, path: str) -> tuple[int, int, int, int]:
        text = self.files[path]
        if self._stamps.get(path, (None, 0))[0] is not text:
            self._stamp += 1
            self._stamps[path] = text, self._stamp
        return 1, self._stamps[path][1], self._stamps[path][1], 0

    def step(self, after_s: float) -> list[str]:
        return [short(event) for event in self.look(after_s)]

    def settle(self) -> list[str]:
        """Two looks: the first one sees the change, the second one believes it."""
        assert self.step(0.1) == []
        return self.step(0.3)


def short(event: Event) -> str:
    if isinstance(event, Put):
        return f"put {event.object.ref.name}"
    if isinstance(event, Delete):
        return f"delete {event.ref.name}"
    if isinstance(event, Invalid):
        return f"invalid {event.ref.name}: {'; '.join(str(fault) for fault in event.faults)}"
    return type(event).__name__


@pytest.fixture
def folder() -> Folder:
    folder = Folder()
    folder.files = {"one.yaml": A + B, "two.yaml": C}
    assert folder.settle() == ["put a", "put b", "put c"]
    assert folder.state.is_settled
    return folder


KEPT = "the last good objects of this file stay in force; without any it is not used"


def test_a_look_without_a_change_gives_nothing(folder: Folder) -> None:
    assert folder.step(0.1) == []
    assert folder.step(60) == []
    assert folder.state.wait_s(folder.now_s) is None


def test_a_change_gives_the_objects_that_changed_and_deletes_those_that_are_gone(folder: Folder) -> None:
    folder.files["one.yaml"] = pod("a", "10.0.0.9") + pod("d")
    assert folder.settle() == ["put a", "put d", "delete b"]


def test_a_file_that_is_still_being_written_is_not_read(folder: Folder) -> None:
    for length in range(1, 9):
        folder.files["one.yaml"] = (A + B)[: length * 10]
        assert folder.step(0.1) == []
    folder.files["one.yaml"] = A + B
    assert folder.settle() == []


def test_a_file_that_is_always_written_to_counts_after_a_while_and_does_not_hold_up_others(folder: Folder) -> None:
    folder.files["new.yaml"] = pod("d")
    events: list[str] = []
    for number in range(310):
        folder.files["busy.yaml"] = pod("busy") + f"# {number}"
        events += folder.step(0.1)
        if number == 30:
            assert events == ["put d"]
    assert events == ["put d", "put busy"]


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n---\n"])
def test_a_file_emptied_for_a_moment_loses_nothing_and_one_that_stays_empty_loses_its_objects(
    folder: Folder, text: str
) -> None:
    folder.files["one.yaml"] = text
    assert folder.settle() == []
    assert folder.step(1.5) == []
    folder.files["one.yaml"] = A + B
    assert folder.settle() == []
    folder.files["one.yaml"] = text
    assert folder.settle() == []
    assert folder.state.wait_s(folder.now_s) == pytest.approx(1.7)
    assert folder.step(2.0) == ["delete a", "delete b"]


def test_a_file_deleted_and_created_again_loses_nothing_and_one_that_stays_away_is_gone(folder: Folder) -> None:
    del folder.files["two.yaml"]
    assert folder.step(0.1) == []
    assert folder.step(0.5) == []
    folder.files["two.yaml"] = pod("c", "10.0.0.7")
    assert folder.settle() == ["put c"]
    del folder.files["two.yaml"]
    assert folder.step(0.1) == []
    assert folder.state.wait_s(folder.now_s) == pytest.approx(1.0)
    assert folder.step(1.0) == ["delete c"]
    assert folder.state.wait_s(folder.now_s) is None


@pytest.mark.parametrize("target", ["0.yaml", "z.yaml", "sub/one.yaml"])
def test_a_renamed_file_deletes_nothing_and_reports_no_duplicate(folder: Folder, target: str) -> None:
    folder.files[target] = folder.files.pop("one.yaml")
    assert folder.settle() == []
    assert folder.step(5) == []


def test_an_object_moved_between_files_is_one_change_without_a_deletion(folder: Folder) -> None:
    folder.files["one.yaml"] = B
    assert folder.step(0.1) == []
    folder.files["two.yaml"] = C + A
    assert folder.step(0.1) == []
    assert folder.step(0.3) == []


def test_a_broken_file_deletes_nothing_and_is_reported_with_its_line(folder: Folder) -> None:
    folder.files["one.yaml"] = pod("a", "10.0.0.9") + "---\nkind: [\n"
    report = f"line 8 cannot be read as YAML: while parsing a flow node, did not find expected node content; {KEPT}"
    assert folder.settle() == [f"invalid one.yaml: {report}"]
    folder.files["one.yaml"] = A
    assert folder.settle() == ["delete one.yaml", "delete b"]


def test_a_file_that_is_broken_from_the_start_serves_what_comes_before_the_break(folder: Folder) -> None:
    folder.files["three.yaml"] = pod("d") + "---\n- [\n" + pod("e")
    assert [event.split(":")[0] for event in folder.settle()] == ["invalid three.yaml", "put d"]


def test_an_object_that_lost_its_name_is_not_gone(folder: Folder) -> None:
    folder.files["two.yaml"] = "apiVersion: v1\nkind: Pod\nmetadata:\n  naem: c\n"
    assert folder.settle() == [f"invalid two.yaml: line 4 Pod: metadata.name must be the name of an object; {KEPT}"]


def test_an_unknown_kind_is_reported_and_the_rest_is_served(folder: Folder) -> None:
    folder.files["three.yaml"] = (
        pod("d") + "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\n"
    )
    assert folder.settle() == [
        "invalid three.yaml: line 8 Deployment shop/web: kind must be a kind that is read, got 'Deployment of "
        "apps/v1'; the object has no effect",
        "put d",
    ]


def test_of_an_object_defined_twice_the_first_file_in_path_order_wins(folder: Folder) -> None:
    folder.files["zero.yaml"] = C
    assert folder.settle() == [
        "invalid zero.yaml: line 2 Pod shop/c must be defined once, and two.yaml defines it already; "
        "this one is left out"
    ]
    del folder.files["two.yaml"]
    assert folder.step(0.1) == ["delete zero.yaml"]
    assert folder.step(1.5) == []


def test_an_object_defined_twice_in_one_file_is_reported(folder: Folder) -> None:
    folder.files["two.yaml"] = C + pod("c", "10.0.0.8")
    assert folder.settle() == [
        "invalid two.yaml: line 7 Pod shop/c must be defined once, and two.yaml defines it already; "
        "this one is left out"
    ]


def test_an_object_with_a_wrong_type_is_invalid_by_its_name_with_its_place(folder: Folder) -> None:
    folder.files["two.yaml"] = (
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: c\n  namespace: shop\n  labels:\n    a: 1\n"
    )
    assert folder.settle() == [
        'invalid c: metadata.labels["a"] must be a string, got 1; the last good version stays in force; '
        "without one it is not used; correct it in two.yaml, line 7"
    ]
    folder.files["two.yaml"] = C
    assert folder.settle() == ["put c"]


def test_a_part_that_is_left_out_is_told_with_the_object(folder: Folder) -> None:
    folder.files["three.yaml"] = """
apiVersion: v1
kind: List
items:
- apiVersion: security.istio.io/v1
  kind: AuthorizationPolicy
  metadata: {name: till}
  spec:
    rules:
    - to:
      - operation:
          ports: [80]
"""
    assert folder.step(0.1) == []
    (event,) = folder.look(0.3)
    assert isinstance(event, Put)
    assert event.seen_s == folder.now_s
    assert event.faults == (
        Fault(
            "spec.rules[0].to[0].operation.ports[0]",
            "must be a string",
            "80",
            'it is read as "80"; an API server would refuse it',
            'write "80" in three.yaml, line 12',
        ),
    )


def test_a_file_that_cannot_be_read_keeps_its_objects_and_is_reported(folder: Folder) -> None:
    text = folder.files["one.yaml"]
    folder.files["one.yaml"] = Unreadable("permission denied")
    assert folder.settle() == [f"invalid one.yaml: must be readable, got permission denied; {KEPT}"]
    assert folder.step(10) == []
    assert folder.state.wait_s(folder.now_s) is None
    folder.files["one.yaml"] = text
    assert folder.settle() == ["delete one.yaml"]


def test_a_sub_folder_that_cannot_be_listed_keeps_its_objects(folder: Folder) -> None:
    folder.files = {"sub/one.yaml": A, "sub/more/two.yaml": B, "subway.yaml": C}
    assert folder.settle() == []
    assert folder.step(2) == []
    folder.files, folder.unreadable = {"subway.yaml": C}, {"sub": "permission denied"}
    report = f"must be readable, got permission denied; {KEPT}"
    assert folder.step(0.1) == [
        f"invalid sub: {report}",
        f"invalid sub/more/two.yaml: {report}",
        f"invalid sub/one.yaml: {report}",
    ]
    assert folder.step(60) == []
    folder.files, folder.unreadable = {"sub/one.yaml": A, "subway.yaml": C}, {}
    assert folder.step(0.1) == ["delete sub", "delete sub/more/two.yaml"]
    assert folder.step(0.3) == ["delete sub/one.yaml"]
    assert folder.step(2) == ["delete b"]


def test_a_folder_that_vanishes_deletes_nothing_and_is_reported(folder: Folder) -> None:
    folder.is_there = False
    assert folder.step(0.1) == ["invalid .: must be a folder that can be listed, got no such folder; nothing changes"]
    assert not folder.state.is_settled
    assert folder.step(60) == []
    folder.is_there = True
    assert folder.step(1) == ["delete ."]
    del folder.files["two.yaml"]
    assert folder.step(1) == []
    assert folder.step(1.1) == ["delete c"]


def test_a_folder_that_vanishes_before_it_was_read_is_not_looked_at_again_and_again(folder: Folder) -> None:
    folder.files["new.yaml"] = pod("d")
    assert folder.step(0.1) == []
    folder.is_there = False
    assert folder.step(0.1) == ["invalid .: must be a folder that can be listed, got no such folder; nothing changes"]
    assert folder.step(1) == []
    assert folder.state.wait_s(folder.now_s) is None
    folder.is_there = True
    assert folder.step(1) == ["put d", "delete ."]


def test_a_file_that_waits_for_others_is_looked_at_when_they_stand_still(folder: Folder) -> None:
    folder.files["new.yaml"] = pod("d")
    assert folder.step(0.1) == []
    folder.files["busy.yaml"] = pod("busy")
    assert folder.step(0.15) == []
    folder.files["busy.yaml"] = pod("busy") + "# more"
    assert folder.step(0.15) == []
    assert folder.state.wait_s(folder.now_s) == pytest.approx(0.2)
    assert folder.step(0.2) == ["put busy", "put d"]


def test_a_file_that_changes_while_it_is_read_is_left_to_stand_still(folder: Folder) -> None:
    folder.files["one.yaml"] = A
    folder.restless = {"one.yaml"}
    assert folder.settle() == []
    assert folder.state.wait_s(folder.now_s) == pytest.approx(0.2)
    folder.restless = set()
    assert folder.step(0.2) == ["delete b"]


_HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(["write", "empty", "delete", "restless", "unreadable", "lose", "return"]),
        st.sampled_from(["one.yaml", "two.yaml", "new.yaml"]),
        st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.3, 1.0, 2.5, 40.0]),
    ),
    max_size=40,
)


@given(happenings=_HAPPENINGS)
def test_no_look_asks_for_another_at_once_and_the_last_state_is_taken_in_time(
    happenings: list[tuple[str, str, float]],
) -> None:
    folder = Folder()
    for number, (what, path, after_s) in enumerate(happenings):
        match what:
            case "write":
                folder.files[path] = pod(path.removesuffix(".yaml")) + f"# {number}"
                folder.restless.discard(path)
            case "empty":
                folder.files[path] = f"# {number}"
            case "delete":
                folder.files.pop(path, None)
            case "restless":
                folder.restless.add(path)
            case "unreadable":
                folder.files[path] = Unreadable(f"reason {number}")
            case _:
                folder.is_there = what == "return"
        folder.look(after_s)
        wait_s = folder.state.wait_s(folder.now_s)
        assert wait_s is None or wait_s > 0
    folder.is_there, folder.restless = True, set()
    folder.look(0.1)
    looks = 0
    while (wait_s := folder.state.wait_s(folder.now_s)) is not None:
        folder.look(wait_s)
        looks += 1
    assert folder.state.is_settled
    # Each file may be moving, then empty, and then missing.
    assert looks <= 12


@pytest.mark.parametrize("name", ["pods.json", "pods.yaml"])
def test_json_is_read(folder: Folder, name: str) -> None:
    items = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}} for name in ("x", "y")]
    folder.files[name] = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1)
    assert folder.settle() == ["put x", "put y"]


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=60), path=st.sampled_from(["0.yaml", "0.json"]), prefix=st.sampled_from(["", B, "{"]))
def test_no_bytes_in_a_file_raise_or_lose_the_objects_of_another(content: bytes, path: str, prefix: str) -> None:
    folder = Folder()
    folder.files = {"one.yaml": A}
    folder.settle()
    folder.files[path] = prefix.encode() + content
    events = folder.look(0.1) + folder.look(0.3) + folder.look(5)
    assert Delete(Ref("east", "Pod", "shop", "a"), seen_s=folder.now_s) not in events
    folder.files = {"one.yaml": A}
    remaining = {event.ref for event in folder.look(1) + folder.look(2) if isinstance(event, Delete)}
    assert Ref("east", "Pod", "shop", "a") not in remaining


# Real folders.


class Watched:
    """A folder that is watched, and everything emitted about it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        self.batches: list[list[str]] = []
        self._changed = asyncio.Event()

    def emit(self, events: list[Event]) -> None:
        self.events += events
        self.batches.append([short(event) for event in events if not isinstance(event, Synced)])
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def until_said(self, *lines: str) -> None:
        """Waits for lines, in any batch so far; a line that ends with a colon stands for all that begin so."""
        await self.until(lambda: all(any(_says(said, line) for said in self.said) for line in lines))

    @property
    def said(self) -> list[str]:
        return [line for batch in self.batches for line in batch]


def _says(said: str, line: str) -> bool:
    return said.startswith(line) if line.endswith(":") else said == line


@asynccontextmanager
async def watched(path: Path, *, missing_s: float = 0.3, empty_s: float = 0.4) -> AsyncIterator[Watched]:
    watched = Watched(path)
    patience = Patience(settle_s=0.05, missing_s=missing_s, empty_s=empty_s, change_s=1.0)
    task = asyncio.create_task(watch_folder(path, "east", watched.emit, patience=patience, poll_s=0.1))
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def test_everything_is_there_before_the_kinds_are_synced(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "one.yml").write_text(A)
    (tmp_path / "two.json").write_text('{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b"}}')
    (tmp_path / "notes.txt").write_text("not: [yaml")
    (tmp_path / ".hidden.yaml").write_text(C)
    async with watched(tmp_path) as seen:
        await seen.until(lambda: Synced("east", "Pod") in seen.events)
        assert seen.said == ["put b", "put a"]
        assert seen.events[2:] == [Synced("east", kind) for kind in KINDS]


async def test_a_rename_over_a_file_is_one_change(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(A + B)
    async with watched(tmp_path) as seen:
        await seen.until_said("put b")
        (tmp_path / "one.yaml.swp").write_text(pod("a", "10.0.0.9") + pod("d"))
        os.replace(tmp_path / "one.yaml.swp", tmp_path / "one.yaml")
        await seen.until_said("put d")
        assert seen.batches[1:] == [["put a", "put d", "delete b"]]


async def test_truncate_and_write_in_two_steps_deletes_nothing(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(A + B)
    async with watched(tmp_path, empty_s=10.0) as seen:
        await seen.until_said("put b")
        with (tmp_path / "one.yaml").open("w") as file:
            await asyncio.sleep(0.15)
            file.write(A + B)
            file.flush()
            file.write(C)
        await seen.until_said("put c")
        assert seen.said == ["put a", "put b", "put c"]


async def test_delete_and_create_deletes_nothing(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(A)
    async with watched(tmp_path, missing_s=2.0) as seen:
        await seen.until_said("put a")
        (tmp_path / "one.yaml").unlink()
        await asyncio.sleep(0.15)
        (tmp_path / "one.yaml").write_text(A + B)
        await seen.until_said("put b")
        assert seen.said == ["put a", "put b"]
        (tmp_path / "one.yaml").unlink()
        await seen.until_said("delete a", "delete b")


async def test_a_mounted_config_map_is_read_once_and_swapped_in_one_change(tmp_path: Path) -> None:
    def version(name: str, text: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.yaml").write_text(text)
        (tmp_path / name / "sub").mkdir()
        (tmp_path / name / "sub" / "two.yaml").write_text(pod("sub"))
        (tmp_path / "..data_tmp").symlink_to(name)
        os.replace(tmp_path / "..data_tmp", tmp_path / "..data")

    version("..2026_01", A + B)
    (tmp_path / "one.yaml").symlink_to("..data/one.yaml")
    (tmp_path / "sub").symlink_to("..data/sub")
    (tmp_path / "loop").symlink_to(".")
    async with watched(tmp_path) as seen:
        await seen.until_said("put sub")
        version("..2026_02", A + C)
        shutil.rmtree(tmp_path / "..2026_01")
        await seen.until_said("put c")
        assert seen.batches == [["put a", "put b", "put sub"], ["put c", "delete b"]]


async def test_folders_that_are_nested_too_deeply_are_told_of_and_touch_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(A)
    tmp_path.joinpath(*["d"] * 200).mkdir(parents=True)
    async with watched(tmp_path) as seen:
        await seen.until_said("put a")
        assert any("at most 100 deep" in said for batch in seen.batches for said in batch)


async def test_a_folder_that_vanishes_deletes_nothing_and_is_watched_when_it_returns(tmp_path: Path) -> None:
    folder, away = tmp_path / "mesh", tmp_path / "away"
    folder.mkdir()
    (folder / "one.yaml").write_text(A)
    async with watched(folder) as seen:
        await seen.until_said("put a")
        folder.rename(away)
        await seen.until_said("invalid .:")
        folder.mkdir()
        (folder / "one.yaml").write_text(A + B)
        await seen.until_said("delete .", "put b")
        assert "delete a" not in seen.said
        (folder / "two.yaml").write_text(C)
        await seen.until_said("put c")


async def test_a_folder_that_vanishes_before_it_was_read_is_taken_when_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, away = tmp_path / "mesh", tmp_path / "away"
    folder.mkdir()
    (folder / "one.yaml").write_text(A)

    def list_once(path: Path) -> tuple[Listing | Lost, tuple[int, int] | None]:
        found = list_folder(path)
        monkeypatch.undo()
        folder.rename(away)
        return found

    monkeypatch.setattr(files, "list_folder", list_once)
    async with watched(folder) as seen:
        await seen.until_said("invalid .:")
        assert not any(isinstance(event, Synced) for event in seen.events)
        away.rename(folder)
        await seen.until_said("delete .", "put a")


async def test_a_folder_that_is_not_there_at_the_start_is_not_synced(tmp_path: Path) -> None:
    folder = tmp_path / "mesh"
    async with watched(folder) as seen:
        await seen.until_said("invalid .:")
        assert not any(isinstance(event, Synced) for event in seen.events)
        folder.mkdir()
        (folder / "one.yaml").write_text(A)
        await seen.until_said("put a")
        await seen.until(lambda: Synced("east", "Pod") in seen.events)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
async def test_a_file_without_permission_keeps_its_objects(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(A)
    async with watched(tmp_path) as seen:
        await seen.until_said("put a")
        file.chmod(0)
        await seen.until_said("invalid one.yaml:")
        file.chmod(0o600)
        await seen.until_said("delete one.yaml")
        assert "delete a" not in seen.said


async def test_a_file_that_is_too_large_keeps_its_objects(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(A)
    async with watched(tmp_path) as seen:
        await seen.until_said("put a")
        os.truncate(file, 5 << 30)
        await seen.until_said("invalid one.yaml:")
        file.write_text(A)
        await seen.until_said("delete one.yaml")
        assert "delete a" not in seen.said


async def test_a_link_that_leads_nowhere_keeps_its_objects_and_is_reported(tmp_path: Path) -> None:
    target, link = tmp_path / "target.txt", tmp_path / "one.yaml"
    target.write_text(A)
    link.symlink_to(target)
    async with watched(tmp_path) as seen:
        await seen.until_said("put a")
        target.unlink()
        await seen.until_said("invalid one.yaml:")
        target.write_text(A)
        await seen.until_said("delete one.yaml")
        assert "delete a" not in seen.said
