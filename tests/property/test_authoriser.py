"""Whatever the cluster and its history, and whatever is asked: what is issued runs on the caller's node now (ca.md 5,
18.1 G1)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from ambientd.ca.caller import Caller
from ambientd.ca.decide import Ask, Await, Issue, Trust, decide
from ambientd.index.pods import AccountRef, Placement, PodIndex
from ambientd.resources.core import Pod
from ambientd.resources.events import Absent, Delete, Event, Invalid, Put, Replace
from ambientd.resources.ref import Ref

CLUSTER = "c1"
_some = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])

_NAMESPACES = ["istio-system", "ns-a", "ns-b"]
_ACCOUNTS = ["ztunnel", "sa-a", "default", ""]
_NODES = ["n1", "n2", ""]
_UIDS = ["u1", "u2"]
_PHASES = ["Pending", "Running", "Succeeded", "Failed", "Unknown", ""]
_NAMES = ["p1", "p2", "p3"]


class Fact(Struct, frozen=True):
    """What the cluster holds under a pod's name: kept by the test, and not by the code under test."""

    uid: str
    account: str
    node: str
    phase: str


@st.composite
def _pods(draw: st.DrawFn) -> Pod:
    return Pod(
        ref=Ref(
            draw(st.sampled_from([CLUSTER, CLUSTER, CLUSTER, "c2"])),
            "Pod",
            draw(st.sampled_from(_NAMESPACES)),
            draw(st.sampled_from(_NAMES)),
        ),
        uid=draw(st.sampled_from(_UIDS)),
        labels=(),
        redirection="",
        has_generate_name=False,
        owner=None,
        service_account=draw(st.sampled_from(_ACCOUNTS)),
        node=draw(st.sampled_from(_NODES)),
        host_network=False,
        ports=(),
        phase=draw(st.sampled_from(_PHASES)),
        ips=(),
        is_ready=False,
        is_deleting=draw(st.booleans()),
    )


_refs = st.builds(
    Ref,
    st.sampled_from([CLUSTER, "c2"]),
    st.sampled_from(["Pod", "Pod", "Service"]),
    st.sampled_from(_NAMESPACES),
    st.sampled_from(_NAMES),
)


@st.composite
def _events(draw: st.DrawFn) -> Event:
    match draw(st.sampled_from(["put", "put", "put", "put", "delete", "invalid", "replace", "absent"])):
        case "put":
            return Put(draw(_pods()))
        case "delete":
            return Delete(draw(_refs))
        case "invalid":
            return Invalid(draw(_refs), ())
        case "replace":
            cluster = draw(st.sampled_from([CLUSTER, CLUSTER, "c2"]))
            pods = {pod.ref: pod for pod in draw(st.lists(_pods(), max_size=4)) if pod.ref.cluster == cluster}
            return Replace(cluster, "Pod", tuple(Put(pod) for pod in pods.values()))
        case _:
            return Absent(draw(st.sampled_from([CLUSTER, "c2"])), draw(st.sampled_from(["Pod", "Service"])))


def world_after(history: Sequence[Event]) -> dict[tuple[str, str], Fact]:
    """The pods of our cluster, by loops over what happened."""
    world: dict[tuple[str, str], Fact] = {}
    for event in history:
        match event:
            case Put(object=Pod() as pod) if pod.ref.cluster == CLUSTER:
                fact = Fact(pod.uid, pod.service_account, pod.node, pod.phase)
                world[pod.ref.namespace, pod.ref.name] = fact
            case Delete(ref) if ref.kind == "Pod" and ref.cluster == CLUSTER:
                world.pop((ref.namespace, ref.name), None)
            case Replace(cluster, "Pod", objects) if cluster == CLUSTER:
                world = world_after([item for item in objects if isinstance(item, Put)])
            case Absent(cluster, "Pod") if cluster == CLUSTER:
                world = {}
    return world


