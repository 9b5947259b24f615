"""Plots of the parts of a whole: the time of a request into phases, variation into the effects of factors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pandas as pd

from flyball.pipeline.manifest import View
from flyball.pipeline.report.chapters import Chapter
from flyball.pipeline.report.content import Table
from flyball.pipeline.report.figures import (
    NAMES_DOWNWARDS,
    Figure,
    axis,
    colour,
    error_bars,
    plain,
    points,
    stacked,
    vertical,
)
from flyball.pipeline.report.formatting import (
    ALL,
    COMPONENTS,
    NOTHING,
    PHASES,
    amount,
    capital,
    metric_name,
    percent,
    unit_of,
)
from flyball.pipeline.report.selection import MOST_LINES, of_kind, spread

MOST_BARS = 40

# Rows of the effects that are not factors.
_NO_FACTORS = ("mean", "error")


def breakdown(chapter: Chapter, view: View) -> list[Figure]:
    """The time of a request in a node by phase, stacked, for each cell and kind of request."""
    phases = _phases(chapter, view)
    rows = chapter.tables["phases"]
    rows = rows[rows["phase"].isin(phases)]
    kind = view.request
    kinds = sorted(set(rows["kind"]) - {ALL})
    if kind != ALL:
        kinds = [kind]
    cells = [cell for cell in chapter.cells if cell in set(rows["cell"])]
    is_merged = len(cells) * len(kinds) > MOST_BARS or len(kinds) == 1
    rows = rows[rows["kind"].isin(kinds)]
    if rows.empty:
        return []
    means = _phase_means(rows, merge_kinds=is_merged)
    bars_of = [
        key
        for cell in cells
        for key in ([(cell, "")] if is_merged else [(cell, name) for name in kinds])
        if key in means
    ]
    shown = spread(bars_of, MOST_BARS)
    labels = [_bar_label(chapter, cell, name, is_alone=len(cells) == 1) for cell, name in shown]
    title = view.title or f"Where the time goes in a node{of_kind(kind)}"
    parts = {capital(metric_name(phase)): [means[key].get(phase) for key in shown] for phase in phases}
    data, layout = stacked(labels, parts, "Mean time of a request [ms]", " ms", range(len(phases)))
    head = ["Requests", *(f"{capital(metric_name(phase))} [ms]" for phase in phases), "Sum [ms]"]
    body = [
        [label, *(amount(means[key].get(phase)) for phase in phases), amount(sum(means[key].values()))]
        for label, key in zip(labels, shown, strict=True)
    ]
    says = f"{title}: mean time of a request in ms. " + "; ".join(
        f"{label}: {_largest_phase(means[key])}" for label, key in list(zip(labels, shown, strict=True))[:MOST_LINES]
    )
    height = 170 + 26 * len(shown)
    return [Figure(title, data, layout, says, Table(title, head, body), is_wide=True, height_px=height)]


def effects(chapter: Chapter, view: View) -> list[Figure]:
    """The effects of a 2^k design with their intervals, the largest first."""
    rows = chapter.tables["effects"]
    asked = rows[rows["metric"] == view.metric]
    rows = rows if asked.empty else asked
    return [_effects_of(chapter, view, str(metric), part) for metric, part in rows.groupby("metric", sort=False)]


def _phases(chapter: Chapter, view: View) -> tuple[str, ...]:
    """Return ThorBangMQ's three components where its figures are shown next to ours, else all phases."""
    known = set(chapter.tables["phases"]["phase"])
    is_published = bool(set(chapter.tables["references"]["metric"]) & set(COMPONENTS))
    chosen = COMPONENTS if view.metric in COMPONENTS or is_published else PHASES
    return tuple(phase for phase in chosen if phase in known)


def _phase_means(rows: pd.DataFrame, *, merge_kinds: bool) -> dict[tuple[str, str], dict[str, float]]:
    """Return the mean of each phase over all nodes and runs of a cell, weighted by requests."""
    weighted = rows.assign(total=rows["mean_ms"] * rows["requests"], kind="" if merge_kinds else rows["kind"])
    sums = weighted.groupby(["cell", "kind", "phase"])[["total", "requests"]].sum()
    found: dict[tuple[str, str], dict[str, float]] = {}
    for place, row in sums.iterrows():
        cell, kind, phase = cast("tuple[str, str, str]", place)
        found.setdefault((cell, kind), {})[phase] = float(row["total"] / row["requests"])
    return found


def _bar_label(chapter: Chapter, cell: str, kind: str, *, is_alone: bool) -> str:
    if is_alone:
        return kind or "all requests"
    return f"{chapter.cell_name(cell)}: {kind}" if kind else chapter.cell_name(cell)


def _largest_phase(means: Mapping[str, float]) -> str:
    total = sum(means.values())
    phase = max(means, key=lambda name: means[name])
    share = means[phase] / total if total else 0.0
    return f"{amount(total)} ms, most of it {metric_name(phase)} ({percent(share)})"


def _effects_of(chapter: Chapter, view: View, metric: str, rows: pd.DataFrame) -> Figure:
    ordered = rows.sort_values("share_ratio", ascending=False, na_position="last", kind="stable")
    shown = ordered[~ordered["term"].isin(_NO_FACTORS)]
    is_factor = "model" in rows and set(rows["model"]) == {"multiplicative"}
    unit = "factor" if is_factor else unit_of(metric)
    none = 1.0 if is_factor else 0.0
    title = view.title or f"Effects on the {metric_name(metric)}"
    effect = points(
        "effect",
        shown["effect"],
        [plain(_term(chapter, term)) for term in shown["term"]],
        {"color": colour(0), "size": 11},
        "%{y}: %{x:,.4g} " + unit + ", explains %{text}<extra></extra>",
        error_x=error_bars(shown["high"] - shown["effect"], shown["effect"] - shown["low"]),
        text=[percent(share) for share in shown["share_ratio"]],
    )
    layout = {
        "xaxis": axis(f"Effect on the {metric_name(metric)} [{unit}]"),
        "yaxis": NAMES_DOWNWARDS,
        "shapes": [vertical(none, "muted", 1)],
        "showlegend": False,
    }
    body = [_effect_row(chapter, row, none) for _, row in ordered.iterrows()]
    head = ["Term", f"Effect [{unit}]", "90 % interval", "Variation explained", "Significant"]
    says = f"{title}. " + "; ".join(f"{row[0]}: {row[1]} {unit}, explains {row[3]}" for row in body[:MOST_LINES])
    meaning = (
        "The upper level of a factor multiplies by its effect, the lower one divides."
        if is_factor
        else "An effect is half of the change from the lower to the upper level."
    )
    note = f"{meaning} Error bars span the 90 % interval; terms that explain most come first."
    return Figure(title, [effect], layout, says, Table(title, head, body), note, height_px=180 + 34 * len(shown))


def _effect_row(chapter: Chapter, row: pd.Series[Any], none: float) -> list[str]:
    is_known = bool(pd.notna(row["low"])) and row["term"] not in _NO_FACTORS
    is_significant = is_known and not row["low"] <= none <= row["high"]
    return [
        _term(chapter, row["term"]),
        amount(row["effect"]),
        f"[{amount(row['low'])}, {amount(row['high'])}]" if is_known else NOTHING,
        percent(row["share_ratio"]),
        ("yes" if is_significant else "no") if is_known else NOTHING,
    ]


def _term(chapter: Chapter, term: object) -> str:
    return " × ".join(chapter.names.get(part, part) for part in str(term).split(":"))
