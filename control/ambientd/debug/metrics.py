"""What is measured (operations.md 16; xds.md 15): istiod's names where the meaning is the same, and ours. It is told of
events by those to whom they happen (it is their observer) and of the present state by whoever answers a scrape. Must
not look into anything by itself, and has no label with the name of an object, so a scrape costs the same whatever the
mesh's size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.registry import CollectorRegistry

from ambientd.debug.certificate_metrics import CertificateMetrics
from ambientd.debug.series import Counter, ExactNames, Gauge, Histogram, Series, exposition
from ambientd.debug.version import Version, current
from ambientd.index.authorization_conversion import Verdict
from ambientd.push.frames import ADDRESS, AUTHORIZATION
from ambientd.push.rounds import Part
from ambientd.resources.events import Delete, Event, Put, Replace
from ambientd.resources.kinds import POLICY_KINDS
from ambientd.sources.watches import Watch
from ambientd.xds.node import Node
from ambientd.xds.protocol import Note
from ambientd.xds.requests import Request

SHORT_TYPES: Mapping[str, str] = {ADDRESS: "wds", AUTHORIZATION: "wads"}
"""Type URL to the label that istiod's dashboards know."""
_OTHER_TYPES = "unknown"
"""The label of all others: their names are a client's own, and without end."""

_TIMES_S = (0.1, 0.5, 1, 3, 5, 10, 20, 30)
_SHORT_TIMES_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

_CONFIG_KINDS = frozenset({*POLICY_KINDS, "ServiceEntry", "WorkloadEntry", "Gateway", "GatewayClass"})


