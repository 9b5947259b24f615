"""The parts of a report: one for each experiment, then models, settings and the quarantine.

It puts plots and tables in order; what they show is made by the views and the summary.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from flyball.pipeline.manifest import Experiment, Run, View
from flyball.pipeline.report.chapters import CLIENTS, NODES, Chapter
from flyball.pipeline.report.figures import Figure
from flyball.pipeline.report.held import held_table
from flyball.pipeline.report.markup import Child, Html, details, element, markup, table
from flyball.pipeline.report.models import show_model
from flyball.pipeline.report.page import Part, plots
from flyball.pipeline.report.policies import policies_table
from flyball.pipeline.report.queues import queue_policies_table
from flyball.pipeline.report.summary import show_tiles, tiles_of
from flyball.pipeline.report.views import KINDS, figures_of, views_of
from flyball.pipeline.report.words import (
    ALL,
    NOTHING,
    amount,
    axis_name,
    capital,
    count_of,
    level,
    metric_name,
    percent,
    quantiles,
    student,
    unit_of,
    whole,
)

if TYPE_CHECKING:
    # Only its name is needed here; the module loads Spark.
    from flyball.pipeline.analysis import Analysis

MOST_OPEN_ROWS = 30
"""A longer table is folded."""
MOST_ROWS = 1000
"""Rows of one table in the page; the rest is in the files beside it."""

_MAIN_METRICS = ("throughput", "messages", "response")


def chapter_part(chapter: Chapter, *, is_only: bool = False) -> Part:
    """Return the part of one experiment: about, headline, plots, tables, references, laws.

    The only one of a report leaves to the summary what that says already.
    """
    about = chapter.experiment.about if chapter.experiment else "What nodes recorded of their own requests."
    source = chapter.experiment.source if chapter.experiment else ""
    title = "Results" if is_only else chapter.title
    figures, missing = _figures(chapter)
    body = element(
        "section",
        element("p", chapter.name, class_="eyebrow") if chapter.name else None,
        element("h2", title),
        [element("p", paragraph, class_="about") for paragraph in about.split("\n\n") if paragraph.strip()],
        element("p", f"After {source}.", class_="source") if source else None,
        None if is_only else show_tiles(tiles_of(chapter)),
        held_table(chapter),
        policies_table(chapter),
        queue_policies_table(chapter),
        plots(figures, chapter.anchor),
        [element("p", text, class_="note") for text in missing],
        _cells_tables(chapter),
        _references_table(chapter),
        _laws_table(chapter),
        id=chapter.anchor,
        class_="chapter",
    )
    return Part(chapter.anchor, title, body)


def models_part(models: Mapping[str, Mapping[str, Any]]) -> Part | None:
    """Return what the pipeline has learned for the controllers, if anything."""
    if not models:
        return None
    shown = [show_model(name, model) for name, model in models.items()]
    intro = element(
        "p", "Learned from these traces, for the controllers. The same is in the JSON files beside this page."
    )
    return _part("models", "Models found", [intro, shown])


def runs_part(analysis: Analysis, chapters: Sequence[Chapter]) -> Part:
    """Return how it was run: settings, versions and runs of each experiment, and the commands to repeat them."""
    shown: list[Child] = []
    for chapter in chapters:
        if chapter.runs:
            shown += [element("h3", chapter.title), _settings(chapter.runs), _runs_table(chapter)]
    return _part("settings", "How it was run, and how to repeat it", [_commands(chapters), shown])


def quarantine_part(analysis: Analysis) -> Part | None:
    """Return what could not be read, if anything."""
    rows = analysis.tables.get("quarantine")
    if rows is None or rows.empty:
        return None
    body = [[str(row["file"]), str(row["reason"]), whole(row["rows"])] for _, row in rows.head(MOST_ROWS).iterrows()]
    intro = element("p", "These files or rows could not be read. They are left out of every number above.")
    return _part(
        "quarantine", "Quarantine", [intro, table("Left out", ["File", "Reason", "Rows"], body, numbers_from=2)]
    )


def fold(shown: Html, rows: int, summary: str) -> Html:
    """Return a table as it is, or folded if it is long."""
    return shown if rows <= MOST_OPEN_ROWS else details(f"{summary} ({count_of(rows, 'row')})", shown)


def settings_facts(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the values that each setting, workload parameter and version had in these runs."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for part, facts in (("target", run.target), ("workload", run.workload), ("environment", run.environment)):
            for name, value in _flat(part, facts):
                values = found.setdefault(name, [])
                if level(value) not in values:
                    values.append(level(value))
    return found


def _part(anchor: str, title: str, body: Child) -> Part:
    return Part(anchor, title, element("section", element("h2", title), body, id=anchor, class_="chapter"))


def _figures(chapter: Chapter) -> tuple[list[Figure], list[str]]:
    """Return the plots of all views, and a line for each view that has nothing to plot."""
    asked = chapter.experiment.views if chapter.experiment else []
    figures: list[Figure] = []
    missing: list[str] = []
    for view in views_of(chapter):
        made = figures_of(chapter, view)
        figures += made
        if not made and view in asked and view.kind != "table":
            missing.append(_why_nothing(view))
    return figures, missing


def _why_nothing(view: View) -> str:
    name = view.title or f"{view.kind} of {metric_name(view.metric)}"
    if view.kind not in KINDS:
        return f"Not shown: {name}: there is no kind of view {view.kind!r}."
    return f"Not shown: {name}: these runs have no data for it."


def _cells_tables(chapter: Chapter) -> Html:
    """Return the main metrics by cell, of clients and of nodes, and folded those of each kind of request."""
    shown: list[Child] = []
    is_asked_for = chapter.experiment is not None and any(view.kind == "table" for view in chapter.experiment.views)
    for source in (CLIENTS, NODES):
        rows = _cell_rows(chapter, source, [ALL])
        if rows:
            head = _cell_head(chapter, source)
            caption = f"Throughput and response, measured by {source}; 90 % intervals"
            shown.append(_cells_folded(chapter, _cell_table(chapter, caption, head, rows), len(rows), caption))
        kinds = sorted({kind for metric in _MAIN_METRICS for kind in chapter.kinds(metric, source)})
        by_kind = _cell_rows(chapter, source, kinds)
        if by_kind:
            caption = f"The same by kind of request, measured by {source}"
            head = _cell_head(chapter, source, "Request")
            shown.append(
                details(
                    f"By kind of request, measured by {source} ({count_of(len(by_kind), 'row')})",
                    _cell_table(chapter, caption, head, by_kind[:MOST_ROWS], more=1),
                    is_open=is_asked_for,
                )
            )
    return markup(element("h3", "By cell"), shown) if shown else Html("")


def _cells_folded(chapter: Chapter, shown: Html, rows: int, caption: str) -> Html:
    """Return the table, folded where a loop or a policy decides what comes: its own table says more then."""
    return details(caption, shown) if chapter.has_loops or chapter.has_policies else fold(shown, rows, caption)


def _cell_table(chapter: Chapter, caption: str, head: list[str], rows: list[list[str]], more: int = 0) -> Html:
    return table(caption, head, rows, numbers_from=max(1, len(chapter.factors)) + more)


def _metrics_of(chapter: Chapter, source: str) -> list[str]:
    rows = chapter.tables["cells"]
    known = set(rows.loc[rows["source"] == source, "metric"])
    return [metric for metric in _MAIN_METRICS if metric in known]


def _cell_head(chapter: Chapter, source: str, *more: str) -> list[str]:
    factors = [capital(axis_name(chapter.names[name])) for name in chapter.factors] or ["Cell"]
    columns = [f"{capital(metric_name(metric))} [{unit_of(metric)}]" for metric in _metrics_of(chapter, source)]
    spread = ["Response, by quantiles [ms]"] if "response" in _metrics_of(chapter, source) else []
    return [*factors, *more, *columns, *spread, "Repetitions"]


def _cell_rows(chapter: Chapter, source: str, kinds: Iterable[str]) -> list[list[str]]:
    metrics = _metrics_of(chapter, source)
    rows = chapter.tables["cells"]
    mine = rows[rows["source"] == source]
    found = {(row.cell, row.kind, row.metric): row for row in mine.itertuples()}
    shown = []
    for cell, factors in chapter.cells.items():
        names = [level(factors.get(name)) for name in chapter.factors] or ["all"]
        for kind in kinds:
            of_metric = {metric: found.get((cell, kind, metric)) for metric in metrics}
            known = [row for row in of_metric.values() if row is not None]
            if not known:
                continue
            texts = [student(row.mean, row.half_width) if row else NOTHING for row in of_metric.values()]  # type: ignore[arg-type]
            if "response" in of_metric:
                row = of_metric["response"]
                texts.append(quantiles(row.mean, row.low, row.high) if row else NOTHING)  # type: ignore[arg-type]
            shown.append([*names, *([] if kind == ALL else [kind]), *texts, whole(known[0].repetitions)])  # type: ignore[arg-type]
    return shown


def _references_table(chapter: Chapter) -> Html:
    published = chapter.tables["references"]
    if published.empty:
        return Html("")
    rows = published[published["ours"].notna()]
    body = []
    for _, row in rows.head(MOST_ROWS).iterrows():
        what = metric_name(row["metric"]) + ("" if row["kind"] == ALL else f", {row['kind']}")
        body.append(
            [
                chapter.cell_name(row["cell"]) if chapter.factors else "all",
                f"{what} [{unit_of(row['metric'], row['unit'])}]",
                str(row["label"]),
                _either(row["theirs"], row["theirs_low"], row["theirs_high"]),
                _either(row["ours"], row["ours_low"], row["ours_high"]),
                f"{amount(row['ratio'])} ×" if pd.notna(row["ratio"]) else NOTHING,
            ]
        )
    head = ["Cell", "Metric", "Published in", "Seed", "Ours", "Ours / seed"]
    shown = table("The seed's numbers beside ours", head, body, numbers_from=3)
    says = "The seeds ran on other machines: look at the shape before the size."
    if len(rows) < len(published):
        says += f" {len(published) - len(rows)} of {len(published)} published numbers have no run beside them."
    note = element("p", says, class_="note")
    return markup(element("h3", "Beside the seed"), note, fold(shown, len(body), "The seed's numbers beside ours"))


def _either(mean: float, low: float, high: float) -> str:
    """Return an interval in the notation that fits it: symmetric or not."""
    if pd.notna(low) and pd.notna(high) and abs(low + high) <= 1e-9 * abs(high):
        return student(mean, high)
    return quantiles(mean, low, high)


def _laws_table(chapter: Chapter) -> Html:
    rows = chapter.tables["laws"]
    if rows.empty:
        return Html("")
    body: list[list[Child]] = []
    for law, part in rows.groupby("law", sort=False):
        broken = int((~part["holds"].astype(bool)).sum())
        worst = part.loc[part["error_ratio"].abs().idxmax()] if part["error_ratio"].notna().any() else part.iloc[0]
        verdict = (
            element("span", "holds", class_="good-text")
            if broken == 0
            else element("span", f"violated in {count_of(broken, 'run')}", class_="bad-text")
        )
        body.append(
            [
                capital(str(law)),
                verdict,
                whole(len(part)),
                percent(abs(float(worst["error_ratio"]))),
                str(worst["says"]),
            ],
        )
    head = ["Law", "Verdict", "Runs checked", "Largest error", "Where it is largest"]
    return markup(
        element("h3", "Operational laws"), table("Does the trace agree with itself?", head, body, numbers_from=5)
    )


def _commands(chapters: Sequence[Chapter]) -> Html:
    experiments = {chapter.name: chapter.experiment for chapter in chapters if chapter.experiment}
    # What others begin with comes before them.
    ordered = sorted(experiments.values(), key=lambda experiment: _steps_before(experiment, experiments))
    lines = [
        f"flyball lab run {shlex.quote(experiment.name)}{' --quick' if experiment.is_quick else ''}"
        for experiment in ordered
    ]
    if not lines:
        return element("p", "These traces belong to no experiment of the lab. To make this report again:") + element(
            "pre", element("code", "flyball pipeline report FOLDER")
        )  # type: ignore[return-value]
    intro = element("p", "Each run takes its settings and its seed from the experiment's file. To repeat:")
    after = element(
        "p", "To make this report again from the results: ", element("code", "flyball pipeline report RESULTS")
    )
    return markup(intro, element("pre", element("code", "\n".join(lines))), after)


def _steps_before(experiment: Experiment, known: Mapping[str, Experiment]) -> int:
    """Return how many experiments have to be run one after the other before this one."""
    steps = 0
    while experiment.needs in known and steps < len(known):
        experiment = known[experiment.needs]
        steps += 1
    return steps


def _settings(runs: Sequence[Run]) -> Html:
    found = settings_facts(runs)
    lines = [
        [element("dt", name), element("dd", values[0] if len(values) == 1 else f"varies: {'; '.join(values[:20])}")]
        for name, values in found.items()
    ]
    return details("Settings and versions", element("dl", lines, class_="facts")) if lines else Html("")


def _flat(prefix: str, facts: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}.{name}", value)
        else:
            yield f"{prefix}.{name}", value


def _runs_table(chapter: Chapter) -> Html:
    head = [
        *("Run", "Cell", "Seed", "Started", "Measured [s]", "Clients' busiest CPU"),
        *("Nodes' CPU [s]", "Stores' CPU [s]", "Peak memory [MiB]", "Calls", "Failed", "Lost", "Doubled"),
    ]
    body = [_run_row(chapter, run) for run in chapter.runs[:MOST_ROWS]]
    shown = table(f"Runs of {chapter.title}", head, body, numbers_from=4)
    return details(f"Runs ({len(body)})", shown)


def _run_row(chapter: Chapter, run: Run) -> list[Child]:
    def total(name: str) -> float | None:
        values = [node[name] for node in run.nodes if node.get(name) is not None]
        return float(sum(values)) if values else None

    peak = total("peak_bytes")
    return [
        run.run,
        chapter.cell_name(chapter.cell_of[run.run]) if run.run in chapter.cell_of else NOTHING,
        str(run.seed),
        run.started_at.replace("T", " ").removesuffix("Z"),
        amount((run.measured.until_us - run.measured.from_us) / 1e6),
        percent(run.clients.get("busiest_cpu_ratio")),
        amount(total("cpu_s")),
        amount(total("store_cpu_s")),
        amount(peak / 2**20 if peak is not None else None),
        *(whole(run.checks.get(name)) for name in ("calls", "failed", "lost", "doubled")),
    ]
