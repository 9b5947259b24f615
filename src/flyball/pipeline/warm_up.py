"""The time that a run needed to settle, compared with its warm-up before the measured time.

Small tables on the driver: no Spark.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from flyball.pipeline.events import point_s
from flyball.pipeline.intervals import batch_means

# MSER-5 uses means of 5 samples.
BATCH = 5

COLUMNS = ("run", "source", "given_s", "needed_s", "is_enough", "says")

Numbers = npt.NDArray[np.float64]


def settled_after(values: Numbers, batch: int = BATCH) -> int | None:
    """Return the number of samples to drop to minimise the error of the mean of the rest; None if it never settles.

    MSER-5 (K. P. White, M. J. Cobb, S. C. Spratt: A Comparison of Five Steady-State Truncation Heuristics for
    Simulation, WSC 2000): of n batches z, drop the first d that minimise Σ(z - mean of the rest)² / (n - d)² over
    the rest. Only the first half is searched, since the few batches at the end may be equal by chance; a minimum at
    its end means that the series has not settled. Fewer than four batches give no result.
    """
    count = values.size // batch
    if count < 4:
        return 0
    batches = values[: count * batch].reshape(count, batch).mean(axis=1)
    errors = [float(batches[dropped:].var()) / (count - dropped) for dropped in range(count // 2 + 1)]
    dropped = int(np.argmin(errors))
    return None if dropped == count // 2 else dropped * batch


def warm_up(series: pd.DataFrame, windows: pd.DataFrame) -> pd.DataFrame:
    """Return for each run and source the warm-up that its trace shows: a table with the columns COLUMNS.

    `series` is SERIES with the seconds before the measured time. `given_s` is the length of those, `needed_s` the
    time until the throughput settled, NaN if it did not. A warm-up is enough if it was long enough, or if dropping
    more does not change the mean by more than its own uncertainty.
    """
    points = {
        run: (point_s(from_us, until_us), max(int(until_us - from_us) // 1_000_000, 1))
        for run, from_us, until_us in windows.itertuples(index=False)
    }
    rows = []
    for (run, source), own in series.groupby(["run", "source"]):
        point, length_s = points[run]
        places, count = own["second"] // point, max(length_s // point, 1)
        first = min(int(places.min()), 0)
        # The first point of the trace is a partial one.
        counts = np.zeros(count - first)
        inside = places < count
        np.add.at(counts, places[inside].to_numpy() - first, own["requests"][inside].to_numpy())
        rows.append((run, source, *_verdict(counts[min(1, -first) :], max(-first - 1, 0), point)))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _verdict(counts: Numbers, given: int, point: int) -> tuple[float, float, bool, str]:
    """Judge requests per point of `point` seconds; the first `given` points were before the measured time."""
    given_s = given * point
    # Short runs have too few batches of five.
    needed = settled_after(counts, BATCH if counts.size >= 10 * BATCH else 1)
    if needed is None:
        return given_s, float("nan"), False, "the throughput had not settled when measuring ended"
    needed_s = needed * point
    if needed <= given:
        return given_s, needed_s, True, f"settled after {needed_s} s, measured from {given_s} s on"
    measured = batch_means(counts[given:])
    moved = abs(float(counts[needed:].mean()) - measured.mean)
    is_enough = bool(moved <= measured.half_width)
    what = "which does not move the mean" if is_enough else f"which moves the mean by {moved / measured.mean:.1%}"
    return given_s, needed_s, is_enough, f"settled after {needed_s} s but measured from {given_s} s on, {what}"
