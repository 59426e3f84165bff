"""A volume that stops answering, and answers again. No test stands here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ambientd.ca import followed


class Volume:
    """Stands between files that are followed and their content. While it hangs, reading is given up early."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._may_answer = threading.Event()
        self._may_answer.set()

    def hangs(self) -> None:
        self._monkeypatch.setattr(followed, "READ_S", 0.05)
        self._may_answer.clear()

    def answers(self) -> None:
        self._monkeypatch.setattr(followed, "READ_S", 3600.0)
        self._may_answer.set()

    def wait(self) -> None:
        self._may_answer.wait()


@contextmanager
def volume(monkeypatch: pytest.MonkeyPatch) -> Iterator[Volume]:
    """At the end it answers."""
    volume, signature = Volume(monkeypatch), followed._signature

    def slow(path: Path) -> tuple[int, int, int] | None:
        volume.wait()
        return signature(path)

    monkeypatch.setattr(followed, "_signature", slow)
    try:
        yield volume
    finally:
        volume.answers()
