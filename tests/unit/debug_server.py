"""A server of which the debug pages know everything by hand, and what they may show of it. No test stands here."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from ambientd.debug.metrics import Metrics
from ambientd.debug.version import Version
from ambientd.explain.describe import Description, describe, ref_of
from ambientd.index.conditions import Conditions
from ambientd.index.rendered import RenderedAddress, RenderedPolicy, deterministic, render_policy, version_of
from ambientd.index.world import Problem, World
from ambientd.push.feed import Feed
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.resources.ref import Ref
from ambientd.settings import Settings
from ambientd.sources.watches import Watch
from ambientd.xds.connections import ConnectionInfo, TypeStatus
from ambientd.xds.node import Node
from ambientd_api.security_pb2 import Action, Authorization, Scope
from ambientd_api.workload_pb2 import Address, NetworkAddress, Service, Workload


def workload(**fields: Any) -> Address:
    return Address(workload=Workload(**fields))


CART = workload(
    uid="Kubernetes//Pod/shop/cart-0", name="cart-0", namespace="shop", addresses=[b"\x0a\0\0\1"], tunnel_protocol=1
)
CART_SERVICE = Address(
    service=Service(
        name="cart", namespace="shop", hostname="cart.shop", addresses=[NetworkAddress(address=b"\x0a\x60\0\1")]
    )
)
TILL = Authorization(name="till", namespace="shop", scope=Scope.WORKLOAD_SELECTOR, action=Action.DENY)


def rendered(message: Address, name: str) -> RenderedAddress:
    body = deterministic(message)
    return RenderedAddress(name, body, version_of(body), "shop", is_workload=message.HasField("workload"))


def commit(
    feed: Feed, addresses: dict[str, RenderedAddress | None], policies: dict[str, RenderedPolicy | None]
) -> None:
    stage = feed.stage(addresses.items(), policies.items())
    stage.step(lambda: False)
    feed.commit(stage.result)
    feed.settle().step(lambda: False)


def zt(number: int, namespace: str = "istio-system", **types: TypeStatus) -> ConnectionInfo:
    node = Node(
        type="ztunnel",
        id=f"zt-{number}.{namespace}",
        ips=("10.0.0.1",),
        namespace=namespace,
        cluster_id="Kubernetes",
        node_name="node-a",
        istio_version="",
        service_account="",
        metadata={"NAMESPACE": namespace},
    )
    urls = {"address": ADDRESS, "authorization": AUTHORIZATION}
    held = {urls[name]: status for name, status in types.items()}
    return ConnectionInfo(f"{node.id}-{number}", node, "ipv4:10.0.0.9:4711", 0.5, held)


class State:
    """A server of which everything is set by hand."""

    def __init__(self) -> None:
        numbers = itertools.count()
        self.feed = Feed(lambda: f"n{next(numbers)}")
        self.settings = Settings()
        self.metrics = Metrics(Version("1.2.3", "abc", "Clean"))
        self.found: list[Problem] = []
        self.deserved: dict[Ref, Conditions] = {}
        self.clients: list[ConnectionInfo] = []
        self.held: set[str] | None = None
        self.watched: list[Watch] = []
        self.ready = False

    @property
    def world(self) -> State:
        return self

    @property
    def registry(self) -> State:
        return self

    def problems(self) -> list[Problem]:
        return self.found

    def problem_counts(self) -> Counter[str]:
        return Counter(problem.object.kind for problem in self.found)

    def conditions(self) -> dict[Ref, Conditions]:
        return self.deserved

    def unbound(self) -> dict[tuple[str, str], int]:
        return {}

    def verdicts(self) -> dict[str, int]:
        return {}

    def authority(self) -> dict[str, object]:
        return {}

    def refresh(self) -> None:
        pass

    def describe(self, kind: str, namespace: str, name: str) -> Description:
        return describe(World(self.settings.rules()), ref_of("Kubernetes", kind, namespace, name))

    def connections(self) -> list[ConnectionInfo]:
        return self.clients

    def held_names(self, connection_id: str, type_url: str) -> set[str] | None:
        return self.held if type_url == ADDRESS else None

    def watches(self) -> list[Watch]:
        return self.watched

    def is_ready(self) -> bool:
        return self.ready

    def with_the_shop(self) -> State:
        policy = render_policy(TILL)
        commit(
            self.feed,
            {
                "shop/cart.shop": rendered(CART_SERVICE, "shop/cart.shop"),
                "Kubernetes//Pod/shop/cart-0": rendered(CART, "Kubernetes//Pod/shop/cart-0"),
            },
            {"shop/till": policy},
        )
        return self
