"""The report on one folder of results: summary first, then each experiment, then how it was run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flyball.pipeline.report.chapters import Chapter, chapters_of
from flyball.pipeline.report.held import held_words
from flyball.pipeline.report.markup import element, markup
from flyball.pipeline.report.page import Part, write_page
from flyball.pipeline.report.policies import policy_words
from flyball.pipeline.report.sections import chapter_part, models_part, quarantine_part, runs_part
from flyball.pipeline.report.summary import lead, show_tiles, show_warnings, tiles, title_of, warnings

if TYPE_CHECKING:
    # Only its name is needed here; the module loads Spark.
    from flyball.pipeline.analysis import Analysis


def write_report(analysis: Analysis, path: Path) -> None:
    """Write the report to `path`: one HTML file that needs no network and no other file."""
    chapters = chapters_of(analysis)
    title = title_of(chapters)
    parts = [
        _summary_part(title, analysis, chapters),
        *(chapter_part(chapter, is_only=len(chapters) == 1) for chapter in chapters),
        models_part(analysis.models),
        runs_part(analysis, chapters),
        quarantine_part(analysis),
    ]
    footer = markup(
        "Intervals: 10.0 ± 5.0 by Student, 10.0 ± [-3.0, 5.0] by the 5 % and 95 % quantiles. Times are UTC."
    )
    write_page(path, f"{title} · Flyball", [part for part in parts if part], footer)


def _summary_part(title: str, analysis: Analysis, chapters: list[Chapter]) -> Part:
    body = element(
        "section",
        element("h1", title),
        element("p", lead(analysis, chapters), class_="lead"),
        show_tiles(tiles(analysis, chapters)),
        held_words(chapters),
        policy_words(chapters),
        show_warnings(warnings(analysis, chapters)),
        id="summary",
    )
    return Part("summary", "Summary", body)
