"""The capacity of a target and its use: the knee of throughput, and the weights of producers and consumers.

Operational analysis (P. Denning, J. Buzen 1978) over small tables on the driver: no Spark here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import optimize, stats

from flyball.pipeline.manifest import Run

VERSION = 1
# Parameters of a workload that are numbers of clients.
CLIENT_COUNTS = (
    "clients",
    "producers",
    "consumers",
    "one_way",
    "two_way",
    "pairs",
    "askers",
    "servers",
)
CONFIDENCE = 0.9
# Minimum number of client counts: fewer do not show a knee.
FEWEST_LEVELS = 3
# The knee has been passed where 1 % more clients increase throughput by less than this many %.
SATURATED_BELOW = 0.5
# The queue length was steady if the rates of puts and takes differ by less than this ratio.
LEVEL_RATIO = 0.05
# Condition number above which the rates of puts and takes are too collinear to separate their costs.
LARGEST_CONDITION = 30.0

TWO_LINES = "two lines"
SCALABILITY_LAW = "universal scalability law"

Numbers = npt.NDArray[np.float64]
# Means by run, source, metric and kind.
Figures = Mapping[tuple[str, str, str, str], float]


@dataclass(frozen=True, slots=True)
class Knee:
    """A curve of throughput over clients, and the intersection of its initial and its final line."""

    model: str
    parameters: dict[str, float]
    throughput: Callable[[Numbers], Numbers]
    # The largest measured number of clients.
    most_clients: float
    # The RMSE of ln throughput, which is approximately a relative error.
    rmse_ratio: float
    # Akaike's information criterion, corrected for few points (AICc): lower is better.
    score: float

    @property
    def max_throughput_per_s(self) -> float:
        """The highest throughput of the curve within the measured range."""
        clients = np.linspace(1, self.most_clients, 1000)
        return float(self.throughput(clients).max())

    @property
    def clients_at_knee(self) -> float:
        """Where the line of light load, one client's throughput times their number, reaches the maximum."""
        return self.max_throughput_per_s / self.parameters["per_client_per_s"]

    @property
    def is_passed(self) -> bool:
        """Whether throughput hardly grew at the largest number of clients."""
        end = np.array([self.most_clients * 0.98, self.most_clients])
        low, high = np.log(self.throughput(end))
        return float(high - low) / -math.log(0.98) < SATURATED_BELOW


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of puts and takes of one run, in messages per second, and the CPU use of its nodes, in s/s."""

    producers: int
    consumers: int
    put_per_s: float
    taken_per_s: float
    busy: float | None

    @property
    def is_level(self) -> bool:
        """Whether the queue neither grew nor shrank."""
        return abs(self.put_per_s - self.taken_per_s) <= LEVEL_RATIO * max(self.put_per_s, self.taken_per_s)


def capacity(measures: pd.DataFrame, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the capacity of each target whose runs differ only in their numbers of clients.

    A result that the data do not allow is None, with a reason.
    """
    figures = _figures(measures)
    targets = [_target(own, figures) for own in _alike(runs) if len({_clients(run) for run in own}) > 1]
    reason = None if targets else "no experiment here has runs that differ in their number of clients only"
    return {"version": VERSION, "kind": "capacity", "reason": reason, "targets": targets}


def two_lines(clients: Numbers, throughput: Numbers) -> Knee:
    """Fit X(N) = min(N / (R0 + Z), Xmax), the asymptotic bounds, in logarithms.

    Each number of clients is tried as the last one on the slope; each part is the mean of its points.
    """
    best: tuple[float, float, float] | None = None
    logs, rates = np.log(throughput), np.log(throughput / clients)
    for last in np.unique(clients):
        on_slope = clients <= last
        slope = float(rates[on_slope].mean())
        top = float(logs[~on_slope].mean()) if (~on_slope).any() else slope + math.log(clients.max())
        error = float(((logs - np.minimum(slope + np.log(clients), top)) ** 2).sum())
        if best is None or error < best[0]:
            best = (error, math.exp(slope), math.exp(top))
    assert best is not None
    error, per_client, top = best
    return Knee(
        TWO_LINES,
        {"per_client_per_s": per_client, "max_per_s": top},
        lambda n: np.minimum(per_client * n, top),
        float(clients.max()),
        math.sqrt(error / len(clients)),
        _score(error, len(clients), 2),
    )


