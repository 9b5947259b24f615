"""The report on two or more analyses side by side: the same cells, and their differences from the first analysis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from flyball.errors import PipelineError
from flyball.pipeline.report.chapters import Chapter, chapters_of
from flyball.pipeline.report.content import Block, Caution, Mark, Passage, Section, Table, Tile
from flyball.pipeline.report.differences import Difference, Estimate, difference, estimate, verdict
from flyball.pipeline.report.figures import (
    Figure,
    Trace,
    axis,
    level_axis,
    marker,
    value_axis,
)
from flyball.pipeline.report.formatting import (
    ALL,
    NOTHING,
    amount,
    axis_name,
    capital,
    count_of,
    level,
    metric_name,
    unit_of,
)
from flyball.pipeline.report.levels import Points, bar_of, coordinate, trace_of
from flyball.pipeline.report.page import write_page
from flyball.pipeline.report.percentiles import NOTATION, PERCENTILES, percentiles_of
from flyball.pipeline.report.sections import folded, settings_facts
from flyball.pipeline.report.selection import student_of

if TYPE_CHECKING:
    # For type annotations only: the module loads Spark.
    from flyball.pipeline.analysis import Analysis

METRICS = ("throughput", "messages", "response")


@dataclass(frozen=True, slots=True)
class Compared:
    """One cell and metric in one analysis, compared with the same in the first."""

    # The name of the analysis.
    other: str
    metric: str
    found: Difference


@dataclass(frozen=True)
class Pair:
    """The same experiment in all analyses, the first one first."""

    title: str
    chapters: Mapping[str, Chapter]

    @property
    def first(self) -> Chapter:
        return next(iter(self.chapters.values()))


def write_comparison(analyses: Mapping[str, Analysis], path: Path) -> None:
    """Write a comparison of named analyses to `path` as one HTML file; the others are compared with the first.

    Raises PipelineError if there are fewer than two, or if they have no experiment in common.
    """
    if len(analyses) < 2:
        raise PipelineError("a comparison needs two or more results: name further ones")
    pairs = _pairs({name: chapters_of(analysis) for name, analysis in analyses.items()})
    if not pairs:
        raise PipelineError(f"{', '.join(analyses)} have no experiment in common: nothing can be compared")
    shown = [_pair_section(number, pair) for number, pair in enumerate(pairs, start=1)]
    compared = [one for _, ones in shown for one in ones]
    first, *others = analyses
    title = f"{_and(others)} compared with {first}"
    sections = [_summary(title, analyses, pairs, compared), *(section for section, _ in shown), _settings(analyses)]
    footer = (
        "Differences are judged by Welch's interval of 90 %: one in ten would be called significant by chance."
        f" Intervals are of 90 %; {NOTATION}."
    )
    write_page(path, f"{title} · Flyball", sections, footer)


def _pairs(chapters: Mapping[str, Sequence[Chapter]]) -> list[Pair]:
    """Return the experiments in all analyses; if there are none and each has just one, these."""
    by_name = {name: {chapter.name: chapter for chapter in found} for name, found in chapters.items()}
    first = next(iter(by_name.values()))
    common = [name for name in first if all(name in found for found in by_name.values())]
    if common:
        return [Pair(first[name].title, {key: found[name] for key, found in by_name.items()}) for name in common]
    if all(len(found) == 1 for found in chapters.values()):
        alone = {name: found[0] for name, found in chapters.items()}
        return [Pair(" compared with ".join(dict.fromkeys(chapter.title for chapter in alone.values())), alone)]
    return []


def _pair_section(number: int, pair: Pair) -> tuple[Section, list[Compared]]:
    figures: list[Figure] = []
    tables: list[Block] = []
    compared: list[Compared] = []
    for metric in METRICS:
        rows = {name: _rows(chapter, metric, pair.first.source_of(metric)) for name, chapter in pair.chapters.items()}
        cells = [cell for cell in pair.first.cells if all(cell in found for found in rows.values())]
        if not cells:
            continue
        figures.append(_overlaid(pair, metric, rows))
        table, found = _compare(pair, metric, rows, cells)
        tables.append(table)
        compared += found
        if metric == "response":
            tables += _compare_percentiles(pair, cells)
    data = {
        "name": pair.first.name,
        "about": pair.first.experiment.about if pair.first.experiment else "",
        "source": "",
        "tiles": [],
        "first": [],
        "figures": figures,
        "notes": [] if tables else ["No cell was measured in all of them."],
        "last": [Passage("", tables)],
    }
    return Section(f"experiment-{number}", pair.title, "chapter.html", data), compared


def _rows(chapter: Chapter, metric: str, source: str) -> dict[str, pd.Series[Any]]:
    return {str(row["cell"]): row for _, row in chapter.metric(metric, source, ALL).iterrows()}


def _compare(
    pair: Pair, metric: str, rows: Mapping[str, Mapping[str, pd.Series[Any]]], cells: Sequence[str]
) -> tuple[Table, list[Compared]]:
    """Compare each cell of the others with the same cell of the first."""
    first, *others = pair.chapters
    unit = unit_of(metric)
    head = ["Cell", f"{first} [{unit}]"]
    for other in others:
        head += [f"{other} [{unit}]", "Ratio", f"Difference, 90 % [{unit}]", "Verdict"]
    body: list[list[str | Mark]] = []
    compared: list[Compared] = []
    for cell in cells:
        estimates = {name: _estimate(chapter, rows[name][cell]) for name, chapter in pair.chapters.items()}
        body.append([pair.first.cell_name(cell), student_of(rows[first][cell])])
        for other in others:
            found = difference(estimates[first], estimates[other])
            says, mood = verdict(metric, found)
            interval = f"[{amount(found.low)}, {amount(found.high)}]" if found.is_known else NOTHING
            look = f"verdict {mood}-text" if mood else "verdict"
            body[-1] += [student_of(rows[other][cell]), f"{amount(found.ratio, 3)} ×", interval, Mark(says, look)]
            compared.append(Compared(other, metric, found))
    return folded(Table(f"{capital(metric_name(metric))}, compared with {first}", head, body)), compared


def _compare_percentiles(pair: Pair, cells: Sequence[str]) -> list[Block]:
    source = pair.first.source_of("response")
    found = {name: percentiles_of(chapter, source) for name, chapter in pair.chapters.items()}
    first, *others = pair.chapters
    tables: list[Block] = []
    for name in PERCENTILES:
        head = ["Cell", f"{first} [ms]", *(text for other in others for text in (f"{other} [ms]", "Ratio"))]
        body: list[list[str]] = []
        for cell in cells:
            base = found[first].get((cell, ALL))
            if base is None:
                continue
            row = [pair.first.cell_name(cell), base[name].text]
            for other in others:
                one = found[other].get((cell, ALL))
                ratio = one[name].value / base[name].value if one and base[name].value else math.nan
                row += [one[name].text if one else NOTHING, f"{amount(ratio, 3)} ×"]
            body.append(row)
        if body:
            tables.append(folded(Table(f"{name} of the response time, compared with {first}", head, body)))
    return tables


def _estimate(chapter: Chapter, row: pd.Series[Any]) -> Estimate:
    """Return the estimate for a cell: over its repetitions, or within the run if there is only one."""
    count = int(row["repetitions"])
    if count == 1:
        measures = chapter.tables["measures"]
        same = (
            measures["metric"].eq(row["metric"])
            & measures["source"].eq(row["source"])
            & measures["kind"].eq(row["kind"])
        )
        counts = measures.loc[same & measures["cell"].eq(row["cell"]), "n"]
        count = int(counts.iloc[0]) if len(counts) else 1
    return estimate(float(row["mean"]), float(row["half_width"]), count)


def _overlaid(pair: Pair, metric: str, rows: Mapping[str, Mapping[str, pd.Series[Any]]]) -> Figure:
    chapter = pair.first
    x = chapter.factors[0] if chapter.factors else None
    unit = unit_of(metric)
    data: list[Trace] = []
    says: list[str] = []
    series: list[str] = []
    for number, (name, found) in enumerate(rows.items()):
        for line_name, points in _lines(chapter, found, x).items():
            if line_name not in series:
                series.append(line_name)
            full = f"{name}: {line_name}" if line_name else name
            data.append(_trace(full, points, x, unit, (series.index(line_name), number), is_alone=not line_name))
            said = (f"{amount(row['mean'])} at {level(cell.get(x)) if x else 'this run'}" for cell, row in points[:8])
            says.append(f"{full}: {', '.join(said)}")
    means = [float(row["mean"]) for found in rows.values() for row in found.values()]
    levels = list(
        dict.fromkeys(
            chapter.cells[cell].get(x or "") for found in rows.values() for cell in found if cell in chapter.cells
        )
    )
    layout = {
        "xaxis": level_axis(capital(axis_name(chapter.names[x])), levels) if x else axis("", type="category"),
        "yaxis": value_axis(f"{capital(metric_name(metric))} [{unit}]", means, may_be_log=unit == "ms"),
        "barmode": "group",
    }
    title = f"{capital(metric_name(metric))}{f' over {chapter.names[x]}' if x else ''}"
    note = "Error bars span the 90 % confidence interval."
    return Figure(title, data, layout, f"{title}, in {unit}. {'; '.join(says)}", note=note)


def _lines(chapter: Chapter, rows: Mapping[str, pd.Series[Any]], x: str | None) -> dict[str, Points]:
    found: dict[str, Points] = {}
    for cell, row in rows.items():
        if cell in chapter.cells:
            factors = chapter.cells[cell]
            found.setdefault(chapter.line_name(factors, x), []).append((factors, row))
    return found


def _trace(name: str, points: Points, x: str | None, unit: str, place: tuple[int, int], *, is_alone: bool) -> Trace:
    """Return a line, or a bar if there is no varied factor.

    Each analysis has its own colour in every plot; several lines of one analysis differ in their dashes.
    """
    series, analysis = place
    rows = [row for _, row in points]
    if x is None:
        return bar_of(analysis, name, ["this run"], rows, unit)
    places = [coordinate(cell.get(x)) for cell, _ in points]
    found = trace_of(analysis, name, places, rows, unit)
    if not is_alone:
        found["line"] |= {"dash": ("solid", "dash", "dot", "dashdot")[series % 4]}
        found["marker"] |= {"symbol": marker(series)["symbol"]}
    return found


def _summary(
    title: str, analyses: Mapping[str, Analysis], pairs: Sequence[Pair], compared: Sequence[Compared]
) -> Section:
    first, *others = analyses
    common = capital(count_of(len(pairs), "experiment"))
    data = {
        "title": title,
        "lead": f"{common} in common. The baseline is {first}.",
        "tiles": _tiles(others, compared),
        "findings": [],
        "cautions": _cautions(analyses, compared),
        "says_nothing_to_warn_of": False,
    }
    return Section("summary", "Summary", "summary.html", data)


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _tiles(others: Sequence[str], compared: Sequence[Compared]) -> list[Tile]:
    tiles = []
    for other in others:
        for metric in METRICS:
            ones = [one for one in compared if one.other == other and one.metric == metric]
            if not ones:
                continue
            moods = [verdict(metric, one.found)[1] for one in ones]
            ratio = float(pd.Series([one.found.ratio for one in ones]).median())
            better, worse, same = (moods.count(mood) for mood in ("good", "bad", ""))
            more = f"{better} better, {worse} worse, {same} alike or undecided of {count_of(len(ones), 'cell')}"
            tiles.append(Tile(f"{capital(metric_name(metric))} of {other}", f"{amount(ratio, 2)} ×", "median", more))
    return tiles


def _cautions(analyses: Mapping[str, Analysis], compared: Sequence[Compared]) -> list[Caution]:
    found = []
    alone = sum(not one.found.is_known for one in compared)
    if alone:
        found.append(
            Caution(f"{count_of(alone, 'difference')} cannot be judged: a cell without an interval; repeat its run.")
        )
    for name, analysis in analyses.items():
        slow = [run.run for run in analysis.runs if run.clients.get("are_bottleneck")]
        if slow:
            found.append(Caution(f"{name}: in {count_of(len(slow), 'run')} the clients were the bottleneck.", slow))
        broken = [
            run.run for run in analysis.runs if any(run.checks.get(key) for key in ("failed", "lost", "doubled"))
        ]
        if broken:
            found.append(Caution(f"{name}: {count_of(len(broken), 'run')} failed the checks.", broken, is_bad=True))
    quick = {name: {run.is_quick for run in analysis.runs} for name, analysis in analyses.items()}
    if len({frozenset(kinds) for kinds in quick.values()}) > 1:
        found.append(Caution("Some were scaled down with --quick and others not: they are not alike."))
    return found


def _settings(analyses: Mapping[str, Analysis]) -> Section:
    facts = {name: settings_facts(analysis.runs) for name, analysis in analyses.items()}
    names = list(dict.fromkeys(key for found in facts.values() for key in found))
    differ = [key for key in names if len({tuple(found.get(key, ())) for found in facts.values()}) > 1]
    body = [[key, *("; ".join(found.get(key, [NOTHING])[:20]) for found in facts.values())] for key in differ]
    shown: Block = (
        Table("What differs", ["Setting", *analyses], body, numbers_from=len(analyses) + 1)
        if differ
        else "Settings, workloads and versions are the same in all of them."
    )
    return Section("settings", "What differs between them", "section.html", {"passages": [Passage("", [shown])]})
