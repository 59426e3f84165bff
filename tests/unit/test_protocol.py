"""The delta protocol of one stream, as conversations (xds.md 6, 8, 17, 19 and 22)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from envoy.config.core.v3.base_pb2 import Node as NodeMessage
from hypothesis import given
from hypothesis import strategies as st

from ambientd.push.directory import Directory
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.push.ondemand import Interest
from ambientd.push.rounds import HOLD, Job
from ambientd.xds import protocol
from ambientd.xds.protocol import HOLD_FIRST_S, Advanced, Code, End, Note, Requested, Stream, Wake
from ambientd.xds.requests import Request
from tests.unit.conversation import (
    Conversation,
    Mesh,
    Peer,
    Response,
    ack,
    nack,
    node_message,
    pod,
    policy,
    service,
    subscribe,
    uid,
)

TILL, SHOP, TILL_SERVICE = pod("shop/till", ip="10.0.0.1"), pod("shop/shop", ip="10.0.0.2"), service("shop/till.local")
ALLOW_ALL = policy("shop/allow", "NAMESPACE", "ALLOW")

UNKNOWN_TYPE = "type.googleapis.com/envoy.config.cluster.v3.Cluster"


@pytest.fixture
def mesh() -> Mesh:
    mesh = Mesh()
    mesh.change(TILL, TILL_SERVICE, ALLOW_ALL)
    return mesh


@pytest.fixture
def talk(mesh: Mesh) -> Iterator[Conversation]:
    """A conversation on a new stream; the client is a ztunnel that asks for everything."""
    conversation = Conversation(mesh, Peer(mesh))
    yield conversation
    conversation.check()


@pytest.fixture
def on_demand(mesh: Mesh) -> Iterator[Conversation]:
    """A client that holds nothing until it asks, on a node where nothing runs."""
    conversation = Conversation(mesh, Peer(mesh, is_on_demand=True))
    conversation.connects()
    yield conversation
    conversation.check()


# First answers (xds.md 6.3, 19.1, 22.1-4).


def test_each_type_is_answered_once_with_everything(talk: Conversation) -> None:
    addresses = talk.answers(subscribe(ADDRESS))
    policies = talk.answers(subscribe(AUTHORIZATION))
    assert addresses.names == [TILL.name, TILL_SERVICE.name]
    assert policies.names == [ALLOW_ALL.name]


def test_an_empty_mesh_is_answered_with_an_empty_response_per_type() -> None:
    mesh = Mesh()
    talk = Conversation(mesh, Peer(mesh))
    assert [(response.type_url, response.is_empty) for response in talk.connects()] == [
        (ADDRESS, True),
        (AUTHORIZATION, True),
    ]
    talk.check()


@pytest.mark.parametrize(
    ("names", "unsubscribe", "is_wildcard"),
    [
        ((), (), True),
        (("*",), (), True),
        (("*", TILL.name), (), True),
        ((), ("*",), True),
        (("*",), ("*",), False),
        ((TILL.name,), (), False),
        (("*", TILL.name), ("*",), False),
    ],
)
def test_only_a_star_or_nothing_at_all_asks_for_everything(
    talk: Conversation, names: tuple[str, ...], unsubscribe: tuple[str, ...], is_wildcard: bool
) -> None:
    talk.hears(subscribe(ADDRESS, *names, unsubscribe=unsubscribe))
    talk.waits()
    assert (TILL_SERVICE.name in talk.peer.held[ADDRESS]) == is_wildcard
    assert (talk.peer.stream.watches[ADDRESS].interest is None) == is_wildcard
    talk.peer.held[ADDRESS].clear()
    assert bool(talk.tells(SHOP)) == is_wildcard


def test_names_beside_a_star_that_stand_for_nothing_are_reported_as_removed(talk: Conversation) -> None:
    assert talk.hears(subscribe(ADDRESS, "*", "shop/none.local")) == []
    (response,) = talk.waits()
    assert response.names == [TILL.name, TILL_SERVICE.name]
    assert response.removed == ("shop/none.local",)


def test_an_old_nonce_in_a_first_request_is_no_matter(talk: Conversation) -> None:
    assert talk.answers(subscribe(ADDRESS, nonce="of another stream")).names == [TILL.name, TILL_SERVICE.name]
    assert talk.notes == []


def test_a_repeated_first_request_is_not_answered(talk: Conversation) -> None:
    talk.answers(subscribe(ADDRESS))
    talk.is_silent_after(subscribe(ADDRESS))
    talk.is_silent_after(subscribe(ADDRESS, "*"))


def test_a_late_star_on_a_wildcard_is_not_answered(talk: Conversation) -> None:
    first = talk.answers(subscribe(ADDRESS))
    talk.is_silent_after(Request(ADDRESS, subscribe=("*",), nonce=first.nonce))


# A client that comes back (xds.md 17.5, 19.7, 22.3-4; decisions, First answers of a stream).


def test_a_first_request_with_versions_waits_for_the_other_type_and_both_go_in_a_safe_order(mesh: Mesh) -> None:
    talk = Conversation(mesh, Peer(mesh))
    talk.connects()
    talk.peer.reconnect()
    guarded, guard = pod("shop/till", ip="10.0.0.1", policies=["shop/guard"]), policy("shop/guard")
    mesh.change(guarded, guard)
    addresses, policies = talk.peer.first_requests()
    talk.is_silent_after(addresses)
    assert talk.peer.wakes == [Wake(HOLD_FIRST_S)]
    told = talk.hears(policies)
    assert [(response.type_url, response.names) for response in told] == [
        (AUTHORIZATION, [guard.name]),
        (ADDRESS, [guarded.name]),
    ]
    assert talk.waits() == []
    talk.check()


def test_removals_of_policies_come_last_in_a_message_of_their_own(mesh: Mesh) -> None:
    guarded, guard = pod("shop/till", ip="10.0.0.1", policies=["shop/guard"]), policy("shop/guard")
    mesh.change(guarded, guard)
    talk = Conversation(mesh, Peer(mesh))
    talk.connects()
    talk.peer.reconnect()
    mesh.change(TILL, gone=[guard.name])
    told = talk.connects()
    assert [(response.type_url, response.names, response.removed) for response in told] == [
        (ADDRESS, [TILL.name], ()),
        (AUTHORIZATION, [], (guard.name,)),
    ]
    talk.check()


def test_a_first_request_with_versions_is_answered_alone_when_the_other_type_does_not_come(talk: Conversation) -> None:
    talk.is_silent_after(subscribe(ADDRESS, claims={TILL.name: TILL.version}))
    (response,) = talk.waits()
    assert response.names == [TILL_SERVICE.name]
    talk.peer.held[ADDRESS].clear()


def test_a_client_that_goes_on_asking_is_given_its_first_answer_first(talk: Conversation) -> None:
    talk.is_silent_after(subscribe(ADDRESS, claims={TILL.name: TILL.version}))
    first, second = talk.hears(Request(ADDRESS, subscribe=(TILL.name,)))
    assert (first.names, second.names) == ([TILL_SERVICE.name], [TILL.name])


def test_equal_versions_are_skipped_others_sent_and_names_that_are_gone_removed(mesh: Mesh) -> None:
    talk = Conversation(mesh, Peer(mesh))
    talk.hears(subscribe(ADDRESS, claims={TILL.name: TILL.version, TILL_SERVICE.name: "old", "shop/gone.local": "f00"}))
    told = talk.hears(subscribe(AUTHORIZATION, claims={"shop/gone": "f00", ALLOW_ALL.name: "old"}))
    assert {name for response in told for name in response.resources} == {TILL_SERVICE.name, ALLOW_ALL.name}
    assert {name for response in told for name in response.removed} == {"shop/gone.local", "shop/gone"}


def test_a_client_that_lacks_nothing_is_told_so_for_each_type(mesh: Mesh) -> None:
    talk = Conversation(mesh, Peer(mesh))
    talk.connects()
    talk.peer.reconnect()
    told = talk.connects()
    assert sorted((response.type_url, response.is_empty) for response in told) == [
        (AUTHORIZATION, True),
        (ADDRESS, True),
    ]
    talk.check()


def test_policies_that_a_server_gave_no_version_are_sent_again(mesh: Mesh) -> None:
    talk = Conversation(mesh, Peer(mesh))
    talk.hears(subscribe(ADDRESS))
    assert talk.hears(subscribe(AUTHORIZATION, claims={ALLOW_ALL.name: ""}))[0].names == [ALLOW_ALL.name]
    talk.check()


def test_both_types_lead_to_one_commit_although_one_was_asked_for_later(talk: Conversation) -> None:
    talk.answers(subscribe(ADDRESS))
    guarded, guard = pod("shop/till", ip="10.0.0.1", policies=["shop/guard"]), policy("shop/guard")
    talk.mesh.change(guarded, guard)
    # Nobody told the stream yet that there is something new.
    addresses, policies = talk.hears(subscribe(AUTHORIZATION))
    assert addresses.names == [guarded.name]
    assert policies.names == [ALLOW_ALL.name, guard.name]


# Acknowledgements (xds.md 6.3, 22.5-7).


def test_an_acknowledgement_is_not_answered(talk: Conversation) -> None:
    first = talk.answers(subscribe(ADDRESS))
    talk.is_silent_after(ack(first))
    assert talk.peer.stream.watches[ADDRESS].nonce_acked == first.nonce
    assert talk.notes == []


def test_a_rejection_is_kept_until_the_next_acknowledgement_and_not_answered(talk: Conversation) -> None:
    first = talk.answers(subscribe(ADDRESS))
    talk.is_silent_after(nack(first, "shop/till: unsupported"))
    watch = talk.peer.stream.watches[ADDRESS]
    assert (watch.last_error, watch.nonce_acked) == ("shop/till: unsupported", "")
    assert talk.notes == [Note("rejected", ADDRESS, "shop/till: unsupported")]
    (second,) = talk.tells(SHOP)
    assert second.names == [SHOP.name]
    talk.is_silent_after(ack(second))
    assert watch.last_error == ""


def test_a_rejection_without_a_message_is_a_rejection(talk: Conversation) -> None:
    first = talk.answers(subscribe(ADDRESS))
    talk.is_silent_after(nack(first, ""))
    assert talk.peer.stream.watches[ADDRESS].last_error != ""


def test_a_rejection_says_nothing_about_subscriptions(on_demand: Conversation) -> None:
    first = on_demand.answers(Request(ADDRESS, subscribe=(TILL.name,)))
    on_demand.is_silent_after(Request(ADDRESS, unsubscribe=(TILL.name,), nonce=first.nonce, error="no"))
    assert [response.names for response in on_demand.tells(pod("shop/till", ip="10.0.0.9"))] == [[TILL.name]]


@pytest.mark.parametrize("type_url", [ADDRESS, AUTHORIZATION, UNKNOWN_TYPE])
def test_a_rejection_of_a_type_that_is_not_watched_is_only_noted(talk: Conversation, type_url: str) -> None:
    talk.is_silent_after(Request(type_url, node_message(), error="no"))
    assert [note.what for note in talk.notes] == ["rejection of a type that is not watched"]
    assert talk.peer.end is None


def test_a_stale_nonce_is_counted_and_not_answered(talk: Conversation) -> None:
    first = talk.answers(subscribe(ADDRESS))
    (second,) = talk.tells(SHOP)
    talk.is_silent_after(ack(first))
    assert talk.notes == [Note("expired nonce", ADDRESS)]
    assert talk.peer.stream.watches[ADDRESS].nonce_acked == ""
    talk.is_silent_after(ack(second))
    assert talk.peer.stream.watches[ADDRESS].nonce_acked == second.nonce


def test_a_subscription_with_a_stale_nonce_is_answered(on_demand: Conversation) -> None:
    response = on_demand.answers(Request(ADDRESS, subscribe=(TILL.name,), nonce="another"))
    assert response.names == [TILL.name]
    assert on_demand.notes == [Note("expired nonce", ADDRESS)]


def test_an_empty_nonce_without_a_change_is_not_answered(talk: Conversation) -> None:
    talk.answers(subscribe(ADDRESS))
    talk.is_silent_after(Request(ADDRESS))
    assert talk.notes == []


def test_acknowledging_the_parts_of_one_round_one_by_one_is_no_surprise(mesh: Mesh) -> None:
    mesh.change(pod("shop/till", ip="10.0.0.1", policies=["shop/p"]), policy("shop/p", port=80))
    talk = Conversation(mesh, Peer(mesh))
    talk.connects()
    told = talk.tells(pod("shop/till", ip="10.0.0.1", policies=["shop/q"]), policy("shop/q", port=81), gone=["shop/p"])
    of_policies = [response for response in told if response.type_url == AUTHORIZATION]
    assert len(of_policies) == 2
    for response in told:
        talk.is_silent_after(ack(response))
    assert talk.notes == []
    talk.check()


# Changes (xds.md 22.8-11).


def test_a_change_is_sent_once(talk: Conversation) -> None:
    talk.connects()
    assert [response.names for response in talk.tells(SHOP)] == [[SHOP.name]]
    assert talk.peer.hear(Advanced()) == []


def test_a_removal_is_by_primary_name(talk: Conversation) -> None:
    talk.connects()
    assert [response.removed for response in talk.tells(gone=[TILL.name])] == [(TILL.name,)]
    assert [response.removed for response in talk.tells(gone=[ALLOW_ALL.name])] == [(ALLOW_ALL.name,)]


def test_a_commit_that_changes_nothing_for_a_client_sends_it_nothing(on_demand: Conversation) -> None:
    assert on_demand.tells(SHOP) == []


def test_a_policy_and_the_workload_that_lists_it_come_in_this_order(talk: Conversation) -> None:
    talk.connects()
    guarded, guard = pod("shop/till", ip="10.0.0.1", policies=["shop/guard"]), policy("shop/guard")
    assert [response.names for response in talk.tells(guarded, guard)] == [[guard.name], [guarded.name]]
    assert [response.names or list(response.removed) for response in talk.tells(TILL, gone=[guard.name])] == [
        [TILL.name],
        [guard.name],
    ]


def test_what_changed_many_times_while_a_client_did_not_read_is_one_round(talk: Conversation) -> None:
    talk.connects()
    talk.mesh.change(SHOP)
    talk.peer.take(Advanced())
    assert talk.peer.proceed(parts=0) == []  # the part is on its way
    for port in range(1, 6):
        talk.mesh.change(service("shop/till.local", port=port))
        talk.peer.take(Advanced())
    talk.mesh.change(gone=[TILL.name])
    (first, second) = talk.peer.proceed()
    assert first.names == [SHOP.name]
    assert (second.names, second.removed) == ([TILL_SERVICE.name], (TILL.name,))


def test_requests_are_answered_before_rounds(talk: Conversation) -> None:
    talk.connects()
    talk.mesh.change(SHOP)
    talk.peer.take(Advanced())
    talk.peer.proceed(parts=0)
    talk.mesh.change(pod("shop/late"))
    talk.peer.take(Advanced())
    talk.peer.take(Requested(Request(ADDRESS, subscribe=("shop/none.local",))))
    on_its_way, answer = talk.peer.proceed()
    assert on_its_way.names == [SHOP.name]
    # The answer is of the newest commit, so it carries what else is new.
    assert (answer.names, answer.removed) == ([uid("shop/late")], ("shop/none.local",))


def test_a_round_is_written_to_its_end_before_anything_newer_is_looked_at(talk: Conversation) -> None:
    talk.connects()
    talk.mesh.change(pod("shop/till", ip="10.0.0.1", policies=["shop/guard"]), policy("shop/guard"))
    talk.peer.take(Advanced())
    (first,) = talk.peer.proceed(parts=1)
    talk.mesh.change(TILL, gone=["shop/guard"])
    talk.peer.take(Advanced())
    rest = talk.peer.proceed()
    assert [first.names, *(response.names for response in rest)] == [["shop/guard"], [TILL.name], [TILL.name], []]
    assert rest[-1].removed == ("shop/guard",)


def test_a_client_that_fell_below_what_is_remembered_is_ended() -> None:
    mesh = Mesh(most_tombstones=1)
    mesh.change(TILL, SHOP, TILL_SERVICE)
    peer, other = Peer(mesh), Peer(mesh)
    for request in peer.first_requests():
        peer.hear(Requested(request))
        other.hear(Requested(request))
    mesh.change(gone=[TILL.name])
    mesh.change(gone=[SHOP.name])
    for client in (peer, other):
        client.hear(Advanced())
        assert client.end is not None
        assert client.end.code is Code.UNAVAILABLE
        client.reconnect()
        for request in client.first_requests():
            client.hear(Requested(request))
        client.assert_holds_what_is_served()


def test_a_stream_that_has_ended_says_nothing_more(talk: Conversation) -> None:
    talk.hears(Request(ADDRESS))
    assert talk.peer.end == End(Code.INVALID_ARGUMENT, "missing node information")
    assert talk.hears(subscribe(ADDRESS)) == []
    assert talk.tells(SHOP) == []


def test_a_commit_while_the_first_answer_is_being_made_is_not_lost(mesh: Mesh) -> None:
    talk = Conversation(mesh, Peer(mesh))
    for request in talk.peer.first_requests():
        talk.peer.take(Requested(request))
    talk.peer.proceed(steps=1)
    mesh.change(gone=[TILL.name])
    mesh.change(SHOP)
    talk.peer.proceed()
    talk.check()


# Names on a wildcard (xds.md 6.4, 18.28, 22.13).


def test_a_name_on_a_wildcard_is_answered_alone_and_not_kept(talk: Conversation) -> None:
    talk.connects()
    response = talk.answers(Request(ADDRESS, subscribe=(TILL.name, "shop/none.local")))
    assert (response.names, response.removed) == ([TILL.name], ("shop/none.local",))
    policies = talk.answers(Request(AUTHORIZATION, subscribe=(ALLOW_ALL.name, "shop/none")))
    assert (policies.names, policies.removed) == ([ALLOW_ALL.name], ("shop/none",))
    assert talk.peer.stream.watches[ADDRESS].interest is None


def test_unsubscribing_on_a_wildcard_changes_nothing(talk: Conversation) -> None:
    talk.connects()
    talk.is_silent_after(Request(ADDRESS, unsubscribe=("*", TILL.name)))
    assert [response.names for response in talk.tells(pod("shop/till", ip="10.0.0.9"))] == [[TILL.name]]


def test_a_named_answer_never_shows_an_address_before_the_policy_that_guards_it(talk: Conversation) -> None:
    talk.connects()
    guarded, guard = pod("shop/till", ip="10.0.0.1", policies=["shop/guard"]), policy("shop/guard")
    talk.mesh.change(guarded, guard)
    told = talk.hears(Request(ADDRESS, subscribe=(TILL.name,)))
    assert [response.names for response in told] == [[guard.name], [guarded.name]]


# On demand (xds.md 8.5, 22.2 and 22.14).


def test_a_client_that_asks_for_nothing_is_told_nothing(on_demand: Conversation) -> None:
    assert on_demand.peer.held[ADDRESS] == {}
    assert on_demand.tells(SHOP) == []


@given(
    st.lists(st.sampled_from(("/10.0.0.1", "/10.0.0.01", "a", "b", "c"))),
    st.sets(st.sampled_from(("a", "b", "/10.0.0.1"))),
    st.lists(st.sampled_from(("/10.0.0.1", "/10.0.0.01", "a", "b", "d"))),
)
def test_whether_a_subscription_ended_is_told(asked: list[str], held: set[str], gone: list[str]) -> None:
    interest = Interest("", wakes_by_removal=True)
    view = Mesh().feed.addresses
    Job(interest.find(asked, Directory(), view)).run()
    interest.held |= held
    before = interest.subscriptions()
    assert all(interest.knows(name) for name in before)
    assert Job(interest.unsubscribe(gone, view)).run() == (interest.subscriptions() != before)


def test_a_policy_that_is_asked_for_by_name_brings_no_addresses(on_demand: Conversation) -> None:
    on_demand.mesh.change(pod("shop/other", ip="10.0.0.9"))
    response = on_demand.answers(Request(AUTHORIZATION, subscribe=("shop/none",)))
    assert (response.type_url, response.removed) == (AUTHORIZATION, ("shop/none",))
    assert on_demand.peer.held[ADDRESS] == {}


def test_what_runs_on_the_node_comes_unasked(mesh: Mesh) -> None:
    mesh.change(pod("shop/near", node="n1"), pod("shop/far", node="n2"))
    talk = Conversation(mesh, Peer(mesh, node=node_message(node_name="n1"), is_on_demand=True))
    assert talk.connects()[0].names == [uid("shop/near")]
    assert [response.names for response in talk.tells(pod("shop/nearer", node="n1"))] == [[uid("shop/nearer")]]
    talk.check()


def test_a_hit_by_address_has_primary_name_and_aliases_and_wakes_who_waits_for_the_key(
    on_demand: Conversation,
) -> None:
    response = on_demand.answers(Request(ADDRESS, subscribe=("/10.0.0.1",)))
    assert response.resources[TILL.name].aliases == ("/10.0.0.1",)
    assert response.removed == ("/10.0.0.1",)


def test_only_a_ztunnel_is_woken_by_a_removal(mesh: Mesh) -> None:
    talk = Conversation(mesh, Peer(mesh, node=node_message("agentgateway"), is_on_demand=True))
    talk.connects()
    response = talk.answers(Request(ADDRESS, subscribe=("/10.0.0.1",)))
    assert (response.names, response.removed) == ([TILL.name], ())
    talk.check()


def test_another_spelling_of_an_address_is_the_same_key(mesh: Mesh) -> None:
    mesh.change(service("shop/v4.local", ip="10.1.0.1"))
    talk = Conversation(mesh, Peer(mesh, is_on_demand=True))
    talk.connects()
    talk.answers(Request(ADDRESS, subscribe=("/fd00:0::000a",)))
    interest = talk.peer.stream.watches[ADDRESS].interest
    assert interest is not None
    assert interest.subscriptions() == ["/fd00::a"]
    talk.check()


def test_a_service_brings_its_workloads_and_those_that_join_it_later(on_demand: Conversation) -> None:
    vip = service("shop/vip.local", ip="10.9.0.1")
    on_demand.mesh.change(vip, pod("shop/one", services=[vip.name]))
    assert on_demand.hears(Request(ADDRESS, subscribe=("/10.9.0.1",)))[-1].names == [uid("shop/one"), vip.name]
    joins, leaves = pod("shop/two", services=[vip.name]), pod("shop/one")
    assert [response.names for response in on_demand.tells(joins)] == [[joins.name]]
    assert [response.names for response in on_demand.tells(leaves)] == [[leaves.name]]


def test_an_address_that_was_missed_is_sent_when_it_appears(on_demand: Conversation) -> None:
    assert on_demand.answers(Request(ADDRESS, subscribe=("/10.0.0.77",))).removed == ("/10.0.0.77",)
    late = pod("shop/late", ip="10.0.0.77", node="n7")
    (response,) = on_demand.tells(late)
    assert response.resources[late.name].aliases == ("/10.0.0.77",)


def test_a_name_that_is_asked_for_again_is_answered_again(on_demand: Conversation) -> None:
    for _ in range(2):
        assert on_demand.answers(Request(ADDRESS, subscribe=(TILL.name,))).names == [TILL.name]
    for _ in range(2):
        assert on_demand.answers(Request(ADDRESS, subscribe=("/10.9.9.9",))).removed == ("/10.9.9.9",)


def test_what_is_gone_is_removed_by_primary_name_and_its_successor_sent(on_demand: Conversation) -> None:
    on_demand.answers(Request(ADDRESS, subscribe=("/10.0.0.1",)))
    assert [response.removed for response in on_demand.tells(gone=[TILL.name])] == [(TILL.name,)]
    assert [response.names for response in on_demand.tells(TILL)] == [[TILL.name]]


def test_unsubscribing_a_key_removes_nothing_and_what_it_stood_for_is_still_followed(on_demand: Conversation) -> None:
    on_demand.answers(Request(ADDRESS, subscribe=("/10.0.0.1",)))
    for response in on_demand.hears(Request(ADDRESS, unsubscribe=("/10.0.0.1",))):
        assert response.is_empty
    assert [response.names for response in on_demand.tells(pod("shop/till", ip="10.0.0.3"))] == [[TILL.name]]


def test_unsubscribing_a_service_by_name_does_not_end_what_its_address_brings(on_demand: Conversation) -> None:
    vip = service("shop/vip.local", ip="10.9.0.1")
    on_demand.mesh.change(vip)
    on_demand.hears(Request(ADDRESS, subscribe=("/10.9.0.1",)))
    on_demand.hears(Request(ADDRESS, unsubscribe=(vip.name,)))
    joins = pod("shop/joins", services=[vip.name])
    assert [response.names for response in on_demand.tells(joins)] == [[joins.name]]
    on_demand.hears(Request(ADDRESS, unsubscribe=(vip.name, "/10.9.0.1")))
    assert on_demand.tells(pod("shop/late", services=[vip.name])) == []


def test_unsubscribing_what_was_never_asked_for_is_not_answered(on_demand: Conversation) -> None:
    on_demand.is_silent_after(Request(ADDRESS, unsubscribe=("/10.9.9.9",)))


@pytest.mark.parametrize(
    ("unsubscribe", "claims"),
    [
        ((), {TILL.name: TILL.version}),
        ((TILL.name,), {TILL.name: TILL.version}),
        ((), {"*": "f00"}),
        (("*",), {}),
    ],
    ids=["known", "known and taken back", "star", "star taken back"],
)
def test_what_a_later_request_claims_is_asked_for_only_if_it_is_new(
    on_demand: Conversation, unsubscribe: tuple[str, ...], claims: dict[str, str]
) -> None:
    on_demand.answers(Request(ADDRESS, subscribe=(TILL.name,)))
    for response in on_demand.hears(Request(ADDRESS, unsubscribe=unsubscribe, claims=claims)):
        assert response.is_empty
    for name in unsubscribe:
        on_demand.peer.held[ADDRESS].pop(name, None)
    told = on_demand.tells(pod("shop/till", ip="10.0.0.3"))
    assert [response.names for response in told] == ([] if TILL.name in unsubscribe else [[TILL.name]])


def test_what_a_later_request_claims_anew_is_answered(on_demand: Conversation) -> None:
    (response,) = on_demand.hears(Request(ADDRESS, claims={TILL.name: "old", "/10.9.9.9": "f00"}))
    assert (response.names, response.removed) == ([TILL.name], ("/10.9.9.9",))
    on_demand.is_silent_after(Request(ADDRESS, claims={TILL.name: TILL.version}))


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are answered in twos."""
    monkeypatch.setattr(protocol, "_ASKED_AT_ONCE", 2)


