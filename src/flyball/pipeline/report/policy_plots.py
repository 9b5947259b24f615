"""Plots of policies of admission: goodput over clients, times per class, the load's CDF, and all of it over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from flyball.pipeline.manifest import Run, View
from flyball.pipeline.report.chapters import ADMISSION, Chapter
from flyball.pipeline.report.content import Table
from flyball.pipeline.report.figures import (
    Figure,
    Trace,
    axis,
    bars,
    colour,
    error_bars,
    level_axis,
    lines,
    log_axis,
    loop_lines,
    marked_lines,
    plain,
    stacked,
    value_axis,
    vertical,
    words_at,
)
from flyball.pipeline.report.formatting import ALL, NOTHING, amount, capital, duration, percent, student, whole
from flyball.pipeline.report.policies import Judged, client_capacity, judged_of, overloaded
from flyball.pipeline.report.selection import MOST_LINES, spread
from flyball.pipeline.report.thinning import Floats

# Few, so that the noise of single seconds does not hide other lines.
MOST_POINTS_OF_A_LINE = 150
# Maximum number of runs whose load is plotted over time; of more, some are chosen.
MOST_RUNS = 12

_CLASSES = ("small", "large")
_TIMES = {"p50": "50 %", "p95": "95 %", "p99": "99 %"}
_LOAD = "Database load [cost/s]"
_TIME = "Time since the measurement began [s]"


def goodput(chapter: Chapter, view: View) -> list[Figure]:
    """Goodput and errors over the number of clients, a line for each policy; nothing if there is only one number."""
    found = judged_of(chapter)
    return [_goodput(view, found), _errors(found)] if len({one.clients for one in found}) > 1 else []


def policies(chapter: Chapter, view: View) -> list[Figure]:
    """Policies as bars: the results of calls, and the 50th, 95th and 99th percentile of each class."""
    found = overloaded(judged_of(chapter))
    if not found:
        return []
    kinds = _CLASSES if view.request == ALL else (view.request,)
    figures = [_percentiles(found, kind) for kind in kinds if kind in _CLASSES]
    return [_named(view, figure) for figure in [_ended(found), *figures] if figure.data]


def load_cdf(chapter: Chapter, view: View) -> list[Figure]:
    """The distribution of the database load under each policy; vertical lines: references. Figure 2 of the paper."""
    found = overloaded(judged_of(chapter))
    rows = chapter.tables["load_cdf"]
    curves = {one: rows[rows["run"].isin(_runs_of(chapter, one))].groupby("ratio")["load"].mean() for one in found}
    curves = {one: curve for one, curve in curves.items() if len(curve)}
    if not curves:
        return []
    places = _places(list(curves))
    hover = "%{y:.3g} % at most %{x:,.4g}"
    data = [
        lines(one.name, curve, 100 * curve.index.to_numpy(), places[one.policy], hover)
        for one, curve in curves.items()
    ]
    references = _references(list(curves))
    title = view.title or f"CDF of the database load, {found[0].clients:,} clients"
    layout = {
        "xaxis": axis(_LOAD, rangemode="tozero"),
        "yaxis": axis("Share of samples [%]", range=[0, 101]),
        "shapes": [vertical(at, hue) for at, hue in references.items()],
        "annotations": [
            words_at(at, 0.02 + 0.06 * number, f"r = {amount(at)}") for number, at in enumerate(list(references)[:3])
        ],
    }
    head = ["Policy", "Mean ± std", "5 %", "50 %", "95 %", "r", "Std / r"]
    body = [
        [
            one.name,
            student(one.load_mean, one.load_std),
            *(amount(float(curve.iloc[round(share * (len(curve) - 1))])) for share in (0.05, 0.5, 0.95)),
            amount(one.r),
            percent(one.load_std / one.r),
        ]
        for one, curve in curves.items()
    ]
    says = f"{title}. " + "; ".join(f"{row[0]}: {row[1]} cost/s, r {row[5]}" for row in body[:MOST_LINES])
    note = "The steeper, and the closer to its r, the better a policy holds the load. Dotted: r, if a policy has one."
    return [Figure(title, data, layout, says, Table(title, head, body), note, is_wide=True, height_px=400)]


def response_over_time(chapter: Chapter, view: View) -> list[Figure]:
    """Response times of each class over time, a line for each policy. Figures 3 and 4 of the paper."""
    found = overloaded(judged_of(chapter))
    kinds = _CLASSES if view.request == ALL else (view.request,)
    figures = [_over_time(chapter, found, kind) for kind in kinds]
    return [_named(view, figure) for figure in figures if figure.data]


def admission(chapter: Chapter, view: View) -> list[Figure]:
    """Load, reference and budget over time: of each run, or of a run of each policy that has a reference."""
    rows = chapter.tables["loops"]
    rows = rows[rows["loop"] == ADMISSION]
    names = {
        _runs_of(chapter, one)[0]: f"{one.name}, {one.clients:,} clients"
        for one in overloaded(judged_of(chapter))
        if one.r > 0
    }
    if not chapter.has_policies:
        names = {str(run): f"Admission control, {_place(chapter, str(run))}" for run in rows["run"].unique()}
    shown = spread([run for run in names if run in set(rows["run"])], MOST_RUNS)
    return [_named(view, _loop(chapter, run, names[run], rows[rows["run"] == run])) for run in shown]


def _named(view: View, figure: Figure) -> Figure:
    """Return a plot with the view's title in its note: each of several plots of a view has its own title."""
    return replace(figure, note=f"{view.title}. {figure.note}".rstrip()) if view.title else figure


