"""The Prometheus text format, version 0.0.4.

Written by hand: a client library would create an object per sample first, which with 10,000 queues takes too long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

COUNTER, GAUGE, HISTOGRAM, UNTYPED = "counter", "gauge", "histogram", "untyped"

_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

# Labels, as `labels` formats them, and the value; None for no sample.
Sample = tuple[str, float | None]


@dataclass(frozen=True)
class Family:
    """A metric family: all samples of a name."""

    name: str
    kind: str
    about: str

    @cached_property
    def head(self) -> str:
        """Its HELP and TYPE lines."""
        return f"# HELP {self.name} {self.about}\n# TYPE {self.name} {self.kind}\n"

    def lines(self, samples: Iterable[Sample]) -> str:
        """Return a line for each sample with a value."""
        name = self.name
        return "".join([f"{name}{which} {number(value)}\n" for which, value in samples if value is not None])

    def text(self, samples: Iterable[Sample]) -> str:
        """Return HELP, TYPE and samples; empty without samples."""
        lines = self.lines(samples)
        return self.head + lines if lines else ""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with its getter for a node, queue, channel ...; the getter returns None for no sample."""

    family: Family
    read: Callable[[Any], float | None]
    labels: str = ""


# Name, type, getter or attribute path, and help.
Rows = Sequence[tuple[str, str, str | Callable[[Any], float | None], str]]


def metrics(prefix: str, rows: Rows, which: str = "") -> list[Metric]:
    """Return the metrics of a table; `which` are labels common to all."""
    return [
        Metric(Family(prefix + name, kind, about), attrgetter(read) if isinstance(read, str) else read, which)
        for name, kind, read, about in rows
    ]


def labels(**values: str) -> str:
    """Format labels. Keywords of Python get an underscore appended: `class_`."""
    pairs = [f'{name.rstrip("_")}="{value.translate(_ESCAPED)}"' for name, value in values.items()]
    return f"{{{','.join(pairs)}}}"


def number(value: float) -> str:
    """Format a number for Prometheus."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    # The unary plus turns a bool into an int.
    return repr(+value)
