"""Prometheus metrics of admission control: register a collector, which reads the state when scraped.

Read-only. Counters start with the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from flyball.admission.admission import Admission
from flyball.admission.counts import WAITS_S, ClassCounts
from flyball.admission.state import state_of

PREFIX = "flyball_admission"


class AdmissionCollector(Collector):
    """Metrics `flyball_admission_*` of one admission control; those of a class have the label `class`."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def collect(self) -> Iterator[Metric]:
        """Return the current metrics."""
        yield from self._loads()
        yield from self._pool()
        yield from self._classes()
        yield self._requests()
        yield self._waits()

    def _loads(self) -> Iterator[Metric]:
        admission = self._admission
        unit = {"unit": admission.unit.value}
        yield _gauge("reference", "Reference load, in cost per second.", admission.reference.value, unit)
        yield _gauge("load", "Load of the last period, in cost per second.", admission.load_per_s, unit)
        yield _gauge("budget", "Admission budget, in cost per second.", admission.budget_per_s, unit)
        yield _gauge("in_flight", "Requests in flight.", admission.in_flight)
        yield _gauge("streams", "Open WebSockets and other long-lived requests.", admission.streams)
        yield _gauge("held", "Whether admission is stopped because enough connections are busy.", admission.is_held)

    def _pool(self) -> Iterator[Metric]:
        usage = self._admission.usage
        if usage.size is not None:
            yield _gauge("pool_size", "Maximum number of connections.", usage.size)
        yield _gauge("pool_busy", "Connections in use.", usage.busy)
        yield _gauge("pool_waiting", "Pending requests for a connection.", usage.waiting)
        yield CounterMetricFamily(f"{PREFIX}_connections", "Connections taken.", value=usage.connections)
        yield CounterMetricFamily(
            f"{PREFIX}_busy_seconds", "Total time that connections were in use.", value=usage.busy_s
        )

    def _classes(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily(f"{PREFIX}_waiting", "Requests waiting for admission.", labels=["class"])
        cost = GaugeMetricFamily(f"{PREFIX}_class_cost", "Average cost of a request.", labels=["class"])
        probability = GaugeMetricFamily(
            f"{PREFIX}_probability", "Probability of admission ahead of cheaper requests.", labels=["class"]
        )
        for state in state_of(self._admission)["classes"]:
            labels = [str(state["class"])]
            waiting.add_metric(labels, state["waiting"])
            cost.add_metric(labels, state["cost"])
            probability.add_metric(labels, state["probability"])
        yield from (waiting, cost, probability)

    def _requests(self) -> Metric:
        requests = CounterMetricFamily(f"{PREFIX}_requests", "Requests by outcome.", labels=["class", "outcome"])
        for number, counts in enumerate(self._admission.counts):
            for outcome in ("served", "failed", "refused", "left"):
                requests.add_metric([str(number), outcome], getattr(counts, outcome))
        return requests

    def _waits(self) -> Metric:
        waits = HistogramMetricFamily(
            f"{PREFIX}_wait_seconds", "Waiting time of admitted requests.", labels=["class"]
        )
        for number, counts in enumerate(self._admission.counts):
            waits.add_metric([str(number)], _buckets(counts), counts.waited_s)
        return waits


def _gauge(name: str, text: str, value: float, labels: dict[str, str] | None = None) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=list(labels or {}))
    family.add_metric(list((labels or {}).values()), value)
    return family


def _buckets(counts: ClassCounts) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in WAITS_S), "+Inf"]
    return list(zip(bounds, accumulate(counts.waits), strict=True))