_MANY = (TILL.name, "/10.9.9.1", "/10.9.9.2", "/10.0.0.1", "/10.9.9.3")


@pytest.mark.usefixtures("few_at_once")
def test_many_names_are_answered_piece_by_piece(on_demand: Conversation) -> None:
    told = on_demand.hears(Request(ADDRESS, subscribe=_MANY))
    assert [(response.names, response.removed) for response in told] == [
        ([TILL.name], ("/10.9.9.1",)),
        ([TILL.name], ("/10.9.9.2", "/10.0.0.1")),
        ([], ("/10.9.9.3",)),
    ]
    late = pod("shop/late", ip="10.9.9.3", node="n7")
    assert [response.names for response in on_demand.tells(late)] == [[late.name]]


@pytest.mark.usefixtures("few_at_once")
def test_the_pieces_of_an_answer_may_be_acknowledged_late(on_demand: Conversation) -> None:
    peer = on_demand.peer
    peer.take(Requested(Request(ADDRESS, subscribe=_MANY)))
    told = peer.proceed()
    assert len(told) == 3
    for response in told:
        peer.take(Requested(Request(ADDRESS, nonce=response.nonce)))
    assert on_demand.notes == []


@pytest.mark.usefixtures("few_at_once")
def test_many_names_of_a_first_request_are_answered_piece_by_piece(mesh: Mesh) -> None:
    talk = Conversation(mesh, Peer(mesh, is_on_demand=True))
    told = talk.hears(subscribe(ADDRESS, *_MANY))
    assert [name for response in told for name in response.removed] == [*_MANY[1:4], _MANY[4]]
    assert len(told) == 3
    talk.check()


