"""How each watch is doing, as metrics and as a page."""

from __future__ import annotations

import json

from ambientd.debug import pages
from ambientd.debug.metrics import Metrics
from ambientd.debug.version import Version
from ambientd.sources.watches import State, Watch

NOW_S = 1_000.0


def busy() -> Watch:
    watch = Watch("c1", "Pod", NOW_S - 100)
    watch.api_version = "v1"
    watch.failed(NOW_S - 90, "GET /api/v1/pods: 503", 1.0)
    watch.listed(NOW_S - 80, "start")
    watch.listed(NOW_S - 70, "410")
    watch.watched(NOW_S - 70)
    watch.heard(NOW_S - 20, 4_000, 3)
    watch.heard(NOW_S - 5, 100, 0)
    watch.objects, watch.version = 17, "4711"
    return watch


def test_the_page_tells_everything_of_a_watch() -> None:
    waiting = Watch("c1", "Node", NOW_S - 30)
    waiting.failed(NOW_S - 2, "nodes is forbidden", 5.0)
    first, second = json.loads(b"".join(pages.watches([busy(), waiting], NOW_S, pretty=True)))
    assert first == {
        "cluster": "c1",
        "kind": "Pod",
        "apiVersion": "v1",
        "state": "watching",
        "isListed": True,
        "isCurrent": True,
        "reason": "",
        "outdatedForSeconds": None,
        "nextTryInSeconds": None,
        "lastEventAgoSeconds": 20.0,
        "lastHeardAgoSeconds": 5.0,
        "resourceVersion": "4711",
        "objects": 17,
        "events": 3,
        "bytes": 4_100,
        "failures": 1,
        "lists": {"410": 1, "start": 1},
        "expired": 1,
        "nameless": 0,
    }
    chosen = ("kind", "state", "isListed", "reason", "outdatedForSeconds", "nextTryInSeconds", "lastHeardAgoSeconds")
    assert [second[name] for name in chosen] == ["Node", "waiting", False, "nodes is forbidden", 30.0, 3.0, None]


def test_a_watch_that_is_interrupted_is_outdated_until_it_is_accepted_again() -> None:
    watch = busy()
    watch.interrupted(NOW_S, "connection refused", 1.0)
    watch.interrupted(NOW_S + 10, "connection refused", 2.0)
    assert (watch.is_current, watch.plain(NOW_S + 12)["outdatedForSeconds"]) == (False, 12.0)
    watch.watched(NOW_S + 13)
    assert (watch.is_current, watch.reason) == (True, "")


def test_an_absent_kind_is_current_and_has_no_version() -> None:
    watch = busy()
    watch.absent(State.ABSENT, "no CustomResourceDefinition")
    assert (watch.is_current, watch.is_listed, watch.version, watch.api_version) == (True, True, "", "")


def test_metrics_tell_of_each_kind_and_of_failures_under_the_known_name() -> None:
    metrics = Metrics(Version("1.2.3", "abc", "Clean"), now_s=lambda: NOW_S)
    node = Watch("c1", "Node", NOW_S - 30)
    metrics.watched([busy(), node])
    metrics.watched([busy(), node])
    text = metrics.text(workloads=0, services=0, policies=0, problems=0).decode()
    kind = 'cluster="c1",kind="Pod"'
    for line in (
        'controller_sync_errors_total{cluster="c1"} 1',
        f"ambientd_watch_objects{{{kind}}} 17",
        f"ambientd_watch_last_heard_seconds{{{kind}}} 5",
        f"ambientd_watch_outdated_seconds{{{kind}}} 0",
        'ambientd_watch_outdated_seconds{cluster="c1",kind="Node"} 30',
        f"ambientd_watch_events{{{kind}}} 3",
        f"ambientd_watch_received_bytes{{{kind}}} 4100",
        f"ambientd_watch_failures{{{kind}}} 1",
        f'ambientd_watch_lists{{{kind},reason="410"}} 1',
    ):
        assert line in text.splitlines()
