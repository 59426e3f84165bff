"""Counters, gauges and histograms under exactly the names they are given, and their text form. The Prometheus library
appends `_total` to every counter, and dashboards of this field ask for names without it (operations.md 16); so its
collectors are used for what the process itself uses, and the text is written here. A series exists from its first
recording on."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Counter:
    """Something that is counted; `labels` are names of closed sets, never of objects."""

    kind = "counter"

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        self.name, self.help, self.labels = name, help, tuple(labels)
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, *labels: str, by: float = 1.0) -> None:
        self.values[labels] = self.values.get(labels, 0.0) + by

    def samples(self) -> Iterable[Sample]:
        for values, value in self.values.items():
            yield Sample(self.name, dict(zip(self.labels, values, strict=True)), value)


class Gauge(Counter):
    """Something that has a value now."""

    kind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        self.values[labels] = value

    def replace(self, values: Mapping[tuple[str, ...], float]) -> None:
        """What is not among these is gone."""
        self.values = dict(values)

    def raise_to(self, value: float, *labels: str) -> None:
        """Keeps the largest value that was seen."""
        self.values[labels] = max(value, self.values.get(labels, value))

    def forget_zero(self, *labels: str) -> None:
        if self.values.get(labels) == 0:
            del self.values[labels]


class Histogram:
    """How often which values occurred; `buckets` are upper bounds in ascending order."""

    kind = "histogram"

    def __init__(self, name: str, help: str, buckets: Sequence[float], labels: Sequence[str] = ()) -> None:
        self.name, self.help, self.labels = name, help, tuple(labels)
        self.buckets = (*buckets, math.inf)
        self.counts: dict[tuple[str, ...], list[int]] = {}
        self.sums: dict[tuple[str, ...], float] = {}

    def observe(self, value: float, *labels: str) -> None:
        counts = self.counts.get(labels)
        if counts is None:
            counts = self.counts[labels] = [0] * len(self.buckets)
        counts[bisect_left(self.buckets, value)] += 1
        self.sums[labels] = self.sums.get(labels, 0.0) + value

    def samples(self) -> Iterable[Sample]:
        for values, counts in self.counts.items():
            labels = dict(zip(self.labels, values, strict=True))
            total = 0
            for bound, count in zip(self.buckets, counts, strict=True):
                total += count
                yield Sample(f"{self.name}_bucket", {**labels, "le": _number(bound)}, total)
            yield Sample(f"{self.name}_sum", labels, self.sums[values])
            yield Sample(f"{self.name}_count", labels, total)


Series = Counter | Gauge | Histogram


class ExactNames(Collector):
    """Makes a registry export series as they are."""

    def __init__(self, series: Iterable[Series]) -> None:
        self._series = tuple(series)

    def collect(self) -> Iterable[Metric]:
        for series in self._series:
            metric = Metric(series.name, series.help, series.kind)
            metric.samples = list(series.samples())
            if metric.samples:
                yield metric


def exposition(registry: CollectorRegistry) -> bytes:
    """Everything in the registry as Prometheus text, format 0.0.4. OpenMetrics is not offered: it demands `_total`."""
    lines: list[str] = []
    for metric in registry.collect():
        name = metric.name
        if metric.type == "counter" and all(sample.name == f"{name}_total" for sample in metric.samples):
            name = f"{name}_total"
        help = metric.documentation.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {name} {help}")
        lines.append(f"# TYPE {name} {'untyped' if metric.type == 'unknown' else metric.type}")
        lines.extend(_line(sample) for sample in metric.samples)
    return ("\n".join(lines) + "\n").encode() if lines else b""


def _line(sample: Sample) -> str:
    labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in sample.labels.items())
    return f"{sample.name}{{{labels}}} {_number(sample.value)}" if labels else f"{sample.name} {_number(sample.value)}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