@pytest.mark.usefixtures("few_at_once")
def test_many_names_of_a_wildcard_client_are_answered_piece_by_piece(talk: Conversation) -> None:
    talk.connects()
    told = talk.hears(Request(ADDRESS, subscribe=_MANY))
    assert [len(response.names) + len(response.removed) for response in told] == [2, 2, 1]


@pytest.mark.usefixtures("few_at_once")
def test_an_on_demand_client_that_comes_back_with_many_names_is_answered_at_once(mesh: Mesh) -> None:
    old = pod("shop/till", ip="10.0.0.1", policies=["shop/old"])
    mesh.change(old, policy("shop/old"))
    mesh.change(pod("shop/till", ip="10.0.0.1", policies=["shop/new"]), policy("shop/new"), gone=["shop/old"])
    talk = Conversation(mesh, Peer(mesh, is_on_demand=True))
    talk.hears(subscribe(ADDRESS, *_MANY[1:], TILL.name, claims={TILL.name: old.version}))
    told = talk.hears(subscribe(AUTHORIZATION, claims={"shop/old": policy("shop/old").version, ALLOW_ALL.name: "x"}))
    assert "shop/old" in told[-1].removed


def test_a_request_for_more_policies_than_there_can_be_ends_the_stream(talk: Conversation) -> None:
    talk.hears(subscribe(AUTHORIZATION, claims={f"shop/{n}": "x" for n in range(100_001)}))
    assert talk.peer.end == End(Code.INVALID_ARGUMENT, "a request may name at most 100000 policies")


