"""Work that blocks does not hold up anybody but who waits for it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from ambientd import aside
from ambientd.aside import Aside, Stuck, in_the_end, read_file
from tests.unit.patience import until


async def test_its_result_and_its_error_are_those_of_the_work() -> None:
    doing = Aside("reading it", "see why")
    assert await doing.run(lambda: 1, 60.0) == 1

    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await doing.run(fail, 60.0)


async def test_what_is_stuck_is_said_and_nothing_is_begun_beside_it() -> None:
    doing, may_end, begun = Aside("reading it", "see why"), threading.Event(), list[int]()
    with pytest.raises(Stuck, match=r"^reading it takes longer than 0\.05 s; see why$"):
        await doing.run(may_end.wait, 0.05)
    for number in range(3):
        with pytest.raises(Stuck):
            await doing.run(partial(begun.append, number), 0.05)
    assert begun == []
    may_end.set()
    await until(lambda: not any(each.name == "aside" for each in threading.enumerate()))
    assert await doing.run(lambda: 2, 60.0) == 2


async def test_who_gives_up_leaves_the_work_to_its_end() -> None:
    doing, may_end, begun = Aside("reading it", "see why"), threading.Event(), list[int]()
    first = asyncio.create_task(doing.run(may_end.wait, 60.0))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(doing.run(lambda: begun.append(2), 60.0))
    await asyncio.sleep(0.05)
    assert begun == []
    may_end.set()
    await second
    assert begun == [2]


async def test_work_that_is_waited_for_to_its_end_is_told_of_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "_TELL_S", 0.01)
    may_end, told = threading.Event(), list[str]()

    def tell() -> None:
        told.append("slow")
        if len(told) == 3:
            may_end.set()

    assert await in_the_end(may_end.wait, tell)
    assert len(told) >= 3


def test_a_process_ends_while_work_is_stuck() -> None:
    code = "import asyncio, time; from ambientd.aside import *\ntry: asyncio.run(Aside('x', 'y').run("
    code += "lambda: time.sleep(600), 0.1))\nexcept Stuck: print('told')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "told\n"


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    file, pipe, link = tmp_path / "file", tmp_path / "pipe", tmp_path / "link"
    file.write_bytes(b"content")
    os.mkfifo(pipe)
    link.symlink_to(file)
    assert read_file(file) == read_file(link) == b"content"
    for path in (pipe, Path("/dev/zero"), tmp_path, tmp_path / "none"):
        with pytest.raises(OSError, match=r"a pipe or a device|directory"):
            read_file(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(5 << 30)
    with pytest.raises(OSError, match="a file of 5368709120 bytes, and at most 16777216 are read"):
        read_file(tmp_path / "large")
