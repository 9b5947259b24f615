"""The summary of a report: the headline numbers, and the warnings about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from flyball.pipeline.manifest import Run
from flyball.pipeline.report.chapters import CLIENTS, COLUMNS, NODES, Chapter
from flyball.pipeline.report.content import Caution, Tile
from flyball.pipeline.report.formatting import (
    ALL,
    amount,
    brief,
    capital,
    cell_name,
    count_of,
    duration,
    goal_text,
    is_number,
    percent,
    proper,
    student,
    target_name,
    unit_of,
    whole,
)
from flyball.pipeline.report.loop_findings import loop_results
from flyball.pipeline.report.percentiles import percentiles_of
from flyball.pipeline.report.policies import UNCONTROLLED, client_capacity, judged_of, ours_of, overloaded

if TYPE_CHECKING:
    # For type annotations only: the module loads Spark.
    from flyball.pipeline.analysis import Analysis


# Folders of experiments that repeat a paper's, with the paper's name in titles.
PAPERS = {
    "selfware": "Selfware report",
    "admission": "Admission paper",
    "thorbangmq": "ThorBangMQ report",
    "telesto": "Telesto report",
    "prefetch": "Prefetch paper",
}


def title_of(chapters: Sequence[Chapter]) -> str:
    """Return the title of a report: the experiment's, or one that covers all its experiments."""
    experiments = [chapter for chapter in chapters if chapter.experiment]
    if len(experiments) == 1:
        return experiments[0].title
    groups = {chapter.name.partition("/")[0] for chapter in experiments if "/" in chapter.name}
    if len(groups) == 1 and experiments:
        name = groups.pop()
        group = PAPERS.get(name) or capital(name.replace("-", " "))
        return f"{group}: {count_of(len(experiments), 'experiment')}"
    return f"{len(experiments)} experiments" if experiments else "What a node recorded"


def lead(analysis: Analysis, chapters: Sequence[Chapter]) -> str:
    """Describe the runs in a sentence or two."""
    targets = sorted({target_name(run.target) for run in analysis.runs if run.target.get("kind")})
    protocols = sorted({str(run.workload.get("protocol", "")) for run in analysis.runs} - {""})
    experiments = [chapter for chapter in chapters if chapter.experiment]
    if not experiments:
        return f"Traces of {count_of(len(_traced_runs(chapters)), 'run')} that belong to no experiment."
    against = f" against {_and(targets)}" if targets else ""
    over = f" over {_and([proper(name) for name in protocols])}" if protocols else ""
    days = sorted({run.started_at[:10] for run in analysis.runs if run.started_at})
    when = f", on {days[0]}" if len(days) == 1 else f", from {days[0]} to {days[-1]}" if days else ""
    runs = count_of(len(analysis.runs), "run")
    return f"{capital(count_of(len(experiments), 'experiment'))} in {runs}{against}{over}{when}."


def tiles(analysis: Analysis, chapters: Sequence[Chapter]) -> list[Tile]:
    """Return the headline numbers, except those that the data do not allow."""
    found = [_requests(chapters), *_headline(chapters), _measured(analysis)]
    more = [_messages(analysis.runs), _held(chapters), _steadiest(chapters), _clients(chapters), _tail(chapters)]
    more += [_laws(chapters), _references(chapters)]
    return [tile for tile in [*found, *more] if tile]


def tiles_of(chapter: Chapter) -> list[Tile]:
    """Return the headline numbers of one experiment."""
    found = [*_headline([chapter]), _held([chapter]), _steadiest([chapter])]
    found += [_clients([chapter]), _tail([chapter]), _laws([chapter]), _references([chapter])]
    return [tile for tile in found if tile]


def warnings(analysis: Analysis, chapters: Sequence[Chapter]) -> list[Caution]:
    """Return all warnings, the worst first."""
    runs = analysis.runs
    found = [
        *_failed_checks(runs),
        *_missing_runs(chapters),
        *_quarantined(analysis.tables.get("quarantine")),
        *_bottlenecks(runs),
        *_broken_laws(chapters),
        *_doubtful_plants(chapters),
        *_said_by_runs(runs),
        *_quick(chapters),
    ]
    return sorted(found, key=lambda warning: not warning.is_bad)


def _requests(chapters: Sequence[Chapter]) -> Tile | None:
    total = 0.0
    for chapter in chapters:
        rows = chapter.tables["throughput"]
        by_source = rows.groupby("source")["requests"].sum()
        total += float(by_source.get(CLIENTS, by_source.get(NODES, 0)))
    return Tile("Requests measured", brief(total)) if total else None


def _headline(chapters: Sequence[Chapter]) -> list[Tile | None]:
    """Return throughput and response; where the rate was given, only latency is a result."""
    return [_best(chapters, "throughput"), _best(chapters, "response"), _latency(chapters)]