@pytest.mark.parametrize(
    "request_",
    [Request(ADDRESS, subscribe=("*",)), Request(ADDRESS, subscribe=("/10.9.9.9",), unsubscribe=("/10.9.9.9",))],
)
def test_a_late_star_and_a_name_both_ways_remove_nothing(on_demand: Conversation, request_: Request) -> None:
    on_demand.answers(Request(ADDRESS, subscribe=(TILL.name,)))
    for response in on_demand.hears(request_):
        assert response.is_empty
    assert on_demand.tells(SHOP) == []


def test_a_waypoint_comes_with_what_names_it(on_demand: Conversation) -> None:
    waypoint = service("shop/waypoint.local", ip="10.8.0.1")
    behind = pod("shop/waypoint", services=[waypoint.name])
    user = pod("shop/user", waypoint=waypoint.name)
    on_demand.mesh.change(waypoint, behind, user)
    told = on_demand.hears(Request(ADDRESS, subscribe=(user.name,)))
    assert told[-1].names == sorted([waypoint.name, behind.name, user.name])
    other = pod("shop/waypoint-2", services=[waypoint.name])
    assert [response.names for response in on_demand.tells(other)] == [[other.name]]


def test_an_answer_on_demand_never_shows_an_address_before_the_policy_that_guards_it(on_demand: Conversation) -> None:
    guarded, guard = pod("shop/new", ip="10.0.0.5", policies=["shop/guard"]), policy("shop/guard")
    on_demand.mesh.change(guarded, guard)
    told = on_demand.hears(Request(ADDRESS, subscribe=("/10.0.0.5",)))
    assert [response.names for response in told] == [[guard.name], [guarded.name]]


