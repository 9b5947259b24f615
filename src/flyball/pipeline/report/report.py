"""The report on one folder of results: summary first, then each experiment, then its settings and commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flyball.pipeline.report.activity import activity_section
from flyball.pipeline.report.chapters import Chapter, chapters_of
from flyball.pipeline.report.content import Section
from flyball.pipeline.report.loop_findings import loop_findings
from flyball.pipeline.report.page import write_page
from flyball.pipeline.report.percentiles import NOTATION
from flyball.pipeline.report.policies import policy_findings
from flyball.pipeline.report.sections import chapter_section, models_section, quarantine_section, runs_section
from flyball.pipeline.report.summary import lead, tiles, title_of, warnings

if TYPE_CHECKING:
    # For type annotations only: the module loads Spark.
    from flyball.pipeline.analysis import Analysis

_INTERVALS = (
    "Intervals are of 90 %: 10.0 ± 5.0 by Student; 10.0 ± [-3.0, 5.0] is a mean with the distances of the 5 % and"
    f" 95 % quantiles from it; {NOTATION}. Times are UTC."
)


def write_report(analysis: Analysis, path: Path, source: str = "results") -> None:
    """Write the report to `path`: one HTML file that needs no network and no other file.

    `source` is the folder of the results, for the command that repeats the report.
    """
    chapters = chapters_of(analysis)
    title = title_of(chapters)
    sections = [
        _summary(title, analysis, chapters),
        *(chapter_section(chapter, is_only=len(chapters) == 1) for chapter in chapters),
        *activity_section(analysis.tables),
        *models_section(analysis.models),
        runs_section(chapters, source),
        *quarantine_section(analysis),
    ]
    write_page(path, f"{title} · Flyball", sections, _INTERVALS)


def _summary(title: str, analysis: Analysis, chapters: list[Chapter]) -> Section:
    data = {
        "title": title,
        "lead": lead(analysis, chapters),
        "tiles": tiles(analysis, chapters),
        "findings": [*loop_findings(chapters), *policy_findings(chapters)],
        "cautions": warnings(analysis, chapters),
        "says_nothing_to_warn_of": True,
    }
    return Section("summary", "Summary", "summary.html", data)