class Metrics:
    """All series of one process. Is an `xds.service.Observer` and a `pump.Watcher`."""

    def __init__(self, version: Version | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        """`version`: what this is, if not what is installed. `now_s`: a monotonic clock."""
        self.version = current() if version is None else version
        self._now_s = now_s
        self._started_s = now_s()
        self._registry = CollectorRegistry(auto_describe=False)
        self._series: list[Series] = []
        self._declare_streams()
        self._declare_state()
        self._declare_watches()
        self.certificates = CertificateMetrics()
        self._series.extend(self.certificates.series)
        self._info.set(1, str(self.version))
        self._registry.register(ExactNames(self._series))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def _declare_streams(self) -> None:
        self._clients = self._gauge("pilot_xds", "Connected clients.", "version")
        self._pushes = self._counter("pilot_xds_pushes", "Responses sent.", "type")
        self._push_time = self._histogram(
            "pilot_xds_push_time", "Time to send one response, seconds.", (0.01, *_TIMES_S), "type"
        )
        self._send_time = self._histogram(
            "pilot_xds_send_time", "Time to write one response, seconds.", (0.01, 0.1, 1, 3, 5, 10, 20, 30)
        )
        self._sizes = self._histogram(
            "pilot_xds_config_size_bytes", "Size of responses, bytes.", (1, 1e4, 1e6, 4e6, 1e7, 4e7), "type"
        )
        self._resources = self._counter("ambientd_xds_resources", "Resources sent.", "type")
        self._removals = self._counter("ambientd_xds_removals", "Names sent as removed.", "type")
        self._convergence = self._histogram(
            "pilot_proxy_convergence_time", "From a commit to its last byte written to a client, seconds.", _TIMES_S
        )
        self._expired = self._counter("pilot_xds_expired_nonce", "Requests with an outdated nonce.", "type")
        self._rejects = self._counter("pilot_total_xds_rejects", "Responses that a client rejected.", "type")
        self._errors = self._counter("pilot_total_xds_internal_errors", "Streams that ended by an error of ours.")
        self._authentications = self._counter(
            "ambientd_authentications", "Callers over TLS, and of debug pages, by what their token was.", "outcome"
        )
        self._undistributed = self._gauge(
            "ambientd_roots_undistributed", "ConfigMaps with roots that are not, or not yet, as they should be."
        )
        self._distribution_failures = self._counter(
            "ambientd_roots_write_failures", "Writes of ConfigMaps with roots that failed."
        )
        self._unexpected = self._counter(
            "ambientd_unexpected_ztunnels", "Streams of a ztunnel whose account is not among those of ztunnels."
        )
        self._largest = self._gauge("pilot_xds_recv_max", "Largest request received, bytes.")

    def _declare_state(self) -> None:
        self._inbound = self._counter("pilot_inbound_updates", "Changes of objects that were read.", "type")
        self._commits = self._histogram(
            "ambientd_commit_seconds", "From a batch of changes to its commit, seconds.", _SHORT_TIMES_S
        )
        self._changed = self._counter("ambientd_resources_changed", "Resources that commits changed.")
        self._seq = self._gauge("ambientd_seq", "Number of the last commit.")
        self._services = self._gauge("pilot_services", "Services that are served.")
        self._workloads = self._gauge("ambientd_workloads", "Workloads that are served.")
        self._policies = self._gauge("ambientd_policies", "Policies that are served.")
        self._problems = self._gauge("ambientd_problems", "Objects and files with something wrong in them.")
        self._unbound = self._gauge(
            "ambientd_unbound", "Objects that do not get the waypoint that they ask for.", "kind", "reason"
        )
        self._verdicts = self._gauge(
            "ambientd_policy_verdicts", "AuthorizationPolicies by what ztunnels make of them.", "verdict"
        )
        self._invalid = self._gauge(
            "ambientd_invalid_policies", "Policies that say more than is enforced, or cannot be read.", "kind"
        )
        self._stalls = self._histogram(
            "ambientd_loop_stall_seconds", "How long the event loop was held in one piece.", _SHORT_TIMES_S, "cause"
        )
        self._audited = self._counter("ambientd_audit_checked", "Values that the self-audit compared.")
        self._differences = self._counter(
            "ambientd_audit_differences", "Differences that the self-audit found and had repaired.", "collection"
        )
        self._uptime = self._gauge("istiod_uptime_seconds", "Time since the start of the process, seconds.")
        self._info = self._gauge("pilot_info", "Always 1; the label tells the version.", "version")

    def _declare_watches(self) -> None:
        self._sync_errors = self._counter(
            "controller_sync_errors_total", "Lists and watches of the API server that failed.", "cluster"
        )
        self._watch_objects = self._gauge("ambientd_watch_objects", "Objects that are held.", "cluster", "kind")
        self._watch_age = self._gauge(
            "ambientd_watch_last_heard_seconds",
            "Time since anything came on the watch of a kind; a live one has a bookmark about every minute.",
            "cluster",
            "kind",
        )
        self._watch_outdated = self._gauge(
            "ambientd_watch_outdated_seconds",
            "For how long what is held of a kind may have been out of date; 0: it is current.",
            "cluster",
            "kind",
        )
        self._watch_events = self._counter("ambientd_watch_events", "Events that watches brought.", "cluster", "kind")
        self._watch_bytes = self._counter(
            "ambientd_watch_received_bytes", "Size of lists and watch events.", "cluster", "kind"
        )
        self._watch_failures = self._counter(
            "ambientd_watch_failures", "Lists and watches that failed.", "cluster", "kind"
        )
        self._watch_lists = self._counter(
            "ambientd_watch_lists", "Whole lists, by why they were made.", "cluster", "kind", "reason"
        )

    # Streams (xds.service.Observer).

    def connected(self, node: Node) -> None:
        self._clients.add(node.istio_version)

    def disconnected(self, node: Node) -> None:
        self._clients.add(node.istio_version, by=-1)
        # The version is what a client claims, so what nobody claims any more must not stay.
        self._clients.forget_zero(node.istio_version)

    def requested(self, request: Request) -> None:
        self._largest.raise_to(request.size_bytes)

    def pushed(self, part: Part, send_s: float) -> None:
        label = SHORT_TYPES.get(part.type_url, _OTHER_TYPES)
        self._pushes.add(label)
        self._push_time.observe(send_s, label)
        self._send_time.observe(send_s)
        self._sizes.observe(len(part.response), part.type_url if part.type_url in SHORT_TYPES else _OTHER_TYPES)
        if part.resources:
            self._resources.add(label, by=part.resources)
        if part.removed:
            self._removals.add(label, by=part.removed)

    def converged(self, after_s: float) -> None:
        self._convergence.observe(after_s)

    def noted(self, note: Note) -> None:
        counter = {"expired nonce": self._expired, "rejected": self._rejects}.get(note.what)
        if counter is not None:
            counter.add(SHORT_TYPES.get(note.type_url, _OTHER_TYPES))

    def failed(self) -> None:
        self._errors.add()

    def unexpected(self) -> None:
        self._unexpected.add()

    def distributed(self, *, missing: int, failures: int) -> None:
        """How many ConfigMaps with roots are not as they should be, and how many writes have failed."""
        self._undistributed.set(missing)
        self._distribution_failures.values[()] = failures

    def authenticated(self, outcome: str) -> None:
        """A caller's token was looked at (xds.authentication.Observer)."""
        self._authentications.add(outcome)

    # State (pump.Watcher, sources, the loop).

    def committed(self, seq: int, changed: int, took_s: float, events: int) -> None:
        self._seq.set(seq)
        self._commits.observe(took_s)
        if changed:
            self._changed.add(by=changed)

    def inbound(self, events: Iterable[Event]) -> None:
        """A source emitted these."""
        for event in events:
            if isinstance(event, Replace):
                self.inbound(event.objects)
            elif isinstance(event, Put | Delete):
                label = _inbound_type(event.ref.kind, is_deleted=isinstance(event, Delete))
                if label:
                    self._inbound.add(label)

    def stalled(self, for_s: float, cause: str) -> None:
        """The loop was held, `gc` by the collector or `work` by us."""
        self._stalls.observe(for_s, cause)

    def audited(self, checked: int, different: Iterable[str]) -> None:
        """The self-audit compared so many values; `different`: the collection of each that differed."""
        if checked:
            self._audited.add(by=checked)
        for collection in different:
            self._differences.add(collection)

    def watched(self, watches: Iterable[Watch]) -> None:
        """How the watches are doing; they count by themselves."""
        now_s = self._now_s()
        failures: dict[str, int] = {}
        for watch in watches:
            labels = watch.cluster, watch.kind
            failures[watch.cluster] = failures.get(watch.cluster, 0) + watch.failures
            self._watch_objects.set(watch.objects, *labels)
            if watch.last_heard_s is not None:
                self._watch_age.set(now_s - watch.last_heard_s, *labels)
            self._watch_outdated.set(0 if watch.waiting_since_s is None else now_s - watch.waiting_since_s, *labels)
            self._watch_events.values[labels] = watch.events
            self._watch_bytes.values[labels] = watch.bytes
            self._watch_failures.values[labels] = watch.failures
            for reason, count in watch.lists.items():
                self._watch_lists.values[(*labels, reason)] = count
        for cluster, count in failures.items():
            self._sync_errors.values[(cluster,)] = count

    # The answer to a scrape.

    def judged(
        self,
        *,
        unbound: Mapping[tuple[str, str], int],
        verdicts: Mapping[str, int],
        invalid_policies: Mapping[str, int],
    ) -> None:
        """How objects stand now: by kind and reason, by verdict, by kind (others than policies do not count)."""
        self._unbound.replace({labels: number for labels, number in unbound.items()})
        self._verdicts.replace({(verdict.value,): verdicts.get(verdict.value, 0) for verdict in Verdict})
        self._invalid.replace({(kind,): invalid_policies.get(kind, 0) for kind in POLICY_KINDS})

    def text(self, *, workloads: int, services: int, policies: int, problems: int) -> bytes:
        """Prometheus text, with the present size of what is served."""
        self._workloads.set(workloads)
        self._services.set(services)
        self._policies.set(policies)
        self._problems.set(problems)
        self._uptime.set(self._now_s() - self._started_s)
        self.certificates.refresh(time.time())
        return exposition(self._registry)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        counter = Counter(name, help, labels)
        self._series.append(counter)
        return counter

    def _gauge(self, name: str, help: str, *labels: str) -> Gauge:
        gauge = Gauge(name, help, labels)
        self._series.append(gauge)
        return gauge

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        histogram = Histogram(name, help, buckets, labels)
        self._series.append(histogram)
        return histogram


def _inbound_type(kind: str, *, is_deleted: bool) -> str:
    """istiod's label for a change of an object of this kind; empty: it counts none."""
    if kind == "Service":
        return "svcdelete" if is_deleted else "svc"
    if kind in ("EndpointSlice", "Pod"):
        return "eds"
    return "config" if kind in _CONFIG_KINDS else ""
