"""The effects of the factors of an experiment: a 2^k·r factorial design.

After R. Jain, The Art of Computer Systems Performance Analysis, ch. 17-18. Small tables on the driver: no Spark here.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from flyball.errors import PipelineError
from flyball.pipeline.manifest import Experiment, Run

COLUMNS = ("experiment", "metric", "term", "effect", "low", "high", "share_ratio", "source", "kind", "unit", "model")
DEFAULT_METRICS = ("throughput", "response")
CONFIDENCE = 0.9
# Ratio of the largest to the smallest response from which effects are treated as multiplicative, not additive.
MULTIPLICATIVE_FROM = 10.0

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Term:
    """The mean, a factor, or an interaction of factors, with its effect and its share of the variation (0 to 1).

    `low` and `high` bound the effect with 90 % confidence; they are NaN without repetitions.
    """

    name: str
    effect: float
    low: float
    high: float
    share_ratio: float


def sign_table(factor_count: int) -> Numbers:
    """Return the 2^k rows of signs: a column of ones, then each factor, then each interaction.

    The first factor changes fastest, as in the textbook: with two factors the rows are (-,-), (+,-), (-,+), (+,+).
    """
    corners = _corners(factor_count)
    columns = [np.prod([corners[:, factor] for factor in term], axis=0) for term in _terms(factor_count)]
    return np.column_stack([np.ones(len(corners)), *columns])


def effects_of(responses: Numbers, names: Sequence[str], is_multiplicative: bool = False) -> list[Term]:
    """Return the mean, all terms and the error of a design with `responses` of 2^k rows and r columns.

    With the sign table S and the mean ȳ of each row:

    * effects q = Sᵀȳ / 2^k; the response at a corner is the sum of the effects with its signs;
    * SSE = Σ(y - ȳ)², the error's deviation s_e = √(SSE / 2^k(r-1)), that of each effect s_q = s_e / √(2^k·r),
      so the interval is q ± t[0.95; 2^k(r-1)]·s_q;
    * SS_j = 2^k·r·q_j², SST = Σ SS_j + SSE, and SS_j / SST is the share of the variation that term j explains.

    A multiplicative design is the same for ln y. Its effects are given as factors, e^q: the upper level multiplies
    by it, the lower one divides, and 1 means no effect. The effect of the error is s_e, or e^s_e.
    """
    values = np.log(responses) if is_multiplicative else responses
    corner_count, repetitions = values.shape
    means = values.mean(axis=1)
    effects = sign_table(len(names)).T @ means / corner_count
    error_sum = float(((values - means[:, None]) ** 2).sum())
    sums = corner_count * repetitions * effects[1:] ** 2
    total = float(sums.sum()) + error_sum
    shares = [float(part) / total if total > 0 else 0.0 for part in (*sums, error_sum)]
    freedom = corner_count * (repetitions - 1)
    deviation = float(np.sqrt(error_sum / freedom)) if freedom else float("nan")
    half_width = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * deviation / float(np.sqrt(values.size))

    def back(value: float) -> float:
        return float(np.exp(value)) if is_multiplicative else float(value)

    labels = ["mean", *(":".join(names[factor] for factor in term) for term in _terms(len(names)))]
    found = [
        Term(label, back(effect), back(effect - half_width), back(effect + half_width), share)
        for label, effect, share in zip(labels, effects, [float("nan"), *shares[:-1]], strict=True)
    ]
    return [*found, Term("error", back(deviation), float("nan"), float("nan"), shares[-1])]


def factorial(
    measures: pd.DataFrame,
    runs: Sequence[Run],
    experiment: Experiment,
    metrics: Sequence[str] = DEFAULT_METRICS,
    kind: str = "all",
) -> pd.DataFrame:
    """Return the table `effects` of an experiment: a row for each metric and term, with the columns `COLUMNS`.

    Of a factor with more than two levels only the lowest and the highest count, so any full factorial design works.
    Metrics are those of the clients, else the nodes'; a metric without measurements has no rows. If corners have
    different numbers of repetitions, the smallest number is used for each. Raises PipelineError if no factor has two
    levels or if a corner was never run.
    """
    levels = {name: _ends(values) for name, values in experiment.factors.items() if _differ(values)}
    if not levels:
        raise PipelineError(f"{experiment.name} is not a factorial design: none of its factors has two levels")
    corners = _runs_of_corners(levels, runs, experiment)
    rows = []
    for metric in metrics:
        chosen = measures[(measures["metric"] == metric) & (measures["kind"] == kind)]
        for source in ("clients", "nodes"):
            of_source = chosen[chosen["source"] == source]
            responses = _responses(of_source, corners)
            if responses is None:
                continue
            is_multiplicative = bool(responses.min() > 0 and responses.max() / responses.min() >= MULTIPLICATIVE_FROM)
            model = "multiplicative" if is_multiplicative else "additive"
            unit = of_source["unit"].iloc[0]
            rows += [
                (experiment.name, metric, t.name, t.effect, t.low, t.high, t.share_ratio, source, kind, unit, model)
                for t in effects_of(responses, list(levels), is_multiplicative)
            ]
            break
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _corners(factor_count: int) -> Numbers:
    return np.array([row[::-1] for row in itertools.product((-1.0, 1.0), repeat=factor_count)])


def _terms(factor_count: int) -> list[tuple[int, ...]]:
    """Return the factors of each term: single ones first, then pairs, and so on."""
    return [term for size in range(1, factor_count + 1) for term in itertools.combinations(range(factor_count), size)]


def _differ(values: Sequence[object]) -> bool:
    return any(value != values[0] for value in values)


def _ends(values: Sequence[object]) -> tuple[object, object]:
    """Return the lowest and the highest of numbers, the first and the last of anything else."""
    numbers = [value for value in values if isinstance(value, (int, float))]
    if len(numbers) == len(values):
        return min(numbers), max(numbers)
    return values[0], values[-1]


def _runs_of_corners(
    levels: Mapping[str, tuple[object, object]], runs: Sequence[Run], experiment: Experiment
) -> list[list[str]]:
    """Return the names of the runs at each corner, in the order of the sign table and of their repetitions."""
    own = sorted((run for run in runs if run.experiment == experiment.name), key=lambda run: run.repetition)
    found = []
    for signs in _corners(len(levels)):
        wanted = {name: ends[int(sign > 0)] for (name, ends), sign in zip(levels.items(), signs, strict=True)}
        names = [run.run for run in own if all(run.factors.get(name) == level for name, level in wanted.items())]
        if not names:
            cell = ", ".join(f"{name} = {level}" for name, level in wanted.items())
            raise PipelineError(f"{experiment.name} has no run with {cell}: run it to the end first")
        found.append(names)
    return found


def _responses(measured: pd.DataFrame, corners: Sequence[Sequence[str]]) -> Numbers | None:
    """Return the means of the runs at each corner as a row, or None if a corner was not measured."""
    means = {str(run): float(mean) for run, mean in zip(measured["run"], measured["mean"], strict=True)}
    rows = [[means[run] for run in names if run in means] for names in corners]
    repetitions = min(len(row) for row in rows)
    return np.array([row[:repetitions] for row in rows]) if repetitions else None
