"""The text format in which Prometheus reads metrics, version 0.0.4. Knows no metric.

Written by hand: a client library would make an object of each sample first, which with 10,000 queues takes the node's
time.
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

# The labels, as `labels` writes them, and the value; None if there is none at present.
Sample = tuple[str, float | None]


@dataclass(frozen=True)
class Family:
    """A metric: all samples of a name."""

    name: str
    kind: str
    about: str

    @cached_property
    def head(self) -> str:
        """The lines before its samples."""
        return f"# HELP {self.name} {self.about}\n# TYPE {self.name} {self.kind}\n"

    def lines(self, samples: Iterable[Sample]) -> str:
        """Return a line for each sample that has a value."""
        name = self.name
        return "".join([f"{name}{which} {number(value)}\n" for which, value in samples if value is not None])

    def text(self, samples: Iterable[Sample]) -> str:
        """Return the head and the samples; nothing if there are none."""
        lines = self.lines(samples)
        return self.head + lines if lines else ""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with how it is read of a node, a queue, a channel ...; None if there is nothing to read at present."""

    family: Family
    read: Callable[[Any], float | None]
    labels: str = ""


# Name, kind, how to read it, or the path of the attribute that has it, and what it is about.
Rows = Sequence[tuple[str, str, str | Callable[[Any], float | None], str]]


def metrics(prefix: str, rows: Rows, which: str = "") -> list[Metric]:
    """Return the metrics of a table; `which` are the labels of all."""
    return [
        Metric(Family(prefix + name, kind, about), attrgetter(read) if isinstance(read, str) else read, which)
        for name, kind, read, about in rows
    ]


def labels(**values: str) -> str:
    """Return labels as they stand after a name. Python's words have an underscore behind them: `class_`."""
    pairs = [f'{name.rstrip("_")}="{value.translate(_ESCAPED)}"' for name, value in values.items()]
    return f"{{{','.join(pairs)}}}"


def number(value: float) -> str:
    """Return a number as Prometheus reads it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    # The sign makes a number of what is true or false.
    return repr(+value)
