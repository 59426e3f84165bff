"""What the pump does with events before there is anything to commit."""

from __future__ import annotations

from random import Random

from ambientd.index.rules import Rules
from ambientd.index.world import World
from ambientd.pump import compacted
from ambientd.resources.events import Delete, Event, Invalid, Put, Replace, Synced
from ambientd.resources.faults import Fault
from ambientd.resources.manifest import decode_manifest
from ambientd.resources.ref import Ref

FAULT = (Fault("spec", "must be an object", "7", "it is not used"),)


def _pod(number: int, ip: int) -> Put:
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p-{number}", "namespace": "shop"},
        "status": {"phase": "Running", "podIP": f"10.0.0.{ip}"},
    }
    event = decode_manifest(manifest, "Kubernetes")
    assert isinstance(event, Put)
    return event


def _some(dice: Random) -> Event:
    ref = Ref("Kubernetes", "Pod", "shop", f"p-{dice.randrange(6)}")
    match dice.randrange(8):
        case 0 | 1:
            return Delete(ref)
        case 2:
            return Invalid(ref, FAULT)
        case 3 if dice.random() < 0.2:
            return Replace("Kubernetes", "Pod", (_pod(1, dice.randrange(9)), Invalid(ref, FAULT)))
        case _:
            return _pod(dice.randrange(6), dice.randrange(9))


def test_compacted_events_have_the_same_result() -> None:
    for seed in range(300):
        dice = Random(seed)
        events = [_some(dice) for _ in range(40)]
        whole, short = World(Rules()), World(Rules())
        whole.apply(events)
        short.apply(compacted(events))
        assert short.addresses() == whole.addresses(), seed
        assert short.problems() == whole.problems(), seed


def test_what_later_events_made_pointless_is_dropped() -> None:
    events: list[Event] = [_pod(1, number % 9) for number in range(1000)]
    assert compacted([*events, Synced("Kubernetes", "Pod")]) == [Synced("Kubernetes", "Pod"), events[-1]]