def _latency(chapters: Sequence[Chapter]) -> Tile | None:
    """Return the lowest p99 latency of the chapters whose rate was given, and its cell."""
    candidates = []
    for chapter in chapters:
        if not chapter.is_open:
            continue
        found = percentiles_of(chapter, chapter.source_of("response"))
        # The time from the intended publish to the delivery, if measured.
        kind = "deliver" if any(key[1] == "deliver" for key in found) else ALL
        candidates += [
            (own["p99"].value, chapter, cell, own)
            for (cell, of_kind), own in found.items()
            if of_kind == kind and is_number(own["p99"].value)
        ]
    if not candidates:
        return None
    _, chapter, cell, own = min(candidates, key=lambda candidate: candidate[0])
    where = [chapter.title] if len(chapters) > 1 else []
    where += [chapter.cell_name(cell)] if chapter.factors else []
    more = "; ".join([*([": ".join(where)] if where else []), f"median {own['p50'].text} ms"])
    return Tile("Lowest p99 latency" if len(candidates) > 1 else "p99 latency", own["p99"].text, "ms", more)


def _best(chapters: Sequence[Chapter], metric: str) -> Tile | None:
    """Return the highest throughput or the shortest response, and its cell.

    Neither is meaningful where a loop controls the rate of messages, so that the backlog grows, or where a policy
    refuses requests, since a refusal is a response too.
    """
    candidates = []
    for chapter in chapters:
        if chapter.experiment and (chapter.has_loops or chapter.has_policies or chapter.is_open):
            continue
        rows = chapter.metric(metric, chapter.source_of(metric), ALL)
        rows = rows[rows["mean"].notna()]
        if not rows.empty:
            best = rows.loc[rows["mean"].idxmax() if metric == "throughput" else rows["mean"].idxmin()]
            candidates.append((float(best["mean"]), chapter, best))
    if not candidates:
        return None
    pick: Callable[..., tuple[float, Chapter, pd.Series]] = max if metric == "throughput" else min
    mean, chapter, best = pick(candidates, key=lambda candidate: candidate[0])
    is_choice = len(chapters) > 1 or bool(chapter.factors)
    if metric == "throughput":
        label = "Highest throughput" if is_choice else "Throughput"
    else:
        label = "Shortest mean response" if is_choice else "Mean response"
    where = [chapter.title] if len(chapters) > 1 else []
    where += [chapter.cell_name(best["cell"])] if chapter.factors else []
    value = whole(mean) if mean >= 1000 else amount(mean)
    return Tile(label, value, unit_of(metric, str(best["unit"])), ": ".join(where))


def _measured(analysis: Analysis) -> Tile | None:
    seconds = sum((run.measured.until_us - run.measured.from_us) / 1e6 for run in analysis.runs)
    return (
        Tile("Time measured", duration(seconds), more=f"in {count_of(len(analysis.runs), 'run')}")
        if seconds
        else None
    )


def _messages(runs: Sequence[Run]) -> Tile | None:
    checked = [run.checks for run in runs if "lost" in run.checks or "doubled" in run.checks]
    if not checked:
        return None
    lost, doubled = (sum(int(checks.get(name, 0)) for checks in checked) for name in ("lost", "doubled"))
    more = f"in {count_of(len(checked), 'checked run')}"
    return Tile("Messages lost or doubled", whole(lost + doubled), "", more, "bad" if lost + doubled else "good")


def _held(chapters: Sequence[Chapter]) -> Tile | None:
    loops = [one for chapter in chapters for one in loop_results(chapter) if one.is_closed]
    if not loops:
        return None
    held = sum(one.is_held for one in loops)
    return Tile("Closed loops that held their goal", f"{held} of {len(loops)}")


def _steadiest(chapters: Sequence[Chapter]) -> Tile | None:
    """Return the loop with the smallest deviation relative to its goal among those that held it."""
    loops = [(one, chapter) for chapter in chapters for one in loop_results(chapter) if one.is_closed and one.is_held]
    if not loops:
        return None
    one, chapter = min(loops, key=lambda loop: loop[0].std / loop[0].goal)
    where = f"{chapter.title}: {one.name}" if len(chapters) > 1 else one.name
    return Tile("Steadiest of them", student(one.mean, one.std), "", f"{where}, goal {goal_text(one.goal)}")


def _clients(chapters: Sequence[Chapter]) -> Tile | None:
    """Return the number of clients held without control and with admission control."""
    for chapter in chapters:
        held = client_capacity(judged_of(chapter))
        if held and held.ours:
            without = whole(held.without.clients) if held.without else "none"
            return Tile(
                "Clients held", f"{without} → {whole(held.ours.clients)}", "", f"no control → {held.ours.name}"
            )
    return None


def _tail(chapters: Sequence[Chapter]) -> Tile | None:
    """Return the tail of small requests under overload without control, and with admission control."""
    for chapter in chapters:
        found = judged_of(chapter)
        under = {one.policy: one for one in overloaded(found)}
        ours, plain = under.get(ours_of(found) or ""), under.get(UNCONTROLLED)
        if ours and plain:
            value = f"{_short(plain.p99_small)} → {_short(ours.p99_small)}"
            more = f"no control → {ours.name}, {ours.clients:,} clients"
            return Tile("p99 of small requests", value, "ms", more)
    return None


def _short(value: float) -> str:
    """Return a number for a tile with two numbers."""
    return whole(value) if value >= 100 else amount(value)


