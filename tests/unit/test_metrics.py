"""Metrics keep the names that dashboards ask for, and cost the same whatever is served."""

from __future__ import annotations

import pytest
from prometheus_client.registry import CollectorRegistry

from ambientd.debug.metrics import Metrics
from ambientd.debug.series import Counter, ExactNames, Gauge, Histogram, exposition
from ambientd.debug.version import Version
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.push.rounds import Part
from ambientd.resources.core import Service
from ambientd.resources.events import Delete, Event, Put, Replace
from ambientd.resources.manifest import decode_manifest
from ambientd.resources.ref import Ref
from ambientd.xds.node import Node
from ambientd.xds.protocol import Note
from ambientd.xds.requests import Request


def node(istio_version: str = "1.31.0") -> Node:
    return Node(
        type="ztunnel",
        id="zt-1.istio-system",
        ips=("10.0.0.1",),
        namespace="istio-system",
        cluster_id="Kubernetes",
        node_name="node-a",
        istio_version=istio_version,
        service_account="",
        metadata={},
    )


def text_of(metrics: Metrics) -> str:
    return metrics.text(workloads=3, services=2, policies=1, problems=4).decode()


@pytest.fixture
def metrics() -> Metrics:
    times = iter(range(100))
    return Metrics(Version("1.2.3", "abc", "Clean"), lambda: float(next(times)))


def test_a_counter_has_no_suffix_that_nobody_asked_for(metrics: Metrics) -> None:
    metrics.pushed(Part(ADDRESS, "n", b"x" * 20_000, 5, 2), 0.2)
    lines = text_of(metrics).splitlines()
    assert "# TYPE pilot_xds_pushes counter" in lines
    assert 'pilot_xds_pushes{type="wds"} 1' in lines
    assert 'ambientd_xds_resources{type="wds"} 5' in lines
    assert 'ambientd_xds_removals{type="wds"} 2' in lines
    assert "_created" not in "".join(lines)


def test_types_that_only_a_client_knows_are_one_label(metrics: Metrics) -> None:
    for number in range(100):
        metrics.pushed(Part(f"type.example/t{number}", "n", b"", 0, 0), 0.1)
    text = text_of(metrics)
    assert "type.example" not in text
    assert 'pilot_xds_pushes{type="unknown"} 100' in text
    assert 'pilot_xds_config_size_bytes_count{type="unknown"} 100' in text


def test_the_process_collectors_keep_their_own_names(metrics: Metrics) -> None:
    lines = text_of(metrics).splitlines()
    assert "# TYPE process_cpu_seconds_total counter" in lines


def test_histograms_are_cumulative_with_the_documented_bounds(metrics: Metrics) -> None:
    for size_bytes in (0, 1, 20_000):
        metrics.pushed(Part(AUTHORIZATION, "n", b"x" * size_bytes, 0, 0), 0.05)
    found = [line for line in text_of(metrics).splitlines() if line.startswith("pilot_xds_config_size_bytes")]
    label = f'type="{AUTHORIZATION}"'
    assert found == [
        f'pilot_xds_config_size_bytes_bucket{{{label},le="1"}} 2',
        f'pilot_xds_config_size_bytes_bucket{{{label},le="10000"}} 2',
        f'pilot_xds_config_size_bytes_bucket{{{label},le="1000000"}} 3',
        f'pilot_xds_config_size_bytes_bucket{{{label},le="4000000"}} 3',
        f'pilot_xds_config_size_bytes_bucket{{{label},le="10000000"}} 3',
        f'pilot_xds_config_size_bytes_bucket{{{label},le="40000000"}} 3',
        f'pilot_xds_config_size_bytes_bucket{{{label},le="+Inf"}} 3',
        f"pilot_xds_config_size_bytes_sum{{{label}}} 20001",
        f"pilot_xds_config_size_bytes_count{{{label}}} 3",
    ]


def test_a_series_exists_from_its_first_recording_on(metrics: Metrics) -> None:
    assert "pilot_total_xds_rejects" not in text_of(metrics)
    metrics.noted(Note("rejected", ADDRESS, "no"))
    assert 'pilot_total_xds_rejects{type="wds"} 1' in text_of(metrics)


def test_notes_count_by_what_they_say_and_never_by_a_client_s_words(metrics: Metrics) -> None:
    metrics.noted(Note("expired nonce", "made up by a client"))
    metrics.noted(Note("unknown type", ADDRESS))
    assert 'pilot_xds_expired_nonce{type="unknown"} 1' in text_of(metrics)
    assert "made up" not in text_of(metrics)


