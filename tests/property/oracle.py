"""The oracle: a random history is played against the product, from events to what clients of several habits hold, and
compared with what the naive model says. The model shares no code with the product (tests/model)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse

from ambientd.ctl.ztunnel import ADDRESS, SimulatedZtunnel
from ambientd.debug.pages import plain_conditions
from ambientd.index.declarations import Derived
from ambientd.index.graph import Transaction
from ambientd.index.world import DECLARATIONS, World
from ambientd.pump import stage_outputs
from ambientd.push.feed import Feed
from ambientd.push.rounds import Part
from ambientd.resources.decode import decode, to_json
from ambientd.resources.events import Delete, Event, Invalid, Put, Replace
from ambientd.resources.faults import Fault, Undecodable
from ambientd.resources.kinds import KINDS
from ambientd.resources.ref import Ref
from ambientd.settings import load as load_settings
from ambientd.xds.protocol import (
    Advanced,
    Command,
    Done,
    End,
    Requested,
    Send,
    Stream,
    Wake,
    Woke,
    Work,
    Written,
)
from ambientd.xds.requests import Request, parse
from ambientd_api.security_pb2 import Authorization
from ambientd_api.workload_pb2 import Address
from tests.cases.loader import Served as Held
from tests.cases.loader import differences, golden
from tests.model.conditions import unlike
from tests.model.histories import Histories
from tests.model.manifests import Change, Manifest, defaulted, dig
from tests.model.model import expected

BETWEEN_LOOKS = 10
"""Batches after which everything is compared."""


class Client:
    """A simulated ztunnel on a pure stream. `holds_back`: it takes what is sent to it only now and then, and answers
    some of it late, or after the server has given up waiting."""

    def __init__(
        self, feed: Feed, idents: Iterable[int], dice: Random, *, is_on_demand: bool, holds_back: bool
    ) -> None:
        self._feed = feed
        self._idents = iter(idents)
        self._dice = dice
        self._holds_back = holds_back
        self._is_on_demand = is_on_demand
        self.ztunnel = SimulatedZtunnel(node_name="n1" if is_on_demand else "", is_on_demand=is_on_demand)
        self._commands: list[Command] = []
        self._later: list[Requested | Woke] = []
        """Late answers, and ends of the server's waiting."""
        self._stream: Stream | None = None
        self.connect()

    def connect(self) -> None:
        """A new stream, on which the client tells what it holds."""
        if self._stream is not None:
            self._stream.close()
        self._stream = Stream(next(self._idents), self._feed)
        self._commands = []
        self._later = []
        for request in self.ztunnel.first_requests():
            self._commands += self._stream.handle(Requested(_parsed(request)))

    def ask(self, key: str) -> None:
        assert self._stream is not None
        self._commands += self._stream.handle(Requested(_parsed(self.ztunnel.ask(key))))

    def advance(self) -> None:
        """The feed has a new head."""
        assert self._stream is not None
        self._commands += self._stream.handle(Advanced())
        if not self._holds_back or self._dice.random() < 0.2:
            self.drain()

    def drain(self) -> None:
        """Does everything there is to do."""
        assert self._stream is not None
        while self._commands or self._later:
            if self._later and (not self._commands or self._dice.random() < 0.1):
                event = self._later.pop(self._dice.randrange(len(self._later)))
                self._commands += self._stream.handle(event)
                continue
            command = self._commands.pop(0)
            match command:
                case Work():
                    if not command.job.step(_bounded(10_000)):
                        self._commands.insert(0, command)  # it waits for the commit to be settled
                        return
                    self._commands += self._stream.handle(Done())
                case Send():
                    self._take(command.part)
                    self._commands += self._stream.handle(Written())
                case Wake():
                    self._later.append(Woke(command.nonce))
                case End():
                    self.connect()
        self._commands += self._stream.handle(Advanced())
        if self._commands:
            self.drain()

    def _take(self, part: Part) -> None:
        assert self._stream is not None
        response = DeltaDiscoveryResponse.FromString(part.response)
        names = [resource.name for resource in response.resources]
        assert len(set(names)) == len(names), "a name twice in one response"
        assert not set(names) & set(response.removed_resources), "a name in both lists"
        applied = self.ztunnel.apply(response)
        assert not applied.answer.HasField("error_detail"), applied.answer.error_detail.message
        answered = Requested(_parsed(applied.answer))
        if self._holds_back and self._dice.random() < 0.3:
            self._later.append(answered)
        else:
            self._commands += self._stream.handle(answered)

    def held(self) -> Held:
        addresses: dict[str, Any] = {}
        for name, workload in self.ztunnel.workloads.items():
            addresses[name] = {"workload": golden(workload)}
        for name, service in self.ztunnel.services.items():
            addresses[name] = {"service": golden(service)}
        return Held(addresses, {name: golden(policy) for name, policy in self.ztunnel.policies.items()})


