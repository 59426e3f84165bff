"""The present state as plain values, from a folder of manifests or from a running server. Pure but for the reading
itself; changes nothing."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from ambientd.index.world import World

Plain = dict[str, Any]

TIMEOUT_S = 60.0


class Failed(Exception):
    """Why there is no answer, in one line for the operator."""


class Snapshot(Struct, frozen=True):
    """Each in the order of its names, as proto-JSON with readable addresses."""

    workloads: list[Plain] = field(default_factory=list)
    services: list[Plain] = field(default_factory=list)
    policies: list[Plain] = field(default_factory=list)
    problems: list[Plain] = field(default_factory=list)


def read_folder(folder: Path, environ: Mapping[str, str]) -> Snapshot:
    """What a server would serve that had started with this folder. Raises Failed."""
    from ambientd.debug.pages import plain_problem
    from ambientd.debug.readable import plain
    from ambientd_api.security_pb2 import Authorization
    from ambientd_api.workload_pb2 import Address

    world, _ = load_folder(folder, environ)
    addresses = [Address.FromString(item.body) for _, item in sorted(world.addresses().items())]
    return Snapshot(
        workloads=[plain(address.workload) for address in addresses if address.HasField("workload")],
        services=[plain(address.service) for address in addresses if address.HasField("service")],
        policies=[plain(Authorization.FromString(item.body)) for _, item in sorted(world.authorizations().items())],
        problems=[plain_problem(problem) for problem in world.problems()],
    )


def load_folder(folder: Path, environ: Mapping[str, str]) -> tuple[World, str]:
    """The index of a server that had started with this folder, and the id of its cluster. Raises Failed."""
    # Loads the whole index, which asking a server does not need.
    from ambientd.index.world import World
    from ambientd.settings import SettingsError, load
    from ambientd.sources.files import list_folder
    from ambientd.sources.folder import FolderState, Lost, Patience, Unreadable
    from ambientd.sources.manifest_file import FileContent, read_manifests

    try:
        settings, _ = load({"config-dir": str(folder)}, environ, strict=False)
    except SettingsError as error:
        raise Failed(str(error)) from None
    listing, _ = list_folder(folder)
    if isinstance(listing, Lost):
        raise Failed(f"--config-dir: cannot read {folder}: {listing.reason.lower()}; give a folder of manifests")
    state = FolderState(settings.cluster_id, Patience(settle_s=0, missing_s=0, empty_s=0, change_s=0))
    contents: dict[str, FileContent | Unreadable] = {}
    for path in state.observe(listing, 0.0):
        try:
            contents[path] = read_manifests(path, (folder / path).read_bytes(), settings.cluster_id)
        except OSError as error:
            contents[path] = Unreadable(error.strerror or str(error))
    world = World(settings.rules())
    world.apply(state.take(contents, 0.0))
    return world, settings.cluster_id


def ask_server(url: str, *, for_problems: bool) -> Snapshot:
    """What a running server serves, by its debug pages. Raises Failed."""
    if for_problems:
        return Snapshot(problems=ask_page(url, "problems"))
    state = ask_page(url, "ambientz")
    return Snapshot(
        *([_readable(item) for item in state[part] or []] for part in ("workloads", "services", "policies"))
    )


def ask_page(url: str, name: str) -> Any:
    """A debug page of a running server as plain values. Raises Failed."""
    where = f"{url.rstrip('/')}/debug/{name}"
    try:
        # The machine's own pages are meant; a proxy for the Internet has no business in between.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(where, timeout=TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        if error.code == 400:
            raise Failed(error.read().decode(errors="replace").strip()) from None
        hint = "; pages are answered to loopback only" if error.code == 401 else ""
        raise Failed(f"{where} answered {error.code} {error.reason}{hint}") from None
    except urllib.error.URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise Failed(
            f"{where} does not answer: {reason}; start a server, or give --debug-url or --config-dir"
        ) from None
    except (OSError, ValueError) as error:
        raise Failed(f"{where} gave no usable answer: {error}; is it ambientd?") from None


def _readable(value: Any, key: str = "") -> Any:
    """The value with the addresses of `ambientz` as plain text (operations.md 12.5.3)."""
    if isinstance(value, dict):
        return {name: _readable(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_readable(item, key) for item in value]
    if isinstance(value, str) and key in ("address", "addresses"):
        return base64.b64decode(value).decode(errors="replace")
    return value
