"""Operational laws as a check: relations that the trace of every run must satisfy.

After P. J. Denning and J. P. Buzen, The Operational Analysis of Queueing Network Models, 1978. A run that violates
one was measured incorrectly, was not steady, or lost part of its trace. Small tables on the driver: no Spark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

import pandas as pd

from flyball.pipeline.events import CLIENTS, NODES
from flyball.pipeline.manifest import Run
from flyball.pipeline.measures import RECEIVED, whole_points

COLUMNS = ("run", "law", "expected", "measured", "error_ratio", "holds", "says", "tolerance_ratio")

LITTLE_ERROR = 0.05
# Clients also spend time between calls that is neither response nor think time: their own work.
INTERACTIVE_ERROR = 0.1
COUNT_ERROR = 0.05
# Maximum relative difference between measured and expected. Counts from a sample may differ more.
RESPONSE_ERROR = 0.05


@dataclass(frozen=True, slots=True)
class _Law:
    law: str
    expected: float
    measured: float
    error_ratio: float
    holds: bool
    says: str
    # Maximum error with which the law holds: larger for sampled requests.
    tolerance_ratio: float


@dataclass(frozen=True, slots=True)
class _Seen:
    """The sums that one source recorded over the measured time of a run, for each kind."""

    length_s: float
    kinds: pd.DataFrame
    # The mean number of requests in the system.
    under_way: float
    # The largest weight: the number of requests that one record represents.
    heaviest: float

    def sampling_error(self, *kinds: str) -> float:
        """Return three standard deviations of the number of requests of `kinds`, as a ratio: 0 if all were recorded.

        A request that represents w requests was chosen with the probability 1/w, so its count varies by w · (w - 1).
        One more of the heaviest is added: of a rare kind, all may have been missed.
        """
        own = self.kinds[self.kinds.index.isin(kinds)]
        varies = float((own["weight2"] - own["requests"]).sum()) + self.heaviest * (self.heaviest - 1)
        return 3.0 * math.sqrt(varies) / float(own["requests"].sum())

    @property
    def sampling(self) -> str:
        """Describe the sampling, after a semicolon; empty if all requests were recorded."""
        return f"; 1 request in {self.heaviest:.0f} was recorded" if self.heaviest >= 1.5 else ""

    def mean_error(self, kind: str) -> float:
        """Return three standard deviations of the mean response of `kind`, relative to it."""
        own = self.kinds.loc[kind]
        mean = own["response_ms"] / own["requests"]
        variance = max(own["response_ms2"] / own["requests"] - mean**2, 0.0)
        return 3.0 * math.sqrt(variance * own["weight2"]) / own["requests"] / mean if mean else 0.0

    @property
    def per_s(self) -> float:
        return float(self.kinds["requests"].sum()) / self.length_s

    def mean_ms(self, metric: str) -> float:
        return float(self.kinds[f"{metric}_ms"].sum() / self.kinds["requests"].sum())


def laws(series: pd.DataFrame, windows: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """Return the table `laws`: for each run every law that can be checked, and whether it holds.

    `series` is SERIES, with the seconds around the measured time. For a run without a manifest only its traces are
    checked.
    """
    manifests = {run.run: run for run in runs}
    rows = []
    for run, from_us, until_us in zip(windows["run"], windows["from_us"], windows["until_us"], strict=True):
        of_run = series[series["run"] == run]
        seen = {source: found for source in (CLIENTS, NODES) if (found := _seen(of_run, source, from_us, until_us))}
        checked = (
            *_of_each(seen, manifests.get(run)),
            *_interactive(seen, manifests.get(run)),
            *_utilisation(of_run, seen),
            *_of_both(seen, manifests.get(run)),
        )
        rows += [(run, *astuple(law)) for law in checked]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _seen(of_run: pd.DataFrame, source: str, from_us: int, until_us: int) -> _Seen | None:
    own = of_run[of_run["source"] == source]
    count, point_length_s = whole_points(from_us, until_us)
    length_s = count * point_length_s
    inside = own[(own["second"] >= 0) & (own["second"] < length_s)]
    if inside.empty:
        return None
    kinds = inside.drop(columns=["run", "source", "place", "second"]).groupby("kind").sum()
    heaviest = float((own["weight2"] / own["requests"]).max())
    return _Seen(length_s, kinds, _under_way(own, length_s, point_length_s), heaviest)


def _under_way(own: pd.DataFrame, length_s: float, point_length_s: float) -> float:
    """Return the time that requests spent in the system during the measured time, per second of it.

    Includes requests that were answered later. Answers are assumed to be in the middle of their point.
    """
    response_s = own["response_ms"] / own["requests"] / 1e3
    answered_s = own["second"] + 0.5 * point_length_s
    inside_s = answered_s.clip(upper=length_s) - (answered_s - response_s).clip(lower=0.0)
    return float((inside_s.clip(lower=0.0) * own["requests"]).sum()) / length_s


def _of_each(seen: Mapping[str, _Seen], run: Run | None) -> Iterator[_Law]:
    # A control loop consumes less than is published, so that it never lacks messages: the backlog has to grow.
    is_steady = run is None or "signal" not in run.workload
    for source, own in seen.items():
        if is_steady or source == NODES:
            yield _little(source, own)
        balance = _flow_balance(source, own) if is_steady else None
        if balance:
            yield balance


def _little(source: str, own: _Seen) -> _Law:
    """N = X · R: the mean number of requests in flight is throughput times response, if the run was steady."""
    expected = own.per_s * own.mean_ms("response") / 1e3
    measured = own.under_way
    says = (
        f"{measured:.3g} requests in flight on average, seen by {source}; throughput times response is {expected:.3g}"
    )
    return _compared(f"Little's law ({source})", expected, measured, LITTLE_ERROR, says)


def _flow_balance(source: str, own: _Seen) -> _Law | None:
    """Compare messages put with messages taken, if both exist: the flow must balance."""
    messages = own.kinds["messages"]
    put, received = float(messages.get("put", 0)), float(sum(messages.get(kind, 0) for kind in RECEIVED))
    if not put or not received:
        return None
    says = f"{put:,.0f} messages put, {received:,.0f} received, seen by {source}{own.sampling}"
    most = COUNT_ERROR + own.sampling_error("put") + own.sampling_error(*RECEIVED)
    return _compared(f"flow balance ({source})", put / own.length_s, received / own.length_s, most, says)


def _interactive(seen: Mapping[str, _Seen], run: Run | None) -> Iterator[_Law]:
    """N = X · (R + Z): each client of a closed loop is either waiting for a response or thinking."""
    own = seen.get(CLIENTS)
    if own is None or run is None or not _is_closed(run, own) or not run.clients.get("count"):
        return
    expected = float(run.clients["count"])
    cycle_ms = own.mean_ms("response") + own.mean_ms("think")
    measured = own.per_s * cycle_ms / 1e3
    says = f"{expected:.0f} clients; throughput times response and think time accounts for {measured:.3g}"
    yield _compared("interactive response time law", expected, measured, INTERACTIVE_ERROR, says)


def _is_closed(run: Run, own: _Seen) -> bool:
    """Whether the number of clients is constant and each waits for a response before its next request."""
    is_open = any(run.workload.get(name) for name in ("rate_per_s", "rate_curve", "schedule"))
    return not is_open and "deliver" not in own.kinds.index


def _utilisation(of_run: pd.DataFrame, seen: Mapping[str, _Seen]) -> Iterator[_Law]:
    """U = X · S ≤ 1: parsing and deciding happen in one thread of a node, which has one second per second."""
    own = seen.get(NODES)
    if own is None:
        return
    is_inside = (of_run["source"] == NODES) & (of_run["second"] >= 0) & (of_run["second"] < own.length_s)
    for node, part in of_run[is_inside].groupby("place"):
        measured = float(part["parse_ms"].sum() + part["engine_ms"].sum()) / 1e3 / own.length_s
        says = f"{node} was parsing and deciding for {measured:.1%} of the time"
        yield _bounded(f"utilisation ({node})", 1.0, measured, 0.0, says)


def _of_both(seen: Mapping[str, _Seen], run: Run | None) -> Iterator[_Law]:
    """Compare the records of clients and nodes for the same requests."""
    if len(seen) < 2:
        return
    outside, inside = seen[CLIENTS].kinds, seen[NODES].kinds
    for kind in sorted(set(outside.index) & set(inside.index) - {"deliver"}):
        many, few = float(outside["requests"][kind]), float(inside["requests"][kind])
        sampling = seen[NODES].sampling or seen[CLIENTS].sampling
        says = f"clients counted {many:,.0f} of {kind}, nodes {few:,.0f}{sampling}"
        most = COUNT_ERROR + seen[CLIENTS].sampling_error(kind) + seen[NODES].sampling_error(kind)
        yield _compared(f"the same requests ({kind})", many, few, most, says)
        if kind == "put" and run is not None and run.workload.get("protocol") == "amqp":
            # A node's record ends with the commit; a message that is acked before that is confirmed at once.
            continue
        longer, shorter = outside["service_ms"][kind] / many, inside["response_ms"][kind] / few
        says = f"{kind} took {shorter:.3g} ms in nodes and {longer:.3g} ms for clients{seen[NODES].sampling}"
        most = RESPONSE_ERROR + seen[NODES].mean_error(kind)
        yield _bounded(f"nodes within clients ({kind})", float(longer), float(shorter), most, says)


def _compared(law: str, expected: float, measured: float, most: float, says: str) -> _Law:
    error_ratio = abs(measured - expected) / expected if expected else float(measured != expected)
    return _Law(law, expected, measured, error_ratio, error_ratio <= most, says, most)


def _bounded(law: str, bound: float, measured: float, most: float, says: str) -> _Law:
    """Return a law with an upper bound: the error is the excess over the bound."""
    error_ratio = max(measured - bound, 0.0) / bound if bound else float(measured > bound)
    return _Law(law, bound, measured, error_ratio, error_ratio <= most, says, most)
