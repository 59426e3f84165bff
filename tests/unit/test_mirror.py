"""What lists and lines of a watch mean as events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ambientd.kube.errors import Garbled, Refused
from ambientd.resources.events import Delete, Event, Invalid, Put
from ambientd.resources.ref import Ref
from ambientd.sources.mirror import Mirror, Relist, Why, is_older

A, B = Ref("c1", "Pod", "shop", "a"), Ref("c1", "Pod", "shop", "b")


def pod(name: str, version: str, **metadata: Any) -> bytes:
    return json.dumps(
        {"metadata": {"namespace": "shop", "name": name, "resourceVersion": version, **metadata}}
    ).encode()


def line(type: str, manifest: bytes) -> bytes:
    return b'{"type":"%b","object":%b}' % (type.encode(), manifest)


def bookmark(version: str) -> bytes:
    return line("BOOKMARK", b'{"metadata":{"resourceVersion":"%b"}}' % version.encode())


def error(code: int, message: str = "scripted", **more: Any) -> bytes:
    return line("ERROR", json.dumps({"kind": "Status", "code": code, "message": message, **more}).encode())


def replace(mirror: Mirror, version: str, *objects: bytes) -> list[Event]:
    listing = mirror.begin(version)
    listing.take(objects, 1.0)
    return mirror.replace(listing)


def names(events: list[Event]) -> list[str]:
    return [
        f"-{event.ref.name}" if isinstance(event, Delete) else f"+{event.object.ref.name}"
        for event in events
        if isinstance(event, Delete | Put)
    ]


@pytest.fixture
def mirror() -> Mirror:
    """Holds two pods, as of version 10."""
    mirror = Mirror("c1", "Pod")
    replace(mirror, "10", pod("a", "4"), pod("b", "7"))
    return mirror


def test_a_first_list_is_all_new() -> None:
    mirror = Mirror("c1", "Pod")
    assert names(replace(mirror, "10", pod("a", "4"), pod("b", "7"))) == ["+a", "+b"]
    assert (mirror.version, len(mirror)) == ("10", 2)


def test_a_list_tells_only_what_changed(mirror: Mirror) -> None:
    assert names(replace(mirror, "20", pod("b", "15"), pod("c", "12"))) == ["+b", "+c", "-a"]
    assert replace(mirror, "21", pod("b", "15"), pod("c", "12")) == []


def test_an_object_that_was_made_anew_is_told(mirror: Mirror) -> None:
    assert names(replace(mirror, "20", pod("a", "18", uid="other"), pod("b", "7"))) == ["+a"]


def test_a_list_that_does_not_end_changes_nothing(mirror: Mirror) -> None:
    mirror.begin("20").take([pod("c", "12")], 1.0)
    assert (mirror.version, len(mirror)) == ("10", 2)
    assert names(replace(mirror, "20", pod("a", "4"), pod("b", "7"))) == []


def test_lines_are_followed_in_their_order(mirror: Mirror) -> None:
    added = mirror.follow(line("ADDED", pod("c", "11")), 2.0)
    assert isinstance(added, Put)
    assert (added.object.ref.name, added.resource_version, added.seen_s) == ("c", "11", 2.0)
    assert mirror.follow(line("DELETED", pod("a", "12")), 3.0) == Delete(A, "12", 3.0)
    assert (mirror.version, len(mirror)) == ("12", 2)


def test_a_bookmark_moves_the_version_and_nothing_else(mirror: Mirror) -> None:
    assert mirror.follow(bookmark("30"), 2.0) is None
    assert (mirror.version, len(mirror)) == ("30", 2)


def test_a_watch_goes_on_from_the_last_event_and_never_from_an_object_of_a_list(mirror: Mirror) -> None:
    assert mirror.version == "10"
    mirror.follow(line("MODIFIED", pod("a", "13")), 2.0)
    assert mirror.version == "13"


def test_an_object_that_does_not_decode_is_invalid_and_the_next_one_is_read(mirror: Mirror) -> None:
    wrong = b'{"metadata":{"namespace":"shop","name":"a","resourceVersion":"11"},"spec":{"nodeName":7}}'
    event = mirror.follow(line("MODIFIED", wrong), 2.0)
    assert isinstance(event, Invalid)
    assert (event.ref, event.resource_version) == (A, "11")
    assert [fault.path for fault in event.faults] == ["spec.nodeName"]
    following = mirror.follow(line("MODIFIED", pod("b", "12")), 3.0)
    assert following is not None
    assert names([following]) == ["+b"]


def test_an_invalid_object_of_a_list_is_held_and_told_once(mirror: Mirror) -> None:
    wrong = b'{"metadata":{"namespace":"shop","name":"a","resourceVersion":"11"},"spec":{"nodeName":7}}'
    first = replace(mirror, "20", wrong, pod("b", "7"))
    assert [type(event) for event in first] == [Invalid]
    assert replace(mirror, "21", wrong, pod("b", "7")) == []
    assert mirror.follow(line("DELETED", wrong.replace(b'"11"', b'"22"')), 3.0) == Delete(A, "22", 3.0)


def test_an_object_without_a_name_is_counted_and_passed_over(mirror: Mirror) -> None:
    assert mirror.follow(line("ADDED", b'{"metadata":{"resourceVersion":"11"}}'), 2.0) is None
    assert names(replace(mirror, "20", b"{}", pod("a", "4"), pod("b", "7"))) == []
    assert mirror.nameless == 2


@pytest.mark.parametrize("told", [bookmark("9"), line("ADDED", pod("c", "9")), line("MODIFIED", pod("a", "9"))])
def test_a_watch_whose_version_goes_back_starts_over(mirror: Mirror, told: bytes) -> None:
    with pytest.raises(Relist) as raised:
        mirror.follow(told, 2.0)
    assert raised.value.why is Why.WENT_BACK
    assert (mirror.version, len(mirror)) == ("10", 2)


def test_a_deletion_that_tells_the_last_version_of_the_object_is_no_step_back(mirror: Mirror) -> None:
    assert mirror.follow(line("DELETED", pod("a", "4")), 2.0) == Delete(A, "4", 2.0)
    assert mirror.version == "10"


def test_a_resumed_watch_repeats_what_was_seen_last_and_that_is_not_told_again(mirror: Mirror) -> None:
    mirror.follow(line("MODIFIED", pod("a", "13")), 2.0)
    mirror.follow(bookmark("17"), 2.0)
    assert mirror.overlap() == "10"
    assert mirror.is_expecting
    assert mirror.follow(line("MODIFIED", pod("a", "13")), 3.0) is None
    assert not mirror.is_expecting
    assert names([mirror.follow(line("ADDED", pod("c", "18")), 3.0)]) == ["+c"]


def test_a_deletion_is_repeated_too(mirror: Mirror) -> None:
    mirror.follow(line("DELETED", pod("a", "13")), 2.0)
    assert mirror.overlap() == "10"
    assert mirror.follow(line("DELETED", pod("a", "13")), 3.0) is None
    assert (mirror.is_expecting, len(mirror)) == (False, 1)


@pytest.mark.parametrize(
    "told",
    [line("MODIFIED", pod("a", "14")), line("ADDED", pod("c", "13")), line("DELETED", pod("a", "19")), bookmark("30")],
)
def test_a_server_that_cannot_repeat_what_was_seen_was_restored(mirror: Mirror, told: bytes) -> None:
    mirror.follow(line("MODIFIED", pod("a", "13")), 2.0)
    mirror.overlap()
    with pytest.raises(Relist) as raised:
        mirror.follow(told, 3.0)
    assert raised.value.why is Why.WENT_BACK
    assert mirror.version == "13"


def test_what_lies_between_the_last_event_and_the_last_bookmark_is_of_another_history(mirror: Mirror) -> None:
    mirror.follow(line("MODIFIED", pod("a", "13")), 2.0)
    mirror.follow(bookmark("17"), 2.0)
    mirror.overlap()
    mirror.follow(line("MODIFIED", pod("a", "13")), 3.0)
    with pytest.raises(Relist, match="version went back: the watch tells of 15 after 17"):
        mirror.follow(line("MODIFIED", pod("b", "15")), 3.0)


def test_after_a_list_there_is_nothing_to_repeat(mirror: Mirror) -> None:
    mirror.follow(line("MODIFIED", pod("a", "13")), 2.0)
    replace(mirror, "20", pod("a", "13"), pod("b", "7"))
    assert (mirror.overlap(), mirror.is_expecting) == ("", False)


def test_after_a_restore_an_equal_version_does_not_pass_for_an_equal_object(mirror: Mirror) -> None:
    with pytest.raises(Relist):
        mirror.follow(bookmark("9"), 2.0)
    assert names(replace(mirror, "12", pod("a", "4"), pod("b", "7"))) == ["+a", "+b"]
    assert names(replace(mirror, "13", pod("a", "4"), pod("b", "7"))) == []


def test_a_list_that_went_back_tells_everything(mirror: Mirror) -> None:
    assert names(replace(mirror, "9", pod("a", "4"))) == ["+a", "-b"]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (error(410, reason="Expired"), Why.EXPIRED),
        (error(504, "Too large resource version: 12, current: 8"), Why.AHEAD),
        (error(504, details={"causes": [{"reason": "ResourceVersionTooLarge"}]}), Why.AHEAD),
    ],
)
def test_an_error_that_only_a_list_mends_starts_over(mirror: Mirror, told: bytes, why: Why) -> None:
    with pytest.raises(Relist) as raised:
        mirror.follow(told, 2.0)
    assert raised.value.why is why


def test_any_other_error_ends_the_watch_and_forgets_nothing(mirror: Mirror) -> None:
    with pytest.raises(Refused, match="the watch of Pod: etcdserver: leader changed"):
        mirror.follow(error(500, "etcdserver: leader changed"), 2.0)
    assert (mirror.version, len(mirror)) == ("10", 2)


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"{",
        b"[]",
        b'{"type":"ADDED"}',
        b'{"type":"BOOKMARK","object":{}}',
        b'{"type":"ADDED","object":{"meta',
        b"\xff",
    ],
)
def test_a_line_that_is_no_event_ends_the_watch(mirror: Mirror, told: bytes) -> None:
    with pytest.raises(Garbled):
        mirror.follow(told, 2.0)
    assert (mirror.version, len(mirror)) == ("10", 2)


def test_an_unknown_type_of_line_is_passed_over(mirror: Mirror) -> None:
    assert mirror.follow(line("RENAMED", pod("a", "11")), 2.0) is None


def test_a_kind_that_is_gone_takes_its_objects_along(mirror: Mirror) -> None:
    assert mirror.clear(5.0) == [Delete(A, "", 5.0), Delete(B, "", 5.0)]
    assert (mirror.version, len(mirror)) == ("", 0)


@pytest.mark.parametrize(
    ("version", "than", "expected"),
    [
        ("9", "10", True),
        ("10", "9", False),
        ("10", "10", False),
        ("", "10", False),
        ("9", "", False),
        ("a9", "b1", False),
    ],
)
def test_versions_are_compared_as_numbers_where_they_are_numbers(version: str, than: str, expected: bool) -> None:
    assert is_older(version, than) is expected
