"""Before and after in numbers and as a plot, from the pipeline's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from flyball.cli.control_commands import plots

# Maximum relative error of a rate that is shown as held.
GOOD_RATIO = 0.1


@dataclass(frozen=True, slots=True)
class Held:
    """The rates of a consumer: initially, and after the disturbance."""

    name: str
    run: str
    goal: float
    # Mean messages per second of each part of the run.
    rates: tuple[float, ...]

    def error_ratio(self, rate: float) -> float:
        """Return the relative deviation of a rate from the goal."""
        return rate / self.goal - 1


def held(closed_loops: pd.DataFrame, experiments: Sequence[str]) -> list[Held]:
    """Return the results of the consumers of these experiments, in their order."""
    found = []
    for experiment in experiments:
        of_it = closed_loops[closed_loops["experiment"] == experiment]
        for run, parts in of_it.groupby("run"):
            rows: list[dict[Any, Any]] = parts.sort_values("part").to_dict("records")
            rates = tuple(float(row["mean"]) for row in rows)
            found.append(Held(str(rows[-1]["controller"]), str(run), float(rows[-1]["goal"]), rates))
    return found


def table_of(found: Sequence[Held]) -> Table:
    """Return a table of before and after, with a row for each consumer."""
    table = Table(title="Before and after", title_justify="left", title_style="bold", caption_justify="left")
    table.caption = "messages a second; disturbed: network and handlers take twice as long"
    table.add_column("consumer", no_wrap=True)
    for heading in ("goal", "at first", "off by", "disturbed", "off by"):
        table.add_column(heading, justify="right")
    for one in found:
        cells = [cell for rate in one.rates[:2] for cell in _cells(one, rate)]
        table.add_row(one.name, f"{one.goal:.0f}", *cells)
    return table


def _cells(one: Held, rate: float) -> tuple[Text, Text]:
    error_ratio = one.error_ratio(rate)
    style = "green" if abs(error_ratio) <= GOOD_RATIO else "red"
    return Text(f"{rate:.0f}", style=style), Text(f"{error_ratio:+.0%}", style=style)


def draw(found: Sequence[Held], loops: pd.DataFrame, path: Path) -> None:
    """Plot rate and window of each consumer over time, side by side on one scale."""
    traces = []
    for one in found:
        own = loops[loops["run"] == one.run].sort_values("at_s")
        columns = [own[name].tolist() for name in ("at_s", "measurement", "action", "setpoint")]
        traces.append(plots.Trace(one.name, *columns))
    plots.save(plots.loops(traces, "messages/s", "seconds"), path)
