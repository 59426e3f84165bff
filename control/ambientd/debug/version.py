"""Which version this is, as `/version`, `pilot_info` and `ambientd version` tell it (operations.md 3.4)."""

from __future__ import annotations

from importlib import metadata

from msgspec import Struct


class Version(Struct, frozen=True):
    version: str
    revision: str = "unknown"
    """Of the source that it was built from."""
    status: str = "unknown"

    def __str__(self) -> str:
        """`<version>-<revision>-<status>`, which clients split at the dashes from the end."""
        return f"{self.version}-{self.revision}-{self.status}"


def current() -> Version:
    """What is installed; `0.0.0` when the program runs from a source tree that was not installed."""
    try:
        return Version(metadata.version("ambientd"))
    except metadata.PackageNotFoundError:
        return Version("0.0.0")
