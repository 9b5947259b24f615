"""Means and covariances of lagged samples, used to find the delay and the order of a plant and to test it.

`LagMoments` is additive: moments of any number of samples, reduced by numpy or Spark and perhaps stored in between,
merge without loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flyball.control.moments import Moments, Numbers, merged, moments_of, nothing
from flyball.errors import ControlError

VERSION = 1
# Search range of a plant's structure: delays, in samples beyond the usual one, and orders.
MAX_DELAY = 5
MAX_ORDER = 3
# Lags of the residual autocorrelation that are tested.
RESIDUAL_LAGS = 5
# Segments in time that are kept separate, so that drift of the plant is visible.
MAX_SEGMENTS = 8


@dataclass(frozen=True, slots=True)
class Lags:
    """How far back a row of lagged samples reaches: y(k+1), y(k) ... y(k - measurements), u(k) ... u(k - actions).

    It covers every delay up to `delay` and every order up to `order`, and the last `residuals` residuals.
    """

    delay: int = MAX_DELAY
    order: int = MAX_ORDER
    residuals: int = RESIDUAL_LAGS

    @classmethod
    def for_structure(cls, delay: int | None = None, order: int | None = None) -> Self:
        """Return lags that cover this delay and order as well as the default ones."""
        return cls(max(delay or 0, MAX_DELAY), max(order or 1, MAX_ORDER))

    @property
    def measurements(self) -> int:
        """Lags of measurements in a row."""
        return self.order - 1 + self.residuals

    @property
    def actions(self) -> int:
        """Lags of actions in a row."""
        return self.delay + self.order - 1 + self.residuals

    @property
    def rows_needed(self) -> int:
        """Minimum number of rows to find a structure and to test it."""
        return 2 * self.size

    @property
    def reach(self) -> int:
        """Samples of a run before the first row."""
        return max(self.measurements, self.actions)

    @property
    def size(self) -> int:
        """Columns of a row."""
        return self.measurements + self.actions + 3

    def y(self, lag: int) -> int:
        """Return the column of y(k - lag); a lag of -1 is y(k+1)."""
        return 1 + lag

    def u(self, lag: int) -> int:
        """Return the column of u(k - lag)."""
        return 2 + self.measurements + lag

    def regressors(self, delay: int, order: int) -> list[int]:
        """Return the columns of y(k) ... and u(k - delay) ..., as many of each as the order."""
        return [*(self.y(lag) for lag in range(order)), *(self.u(delay + lag) for lag in range(order))]


# For few samples: only small delays and one order are searched, but actions are tested as far back as MAX_DELAY.
FEW = Lags(delay=2, order=1, residuals=3)


@dataclass(frozen=True, slots=True)
class LagMoments:
    """The moments of rows of lagged samples, by segments of time in chronological order.

    `changes` are the smallest and the largest change of the action from one sample to the next. Merge parts in order
    of time: `LagMoments.merge(yesterday, today)`.
    """

    lags: Lags
    segments: tuple[Moments, ...]
    changes: tuple[float, float] = (0.0, 0.0)

    @property
    def total(self) -> Moments:
        """The moments of all segments together."""
        return merged([nothing(self.lags.size), *self.segments])

    def halves(self) -> tuple[Moments, Moments]:
        """Return the moments of the first and the second half, split as evenly as segments allow."""
        counts = np.cumsum([0.0, *(part.count for part in self.segments)])
        middle = int(np.argmin(np.abs(counts - counts[-1] / 2)))
        empty = nothing(self.lags.size)
        return merged([empty, *self.segments[:middle]]), merged([empty, *self.segments[middle:]])

    @classmethod
    def merge(cls, *parts: Self) -> Self:
        """Return the moments of all parts, at least one, in order of time.

        Raises ControlError if their lags differ.
        """
        if any(part.lags != parts[0].lags for part in parts):
            raise ControlError("moments with different lags cannot be merged: compute them again with the same lags")
        segments = [one for part in parts for one in part.segments if one.count]
        while len(segments) > MAX_SEGMENTS:
            sizes = [first.count + second.count for first, second in pairwise(segments)]
            place = int(np.argmin(sizes))
            segments[place : place + 2] = [merged(segments[place : place + 2])]
        changes = min(part.changes[0] for part in parts), max(part.changes[1] for part in parts)
        return cls(parts[0].lags, tuple(segments), changes)

    def to_json(self) -> dict[str, Any]:
        """Return them as a document, for storage."""
        return {
            "version": VERSION,
            "lags": {"delay": self.lags.delay, "order": self.lags.order, "residuals": self.lags.residuals},
            "changes": list(self.changes),
            "segments": [
                {"count": one.count, "means": one.means.tolist(), "covariance": one.covariance.tolist()}
                for one in self.segments
            ],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the moments of a document. Raises ControlError if it cannot be read."""
        if document.get("version") != VERSION:
            raise ControlError(f"lag moments have version {document.get('version')!r}, only {VERSION} can be read")
        try:
            lags = Lags(*(int(document["lags"][key]) for key in ("delay", "order", "residuals")))
            segments = tuple(
                Moments(
                    float(one["count"]),
                    np.array(one["means"], dtype=np.float64).reshape(lags.size),
                    np.array(one["covariance"], dtype=np.float64).reshape(lags.size, lags.size),
                )
                for one in document["segments"]
            )
            least, largest = map(float, document["changes"])
        except (KeyError, TypeError, ValueError) as error:
            raise ControlError(f"lag moments cannot be read: {error!r}") from error
        return cls(lags, segments, (least, largest))


def lagged(y: Numbers, u: Numbers, breaks: Sequence[int] = (), lags: Lags | None = None) -> LagMoments:
    """Return the moments of one series of samples; a break is the index of the first sample of another run."""
    lags = lags or Lags()
    edges = sorted({0, len(y), *(edge for edge in breaks if 0 < edge < len(y))})
    now = np.concatenate([np.empty(0, np.intp), *(np.arange(a + lags.reach, b - 1) for a, b in pairwise(edges))])
    columns = rows_of(y, u, now, lags)
    segments = [part for part in np.array_split(columns, MAX_SEGMENTS, axis=1) if part.shape[1]]
    changes = np.concatenate([np.zeros(0), *(np.diff(u[a:b]) for a, b in pairwise(edges))])
    # Without any change of the action both are 0.
    extremes = float(changes.min(initial=np.inf)), float(changes.max(initial=-np.inf))
    return LagMoments(lags, tuple(moments_of(part) for part in segments), extremes if changes.size else (0.0, 0.0))


def rows_of(y: Numbers, u: Numbers, now: npt.NDArray[np.intp], lags: Lags) -> Numbers:
    """Return the rows for these samples, one in each column of the matrix."""
    return np.array(
        [
            *(y[now - lag] for lag in range(-1, lags.measurements + 1)),
            *(u[now - lag] for lag in range(lags.actions + 1)),
        ]
    )