class Oracle:
    """One history, played. `drops`: now and then a watch loses events of a kind and lists it again. `suppressed`:
    collections that do not notice changes, a planted fault."""

    def __init__(self, seed: int, *, drops: bool = True, suppressed: Iterable[str] = ()) -> None:
        self._dice = Random(seed)
        self.histories = Histories(seed)
        self._drops = drops
        rules = load_settings({}, self.histories.environment, strict=False)[0].rules()
        self._rules = rules
        self._cluster = rules.cluster_id
        self.world = World(rules, is_strict=True)
        self.world.graph.suppressed = frozenset(suppressed)
        numbers, idents = itertools.count(1), itertools.count(1)
        self.feed = Feed(lambda: f"n{next(numbers)}")
        self.good: dict[tuple[str, str, str], Manifest] = {}
        """The last version of each object that could be decoded."""
        self._invalid: dict[tuple[str, str, str], Invalid] = {}
        """Objects whose present version cannot be decoded."""
        self._seen: dict[tuple[str, str, str], Manifest] = {}
        """The last good version of each object of which the index was told."""
        self._unseen: set[str] = set()
        """Kinds of which events were lost, until they are listed again."""
        self._commit([])
        self.clients = [
            Client(self.feed, idents, self._dice, is_on_demand=False, holds_back=False),
            Client(self.feed, idents, self._dice, is_on_demand=False, holds_back=True),
            Client(self.feed, idents, self._dice, is_on_demand=True, holds_back=False),
        ]
        self.events = 0

    def step(self) -> None:
        """One batch of changes, in one commit or several."""
        changes = self.histories.batch()
        self.events += len(changes)
        events = [event for change in changes for event in self._events_of(change)]
        if self._drops and self._dice.random() < 0.05:
            self._unseen.add(self._dice.choice(list(KINDS)))
        cut = self._dice.randint(0, len(events))
        for batch in (events[:cut], events[cut:]):
            self._commit(batch)
        if self._dice.random() < 0.1:
            self._dice.choice(self.clients).connect()
        if self._dice.random() < 0.2:
            self.clients[2].ask(self._key())

    def _key(self) -> str:
        """Something that an on-demand client may ask for: what is there, or was, or never will be."""
        names = list(self.world.addresses()) or ["/10.0.0.1"]
        entry = self.world.addresses().get(self._dice.choice(names))
        if entry is not None and entry.aliases and self._dice.random() < 0.6:
            return self._dice.choice(entry.aliases)
        return self._dice.choice([*names, "/10.9.9.9", "shop/none.shop.svc.cluster.local"])

    def _events_of(self, change: Change) -> Iterable[Event]:
        event = self._event_of(change)
        if event is None:
            return
        kind = change.ref[0]
        if kind not in self._unseen:
            if isinstance(event, Put):
                self._seen[change.ref] = self.good[change.ref]
            elif isinstance(event, Delete):
                self._seen.pop(change.ref, None)
            yield event
        elif self._dice.random() < 0.3:
            self._unseen.discard(kind)
            yield self._listed(kind)

    def _event_of(self, change: Change) -> Event | None:
        ref = Ref(self._cluster, *change.ref)
        if ref.kind not in KINDS:
            return None
        if change.manifest is None:
            self.good.pop(change.ref, None)
            self._invalid.pop(change.ref, None)
            return Delete(ref)
        event = self._decoded(ref, change.manifest)
        if self._dice.random() < 0.03:
            event = Invalid(ref, (Fault("spec", "must be an object", "7", "the last good version stays"),))
        if isinstance(event, Put):
            self.good[change.ref] = change.manifest
            self._invalid.pop(change.ref, None)
        else:
            self._invalid[change.ref] = event
        return event

    def _decoded(self, ref: Ref, manifest: Manifest) -> Put | Invalid:
        try:
            value, faults = decode(to_json(dict(defaulted(manifest))), ref.kind, self._cluster)
        except Undecodable as error:
            return Invalid(ref, error.faults)
        return Put(value, faults=faults)

    def _listed(self, kind: str) -> Replace:
        """What a list of this kind gives. Of an object whose present version is invalid, the last good version that was
        seen is in force, not one that came and went while nobody was looking."""
        invalid = {ref: event for ref, event in self._invalid.items() if ref[0] == kind}
        for ref in invalid:
            if ref in self._seen:
                self.good[ref] = self._seen[ref]
            else:
                self.good.pop(ref, None)
        valid = {ref: good for ref, good in self.good.items() if ref[0] == kind and ref not in invalid}
        self._seen = {ref: seen for ref, seen in self._seen.items() if ref[0] != kind or ref in invalid} | valid
        objects = [*invalid.values(), *(self._decoded(Ref(self._cluster, *ref), good) for ref, good in valid.items())]
        self._dice.shuffle(objects)
        return Replace(self._cluster, kind, tuple(objects))

    def _commit(self, events: list[Event]) -> None:
        transaction = self.world.begin(events)
        self._run(transaction)
        for client in getattr(self, "clients", ()):
            client.advance()

    def _run(self, transaction: Transaction) -> None:
        steps = self._dice.randint(1, 50)

        def enough() -> bool:
            nonlocal steps
            steps -= 1
            return steps <= 0

        while not transaction.step(enough):
            steps = self._dice.randint(1, 50)
        staged = stage_outputs(transaction, self.feed).run()
        transaction.commit()
        self.feed.commit(staged)
        if self._dice.random() < 0.3:
            for client in getattr(self, "clients", ()):
                client.advance()  # while the commit is still a layer
        transaction.settle(lambda: False)
        self.feed.settle().run()

    def settle_watches(self) -> None:
        """Lists every kind of which events were lost."""
        if self._unseen:
            events: list[Event] = [self._listed(kind) for kind in sorted(self._unseen)]
            self._unseen.clear()
            self._commit(events)

    def differences(self) -> list[str]:
        """Where the index or a client differs from the model; call after `settle_watches`."""
        world = expected(list(self.good.values()), self.histories.environment)
        wanted = {"address": world.addresses, "authorization": world.authorizations}
        found = [f"index: {line}" for line in differences(_served(self.world), wanted)]
        found += [f"index: {line}" for line in unlike(_deserved(self.world), world.conditions)]
        for number, client in enumerate(self.clients):
            client.drain()
            held = client.held()
            expect: dict[str, Any] = wanted
            if number == 2:
                expect = {**wanted, "address": {n: a for n, a in world.addresses.items() if n in held.address}}
            found += [f"client {number}: {line}" for line in differences(held, expect)]
        found += self._unfound(world.addresses, world.aliases)
        found += self._stale()
        return found

    def _stale(self) -> Iterable[str]:
        """Where any collection differs from that of an index that was told of everything at once, in another order."""
        events: list[Event] = [self._decoded(Ref(self._cluster, *ref), good) for ref, good in self.good.items()]
        self._dice.shuffle(events)
        fresh = World(self._rules, is_strict=True)
        fresh.apply([*events, *self._invalid.values()])
        for declaration in DECLARATIONS:
            if isinstance(declaration, Derived):
                held, wanted = dict(self.world.graph.items(declaration)), dict(fresh.graph.items(declaration))
                yield from (
                    f"stale: {declaration.name} of {key}: {held.get(key)} instead of {wanted.get(key)}"
                    for key in {**held, **wanted}
                    if held.get(key) != wanted.get(key)
                )

    def _unfound(self, addresses: Mapping[str, Any], aliases: Mapping[str, Sequence[str]]) -> Iterable[str]:
        """What the on-demand client asked for, and exists, and does not hold."""
        client = self.clients[2].ztunnel
        held = set(client.workloads) | set(client.services)
        for name, address in addresses.items():
            asked = {name, *aliases.get(name, ())} & set(client.versions[ADDRESS])
            is_local = dig(address, "workload", "node") == "n1"
            if (asked or is_local) and name not in held and not _is_shadowed(name, asked, addresses, aliases):
                yield f"client 2: {name} is missing (asked for {sorted(asked)})"

    def delete_all(self) -> None:
        """Every object goes, in some order."""
        refs = [ref for ref in [*self.good, *self.histories.state]]
        self._dice.shuffle(refs)
        self.good.clear()
        self.histories.state.clear()
        self._commit([Delete(Ref(self._cluster, *ref)) for ref in refs if ref[0] in KINDS])


