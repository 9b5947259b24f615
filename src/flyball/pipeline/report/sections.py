"""The sections of a report: one for each experiment, then models, settings and the quarantine.

It arranges plots and tables; the views and the summary provide their content.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from flyball.pipeline.manifest import Experiment, Run, View
from flyball.pipeline.report.chapters import CLIENTS, NODES, Chapter
from flyball.pipeline.report.content import Block, Facts, Mark, Passage, Section, Table
from flyball.pipeline.report.figures import Figure
from flyball.pipeline.report.formatting import (
    ALL,
    NOTHING,
    amount,
    axis_name,
    capital,
    count_of,
    level,
    metric_name,
    percent,
    setting_text,
    student,
    unit_of,
    whole,
)
from flyball.pipeline.report.loop_findings import loops_table
from flyball.pipeline.report.models import model_passage
from flyball.pipeline.report.percentiles import PERCENTILES, percentiles_of, texts_of
from flyball.pipeline.report.policies import policies_table
from flyball.pipeline.report.published import published_passages
from flyball.pipeline.report.queues import queue_policies
from flyball.pipeline.report.summary import tiles_of
from flyball.pipeline.report.views import KINDS, figures_of, views_of

if TYPE_CHECKING:
    # For type annotations only: the module loads Spark.
    from flyball.pipeline.analysis import Analysis

# A longer table is folded.
MOST_OPEN_ROWS = 30
# Maximum number of rows of a table in the page; the rest is in tables/.
MOST_ROWS = 1000

_MAIN_METRICS = ("throughput", "messages", "response")

_LAB_RUN = "flyball lab run "

_TOLERANCES = (
    "A law holds while its deviation is within what is allowed: 5 %, for the interactive law 10 %, and nothing for"
    " utilisation. Where only a sample of the requests was recorded, counts may deviate by three of their standard"
    " deviations more: with 1 in 64 recorded, that is far more than 5 % of a kind that is rare."
)


def chapter_section(chapter: Chapter, *, is_only: bool = False) -> Section:
    """Return the section of one experiment: about, headline, plots, tables, references, laws.

    If a report has only one, it omits the content of the summary.
    """
    experiment = chapter.experiment
    figures, missing = _figures(chapter)
    data = {
        "name": chapter.name,
        "about": experiment.about if experiment else "What nodes recorded of their own requests.",
        "source": experiment.source if experiment else "",
        "tiles": [] if is_only else tiles_of(chapter),
        "first": [*loops_table(chapter), *policies_table(chapter), *queue_policies(chapter)],
        "figures": figures,
        "notes": missing,
        "last": [*_cells(chapter), *published_passages(chapter, MOST_ROWS), *_laws(chapter)],
    }
    return Section(chapter.anchor, "Results" if is_only else chapter.title, "chapter.html", data)


def models_section(models: Mapping[str, Mapping[str, Any]]) -> list[Section]:
    """Return the models that the pipeline has computed for the controllers, if any."""
    intro = "Learned from these traces, for the controllers. The same is in the JSON files next to this page."
    passages = [Passage("", [intro]), *(model_passage(name, model) for name, model in models.items())]
    return [Section("models", "Models found", "section.html", {"passages": passages})] if models else []


def runs_section(chapters: Sequence[Chapter], source: str) -> Section:
    """Return the set-up: settings, versions and runs of each experiment, and the commands to repeat them."""
    passages = [Passage(chapter.title, _runs(chapter)) for chapter in chapters if chapter.runs]
    again = shlex.join(["flyball", "pipeline", "report", source, "--out", "report"])
    data = {"commands": _commands(chapters), "again": again, "passages": passages}
    return Section("settings", "How it was run, and how to repeat it", "repeating.html", data)


def quarantine_section(analysis: Analysis) -> list[Section]:
    """Return the files and rows that could not be read, if any."""
    rows = analysis.tables.get("quarantine")
    if rows is None or rows.empty:
        return []
    body = [[str(row["file"]), str(row["reason"]), whole(row["rows"])] for _, row in rows.head(MOST_ROWS).iterrows()]
    intro = "These files or rows could not be read. They are left out of every number above."
    passage = Passage("", [intro, Table("Left out", ["File", "Reason", "Rows"], body, numbers_from=2)])
    return [Section("quarantine", "Quarantine", "section.html", {"passages": [passage]})]


def folded(table: Table, summary: str = "") -> Table:
    """Return the table, folded if it is long."""
    if len(table.rows) <= MOST_OPEN_ROWS:
        return table
    return replace(table, summary=f"{summary or table.caption} ({count_of(len(table.rows), 'row')})")


def settings_facts(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the values that each setting, workload parameter and version had in these runs."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for part, facts in (("target", run.target), ("workload", run.workload), ("environment", run.environment)):
            for name, value in _flat(part, facts):
                values = found.setdefault(name, [])
                if setting_text(value) not in values:
                    values.append(setting_text(value))
    return found


def _figures(chapter: Chapter) -> tuple[list[Figure], list[str]]:
    """Return the plots of all views, and a line for each view without data."""
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


def _cells(chapter: Chapter) -> list[Passage]:
    """Return the main metrics by cell, of clients and of nodes, and, folded, those of each kind of request."""
    shown: list[Block] = []
    is_asked_for = chapter.experiment is not None and any(view.kind == "table" for view in chapter.experiment.views)
    names = max(1, len(chapter.factors))
    for source in (CLIENTS, NODES):
        rows = _cell_rows(chapter, source, [ALL])
        if rows:
            caption = f"Throughput and response time, measured by {source}; 90 % intervals{_repetitions(chapter)}"
            table = Table(caption, _cell_head(chapter, source), rows, numbers_from=names)
            # Where a loop or a policy determines the throughput, its own table is more informative.
            is_aside = chapter.has_loops or chapter.has_policies
            shown.append(replace(table, summary=caption) if is_aside else folded(table))
        kinds = sorted({kind for metric in _MAIN_METRICS for kind in chapter.kinds(metric, source)})
        by_kind = _cell_rows(chapter, source, kinds)
        if by_kind:
            shown.append(
                Table(
                    f"The same by kind of request, measured by {source}",
                    _cell_head(chapter, source, "Request"),
                    by_kind[:MOST_ROWS],
                    numbers_from=names + 1,
                    summary=f"By kind of request, measured by {source} ({count_of(len(by_kind), 'row')})",
                    is_open=is_asked_for,
                )
            )
    return [Passage("By cell", shown)] if shown else []


def _repetitions(chapter: Chapter) -> str:
    """Describe the number of runs behind the rows, after a comma."""
    counts = sorted({int(count) for count in chapter.tables["cells"]["repetitions"]})
    if not counts or counts == [1]:
        return ""
    return f", {counts[0]} runs each" if len(counts) == 1 else f", {counts[0]} to {counts[-1]} runs each"


def _metrics_of(chapter: Chapter, source: str) -> list[str]:
    rows = chapter.tables["cells"]
    known = set(rows.loc[rows["source"] == source, "metric"])
    return [metric for metric in _MAIN_METRICS if metric in known]


def _cell_head(chapter: Chapter, source: str, *more: str) -> list[str]:
    factors = [capital(axis_name(chapter.names[name])) for name in chapter.factors] or ["Cell"]
    metrics = _metrics_of(chapter, source)
    names = {metric: "mean response" if metric == "response" else metric_name(metric) for metric in metrics}
    columns = [f"{capital(names[metric])} [{unit_of(metric)}]" for metric in metrics]
    spread = [f"{name} [ms]" for name in PERCENTILES] if "response" in metrics else []
    return [*factors, *more, *columns, *spread]


def _cell_rows(chapter: Chapter, source: str, kinds: Iterable[str]) -> list[list[str]]:
    metrics = _metrics_of(chapter, source)
    rows = chapter.tables["cells"]
    mine = rows[rows["source"] == source]
    found = {(row.cell, row.kind, row.metric): row for row in mine.itertuples()}
    tails = percentiles_of(chapter, source)
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
                texts += texts_of(tails.get((cell, kind)))
            shown.append([*names, *([] if kind == ALL else [kind]), *texts])
    return shown


def _laws(chapter: Chapter) -> list[Passage]:
    rows = chapter.tables["laws"]
    if rows.empty:
        return []
    body: list[list[str | Mark]] = []
    for law, part in rows.groupby("law", sort=False):
        broken = int((~part["holds"].astype(bool)).sum())
        worst = part.loc[_strain(part).idxmax()] if part["error_ratio"].notna().any() else part.iloc[0]
        body.append(
            [
                capital(str(law)),
                Mark(f"violated in {count_of(broken, 'run')}", "bad-text") if broken else Mark("holds", "good-text"),
                whole(len(part)),
                percent(abs(float(worst["error_ratio"]))),
                percent(float(worst["tolerance_ratio"])),
                str(worst["says"]),
            ],
        )
    head = ["Law", "Verdict", "Runs checked", "Deviation", "Allowed", "Run closest to violating it"]
    note = Mark(_TOLERANCES, "note")
    table = Table("Does the trace agree with itself?", head, body, numbers_from=len(head))
    return [Passage("Operational laws", [note, table])]


def _strain(laws: pd.DataFrame) -> pd.Series[float]:
    """Return each law's error as a share of its tolerance; a law without tolerance counts with its error."""
    return laws["error_ratio"].abs() / laws["tolerance_ratio"].where(laws["tolerance_ratio"] > 0, 1.0)


