"""An API server in one process that keeps objects, lists and watches as the real one does, as far as a reflector can
tell, and misbehaves where a test says so. Not a model of anything but the protocol of lists and watches; must not know
what the objects mean."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from aiohttp.test_utils import TestServer

Manifest = dict[str, Any]
Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]

PLURALS: Mapping[str, tuple[str, str]] = {
    "Pod": ("/api/v1", "pods"),
    "Namespace": ("/api/v1", "namespaces"),
    "Node": ("/api/v1", "nodes"),
    "Service": ("/api/v1", "services"),
    "ConfigMap": ("/api/v1/namespaces/istio-system", "configmaps"),
    "EndpointSlice": ("/apis/discovery.k8s.io/v1", "endpointslices"),
    "ServiceEntry": ("/apis/networking.istio.io/v1", "serviceentries"),
    "WorkloadEntry": ("/apis/networking.istio.io/v1", "workloadentries"),
    "AuthorizationPolicy": ("/apis/security.istio.io/v1", "authorizationpolicies"),
    "PeerAuthentication": ("/apis/security.istio.io/v1", "peerauthentications"),
    "Gateway": ("/apis/gateway.networking.k8s.io/v1", "gateways"),
    "GatewayClass": ("/apis/gateway.networking.k8s.io/v1", "gatewayclasses"),
}
CUSTOM_KINDS = tuple(
    kind for kind, (root, _) in PLURALS.items() if root.startswith("/apis/") and "discovery" not in root
)
OVER = web.AppKey("over", asyncio.Event)
"""Set when the test ends."""
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def path_of(kind: str) -> str:
    root, plural = PLURALS[kind]
    return f"{root}/{plural}"


def definition_of(kind: str) -> str:
    root, plural = PLURALS[kind]
    return f"{plural}.{root.split('/')[2]}"


class Request:
    """One request that came."""

    def __init__(self, path: str, query: Mapping[str, str], at_s: float) -> None:
        self.path = path
        self.query = dict(query)
        self.at_s = at_s

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def is_list(self) -> bool:
        """The first page of one."""
        return not self.is_watch and "continue" not in self.query


class ScriptedServer:
    """To be entered with `async with`. `objects` is what exists, by kind and (namespace, name)."""

    def __init__(self, *, custom_kinds: tuple[str, ...] = CUSTOM_KINDS, port: int | None = None) -> None:
        """`port`: any free one without."""
        self._port = port
        self.objects: dict[str, dict[tuple[str, str], Manifest]] = {kind: {} for kind in PLURALS}
        self.version = 100
        self.oldest = 0
        """Watches from before it are told 410."""
        self.served: dict[str, tuple[str, ...]] = {kind: ("v1",) for kind in custom_kinds}
        """Custom kinds that are defined, and the versions in which they are served."""
        self.requests: list[Request] = []
        self.scripts: dict[tuple[str, str], list[Behaviour | None]] = {}
        """What the next requests of a kind do; None: the usual."""
        self.refuse_definition_watches = False
        self.forever: dict[tuple[str, str], Behaviour] = {}
        self._log: list[tuple[int, str, str, Manifest]] = []
        """Version, kind, type, object."""
        self._changed = asyncio.Condition()
        self._generation = 0
        self._server: TestServer | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app[OVER] = self._over = asyncio.Event()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._server = TestServer(app, port=self._port)
        # A reader that is still there comes back at once, and must not hold up the end.
        await self._server.start_server(shutdown_timeout=0.1)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        await self.end_watches()
        assert self._server is not None
        await self._server.close()

    @property
    def url(self) -> str:
        assert self._server is not None
        return str(self._server.make_url("")).rstrip("/")

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        cluster, user = {"server": self.url}, {"token": "scripted"}
        context = {"cluster": "c", "user": "u"}
        path.write_text(
            json.dumps(
                {
                    "current-context": "x",
                    "contexts": [{"name": "x", "context": context}],
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": user}],
                }
            )
        )
        return path

    # What happens in the world.

    async def put(self, kind: str, name: str, namespace: str = "shop", **content: Any) -> Manifest:
        """Creates or changes an object."""
        self.version += 1
        known = (namespace, name) in self.objects[kind]
        metadata = {"name": name, "namespace": namespace, "resourceVersion": str(self.version), "uid": f"u-{name}"}
        manifest = {"metadata": {**metadata, **content.pop("metadata", {})}, **content}
        self.objects[kind][namespace, name] = manifest
        await self._happened(kind, "MODIFIED" if known else "ADDED", manifest)
        return manifest

    async def delete(self, kind: str, name: str, namespace: str = "shop") -> None:
        self.version += 1
        manifest = self.objects[kind].pop((namespace, name))
        gone = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(self.version)}}
        await self._happened(kind, "DELETED", gone)

    def compact(self) -> None:
        """Forgets everything before now."""
        self.oldest = self.version

    async def rewind(
        self, version: int, kind: str, objects: dict[tuple[str, str], Manifest], *, then: int | None = None
    ) -> None:
        """Restored from an older backup; `then`: and at this version already, by changes of other kinds."""
        self.version = version if then is None else then
        self.objects[kind] = objects
        self._log = [entry for entry in self._log if entry[0] <= version]
        await self.end_watches()

    async def define(self, kind: str, *versions: str) -> None:
        """The definition of a custom kind appears, changes, or goes away with all objects."""
        if versions:
            self.served[kind] = versions
        else:
            self.served.pop(kind, None)
            for namespace, name in list(self.objects[kind]):
                await self.delete(kind, name, namespace)
        await self.end_watches()

    async def end_watches(self) -> None:
        """Ends every watch in good order."""
        async with self._changed:
            self._generation += 1
            self._changed.notify_all()

    async def _happened(self, kind: str, type: str, manifest: Manifest) -> None:
        async with self._changed:
            self._log.append((self.version, kind, type, manifest))
            self._changed.notify_all()

    # What was asked.

    def script(self, kind: str, what: str, *behaviours: Behaviour | None, forever: Behaviour | None = None) -> None:
        """What the next requests of a kind do: `list` (its first page), `page` (the others), `watch` or
        `definition`; `version` of the kind "" is that of the server."""
        self.scripts.setdefault((kind, what), []).extend(behaviours)
        if forever is not None:
            self.forever[kind, what] = forever

    def calm(self) -> None:
        """Misbehaves no more."""
        self.scripts.clear()
        self.forever.clear()

    def asked(self, kind: str, what: str) -> list[Request]:
        """The lists or watches of a kind so far."""
        path = path_of(kind)
        return [request for request in self.requests if request.path == path and getattr(request, f"is_{what}")]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = Request(request.path, request.query, asyncio.get_running_loop().time())
        self.requests.append(asked)
        if request.path == "/version":
            return await self._behave("", "version", request)
        for kind in PLURALS:
            if request.path == path_of(kind):
                what = "watch" if asked.is_watch else "list" if asked.is_list else "page"
                return await self._behave(kind, what, request)
            if request.path == f"{CRDS}/{definition_of(kind)}":
                return await self._behave(kind, "definition", request)
        if request.path == CRDS and not self.refuse_definition_watches:
            return await self._watch_definition(request)
        return web.Response(status=404, text="404 page not found")

    async def _behave(self, kind: str, what: str, request: web.Request) -> web.StreamResponse:
        scripted = self.scripts.get((kind, what))
        behaviour = scripted.pop(0) if scripted else self.forever.get((kind, what))
        if behaviour is not None:
            return await behaviour(request)
        if what == "version":
            return web.json_response({"gitVersion": "v1.36.0"})
        if what == "definition":
            return self._define(kind)
        if kind in CUSTOM_KINDS and "v1" not in self.served.get(kind, ()):
            return web.Response(status=404, text="404 page not found")
        return await self.watch(kind, request) if what == "watch" else self.list(kind, request)

    def list(self, kind: str, request: web.Request) -> web.Response:
        """As the API server lists, in pages."""
        assert request.query.get("resourceVersion") is None, "a list must be consistent"
        version, _, start = request.query.get("continue", f"{self.version}:0").partition(":")
        items = [item for _, item in sorted(self.objects[kind].items())]
        limit = int(request.query.get("limit", "0")) or len(items)
        end = int(start) + limit
        metadata = {"resourceVersion": version}
        if end < len(items):
            metadata["continue"] = f"{version}:{end}"
        return web.json_response({"kind": f"{kind}List", "metadata": metadata, "items": items[int(start) : end]})

    async def watch(self, kind: str, request: web.Request) -> web.StreamResponse:
        """As the API server watches."""
        since = int(request.query["resourceVersion"])
        if since < self.oldest:
            return failure(410, "Expired", "too old resource version")
        response = web.StreamResponse()
        await response.prepare(request)
        generation, at = self._generation, 0
        while self._generation == generation:
            while at < len(self._log):
                version, of, type, manifest = self._log[at]
                at += 1
                if of == kind and version > since:
                    await response.write(line(type, manifest))
            async with self._changed:
                while at >= len(self._log) and self._generation == generation:
                    await self._changed.wait()
        return response

    def _define(self, kind: str) -> web.Response:
        name = definition_of(kind)
        if kind not in self.served:
            return failure(404, "NotFound", f"{name} not found", details={"name": name})
        versions = [{"name": version, "served": True} for version in self.served[kind]]
        status = {"conditions": [{"type": "Established", "status": "True"}]}
        return web.json_response({"spec": {"versions": versions}, "status": status})

    async def _watch_definition(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        name = request.query["fieldSelector"].removeprefix("metadata.name=")
        kind = next(kind for kind in CUSTOM_KINDS if definition_of(kind) == name)
        async with self._changed:
            await self._changed.wait_for(lambda: kind in self.served)
        await response.write(line("ADDED", {"metadata": {"name": name}}))
        return response


def line(type: str, manifest: Manifest) -> bytes:
    return json.dumps({"type": type, "object": manifest}, separators=(",", ":")).encode() + b"\n"


def bookmark(version: int) -> bytes:
    return line("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def status(code: int, reason: str, message: str, **more: Any) -> Manifest:
    return {"kind": "Status", "code": code, "reason": reason, "message": message, **more}


def failure(code: int, reason: str, message: str, *, retry_after: str = "", **more: Any) -> web.Response:
    headers = {"Retry-After": retry_after} if retry_after else {}
    return web.json_response(status(code, reason, message, **more), status=code, headers=headers)


def fails(code: int, reason: str = "", message: str = "scripted", **more: Any) -> Behaviour:
    """Answers with an error."""

    async def behave(_: web.Request) -> web.StreamResponse:
        return failure(code, reason, message, **more)

    return behave


def says(*chunks: bytes, then: str = "end") -> Behaviour:
    """Answers 200 with these pieces; then the answer ends, is `cut`, or is `silent` for ever."""

    async def behave(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if then == "silent":
            await request.app[OVER].wait()
        if then == "cut":
            assert request.transport is not None
            request.transport.abort()
        return response

    return behave