def _bounded(steps: int) -> Callable[[], bool]:
    left = itertools.count(steps, -1)
    return lambda: next(left) <= 0


def first_difference(seed: int, batches: int, *, suppressed: Iterable[str] = ()) -> tuple[list[str], int]:
    """Plays the history of a seed until something differs from the model, or is left when every object is gone: what
    that is (empty: nothing), and how many events were played."""
    oracle = Oracle(seed, suppressed=suppressed)
    for number in range(1, batches + 1):
        oracle.step()
        if number % BETWEEN_LOOKS == 0 or number == batches:
            oracle.settle_watches()
            found = oracle.differences()
            if found:
                return [f"seed {seed}, batch {number}", *found], oracle.events
    oracle.delete_all()
    left = {name: size for name, size in oracle.world.graph.sizes().items() if size and name not in _LASTING}
    return [f"seed {seed}, left when all is gone: {left}"] if left else [], oracle.events


_LASTING = frozenset({"rules", "mesh", "site", "cluster network", "network gateways"})
"""What there is without any object."""


def _is_shadowed(
    name: str, asked: set[str], addresses: Mapping[str, Any], aliases: Mapping[str, Sequence[str]]
) -> bool:
    """Whether an address that was asked for belongs to a workload too, which hides services, or to another service."""
    if name in asked or "service" not in addresses[name]:
        return False
    others = {alias for other, held in aliases.items() if other != name for alias in held}
    return asked <= others


def _served(world: World) -> Held:
    return Held(
        {name: golden(Address.FromString(each.body)) for name, each in world.addresses().items()},
        {name: golden(Authorization.FromString(each.body)) for name, each in world.authorizations().items()},
    )


def _deserved(world: World) -> dict[str, list[dict[str, Any]]]:
    return {
        f"{ref.kind}/{ref.namespace}/{ref.name}": plain_conditions(conditions)
        for ref, conditions in world.conditions().items()
    }


def _parsed(request: DeltaDiscoveryRequest) -> Request:
    parsing = parse(request.SerializeToString())
    while True:
        try:
            next(parsing)
        except StopIteration as stop:
            result: Request = stop.value
            return result
