"""Random histories against the naive model, through the whole server and real connections: fewer than without them
(tests/property/test_oracle.py), since each takes longer."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from ambientd.ctl.ztunnel import SimulatedZtunnel
from tests.cases.loader import differences
from tests.cases.test_golden import events_of
from tests.model.histories import Histories
from tests.model.manifests import Change, defaulted
from tests.model.model import expected
from tests.wire.running import Client, Running

BATCHES = 40
PATIENCE_S = 120


@pytest.mark.parametrize("seed", range(8))
async def test_clients_end_with_what_the_model_gives(seed: int) -> None:
    histories, dice = Histories(seed), Random(seed)
    server = Running(histories.environment)
    rules = server.app.settings.rules()
    steady, returning = SimulatedZtunnel("steady"), SimulatedZtunnel("returning")

    async def live(batches: int) -> None:
        """So many batches, several of them often in one commit."""
        for _ in range(batches):
            changes = [
                Change(change.ref, None if change.manifest is None else defaulted(change.manifest))
                for change in histories.batch()
            ]
            events = events_of(changes, rules)
            if dice.random() < 0.5:
                server.app.pump.emit(events)
            else:
                await server.emit(events)
        await server.emit([])

    def wanted() -> dict[str, object]:
        world = expected(list(histories.state.values()), histories.environment)
        return {"address": world.addresses, "authorization": world.authorizations}

    async with asyncio.timeout(PATIENCE_S), server.running([]), Client.connected(server.app.grpc.port, steady) as first:
        for _ in range(4):
            async with Client.connected(server.app.grpc.port, returning) as second:
                await live(BATCHES // 8)
                await second.come_to_rest()
                assert not differences(second.held(), wanted())
            await live(BATCHES // 8)
            await first.come_to_rest()
            assert not differences(first.held(), wanted())