def _place(chapter: Chapter, run: str) -> str:
    return chapter.cell_name(chapter.cell_of[run]) if chapter.experiment else run or "this run"


def _goodput(view: View, found: Sequence[Judged]) -> Figure:
    title = view.title or "Goodput over the number of clients"
    data = _over_clients(found, lambda one: one.goodput, "%{x:,} clients: %{y:,.4g}/s")
    for trace, own in zip(data, _by_policy(found).values(), strict=True):
        trace["error_y"] = error_bars(one.goodput_half_width for one in own)
    held = client_capacity(found)
    assert held is not None, "there are several numbers of clients"
    marks = []
    if held.collapsed:
        marks.append((held.collapsed.clients, "collapse without control"))
    if held.ours:
        marks.append((held.ours.clients, f"held by {held.ours.name}"))
    layout: dict[str, Any] = {
        "xaxis": level_axis("Clients", sorted({one.clients for one in found})),
        "yaxis": _with_room(axis("Goodput [requests/s]", rangemode="tozero"), [one.goodput for one in found]),
    }
    is_log = layout["xaxis"].get("type") == "log"
    layout["shapes"] = [vertical(at, "ink-2") for at, _ in marks]
    layout["annotations"] = [
        words_at(float(np.log10(at)) if is_log else at, 0.93 - 0.06 * number, text, is_left=at == held.most_clients)
        for number, (at, text) in enumerate(marks)
    ]
    numbers = _by_clients(title, found, lambda one: student(one.goodput, one.goodput_half_width))
    says = f"{title}, in requests/s. " + "; ".join(
        f"{name}: " + ", ".join(f"{one.clients:,} clients {amount(one.goodput)}" for one in own)
        for name, own in list(_by_policy(found).items())[:MOST_LINES]
    )
    note = "Requests that succeeded. Error bars span the 90 % interval."
    return Figure(title, data, layout, says, numbers, note, is_wide=True, height_px=400)


def _errors(found: Sequence[Judged]) -> Figure:
    title = "Errors over the number of clients"
    data = _over_clients(found, lambda one: 100 * one.errors, "%{x:,} clients: %{y:.3g} % (%{text})")
    for trace, own in zip(data, _by_policy(found).values(), strict=True):
        trace["text"] = [f"{percent(one.refused)} refused, {percent(one.failed)} failed" for one in own]
    layout = {
        "xaxis": level_axis("Clients", sorted({one.clients for one in found})),
        "yaxis": axis("Refused or failed [% of calls]", rangemode="tozero"),
    }
    numbers = _by_clients(title, found, lambda one: f"{percent(one.refused)} + {percent(one.failed)}")
    says = f"{title}, refused + failed. " + "; ".join(
        f"{name}: {', '.join(map(str, texts))}" for name, *texts in numbers.rows[:MOST_LINES]
    )
    note = "In the numbers: refused + failed. A failure is a time-out or an error of the site."
    return Figure(title, data, layout, says, numbers, note, is_wide=True, height_px=340)


def _ended(found: Sequence[Judged]) -> Figure:
    """The results of the calls of each policy, as bars."""
    title = f"How calls ended, {found[0].clients:,} clients"
    calls = [one.goodput / (1 - one.errors) if one.errors < 1 else float("nan") for one in found]
    parts = {
        "succeeded": [one.goodput for one in found],
        "refused": [one.refused * number for one, number in zip(found, calls, strict=True)],
        "failed": [one.failed * number for one, number in zip(found, calls, strict=True)],
    }
    data, layout = stacked([one.name for one in found], parts, "Calls [1/s]", "/s", (2, 3, 7))
    head = ["Policy", "Goodput [1/s]", "Refused", "Failed"]
    body = [
        [one.name, student(one.goodput, one.goodput_half_width), percent(one.refused), percent(one.failed)]
        for one in found
    ]
    says = f"{title}. " + "; ".join(
        f"{row[0]}: goodput {row[1]}/s, {row[2]} refused, {row[3]} failed" for row in body[:MOST_LINES]
    )
    height = 170 + 30 * len(found)
    return Figure(title, data, layout, says, Table(title, head, body), is_wide=True, height_px=height)