def scalability_law(clients: Numbers, throughput: Numbers) -> Knee:
    """Fit X(N) = λN / (1 + σ(N-1) + κN(N-1)) in logarithms (N. Gunther, Guerrilla Capacity Planning, 2007)."""

    def law(parameters: Numbers, n: Numbers) -> Numbers:
        per_client, contention, crosstalk = math.exp(parameters[0]), parameters[1], parameters[2]
        found: Numbers = per_client * n / (1 + contention * (n - 1) + crosstalk * n * (n - 1))
        return found

    # N/X is linear in the parameters: use its solution as the initial guess.
    columns = np.column_stack([np.ones(len(clients)), clients - 1, clients * (clients - 1)])
    weights = (throughput / clients)[:, None]
    start, _ = optimize.nnls(columns * weights, np.ones(len(clients)))
    first = max(start[0], 1e-12)
    guess = [-math.log(first), min(start[1] / first, 1.0), start[2] / first]
    found = optimize.least_squares(
        lambda parameters: np.log(law(parameters, clients)) - np.log(throughput),
        guess,
        bounds=([-np.inf, 0, 0], [np.inf, 1 + 1e-9, np.inf]),
    )
    best = np.array(found.x)
    error = float((found.fun**2).sum())
    return Knee(
        SCALABILITY_LAW,
        {"per_client_per_s": math.exp(best[0]), "contention": float(best[1]), "crosstalk": float(best[2])},
        lambda n: law(best, n),
        float(clients.max()),
        math.sqrt(error / len(clients)),
        _score(error, len(clients), 3),
    )


def knee_of(clients: Numbers, throughput: Numbers) -> Knee:
    """Return the curve that fits better; the simpler one if there are too few points to decide."""
    candidates = [two_lines(clients, throughput)]
    if len(clients) > 5:
        candidates.append(scalability_law(clients, throughput))
    return min(candidates, key=lambda knee: knee.score)


def _score(error: float, count: int, parameters: int) -> float:
    """Return the corrected Akaike criterion; reducing an error below 0.1 % does not improve it."""
    fitted = parameters + 1
    room = count - fitted - 1
    if room <= 0:
        return math.inf
    return count * math.log(error / count + 1e-6) + 2 * fitted + 2 * fitted * (fitted + 1) / room


def _figures(measures: pd.DataFrame) -> Figures:
    """Return the means by run, source, metric and kind."""
    columns = (measures[name] for name in ("run", "source", "metric", "kind", "mean"))
    return {
        (str(run), str(source), str(metric), str(kind)): float(mean)
        for run, source, metric, kind, mean in zip(*columns, strict=True)
    }


def _figure(figures: Figures, run: str, metric: str, kind: str) -> float | None:
    """Return the figure of the clients, or else the nodes'."""
    found = figures.get((run, "clients", metric, kind))
    return found if found is not None else figures.get((run, "nodes", metric, kind))


