"""Policies that follow addresses wait until the client has answered these, and a moment more: it looks up a workload
and its policies at two moments, and would judge a connection by the old one and the new ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec import structs

from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.xds.protocol import ANSWER_S, SETTLE_S, HalfClosed, Note, Wake, Woke
from ambientd.xds.requests import Request
from tests.unit.conversation import Conversation, Mesh, Peer, Response, ack, nack, pod, policy, service, subscribe

OLD, NEW = policy("shop/old"), policy("shop/new")
BEFORE, AFTER = (pod("shop/till", ip="10.0.0.1", policies=[each.name]) for each in (OLD, NEW))
OTHER = policy("shop/other", "NAMESPACE")


@pytest.fixture
def talk() -> Iterator[Conversation]:
    """A client that holds a workload with its policy, and answers when it is told to."""
    mesh = Mesh()
    mesh.change(BEFORE, OLD)
    conversation = Conversation(mesh, Peer(mesh))
    for response in conversation.connects():
        conversation.is_silent_after(ack(response))
    conversation.peer.is_waited_for = True
    yield conversation
    conversation.check()


def replaced(talk: Conversation) -> Response:
    """One policy takes the place of another. The client has been sent the new one and the address that lists it, which
    is given back; the removal of the old one waits."""
    first, addresses = talk.tells(AFTER, NEW, gone=[OLD.name])
    assert (first.names, addresses.names) == ([NEW.name], [AFTER.name])
    assert talk.peer.wakes == [Wake(ANSWER_S, addresses.nonce)]
    talk.is_silent_after(ack(first))
    return addresses


def after(talk: Conversation, answer: Request) -> list[Response]:
    """What it is sent a moment after this answer."""
    talk.is_silent_after(answer)
    assert talk.peer.wakes[-1] == Wake(SETTLE_S, answer.nonce)
    return talk.peer.hear(Woke(answer.nonce))


def test_they_follow_its_acknowledgement(talk: Conversation) -> None:
    addresses = replaced(talk)
    (last,) = after(talk, ack(addresses))
    assert (last.type_url, last.removed) == (AUTHORIZATION, (OLD.name,))


def test_they_follow_its_rejection(talk: Conversation) -> None:
    addresses = replaced(talk)
    (last,) = after(talk, nack(addresses, "no"))
    assert last.removed == (OLD.name,)
    assert talk.notes == [Note("rejected", ADDRESS, "no")]


def test_they_follow_when_it_answers_nothing(talk: Conversation) -> None:
    addresses = replaced(talk)
    (last,) = talk.peer.hear(Woke(addresses.nonce))
    assert last.removed == (OLD.name,)


def test_they_follow_when_it_can_answer_nothing_any_more(talk: Conversation) -> None:
    replaced(talk)
    (last,) = talk.peer.hear(HalfClosed())
    assert last.removed == (OLD.name,)


def test_the_end_of_another_wait_and_an_answer_to_another_part_change_nothing(talk: Conversation) -> None:
    addresses = replaced(talk)
    assert talk.peer.hear(Woke()) == talk.peer.hear(Woke("another")) == []
    talk.is_silent_after(subscribe(ADDRESS, nonce="another"))
    assert len(after(talk, ack(addresses))) == 1


def test_nothing_newer_overtakes_them(talk: Conversation) -> None:
    addresses = replaced(talk)
    assert talk.tells(service("shop/till.local")) == []
    last, newer = after(talk, ack(addresses))
    assert (last.removed, newer.names) == ((OLD.name,), ["shop/till.local"])


def test_a_later_round_waits_too(talk: Conversation) -> None:
    (addresses,) = talk.tells(service("shop/till.local"))
    assert talk.tells(OTHER) == []
    (policies,) = after(talk, ack(addresses))
    assert policies.names == [OTHER.name]


def test_after_addresses_that_were_answered_before_they_wait_a_moment_and_only_once(talk: Conversation) -> None:
    (addresses,) = talk.tells(service("shop/till.local"))
    talk.is_silent_after(ack(addresses))
    assert talk.tells(OTHER) == []
    assert talk.peer.wakes == [Wake(SETTLE_S, addresses.nonce)]
    (policies,) = talk.peer.hear(Woke(addresses.nonce))
    assert policies.names == [OTHER.name]
    (again,) = talk.tells(policy(OTHER.name, "NAMESPACE", port=81))
    assert again.names == [OTHER.name]


def test_policies_without_addresses_before_them_wait_for_nothing(talk: Conversation) -> None:
    (first,) = talk.tells(OTHER)
    (second,) = talk.tells(policy(OTHER.name, "NAMESPACE", port=81))
    assert [first.names, second.names] == [[OTHER.name], [OTHER.name]]
    assert talk.peer.wakes == []


def test_addresses_alone_wait_for_nothing(talk: Conversation) -> None:
    for port in (80, 81, 82):
        (response,) = talk.tells(service("shop/till.local", port=port))
        assert response.type_url == ADDRESS
    # A new policy comes before the address that lists it, and so waits for the addresses before both.
    assert talk.tells(pod("shop/late", policies=["shop/late"]), policy("shop/late")) == []
    guard, late = after(talk, ack(response))
    assert (guard.type_url, late.type_url) == (AUTHORIZATION, ADDRESS)


def test_a_client_that_begins_is_not_waited_for() -> None:
    mesh = Mesh()
    mesh.change(BEFORE, OLD)
    for is_on_demand in (False, True):
        talk = Conversation(mesh, Peer(mesh, is_on_demand=is_on_demand))
        talk.peer.is_waited_for = True
        assert [response.type_url for response in talk.connects()] == [ADDRESS, AUTHORIZATION]
        assert talk.peer.wakes == []


def test_a_client_that_comes_back_with_what_it_holds_is_waited_for(talk: Conversation) -> None:
    talk.mesh.change(AFTER, NEW, gone=[OLD.name])
    talk.peer.reconnect()
    first, addresses = [response for request in talk.peer.first_requests() for response in talk.hears(request)]
    assert (first.names, addresses.names) == ([NEW.name], [AFTER.name])
    (last,) = after(talk, ack(addresses))
    assert last.removed == (OLD.name,)


def test_a_stream_that_waits_is_not_at_rest(talk: Conversation) -> None:
    addresses = replaced(talk)
    assert not talk.peer.stream.is_at_rest
    assert len(after(talk, ack(addresses))) == 1
    assert talk.peer.stream.is_at_rest


def test_what_is_asked_meanwhile_is_bounded_by_number_and_by_size(talk: Conversation) -> None:
    addresses = replaced(talk)
    stream = talk.peer.stream
    small = subscribe(ADDRESS, "shop/none.local")
    asked = 0
    while not stream.is_full:
        talk.is_silent_after(small)
        asked += 1
    assert asked == 100
    assert len(after(talk, ack(addresses))) == 1 + asked
    assert not stream.is_full

    (addresses,) = talk.tells(service("shop/till.local"))
    assert talk.tells(OTHER) == []
    talk.is_silent_after(structs.replace(small, size_bytes=1 << 20))
    assert stream.is_full
    after(talk, ack(addresses))
    assert not stream.is_full