def _laws(chapters: Sequence[Chapter]) -> Tile | None:
    rows = _all(chapters, "laws")
    if rows.empty:
        return None
    held = int(rows["holds"].astype(bool).sum())
    return Tile("Operational laws that hold", f"{held} of {len(rows)}", mood="" if held < len(rows) else "good")


def _references(chapters: Sequence[Chapter]) -> Tile | None:
    """Return the median ratio of our throughputs to the published ones."""
    rows = _all(chapters, "references")
    rows = rows[(rows["metric"] == "throughput") & rows["ratio"].notna()]
    if rows.empty:
        return None
    more = f"median of {count_of(len(rows), 'cell')}"
    return Tile("Throughput / published", f"{amount(float(rows['ratio'].median()))} ×", "", more)


def _failed_checks(runs: Sequence[Run]) -> Iterable[Caution]:
    words = {
        "failed": ("failed", "call"),
        "lost": ("were lost", "message"),
        "doubled": ("came twice", "message"),
    }
    for name, (verb, what) in words.items():
        bad = {run.run: int(run.checks.get(name, 0)) for run in runs if run.checks.get(name, 0)}
        if bad:
            says = f"{count_of(sum(bad.values()), what)} {verb} in {count_of(len(bad), 'run')}."
            yield Caution(says, [f"{run}: {whole(number)}" for run, number in bad.items()], is_bad=True)


def _missing_runs(chapters: Sequence[Chapter]) -> Iterable[Caution]:
    missing = [
        (chapter.title, chapter.experiment.run_count - len(chapter.runs))
        for chapter in chapters
        if chapter.experiment and chapter.experiment.run_count > len(chapter.runs)
    ]
    if missing:
        total = sum(number for _, number in missing)
        names = [f"{title}: {count_of(number, 'run')}" for title, number in missing]
        verb = "is" if total == 1 else "are"
        yield Caution(f"{count_of(total, 'planned run')} {verb} missing: the results are not complete.", names)


def _quarantined(rows: pd.DataFrame | None) -> Iterable[Caution]:
    if rows is not None and not rows.empty:
        lost = int(rows["rows"].fillna(0).sum())
        files = count_of(rows["file"].nunique(), "file")
        yield Caution(f"{count_of(lost, 'row')} of {files} could not be read and were left out: see the quarantine.")


def _bottlenecks(runs: Sequence[Run]) -> Iterable[Caution]:
    slow = [run for run in runs if run.clients.get("are_bottleneck")]
    if slow:
        names = [
            f"{run.run}: busiest client process at {percent(run.clients.get('busiest_cpu_ratio'))}" for run in slow
        ]
        yield Caution(
            f"In {count_of(len(slow), 'run')} the clients were the bottleneck: "
            "the target could have done more than was measured.",
            names,
        )


def _broken_laws(chapters: Sequence[Chapter]) -> Iterable[Caution]:
    laws = _all(chapters, "laws")
    broken = laws[~laws["holds"].astype(bool)]
    for law, rows in broken.groupby("law", sort=False):
        names = [f"{row['run'] or 'this run'}: {row['says']}" for _, row in rows.iterrows()]
        number = count_of(rows["run"].nunique(), "run")
        yield Caution(
            f"{capital(str(law))} does not hold in {number}: not steady, wrongly measured, or the trace has gaps.",
            names,
        )


def _doubtful_plants(chapters: Sequence[Chapter]) -> Iterable[Caution]:
    said: dict[str, list[str]] = {}
    for chapter in chapters:
        for plant in chapter.plants:
            what = ", ".join(
                part for part in (chapter.title, cell_name(plant.get("factors", {}), chapter.names)) if part
            )
            for text in plant.get("warnings", []):
                said.setdefault(text, []).append(f"{what}, loop {plant['loop']}")
    for text, names in said.items():
        yield Caution(f"In {count_of(len(names), 'identified plant')} {text}.", names)


def _said_by_runs(runs: Sequence[Run]) -> Iterable[Caution]:
    said: dict[str, list[str]] = {}
    for run in runs:
        for text in run.warnings:
            said.setdefault(text, []).append(run.run)
    for text, names in said.items():
        yield Caution(capital(text), names)


def _quick(chapters: Sequence[Chapter]) -> Iterable[Caution]:
    quick = [chapter.title for chapter in chapters if chapter.experiment and chapter.experiment.is_quick]
    if quick:
        which = "Every experiment was" if len(quick) == len(chapters) else f"{count_of(len(quick), 'experiment')} ran"
        yield Caution(f"{which} scaled down with --quick: intervals are wider than those of a full run.", quick)


def _all(chapters: Sequence[Chapter], name: str) -> pd.DataFrame:
    """Return a table of all chapters together."""
    found = [chapter.tables[name] for chapter in chapters if not chapter.tables[name].empty]
    return pd.concat(found) if found else pd.DataFrame(columns=list(COLUMNS[name]))


def _traced_runs(chapters: Sequence[Chapter]) -> set[str]:
    return {run for chapter in chapters for run in chapter.cell_of}


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
