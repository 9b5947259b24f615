"""Numbers and sparklines for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

SPARKS = "▁▂▃▄▅▆▇█"


def sparks(values: Sequence[float | None], width: int, highest: float | None = None) -> str:
    """Return the last values as one line of bars, from 0 to the maximum; unknown values are gaps."""
    shown = list(values)[-width:]
    known = [value for value in shown if value is not None and math.isfinite(value)]
    top = max([*known, highest or 0.0], default=0.0)
    bars = "".join(_bar(value, top) for value in shown)
    return bars.rjust(width)


def _bar(value: float | None, top: float) -> str:
    if value is None or not math.isfinite(value):
        return " "
    if top <= 0:
        return SPARKS[0]
    return SPARKS[min(int(max(value, 0.0) / top * len(SPARKS)), len(SPARKS) - 1)]


def short(value: float | None) -> str:
    """Return a short number: 12, 3.5, 12,345, 1.2 M."""
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.1f} M"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def mebibytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 2**20:,.1f} MiB"


def milliseconds(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