def test_clients_are_counted_by_version_and_a_version_without_clients_is_forgotten(metrics: Metrics) -> None:
    metrics.connected(node())
    metrics.connected(node("weird"))
    metrics.disconnected(node("weird"))
    found = [line for line in text_of(metrics).splitlines() if line.startswith("pilot_xds{")]
    assert found == ['pilot_xds{version="1.31.0"} 1']


def test_the_largest_request_is_kept(metrics: Metrics) -> None:
    for size_bytes in (10, 300, 20):
        metrics.requested(Request(ADDRESS, size_bytes=size_bytes))
    assert "pilot_xds_recv_max 300" in text_of(metrics)


def test_changes_of_objects_count_under_istiod_s_words(metrics: Metrics) -> None:
    manifest = {"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "cart"}, "spec": {}}
    put = decode_manifest(manifest, "Kubernetes")
    assert isinstance(put, Put)
    assert isinstance(put.object, Service)
    events: list[Event] = [
        Replace("Kubernetes", "Service", (put,)),
        put,
        Delete(put.object.ref),
        Delete(Ref("Kubernetes", "Pod", "shop", "cart-0")),
        Delete(Ref("Kubernetes", "AuthorizationPolicy", "shop", "till")),
        Delete(Ref("Kubernetes", "Node", "", "node-a")),
    ]
    metrics.inbound(events)
    found = [line for line in text_of(metrics).splitlines() if line.startswith("pilot_inbound_updates")]
    assert found == [
        'pilot_inbound_updates{type="svc"} 2',
        'pilot_inbound_updates{type="svcdelete"} 1',
        'pilot_inbound_updates{type="eds"} 1',
        'pilot_inbound_updates{type="config"} 1',
    ]


def test_the_present_state_is_told_at_a_scrape(metrics: Metrics) -> None:
    metrics.committed(7, 12, 0.003, 2)
    metrics.stalled(0.03, "gc")
    metrics.converged(0.2)
    metrics.failed()
    lines = text_of(metrics).splitlines()
    assert {
        "ambientd_seq 7",
        "ambientd_resources_changed 12",
        "ambientd_commit_seconds_sum 0.003",
        'ambientd_loop_stall_seconds_count{cause="gc"} 1',
        "pilot_proxy_convergence_time_count 1",
        "pilot_total_xds_internal_errors 1",
        "pilot_services 2",
        "ambientd_workloads 3",
        "ambientd_policies 1",
        "ambientd_problems 4",
        "istiod_uptime_seconds 1",
        'pilot_info{version="1.2.3-abc-Clean"} 1',
    } <= set(lines)


def test_label_values_and_help_cannot_break_the_text() -> None:
    counter, gauge = Counter("c", 'says "this"\nand \\that', ("who",)), Gauge("g", "")
    histogram = Histogram("h", "", (1,))
    counter.add('a "b"\n\\c')
    gauge.set(float("nan"))
    histogram.observe(2)
    registry = CollectorRegistry()
    registry.register(ExactNames([counter, gauge, histogram]))
    assert exposition(registry).decode().splitlines() == [
        '# HELP c says "this"\\nand \\\\that',
        "# TYPE c counter",
        'c{who="a \\"b\\"\\n\\\\c"} 1',
        "# HELP g ",
        "# TYPE g gauge",
        "g NaN",
        "# HELP h ",
        "# TYPE h histogram",
        'h_bucket{le="1"} 0',
        'h_bucket{le="+Inf"} 1',
        "h_sum 2",
        "h_count 1",
    ]


def test_how_objects_stand_is_told_anew_with_each_scrape(metrics: Metrics) -> None:
    unbound = {("Service", "WaypointIsNotReady"): 2}
    metrics.judged(unbound=unbound, verdicts={"deny-inert": 1}, invalid_policies={"PeerAuthentication": 3})
    lines = text_of(metrics).splitlines()
    assert 'ambientd_unbound{kind="Service",reason="WaypointIsNotReady"} 2' in lines
    assert 'ambientd_policy_verdicts{verdict="deny-inert"} 1' in lines
    assert 'ambientd_policy_verdicts{verdict="accepted"} 0' in lines
    assert 'ambientd_invalid_policies{kind="PeerAuthentication"} 3' in lines
    metrics.judged(unbound={}, verdicts={}, invalid_policies={})
    lines = text_of(metrics).splitlines()
    assert not [line for line in lines if line.startswith("ambientd_unbound{")]
    assert 'ambientd_policy_verdicts{verdict="deny-inert"} 0' in lines
