"""Objects from an API server: a reflector per kind, over one client (operations.md 3.2, 4). What cannot succeed however
often it is tried ends the start with one line; everything else is tried for ever. Must not decide when the server is
ready: a kind that was listed, or is certainly absent, is told as such."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, Never

import msgspec
import structlog

from ambientd.kube.api import Api
from ambientd.kube.backoff import Backoff
from ambientd.kube.credentials import refusal
from ambientd.kube.errors import ApiError, Distrusted, Forbidden, Garbled, Misconfigured, NotFound, Unauthorized
from ambientd.kube.resources import resources
from ambientd.kube.turns import Urgency
from ambientd.resources.events import Emit
from ambientd.resources.ref import ClusterId
from ambientd.sources.mirror import Mirror
from ambientd.sources.reflector import Pace, Reflector, Sleep
from ambientd.sources.watches import Watch

log = structlog.get_logger("kube")

LIST_DEADLINE_S = 30.0
"""A kind that takes longer to be listed for the first time is named in the log, again and again."""


class Hopeless(Exception):
    """Why trying again cannot help, in one line for the operator."""


class Cluster:
    """One API server as a source."""

    def __init__(
        self,
        api: Api,
        cluster: ClusterId,
        emit: Emit,
        *,
        namespace: str,
        mesh_config_map: str,
        pace: Pace | None = None,
        dice: random.Random | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`api`: open while `run` runs. `namespace`: of the server; there is its mesh configuration."""
        self._api = api
        self._pace = pace or Pace()
        self._dice = dice = dice or random.Random()
        self._sleep = sleep
        self._reflectors = [
            Reflector(api, resource, Mirror(cluster, resource.kind), emit, self._pace, dice=dice, sleep=sleep)
            for resource in resources(namespace, mesh_config_map)
        ]

    @property
    def watches(self) -> list[Watch]:
        """How each kind is doing, in the order of their names."""
        return sorted((reflector.watch for reflector in self._reflectors), key=lambda watch: watch.kind)

    async def run(self) -> Never:
        """For ever. Raises Hopeless, and only before the server was reached for the first time."""
        await self._meet()
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run(), name=f"reflect {reflector.watch.kind}")
            tasks.create_task(self._name_the_stuck(), name="stuck kinds")
        raise AssertionError("reflectors run for ever")

    async def _meet(self) -> None:
        """Waits until the server answers."""
        backoff = Backoff(self._pace.first_s, self._pace.ceiling_s, self._dice.random)
        told = ""
        while True:
            try:
                version = decode_version(await self._api.get("/version", urgency=Urgency.READ))
                log.info("API server found", version=version, configuration=str(self._api.credentials.origin))
                return
            except Forbidden:
                # It knows us, which is all that was asked.
                return
            except (Misconfigured, Distrusted) as error:
                raise Hopeless(str(error)) from error
            except Unauthorized as error:
                secured = await self._api.credentials.current()
                text = (
                    f"{secured.access.server}: {refusal(secured.access)}; renew them in {self._api.credentials.origin}"
                )
                if not secured.access.can_renew:
                    raise Hopeless(text) from error
                reason = text
            except (NotFound, Garbled) as error:
                text = f"{error}; check that the server in {self._api.credentials.origin} is an API server"
                raise Hopeless(text) from error
            except ApiError as error:
                reason = str(error)
            wait_s = backoff.next_s()
            if reason != told:
                log.warning("API server cannot be used yet and is tried again", reason=reason)
                told = reason
            await self._sleep(wait_s)

    async def _name_the_stuck(self) -> Never:
        while True:
            await asyncio.sleep(LIST_DEADLINE_S)
            for watch in stuck(self.watches, time.monotonic(), LIST_DEADLINE_S):
                log.warning(
                    "a kind is not listed yet, so the server is not ready",
                    kind=watch.kind,
                    state=watch.state.value,
                    reason=watch.reason or "no answer yet",
                    for_s=round(time.monotonic() - (watch.waiting_since_s or 0.0)),
                )


def stuck(watches: list[Watch], now_s: float, after_s: float) -> list[Watch]:
    """Those that should have been listed for the first time by now."""
    return [
        watch
        for watch in watches
        if not watch.is_listed and watch.waiting_since_s is not None and now_s >= watch.waiting_since_s + after_s
    ]


def decode_version(raw: bytes) -> str:
    """The version of an API server. Raises Garbled when it is something else that answers."""
    try:
        told: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        told = None
    version = told.get("gitVersion") if isinstance(told, dict) else None
    if not isinstance(version, str):
        raise Garbled("GET /version: the answer has no gitVersion")
    return version
