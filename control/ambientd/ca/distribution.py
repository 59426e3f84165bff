"""The root certificates in every namespace, as ConfigMaps, so that proxies can mount them (ca.md 13.3 to 13.5,
operations.md 10.3). Every replica does this, without an election: nobody writes what is there already, so replicas with
the same roots never meet. Who finds other roots again and again where it has put its own writes ever more rarely, and
says so; meanwhile `on_foreign` has the replica look whether the roots are still its own. Must not delete anything, and
must not write an empty bundle."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Never

import msgspec
import structlog
from msgspec import Struct, field

from ambientd.kube.backoff import Backoff
from ambientd.kube.errors import ApiError, Forbidden, Garbled, Gone, NotFound, Refused
from ambientd.kube.turns import Urgency
from ambientd.kube.wire import Lines, decode_bookmark, decode_line, decode_object, decode_page, decoded, error_of
from ambientd.resources.core import Namespace
from ambientd.resources.events import Delete, Event, Put, Replace
from ambientd.resources.mesh import LabelSelector
from ambientd.resources.ref import Labels

if TYPE_CHECKING:
    from ambientd.kube.api import Api

log = structlog.get_logger("roots")

ROOT_KEY = "root-cert.pem"
CRL_KEY = "ca-crl.pem"
LEFT_OUT = frozenset({"kube-public", "kube-node-lease", "local-path-storage"})
"""`kube-system` is not among them: a ztunnel may live there."""

_AT_ONCE = 8
_PAGE = 500
_WATCH_S = 300
_SILENCE_S = 360.0
"""A watch is asked to end before it is silent for so long."""
_FIRST_AGAIN_S = 0.5
_LONGEST_AGAIN_S = 60.0
_LONGEST_TRUCE_S = 300.0
_QUIET_S = 600.0
"""After so long without another writer, one that comes is a new one."""
_LARGEST_BYTES = 1 << 20

Key = tuple[str, str]
"""Namespace and name of a ConfigMap."""


class Wanted(Struct, frozen=True):
    """What one ConfigMap must hold."""

    field: str
    value: str


class _Meta(Struct):
    name: str = ""
    namespace: str = ""


class _ConfigMap(Struct):
    metadata: _Meta = field(default_factory=_Meta)
    data: dict[str, str] | None = None


class _Rivalry(Struct):
    """Somebody else who writes another value."""

    writes: int
    last_s: float


_CONFIG_MAP = msgspec.json.Decoder(_ConfigMap)


class Distributor:
    """Keeps the ConfigMaps of all namespaces as they should be."""

    def __init__(
        self,
        api: Api,
        *,
        selectors: Callable[[], tuple[LabelSelector, ...]],
        on_foreign: Callable[[], None] = lambda: None,
        dice: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`selectors`: the discovery selectors now in force; none: every namespace (ca.md 13.5). `on_foreign`: told
        when somebody else has written other roots over ours."""
        self._api = api
        self._selectors = selectors
        self._on_foreign = on_foreign
        self._dice = dice or random.Random()
        self._sleep = sleep
        self._now_s = now_s
        self._wanted: dict[str, Wanted] = {}
        self._namespaces: dict[str, Labels] = {}
        self._held: dict[Key, str] = {}
        """Values as last seen or written."""
        self._listed: set[str] = set()
        self._written: set[Key] = set()
        self._writing: dict[Key, bool] = {}
        """What is being written, and whether the watch has told of it since that began."""
        self._rivals: dict[Key, _Rivalry] = {}
        self._again: dict[Key, tuple[Backoff, asyncio.TimerHandle]] = {}
        self._due: dict[Key, None] = {}
        self._poke = asyncio.Event()
        self.failures = 0
        """Writes that failed, for a metric."""

    def want(self, name: str, wanted: Wanted) -> None:
        """What the ConfigMaps of this name hold from now on, in every namespace. An empty bundle of roots is never
        wanted; a CRL may be empty (ca.md 13.4)."""
        if not wanted.value and wanted.field == ROOT_KEY:
            raise ValueError("an empty bundle of roots must not be distributed")
        if len(wanted.value) > _LARGEST_BYTES:
            size_bytes = len(wanted.value)
            log.error("a bundle is too large for a ConfigMap and is not distributed", name=name, bytes=size_bytes)
            return
        if self._wanted.get(name) != wanted:
            self._wanted[name] = wanted
            self._rivals = {key: rivalry for key, rivalry in self._rivals.items() if key[1] != name}
            self.look_everywhere()

    def apply(self, events: Sequence[Event]) -> None:
        """What a source saw of namespaces."""
        for event in events:
            if isinstance(event, Replace) and event.kind == "Namespace":
                before, self._namespaces = self._namespaces, {}
                self.apply(event.objects)
                for name in before.keys() - self._namespaces.keys():
                    self._forget(name)
            elif isinstance(event, Put) and isinstance(event.object, Namespace):
                name = event.object.ref.name
                if self._namespaces.get(name) != event.object.labels:
                    self._namespaces[name] = event.object.labels
                    self._look_at(name)
            elif isinstance(event, Delete) and event.ref.kind == "Namespace":
                self._namespaces.pop(event.ref.name, None)
                self._forget(event.ref.name)

    def look_everywhere(self) -> None:
        """Something that concerns every namespace may have changed."""
        for namespace in self._namespaces:
            self._look_at(namespace)

    def missing(self) -> int:
        """How many ConfigMaps are not as they should be, for a metric."""
        selectors = self._selectors()
        return sum(
            self._held.get((namespace, name)) != wanted.value
            for namespace in self._namespaces
            if self._is_admitted(namespace, selectors)
            for name, wanted in self._wanted.items()
        )

    async def run(self, names: Sequence[str]) -> Never:
        """For ever. `names`: of the ConfigMaps that may come to be wanted."""
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(self._follow(name), name=f"follow {name}")
            tasks.create_task(self._write(), name="write roots")
        raise AssertionError("these run for ever")

    def _look_at(self, namespace: str) -> None:
        for name in self._wanted:
            self._due[namespace, name] = None
        self._poke.set()

    def _forget(self, namespace: str) -> None:
        """It is gone; what is still there of it goes by the watch."""
        for name in self._wanted:
            key = namespace, name
            self._written.discard(key)
            self._rivals.pop(key, None)
            self._forget_again(key)

    def _is_admitted(self, namespace: str, selectors: tuple[LabelSelector, ...]) -> bool:
        labels = self._namespaces.get(namespace)
        if labels is None or namespace in LEFT_OUT:
            return False
        return not selectors or any(selector.matches(labels) for selector in selectors)

    # What is there.

    async def _follow(self, name: str) -> Never:
        """Lists and watches the ConfigMaps of one name, for ever."""
        backoff = Backoff(_FIRST_AGAIN_S, _LONGEST_AGAIN_S, self._dice.random)
        told = ""
        while True:
            started_s = self._now_s()
            try:
                version = await self._list(name)
                while True:
                    version = await self._watch(name, version)
                    told = ""
            except Gone:
                pass
            except ApiError as error:
                if str(error) != told:
                    told = str(error)
                    log.warning("ConfigMaps with roots cannot be watched, tried again", name=name, reason=told)
            if self._now_s() >= started_s + _QUIET_S:
                backoff.reset()
            await self._sleep(backoff.next_s())

    async def _list(self, name: str) -> str:
        """What is there, as a whole; the version of it."""
        found: dict[Key, str] = {}
        after = ""
        while True:
            parameters = {"fieldSelector": f"metadata.name={name}", "limit": str(_PAGE)}
            if after:
                parameters["continue"] = after
            page = decode_page(await self._api.get("/api/v1/configmaps", parameters, urgency=Urgency.READ))
            for raw in page.items:
                held = _decode(raw)
                found[held.metadata.namespace, name] = self._value(name, held)
            after = page.after
            if not after:
                break
        self._held = {key: value for key, value in self._held.items() if key[1] != name} | found
        self._writing = {key: was_told or key[1] == name for key, was_told in self._writing.items()}
        self._listed.add(name)
        self.look_everywhere()
        return page.version

    async def _watch(self, name: str, version: str) -> str:
        """One watch to its end; the version up to which it told."""
        parameters = {
            "fieldSelector": f"metadata.name={name}",
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_S),
        }
        lines = Lines()
        started_s = self._now_s()
        async with self._api.stream("/api/v1/configmaps", parameters) as read:
            while chunk := await read(_SILENCE_S):
                for raw in lines.feed(chunk):
                    line = decode_line(raw)
                    if line.type == "ERROR":
                        raise error_of(f"watch of ConfigMaps {name}", line.object)
                    version = decode_bookmark(line.object)
                    if line.type != "BOOKMARK":
                        self._saw(name, _decode(line.object), is_deleted=line.type == "DELETED")
        if self._now_s() < started_s + 1:
            raise Garbled(f"the watch of ConfigMaps {name} ended at once")
        return version

    def _value(self, name: str, held: _ConfigMap) -> str:
        wanted = self._wanted.get(name)
        # A field that is missing is another value than an empty one, which a CRL may be.
        return "\0" if wanted is None else (held.data or {}).get(wanted.field, "\0")

    def _saw(self, name: str, held: _ConfigMap, *, is_deleted: bool) -> None:
        key = held.metadata.namespace, name
        if key in self._writing:
            self._writing[key] = True
        if is_deleted:
            self._held.pop(key, None)
        else:
            value = self._value(name, held)
            wanted = self._wanted.get(name)
            if wanted is not None and value != wanted.value and key in self._written and self._held.get(key) != value:
                self._met_rival(key)
            self._held[key] = value
        self._due[key] = None
        self._poke.set()

    def _met_rival(self, key: Key) -> None:
        now_s = self._now_s()
        rivalry = self._rivals.get(key)
        if rivalry is None or now_s >= rivalry.last_s + _QUIET_S:
            rivalry = self._rivals[key] = _Rivalry(0, now_s)
        rivalry.writes += 1
        rivalry.last_s = now_s
        self._on_foreign()
        if rivalry.writes == 3:
            log.warning(
                "somebody else keeps writing other roots; ours are written ever more rarely",
                namespace=key[0],
                name=key[1],
            )

    # What should be there.

    async def _write(self) -> Never:
        while True:
            await self._poke.wait()
            self._poke.clear()
            due, self._due = list(self._due), {}
            for start in range(0, len(due), _AT_ONCE):
                await asyncio.gather(*(self._settle(key) for key in due[start : start + _AT_ONCE]))

    async def _settle(self, key: Key) -> None:
        """Makes one ConfigMap what it should be; what fails is tried again later."""
        namespace, name = key
        wanted = self._wanted.get(name)
        if wanted is None or name not in self._listed or not self._is_admitted(namespace, self._selectors()):
            self._forget_again(key)
            return
        if self._held.get(key) == wanted.value:
            self._forget_again(key)
            return
        truce_s = self._truce_s(key)
        if truce_s > 0:
            self._later(key, truce_s)
            return
        self._writing[key] = False
        is_new = key not in self._held
        try:
            await (self._create(key, wanted) if is_new else self._update(key, wanted))
        except ApiError as error:
            if is_new and isinstance(error, Forbidden | NotFound):
                # The namespace is going, or gone, or not ours to write to.
                log.info("roots are not written", namespace=namespace, name=name, reason=str(error))
                self._forget_again(key)
                return
            self.failures += 1
            log.warning("roots could not be written, tried again", namespace=namespace, name=name, reason=str(error))
            self._later(key)
        else:
            self._forget_again(key)
        finally:
            del self._writing[key]

    async def _create(self, key: Key, wanted: Wanted) -> None:
        namespace, name = key
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace, "labels": {"istio.io/config": "true"}},
            "data": {wanted.field: wanted.value},
        }
        try:
            await self._api.send("POST", _path(namespace), urgency=Urgency.WRITE, body=msgspec.json.encode(body))
        except Refused as error:
            if error.status != 409:
                raise
            # Somebody was faster; what it wrote is looked at when the watch brings it, or here.
            await self._update(key, wanted)
            return
        self._wrote(key, wanted)

    async def _update(self, key: Key, wanted: Wanted) -> None:
        """Sets our field and leaves the rest as it is."""
        path = f"{_path(key[0])}/{key[1]}"
        raw = await self._api.get(path, urgency=Urgency.WRITE)
        try:
            held = decode_object(raw)
        except msgspec.DecodeError as error:
            raise Garbled(f"GET {path}: the answer is no object: {error}") from error
        data = held.get("data")
        fields = dict(data) if isinstance(data, dict) else {}
        if fields.get(wanted.field) != wanted.value:
            held["data"] = {**fields, wanted.field: wanted.value}
            if isinstance(binary := held.get("binaryData"), dict):
                # A key may stand in one of the two only.
                binary.pop(wanted.field, None)
            # With the version that was read: what somebody wrote since is not overwritten unseen.
            await self._api.send("PUT", path, urgency=Urgency.WRITE, body=msgspec.json.encode(held))
        self._wrote(key, wanted)

    def _wrote(self, key: Key, wanted: Wanted) -> None:
        # What the watch has told meanwhile may be of after the write; if it is of before it, another look does no harm.
        if not self._writing[key]:
            self._held[key] = wanted.value
        self._written.add(key)

    def _truce_s(self, key: Key) -> float:
        """How long to leave a ConfigMap to somebody else: the first time for as long as it takes to look whether it was
        another replica, which has newer roots than we."""
        rivalry = self._rivals.get(key)
        if rivalry is None:
            return 0.0
        pause_s = min(_LONGEST_TRUCE_S, 2.0 ** min(rivalry.writes - 1, 30))
        return rivalry.last_s + pause_s - self._now_s()

    def _later(self, key: Key, after_s: float = 0.0) -> None:
        backoff, timer = self._again.get(key, (None, None))
        if timer is not None:
            timer.cancel()
        if backoff is None:
            backoff = Backoff(_FIRST_AGAIN_S, _LONGEST_AGAIN_S, self._dice.random)
        wait_s = after_s or backoff.next_s()
        self._again[key] = backoff, asyncio.get_running_loop().call_later(wait_s, self._now_again, key)

    def _now_again(self, key: Key) -> None:
        self._due[key] = None
        self._poke.set()

    def _forget_again(self, key: Key) -> None:
        _, timer = self._again.pop(key, (None, None))
        if timer is not None:
            timer.cancel()


def _path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def _decode(raw: msgspec.Raw) -> _ConfigMap:
    try:
        return decoded(_CONFIG_MAP, raw)
    except msgspec.DecodeError as error:
        raise Garbled(f"a ConfigMap cannot be read: {error}") from error
