"""What a test writes to an API server, and looks at, in as few words as a manifest needs. Not the product's client, of
which it is the judge: shares no code with it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.kube import crds

Manifest = dict[str, Any]

_CLUSTER_KINDS = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "GatewayClass",
    "Namespace",
    "Node",
    "SubjectAccessReview",
    "TokenReview",
}


class Refused(Exception):
    """An answer of the API server that is no success: its code, and its reason and message for the log."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason


class Client:
    """An object's path comes from its manifest; a namespaced manifest without a namespace is in `default`. Every call
    returns the object as the server now has it, and raises Refused for what it refuses."""

    def __init__(self, server: str, ca: Path, token: str) -> None:
        self._server = server
        self._ca = ca
        self._token = token

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._token}"},
            connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(self._ca))),
            timeout=aiohttp.ClientTimeout(total=30),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def status(self, path: str) -> int:
        """The code that a GET is answered with. Raises aiohttp's own errors where nobody answers."""
        async with self._session.get(self._server + path) as answer:
            return answer.status

    async def get(self, api_version: str, kind: str, name: str, namespace: str = "default") -> Manifest:
        return await self._call("GET", path_of(api_version, kind, namespace, name))

    async def list(self, api_version: str, kind: str, namespace: str = "", **parameters: str | int) -> Manifest:
        """The List object: of one namespace, or of all. Parameters as the API names them (`limit`, `continue_`)."""
        return await self._call("GET", path_of(api_version, kind, namespace), parameters=parameters)

    async def create(self, manifest: Manifest) -> Manifest:
        """Also writes the manifest's status, which a create alone would drop where it is a subresource."""
        created = await self._call("POST", _path(manifest, named=False), manifest)
        return await self.patch_status(created, manifest["status"]) if "status" in manifest else created

    async def replace(self, manifest: Manifest) -> Manifest:
        """All but the status; with a `resourceVersion` in its metadata only that version of the object."""
        return await self._call("PUT", _path(manifest), manifest)

    async def patch(self, manifest: Manifest, patch: Mapping[str, Any]) -> Manifest:
        """A merge patch of the object that a manifest names."""
        return await self._call("PATCH", _path(manifest), patch, "application/merge-patch+json")

    async def patch_status(self, manifest: Manifest, status: Mapping[str, Any]) -> Manifest:
        """A merge patch of the status of the object that a manifest names; a key with None is removed."""
        return await self._call(
            "PATCH", _path(manifest) + "/status", {"status": status}, "application/merge-patch+json"
        )

    async def apply(
        self, manifest: Manifest, *, manager: str = "test", force: bool = False, subresource: str = ""
    ) -> Manifest:
        """A server-side apply. Without `force`, a field of another manager is a conflict (409)."""
        return await self._call(
            "PATCH",
            _path(manifest) + (f"/{subresource}" if subresource else ""),
            manifest,
            "application/apply-patch+yaml",
            {"fieldManager": manager, "force": str(force).lower()},
        )

    async def delete(self, manifest: Manifest, *, grace_s: int = 0) -> None:
        """At once unless a grace is given: then a pod on a node is only marked, and waits for a kubelet. A namespace
        is emptied of nothing: without controllers, its objects are to be deleted before it."""
        path = _path(manifest)
        answer = await self._call("DELETE", path, {"gracePeriodSeconds": grace_s})
        if manifest["kind"] == "Namespace" and answer.get("kind") == "Namespace":
            await self._call("PUT", path + "/finalize", answer | {"spec": {"finalizers": []}})

    async def token(
        self, namespace: str, account: str, *, audience: str = "istio-ca", pod: Manifest | None = None
    ) -> str:
        """A token of a service account that exists, bound to a pod as the server has it where one is given."""
        spec: Manifest = {"audiences": [audience], "expirationSeconds": 3600}
        if pod is not None:
            metadata = pod["metadata"]
            spec["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "uid": metadata["uid"],
            }
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = path_of("v1", "ServiceAccount", namespace, account) + "/token"
        answer = await self._call("POST", path, request)
        return str(answer["status"]["token"])

    async def watch(
        self, api_version: str, kind: str, resource_version: str, namespace: str = "", **parameters: str | int
    ) -> AsyncIterator[Manifest]:
        """Watch events, as they come, until the server ends the watch."""
        async for line in self.watch_lines(api_version, kind, resource_version, namespace, **parameters):
            yield json.loads(line)

    async def watch_lines(
        self, api_version: str, kind: str, resource_version: str, namespace: str = "", **parameters: str | int
    ) -> AsyncIterator[bytes]:
        """As `watch`, undecoded: what there is of an event when the body ends in the middle of it comes too. Raises
        aiohttp's ClientError when the connection is cut."""
        parameters |= {"watch": "true", "resourceVersion": resource_version}
        async with self._session.get(
            self._server + path_of(api_version, kind, namespace),
            params=_parameters(parameters),
            timeout=aiohttp.ClientTimeout(total=None),
        ) as answer:
            if answer.status != 200:
                raise _refused(answer.status, await answer.read())
            async for line in answer.content:
                yield line

    async def install_crds(self, kinds: Iterable[str] | None = None) -> None:
        """Defines the custom kinds that we read, or some of them, and returns when each is served in every version.
        Those that are there already stay as they are."""
        wanted = set(kinds) if kinds is not None else {kind for _, kind, _, _, _ in crds.KINDS}
        definitions = [crd for crd in crds.definitions() if crd["spec"]["names"]["kind"] in wanted]
        for crd in definitions:
            try:
                await self.create(crd)
            except Refused as refused:
                if refused.reason != "AlreadyExists":
                    raise
        for crd in definitions:
            for version in crd["spec"]["versions"]:
                path = f"/apis/{crd['spec']['group']}/{version['name']}/{crd['spec']['names']['plural']}"
                await self._until(path, 200)

    async def remove_crds(self, kinds: Iterable[str] | None = None) -> None:
        """Removes the definitions of the custom kinds that we read, or of some, and all objects of these kinds."""
        wanted = set(kinds) if kinds is not None else {kind for _, kind, _, _, _ in crds.KINDS}
        for crd in crds.definitions():
            if crd["spec"]["names"]["kind"] in wanted:
                await self.delete(crd)
                await self._until(_path(crd), 404)

    async def _until(self, path: str, code: int) -> None:
        """Returns when a GET is answered with this code. Raises RuntimeError when it is not, ever."""
        for _ in range(1200):
            last = await self.status(path)
            if last == code:
                return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"GET {path} must come to be answered with {code}, and still is with {last}")

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        parameters: Mapping[str, str | int] | None = None,
    ) -> Manifest:
        async with self._session.request(
            method,
            self._server + path,
            params=_parameters(parameters or {}),
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": content_type},
        ) as answer:
            content = await answer.read()
            if answer.status >= 400:
                raise _refused(answer.status, content)
            result: Manifest = json.loads(content)
            return result