_identities = st.one_of(
    st.builds(
        "spiffe://{}/ns/{}/sa/{}".format,
        st.sampled_from(["td", "td", "td", "old.td", "x", "a,b"]),
        st.sampled_from([*_NAMESPACES, ""]),
        st.sampled_from(_ACCOUNTS),
    ),
    st.text(max_size=20),
)
_callers = st.builds(
    Caller,
    st.sampled_from(["istio-system", "istio-system", "ns-a"]),
    st.sampled_from(["ztunnel", "ztunnel", "sa-a"]),
    st.just("td"),
    st.sampled_from([*_NAMES, ""]),
    st.sampled_from([*_UIDS, ""]),
    st.sampled_from(["", "", "n1", "n2"]),
)
_asks = st.builds(Ask, _callers, st.sampled_from([CLUSTER, CLUSTER, CLUSTER, "", "c2"]), _identities)
_trusts = st.builds(
    Trust,
    st.sampled_from([frozenset({AccountRef("istio-system", "ztunnel")}), frozenset()]),
    st.just(frozenset({CLUSTER})),
    st.just(frozenset({"td", "old.td"})),
    st.booleans(),
)


@_some
@given(st.lists(_events(), max_size=14), st.lists(st.tuples(_asks, _trusts), min_size=1, max_size=8))
def test_what_is_issued_runs_on_the_callers_node(history: list[Event], asks: list[tuple[Ask, Trust]]) -> None:
    pods = PodIndex(CLUSTER)
    pods.apply(history)
    world = world_after(history)
    for ask, trust in asks:
        decision = decide(ask, pods, trust)
        if not isinstance(decision, Issue) or not ask.identity:
            assert ask.identity or decision == Issue(ask.caller.identity)
            continue
        assert decision.identity == ask.identity
        own = world[ask.caller.namespace, ask.caller.pod_name]
        assert (own.uid, own.account) == (ask.caller.pod_uid, ask.caller.account)
        assert own.node
        assert ask.caller.node in ("", own.node)
        trust_domain, namespace, account = ask.identity.removeprefix("spiffe://").split("/")[0::2]
        assert trust_domain in trust.trust_domains or not trust.checks_trust_domain
        assert any(
            (fact.account, fact.node) == (account, own.node)
            and fact.phase not in ("Succeeded", "Failed")
            and key[0] == namespace
            for key, fact in world.items()
        )
        assert AccountRef(ask.caller.namespace, ask.caller.account) in trust.accounts


@_some
@given(st.lists(_events(), max_size=14))
def test_the_index_is_what_the_history_leaves_and_empty_when_all_is_gone(history: list[Event]) -> None:
    pods = PodIndex(CLUSTER)
    told: list[Placement] = []
    for event in history:
        told.extend(pods.apply([event]))
    world = world_after(history)
    running = {
        (namespace, fact.account, fact.node)
        for (namespace, _), fact in world.items()
        if fact.account and fact.node and fact.phase not in ("Succeeded", "Failed")
    }
    for namespace in _NAMESPACES:
        for account in _ACCOUNTS:
            for node in _NODES:
                is_there = (namespace, account, node) in running
                assert pods.runs(AccountRef(namespace, account), node) is is_there
    assert len(pods) == len(world)
    assert pods.placements == len(running)
    # Whoever waits for something that runs now was told of it.
    assert running <= {(each.account.namespace, each.account.name, each.node) for each in told}
    pods.apply([Replace(CLUSTER, "Pod", ())])
    assert (len(pods), pods.placements) == (0, 0)


@_some
@given(st.lists(_events(), max_size=10), _asks, _trusts, st.lists(_events(), max_size=4))
def test_what_is_awaited_is_told_when_it_comes(
    history: list[Event], ask: Ask, trust: Trust, later: list[Event]
) -> None:
    pods = PodIndex(CLUSTER)
    pods.apply(history)
    before = decide(ask, pods, trust)
    appeared = [placement for event in later for placement in pods.apply([event])]
    after = decide(ask, pods, trust)
    if isinstance(before, Await) and isinstance(after, Issue) and after.node == before.placement.node:
        assert before.placement in appeared
