"""Admission control as Prometheus metrics: register a collector, and it reads what is there whenever it is asked.

Only reads. Counters are of this process since it began.
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
    """Metrics `flyball_admission_*` of one admission control; what is of a class has the label `class`."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def collect(self) -> Iterator[Metric]:
        """Return all metrics as they are now."""
        yield from self._loads()
        yield from self._pool()
        yield from self._classes()
        yield self._requests()
        yield self._waits()

    def _loads(self) -> Iterator[Metric]:
        admission = self._admission
        unit = {"unit": admission.unit.value}
        yield _gauge("reference", "The load to hold, in cost per second.", admission.reference.value, unit)
        yield _gauge("load", "The load of the last period, in cost per second.", admission.load_per_s, unit)
        yield _gauge("budget", "What may be admitted, in cost per second.", admission.budget_per_s, unit)
        yield _gauge("in_flight", "Requests that were admitted and have not ended.", admission.in_flight)
        yield _gauge("streams", "WebSockets and other requests that last.", admission.streams)
        yield _gauge("held", "Whether nobody is admitted because enough connections are busy.", admission.is_held)

    def _pool(self) -> Iterator[Metric]:
        usage = self._admission.usage
        if usage.size is not None:
            yield _gauge("pool_size", "How many connections there can be at most.", usage.size)
        yield _gauge("pool_busy", "Connections that are held.", usage.busy)
        yield _gauge("pool_waiting", "How often somebody waits for a connection now.", usage.waiting)
        yield CounterMetricFamily(f"{PREFIX}_connections", "Connections taken.", value=usage.connections)
        yield CounterMetricFamily(
            f"{PREFIX}_busy_seconds", "The sum over connections of how long they were held.", value=usage.busy_s
        )

    def _classes(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily(f"{PREFIX}_waiting", "Requests that wait to be admitted.", labels=["class"])
        cost = GaugeMetricFamily(f"{PREFIX}_class_cost", "What a request costs on average.", labels=["class"])
        probability = GaugeMetricFamily(
            f"{PREFIX}_probability", "Of being admitted in turn while cheaper ones wait.", labels=["class"]
        )
        for state in state_of(self._admission)["classes"]:
            labels = [str(state["class"])]
            waiting.add_metric(labels, state["waiting"])
            cost.add_metric(labels, state["cost"])
            probability.add_metric(labels, state["probability"])
        yield from (waiting, cost, probability)

    def _requests(self) -> Metric:
        requests = CounterMetricFamily(
            f"{PREFIX}_requests", "Requests by what became of them.", labels=["class", "outcome"]
        )
        for number, counts in enumerate(self._admission.counts):
            for outcome in ("served", "failed", "refused", "left"):
                requests.add_metric([str(number), outcome], getattr(counts, outcome))
        return requests

    def _waits(self) -> Metric:
        waits = HistogramMetricFamily(
            f"{PREFIX}_wait_seconds", "How long requests waited that were admitted.", labels=["class"]
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