def path_of(api_version: str, kind: str, namespace: str = "", name: str = "") -> str:
    """The path of an object, or of its kind's collection: in a namespace, or in all of them."""
    root = "/api/" if "/" not in api_version else "/apis/"
    scope = f"/namespaces/{namespace}" if namespace and kind not in _CLUSTER_KINDS else ""
    return f"{root}{api_version}{scope}/{_plural(kind)}" + (f"/{name}" if name else "")


def _path(manifest: Manifest, *, named: bool = True) -> str:
    metadata = manifest["metadata"]
    namespace = metadata.get("namespace") or "default"
    return path_of(manifest["apiVersion"], manifest["kind"], namespace, metadata["name"] if named else "")


def _plural(kind: str) -> str:
    singular = kind.lower()
    if singular.endswith("y") and singular[-2] not in "aeiou":
        return singular[:-1] + "ies"
    return singular + ("es" if singular.endswith("s") else "s")


def _parameters(parameters: Mapping[str, str | int]) -> dict[str, str]:
    # A word of Python's own (`continue`) is written with an underscore.
    return {name.rstrip("_"): str(value) for name, value in parameters.items()}


def _refused(code: int, content: bytes) -> Refused:
    try:
        status = json.loads(content)
        return Refused(code, str(status.get("reason", "")), str(status.get("message", "")))
    except (ValueError, AttributeError):
        return Refused(code, "", content[:200].decode(errors="replace"))