def _commands(chapters: Sequence[Chapter]) -> list[str]:
    experiments = {chapter.name: chapter.experiment for chapter in chapters if chapter.experiment}
    # Experiments that others need come before them.
    ordered = sorted(experiments.values(), key=lambda experiment: _steps_before(experiment, experiments))
    commands: dict[str, None] = {}
    for experiment in ordered:
        if experiment.needs and experiment.needs not in experiments:
            commands[f"{_run_command(experiment.needs, experiment.is_quick)} --out results"] = None
        own = experiment.command or _run_command(experiment.name, experiment.is_quick)
        commands[f"{own} --out results" if own.startswith(_LAB_RUN) else own] = None
    if any(command.startswith(_LAB_RUN) for command in commands):
        commands["flyball pipeline report results --out report"] = None
    return list(commands)


def _run_command(name: str, is_quick: bool) -> str:
    return f"{_LAB_RUN}{shlex.quote(name)}{' --quick' if is_quick else ''}"


def _steps_before(experiment: Experiment, known: Mapping[str, Experiment]) -> int:
    """Return the number of experiments that must be run, one after the other, before this one."""
    steps = 0
    while experiment.needs in known and steps < len(known):
        experiment = known[experiment.needs]
        steps += 1
    return steps


def _flat(prefix: str, facts: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}.{name}", value)
        else:
            yield f"{prefix}.{name}", value


def _runs(chapter: Chapter) -> list[Block]:
    facts = [
        (name, values[0] if len(values) == 1 else f"varies: {'; '.join(values[:20])}")
        for name, values in settings_facts(chapter.runs).items()
    ]
    head = [
        *("Run", "Cell", "Seed", "Started", "Measured [s]", "Clients' busiest CPU"),
        *("Nodes' CPU [s]", "Stores' CPU [s]", "Peak memory [MiB]", "Calls", "Failed", "Lost", "Doubled"),
    ]
    body = [_run_row(chapter, run) for run in chapter.runs[:MOST_ROWS]]
    table = Table(f"Runs of {chapter.title}", head, body, numbers_from=4, summary=f"Runs ({len(body)})")
    return [Facts(facts, summary="Settings and versions"), table] if facts else [table]


def _run_row(chapter: Chapter, run: Run) -> list[str]:
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