def _percentiles(found: Sequence[Judged], kind: str) -> Figure:
    values = {name: [float(getattr(one, f"{name}_{kind}")) for one in found] for name in _TIMES}
    known = [value for own in values.values() for value in own if value > 0]
    title = f"Response times of {kind} requests, {found[0].clients:,} clients"
    names = [plain(one.name) for one in found]
    data = [
        bars(text, names, values[name], index, "%{x}: %{y:,.4g} ms")
        for index, (name, text) in enumerate(_TIMES.items())
        if known
    ]
    layout = {
        "barmode": "group",
        "bargap": 0.3,
        "xaxis": axis("", type="category"),
        "yaxis": _log_from(min(known), max(known)) if known else {},
    }
    head = ["Policy", *(f"{text} [ms]" for text in _TIMES.values())]
    body = [[one.name, *(amount(values[name][at]) for name in _TIMES)] for at, one in enumerate(found)]
    says = f"{title}, in ms. " + "; ".join(
        f"{row[0]}: half within {row[1]}, 99 % within {row[3]}" for row in body[:MOST_LINES]
    )
    note = "Of requests that were not refused. One that failed counts with the time that was waited for it."
    return Figure(title, data, layout, says, Table(title, head, body), note, is_wide=len(found) > 4)


def _log_from(low: float, high: float) -> dict[str, Any]:
    """Return an axis on which the smallest bar is visible."""
    return log_axis("Response time [ms]", low, high) | {
        "range": [float(np.log10(low / 2)), float(np.log10(high * 1.2))]
    }