def test_an_on_demand_client_that_comes_back_is_answered_in_a_safe_order(on_demand: Conversation) -> None:
    old = pod("shop/till", ip="10.0.0.1", policies=["shop/old"])
    new = pod("shop/till", ip="10.0.0.1", policies=["shop/new"])
    on_demand.tells(old, policy("shop/old"))
    on_demand.answers(Request(ADDRESS, subscribe=(TILL.name,)))
    on_demand.peer.reconnect()
    on_demand.mesh.change(new, policy("shop/new"), gone=["shop/old"])
    told = on_demand.connects()
    assert [response.names or list(response.removed) for response in told] == [["shop/new"], [TILL.name], ["shop/old"]]


# Other types, and clients that cannot be served (xds.md 3.5, 5, 6.3).


@pytest.mark.parametrize("prefix", ["", "type.googleapis.com/"])
@pytest.mark.parametrize("error", [None, "unhealthy"])
def test_health_information_is_never_answered(talk: Conversation, prefix: str, error: str | None) -> None:
    health = Request(f"{prefix}istio.v1.HealthInformation", node_message(), error=error)
    talk.is_silent_after(health)
    talk.connects()
    talk.is_silent_after(health)
    assert talk.notes == []


def test_a_type_that_is_not_served_is_answered_with_nothing_once(talk: Conversation) -> None:
    response = talk.answers(subscribe(UNKNOWN_TYPE))
    assert (response.type_url, response.is_empty) == (UNKNOWN_TYPE, True)
    assert talk.notes == [Note("unknown type", UNKNOWN_TYPE)]
    talk.is_silent_after(ack(response))
    talk.is_silent_after(Request(UNKNOWN_TYPE, subscribe=("x",)))
    assert talk.tells(SHOP) == []
    assert talk.answers(subscribe(ADDRESS)).names == [SHOP.name, TILL.name, TILL_SERVICE.name]