def _alike(runs: Sequence[Run]) -> list[list[Run]]:
    """Group the runs that differ only in numbers of clients and repetition."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(json.dumps(_setting(run), sort_keys=True, default=str), []).append(run)
    return list(found.values())


def _setting(run: Run) -> list[Any]:
    workload = {name: value for name, value in run.workload.items() if name not in CLIENT_COUNTS}
    return [run.experiment, _other_factors(run), run.target.get("kind"), run.target.get("nodes"), workload]


def _other_factors(run: Run) -> dict[str, Any]:
    counts = {f"workload.{name}" for name in CLIENT_COUNTS}
    return {name: level for name, level in run.factors.items() if name not in counts}


def _clients(run: Run) -> int:
    return int(run.clients.get("count", 0))


def _target(runs: Sequence[Run], figures: Figures) -> dict[str, Any]:
    first = runs[0]
    nodes = int(first.target.get("nodes", 1) or 1)
    clients, throughput = _envelope(runs, figures)
    knee, reason = _knee(clients, throughput)
    rates = [found for found in (_rates(run, figures) for run in runs) if found is not None]
    weights = _weights(rates, nodes, knee is not None and knee.is_passed)
    passed = knee if knee is not None and knee.is_passed else None
    bottleneck = [run.run for run in runs if run.clients.get("are_bottleneck")]
    return {
        "experiment": first.experiment,
        "target": first.target.get("kind"),
        "nodes": nodes,
        "workload": first.workload.get("kind"),
        "protocol": first.workload.get("protocol"),
        "factors": _other_factors(first),
        "runs": len(runs),
        "clients_at_knee": passed.clients_at_knee if passed else None,
        "max_throughput_per_s": passed.max_throughput_per_s if passed else None,
        "intervals": _intervals(clients, throughput) if passed else None,
        "light_load_s": 1 / knee.parameters["per_client_per_s"] if knee else None,
        "highest_throughput_per_s": float(throughput.max()) if len(throughput) else None,
        "most_clients": int(clients.max()) if len(clients) else None,
        "reason": reason,
        "fit": _fit_facts(knee),
        "points": [
            {"clients": int(n), "throughput_per_s": float(x)} for n, x in zip(clients, throughput, strict=True)
        ],
        **_ratio(rates),
        **weights,
        "warnings": [f"in {len(bottleneck)} of {len(runs)} runs the clients were the bottleneck"]
        if bottleneck
        else [],
    }


def _envelope(runs: Sequence[Run], figures: Figures) -> tuple[Numbers, Numbers]:
    """Return client counts and throughputs of all repetitions; of several mixes with one count, the best."""
    cells: dict[int, dict[str, list[float]]] = {}
    for run in runs:
        value = _figure(figures, run.run, "throughput", "all")
        if value is not None and value > 0 and _clients(run) > 0:
            cells.setdefault(_clients(run), {}).setdefault(run.cell, []).append(value)
    best = {
        count: max(mixes.values(), key=lambda values: sum(values) / len(values)) for count, mixes in cells.items()
    }
    points = sorted((count, value) for count, values in best.items() for value in values)
    return np.array([count for count, _ in points], dtype=float), np.array(
        [value for _, value in points], dtype=float
    )


def _knee(clients: Numbers, throughput: Numbers) -> tuple[Knee | None, str | None]:
    levels = len(np.unique(clients))
    if levels < FEWEST_LEVELS:
        return None, f"throughput is known for {levels} numbers of clients, {FEWEST_LEVELS} are needed"
    knee = knee_of(clients, throughput)
    if knee.is_passed:
        return knee, None
    return knee, f"throughput still grew at {int(clients.max())} clients: measure with more"


def _fit_facts(knee: Knee | None) -> dict[str, Any] | None:
    if knee is None:
        return None
    return {"model": knee.model, "parameters": knee.parameters, "rmse_ratio": knee.rmse_ratio}


def _intervals(clients: Numbers, throughput: Numbers) -> dict[str, list[float]] | None:
    """Return 90 % intervals of the knee and the maximum by leaving out each point in turn (jackknife of ln)."""
    count = len(clients)
    whole = knee_of(clients, throughput)
    fit = two_lines if whole.model == TWO_LINES else scalability_law
    kept = [np.arange(count) != left_out for left_out in range(count)]
    if any(len(np.unique(clients[own])) < FEWEST_LEVELS for own in kept):
        return None
    found = [fit(clients[own], throughput[own]) for own in kept]
    width = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))

    def interval(value: float, others: Sequence[float]) -> list[float]:
        logs = np.log(others)
        error = math.sqrt((count - 1) / count * float(((logs - logs.mean()) ** 2).sum()))
        return [value * math.exp(-width * error), value * math.exp(width * error)]

    return {
        "clients_at_knee": interval(whole.clients_at_knee, [knee.clients_at_knee for knee in found]),
        "max_throughput_per_s": interval(whole.max_throughput_per_s, [knee.max_throughput_per_s for knee in found]),
    }


def _rates(run: Run, figures: Figures) -> Rates | None:
    """Return the rates of a run with producers and consumers, or None for a run without."""
    producers, consumers = (int(run.workload.get(name) or 0) for name in ("producers", "consumers"))
    put = _messages(figures, run.run, ("put",))
    taken = _messages(figures, run.run, ("take", "deliver"))
    if not producers or not consumers or not put or not taken:
        return None
    length_s = (run.measured.until_us - run.measured.from_us) / 1e6
    cpu = [node["cpu_s"] + node.get("store_cpu_s", 0.0) for node in run.nodes if node.get("cpu_s") is not None]
    busy = sum(cpu) / length_s if cpu and len(cpu) == len(run.nodes) and length_s > 0 else None
    return Rates(producers, consumers, put, taken, busy)


def _messages(figures: Figures, run: str, kinds: Sequence[str]) -> float:
    """Return messages per second; a request counts as one where messages were not counted."""
    for metric in ("messages", "throughput"):
        found = [_figure(figures, run, metric, kind) or 0.0 for kind in kinds]
        if sum(found) > 0:
            return sum(found)
    return 0.0


def _ratio(rates: Sequence[Rates]) -> dict[str, Any]:
    """Return the number of consumers per producer with which the queue neither grows nor shrinks.

    While a queue grows or shrinks neither side waits for the other: a producer puts p = P/N and a consumer takes
    c = T/M messages per second, and p/c consumers keep up with a producer. The result is the median of such runs. A
    queue with a steady length only shows that its consumers sufficed.
    """
    unbalanced = [one for one in rates if not one.is_level]
    level = [one.consumers / one.producers for one in rates if one.is_level]
    found = {"consumers_per_producer": None, "consumers_per_producer_at_most": min(level) if level else None}
    if not rates:
        return {**found, "ratio_reason": "no run has producers and consumers"}
    if not unbalanced:
        return {**found, "ratio_reason": "in no run the queue grew or emptied: measure with fewer consumers"}
    each = [(one.put_per_s / one.producers) / (one.taken_per_s / one.consumers) for one in unbalanced]
    return {**found, "consumers_per_producer": float(np.median(each)), "ratio_reason": None}


def _weights(rates: Sequence[Rates], nodes: int, is_knee_passed: bool) -> dict[str, Any]:
    """Return the share of a node's capacity that one producer and one consumer use at full speed.

    By the utilisation law nodes are busy for U = P·D_put + T·D_take, with D the CPU time of a message on each side,
    found by least squares over the runs. Capacity is the largest U, provided that throughput had stopped growing; a
    producer's weight is the largest rate of one producer times D_put, as a share of a node's capacity. A consumer's
    likewise.
    """
    nothing = {"producer_weight": None, "consumer_weight": None, "put_cpu_s": None, "take_cpu_s": None}
    known = [(one, one.busy) for one in rates if one.busy]
    if not rates:
        return {**nothing, "weights_reason": "no run has producers and consumers"}
    if len(known) < 2:
        return {**nothing, "weights_reason": "the runs do not say how much CPU time the nodes used"}
    work = np.array([[one.put_per_s, one.taken_per_s] for one, _ in known])
    busy = np.array([part for _, part in known])
    scale = np.sqrt((work**2).mean(axis=0))
    if np.linalg.cond(work / scale) > LARGEST_CONDITION:
        reason = "puts and takes came in the same proportion: measure with other numbers of consumers per producer"
        return {**nothing, "weights_reason": reason}
    demands = optimize.nnls(work / scale, busy)[0] / scale
    found = {**nothing, "put_cpu_s": float(demands[0]), "take_cpu_s": float(demands[1])}
    if not is_knee_passed:
        return {**found, "weights_reason": "the knee was not reached, so the capacity is not known"}
    per_node = float(busy.max()) / nodes
    producer = max(one.put_per_s / one.producers for one, _ in known) * demands[0] / per_node
    consumer = max(one.taken_per_s / one.consumers for one, _ in known) * demands[1] / per_node
    return {**found, "producer_weight": float(producer), "consumer_weight": float(consumer), "weights_reason": None}