def _over_time(chapter: Chapter, found: Sequence[Judged], kind: str) -> Figure:
    rows = chapter.tables["response_over_time"]
    rows = rows[rows["kind"] == kind]
    places = _places(found)
    length = int(rows["second"].max()) + 1 if len(rows) else 1
    width = -(-length // MOST_POINTS_OF_A_LINE)
    series = {one: _means(rows[rows["run"].isin(_runs_of(chapter, one))], length, width) for one in found}
    series = {one: means for one, means in series.items() if np.isfinite(means).any()}
    times = (np.arange(-(-length // width)) + 0.5) * width
    data = [lines(one.name, times, means, places[one.policy], "%{y:,.4g} ms") for one, means in series.items()]
    changes = _changes([run for run in chapter.runs if run.run in set(rows["run"])])
    values = [float(value) for means in series.values() for value in means if np.isfinite(value)]
    layout = {
        "xaxis": axis(_TIME, range=[0, length]),
        "yaxis": _with_room(value_axis("Mean response time [ms]", values), values if changes else []),
        "hovermode": "x unified" if len(series) <= 6 else "closest",
        **_scheduled(changes, length),
    }
    title = f"Response time of {kind} requests over time"
    head = ["Policy", "50 % [ms]", "95 % [ms]", "99 % [ms]"]
    body = [[one.name, *(amount(getattr(one, f"{name}_{kind}")) for name in _TIMES)] for one in series]
    says = f"{title}, in ms, {duration(length)}. " + "; ".join(
        f"{one.name}: from {amount(float(np.nanmin(means)))} to {amount(float(np.nanmax(means)))}"
        for one, means in list(series.items())[:MOST_LINES]
    )
    note = (
        f"Each point is the mean of {width} s; refused ones do not count."
        if width > 1
        else "Refused ones do not count."
    )
    if changes:
        note += " Dotted: the number of clients changes."
    return Figure(title, data, layout, says, Table(title, head, body), note, is_wide=True, height_px=400)


def _means(rows: pd.DataFrame, length: int, width: int) -> Floats:
    """Return the mean response in each part of `width` seconds, over all runs; NaN without answers."""
    known = rows[rows["mean_ms"].notna()]
    counts = (known["ok"] + known["failed"]).to_numpy(float)
    places = known["second"].to_numpy(int) // width
    parts = -(-length // width)
    sums = np.bincount(places, known["mean_ms"].to_numpy(float) * counts, parts)
    totals = np.bincount(places, counts, parts)
    means: Floats = np.divide(sums, totals, out=np.full(parts, np.nan), where=totals > 0)
    return means


def _loop(chapter: Chapter, run: str, title: str, own: pd.DataFrame) -> Figure:
    """Load, reference and budget of one run."""
    names = {"action": "Budget u", "measurement": "Load y", "setpoint": "Reference r"}
    changes = _changes([found for found in chapter.runs if found.run == run])
    values = [float(value) for column in names for value in own[column]]
    layout = {
        "xaxis": axis(_TIME),
        "yaxis": _with_room(axis("[cost/s]", rangemode="tozero"), values if changes else []),
        "hovermode": "x unified",
        **_scheduled(changes, float(own["at_s"].max())),
    }
    head = ["Quantity", "Mean ± std", "Least", "Largest"]
    body = [
        [name, student(own[column].mean(), own[column].std()), amount(own[column].min()), amount(own[column].max())]
        for column, name in names.items()
    ]
    says = f"{title}: load, reference and budget. " + "; ".join(f"{row[0]}: {row[1]}" for row in body)
    whole_title = f"{capital(title)}: load, reference and budget"
    data = loop_lines(own, names)
    return Figure(whole_title, data, layout, says, Table(whole_title, head, body), is_wide=bool(changes))


def _by_policy(found: Sequence[Judged]) -> dict[str, list[Judged]]:
    groups: dict[str, list[Judged]] = {}
    for one in found:
        groups.setdefault(one.name, []).append(one)
    return groups


def _over_clients(found: Sequence[Judged], value: Callable[[Judged], float], hover: str) -> list[Trace]:
    """Return a line for each policy over the number of clients."""
    return [
        marked_lines(name, [one.clients for one in own], [value(one) for one in own], index, hover)
        for index, (name, own) in enumerate(_by_policy(found).items())
    ]


def _by_clients(title: str, found: Sequence[Judged], text: Callable[[Judged], str]) -> Table:
    """Return a row for each policy with a column for each number of clients."""
    counts = sorted({one.clients for one in found})
    rows = [
        [name, *({one.clients: text(one) for one in own}.get(clients, NOTHING) for clients in counts)]
        for name, own in _by_policy(found).items()
    ]
    return Table(title, ["Policy", *(f"{clients:,} clients" for clients in counts)], rows)


def _runs_of(chapter: Chapter, one: Judged) -> list[str]:
    rows = chapter.tables["policy_runs"]
    own = rows[(rows["policy"] == one.policy) & (rows["clients"] == one.clients)]
    return [str(run) for run in own.sort_values("repetition")["run"]]


def _places(found: Sequence[Judged]) -> dict[str, int]:
    """Return the number of each policy's colour."""
    return {one.policy: place for place, one in enumerate(found)}


def _references(found: Sequence[Judged]) -> dict[float, str]:
    """Return references and their colours: ink if all policies have the same."""
    places = _places(found)
    values: dict[float, str] = {}
    for one in found:
        if one.r > 0:
            values.setdefault(float(f"{one.r:.3g}"), colour(places[one.policy]))
    return dict.fromkeys(values, "ink-2") if len(values) == 1 else values


def _changes(runs: Sequence[Run]) -> dict[float, str]:
    """Return times and numbers of clients from the schedule of runs, without the initial one."""
    found: dict[float, str] = {}
    for run in runs:
        scale = float(run.workload.get("time_scale") or 1.0)
        for change in run.workload.get("schedule") or ():
            at = float(change.get("at_s", 0.0)) * scale
            if at > 0:
                found[at] = _crowd(change)
    return dict(sorted(found.items()))


def _crowd(change: Mapping[str, Any]) -> str:
    parts = [f"{whole(change['clients'])} clients"] if change.get("clients") is not None else []
    if change.get("small_clients"):
        parts.append(f"{whole(change['small_clients'])} small-only")
    return " + ".join(parts)


def _scheduled(changes: Mapping[float, str], length_s: float) -> dict[str, Any]:
    """Return a layout with a line and a text for each change of the clients, placed for changes close together."""
    return {
        "shapes": [vertical(at, "ink-2") for at in changes],
        "annotations": [
            words_at(at, 0.93 - 0.06 * (number % 2), text, is_left=at > 0.75 * length_s)
            for number, (at, text) in enumerate(changes.items())
        ],
    }


def _with_room(scale: dict[str, Any], values: Sequence[float]) -> dict[str, Any]:
    """Return an axis with room for texts above all `values`; unchanged without values."""
    known = [value for value in values if value > 0]
    if not known:
        return scale
    low, high = min(known), max(known)
    if scale.get("type") == "log":
        return scale | {"range": [float(np.log10(low / 1.2)), float(np.log10(high) + 0.2 * np.log10(high / low))]}
    return scale | {"range": [0, 1.2 * high]}