def test_a_stream_may_not_name_types_without_end(talk: Conversation) -> None:
    for number in range(100):
        talk.answers(subscribe(f"type.googleapis.com/envoy.Unknown{number}"))
    talk.is_silent_after(subscribe(UNKNOWN_TYPE))
    assert talk.peer.end == End(Code.INVALID_ARGUMENT, "a stream may name at most 100 types")


def test_a_client_of_other_types_only_does_not_hold_the_feed_back(talk: Conversation) -> None:
    talk.answers(subscribe(UNKNOWN_TYPE))
    talk.mesh.change(SHOP)
    assert talk.mesh.feed.oldest_cursor() == talk.mesh.feed.head


def test_the_node_of_the_first_request_counts(talk: Conversation) -> None:
    talk.answers(subscribe(ADDRESS))
    talk.is_silent_after(Request(ADDRESS, NodeMessage(id="nonsense")))
    assert talk.peer.stream.node is not None
    assert talk.peer.stream.node.type == "ztunnel"


def test_ztunnels_are_refused_where_ambient_is_off(mesh: Mesh) -> None:
    stream = Stream(1, mesh.feed, serves_ztunnels=False)
    assert stream.handle(Requested(subscribe(ADDRESS))) == [
        End(Code.UNKNOWN, "ztunnel requires PILOT_ENABLE_AMBIENT=true")
    ]


def test_two_clients_share_what_is_sent_to_both(mesh: Mesh) -> None:
    peers = [Peer(mesh), Peer(mesh)]
    firsts = [[peer.hear(Requested(request)) for request in peer.first_requests()] for peer in peers]
    mesh.change(SHOP)
    rounds: list[list[Response]] = [peer.hear(Advanced()) for peer in peers]
    assert rounds[0] == rounds[1]
    assert [len(first) for first in firsts] == [2, 2]


def test_a_workload_that_no_order_is_safe_for_is_held() -> None:
    mesh = Mesh()
    mesh.change(pod("shop/till", policies=["shop/p", "root/q"]), policy("shop/p", action="ALLOW"), policy("root/q"))
    talk = Conversation(mesh, Peer(mesh))
    talk.connects()
    told = talk.tells(
        pod("shop/till", policies=["shop/p"]),
        policy("shop/p", action="ALLOW", port=81),
        policy("root/q", "NAMESPACE", "ALLOW"),
    )
    # With the old list nothing denies any more what the new rules allow; with the new one nothing denies yet.
    assert [response.names for response in told] == [[HOLD], [TILL.name], ["root/q", "shop/p"], [TILL.name], []]
    assert told[-1].removed == (HOLD,)
    talk.check()
