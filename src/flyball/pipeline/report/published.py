"""Published numbers and ours, their difference, and the reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from flyball.pipeline.report.chapters import Chapter
from flyball.pipeline.report.content import Block, Mark, Passage, Table
from flyball.pipeline.report.formatting import (
    ALL,
    NOTHING,
    amount,
    is_number,
    metric_name,
    percent,
    quantiles,
    student,
    unit_of,
    whole,
)
from flyball.pipeline.report.policies import Judged, clients_held, judged_of, policy_name

# Within these ratios a difference is shown in percent, otherwise as a multiple.
PERCENT_RATIOS = (0.5, 2.0)

# The admission paper, section 1: the number of clients that the site holds, by policy.
CLIENTS_HELD = {"none": 150, "integral": 300, "dps": 400}
# The admission paper, section 2.1: database requests per second, without and with classes.
REFERENCE_LOADS = (90, 120)

_MACHINES = "The paper used other machines: compare shapes rather than sizes."
_HEAD = ("Cell", "Metric", "Published in", "Paper", "Ours", "Difference")
# Number of text columns before the number columns.
_NAMES = 3


@dataclass(frozen=True, slots=True)
class _Row:
    """One published figure and ours, as texts, and their ratio."""

    cell: str
    metric: str
    label: str
    theirs: str
    ours: str
    # Ours divided by theirs; NaN if one is unknown.
    ratio: float

    @property
    def texts(self) -> list[str]:
        return [self.cell, self.metric, self.label, self.theirs, self.ours, difference_text(self.ratio)]


def published_passages(chapter: Chapter, most_rows: int) -> list[Passage]:
    """Return the published figures and ours, and why they differ; empty without published figures."""
    published = chapter.tables["references"]
    rows = [*_of_outcomes(chapter), *_of_cells(chapter, published.head(most_rows))]
    missing = len(published) - int(published["ours"].notna().sum())
    if not rows and not missing:
        return []
    says = _MACHINES
    if missing:
        says += f" {missing} of {len(published)} published numbers have no run to compare with."
    why = chapter.experiment.differs.split("\n\n") if chapter.experiment and chapter.experiment.differs else []
    blocks: list[Block] = [Mark(says, "note"), *(paragraph.strip() for paragraph in why)]
    table = Table("Published numbers and ours", _HEAD, [row.texts for row in rows], numbers_from=_NAMES)
    return [Passage("Compared with the paper", [*blocks, *([table] if rows else [])])]


def difference_text(ratio: float) -> str:
    """Return `+12 %` or `-30 %`, or `5.0 ×` where it is far from the published figure."""
    if not is_number(ratio):
        return NOTHING
    least, most = PERCENT_RATIOS
    if least <= ratio <= most:
        return f"{'+' if ratio >= 1 else '−'}{percent(abs(ratio - 1))}"
    return f"{amount(ratio)} ×"


def _of_cells(chapter: Chapter, published: pd.DataFrame) -> list[_Row]:
    rows = []
    for _, row in published[published["ours"].notna()].iterrows():
        what = metric_name(row["metric"]) + ("" if row["kind"] == ALL else f", {row['kind']}")
        rows.append(
            _Row(
                chapter.cell_name(row["cell"]) if chapter.factors else "all",
                f"{what} [{unit_of(row['metric'], row['unit'])}]",
                str(row["label"]),
                _either(row["theirs"], row["theirs_low"], row["theirs_high"]),
                _either(row["ours"], row["ours_low"], row["ours_high"]),
                float(row["ratio"]) if pd.notna(row["ratio"]) else math.nan,
            )
        )
    return rows


def _of_outcomes(chapter: Chapter) -> list[_Row]:
    """Return the figures of the admission paper for whole policies, not for single runs."""
    if not chapter.name.startswith("admission/"):
        return []
    found = judged_of(chapter)
    return [*_clients_held(found), *(_reference_loads(found) if not _has_given_reference(chapter) else [])]


def _clients_held(found: Sequence[Judged]) -> list[_Row]:
    if len({one.clients for one in found}) < 2:
        return []
    rows = []
    for policy, theirs in CLIENTS_HELD.items():
        own = [one for one in found if one.policy == policy]
        if own:
            ours = clients_held(own, found)
            text = whole(ours) if ours else "none"
            rows.append(_Row(policy_name(policy), "clients held", "section 1", whole(theirs), text, ours / theirs))
    return rows


def _reference_loads(found: Sequence[Judged]) -> list[_Row]:
    without, classed = (_mean_r(found, policy) for policy in ("integral", "classes"))
    if not is_number(classed):
        classed = _mean_r(found, "dps")
    if not is_number(without) or not is_number(classed) or not without:
        return []
    before, after = REFERENCE_LOADS
    theirs, ours = after / before, classed / without
    return [
        _Row(
            "no classes → classes",
            "growth of the reference r",
            "section 2.1",
            f"{amount(before)} → {amount(after)} ({amount(theirs, 2)} ×)",
            f"{amount(without)} → {amount(classed)} ({amount(ours, 2)} ×)",
            ours / theirs,
        )
    ]


def _mean_r(found: Sequence[Judged], policy: str) -> float:
    own = [one.r for one in found if one.policy == policy and is_number(one.r)]
    return sum(own) / len(own) if own else math.nan


def _has_given_reference(chapter: Chapter) -> bool:
    """Whether the runs used the reference of an earlier experiment."""
    return not any(run.workload.get("finds_reference") for run in chapter.runs)


def _either(mean: float, low: float, high: float) -> str:
    """Return an interval in the appropriate notation: symmetric or not."""
    if pd.notna(low) and pd.notna(high) and abs(low + high) <= 1e-9 * abs(high):
        return student(mean, high)
    return quantiles(mean, low, high)
