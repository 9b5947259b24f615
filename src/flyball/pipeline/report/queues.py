"""Which policy of placing clients, or of providing nodes, did better on a clustered queue: in numbers and words.

It reads the tables of placement and provisioning; how their figures are found is written with the stage.
"""

from __future__ import annotations

import pandas as pd

from flyball.pipeline.intervals import half_width
from flyball.pipeline.report.chapters import Chapter
from flyball.pipeline.report.markup import Child, Html, element, markup, table
from flyball.pipeline.report.words import NOTHING, amount, is_number, student, whole

STANDARD, OPTIMISED = "standard", "optimised"
STATIC, DYNAMIC = "static", "dynamic"
WANTED_GAIN = 1.17
"""Seed 000: 0.35 against 0.3 messages/ms."""
SEED_GROWTH = 3.7 / 1.9
"""Seed 000: what a second queue brought."""


def queue_policies_table(chapter: Chapter) -> Html:
    """Return how policies compare, a row for each, and what that says about the goals; nothing if none was varied."""
    shown: list[Child] = []
    placed, provided = chapter.tables["placement"], chapter.tables["provisioning"]
    if len(placed):
        shown.append(_table("Policies of placement", placed, "transfers", "Transfers"))
        shown.append(element("p", placement_words(placed)))
    if len(provided):
        shown.append(_table("Policies of provisioning", provided, "nodes", "Nodes in the end"))
        shown.append(element("p", provisioning_words(provided)))
    return markup(shown) if shown else Html("")


def placement_words(rows: pd.DataFrame) -> str:
    """Say what optimised placement brought."""
    gain = _ratio(rows, OPTIMISED, STANDARD)
    if gain is None:
        return "Only one policy was tried: there is nothing to compare."
    verdict = "reached" if gain >= WANTED_GAIN else "not reached"
    transfers = _mean(rows, OPTIMISED, "transfers")
    moved = "were not counted" if transfers is None else f"were {amount(transfers)} of a run"
    return (
        f"Optimised placement brings {gain:.2f} times the throughput of the standard one (seed 000: {WANTED_GAIN});"
        f" the goal of {WANTED_GAIN} is {verdict}. Its transfers between members {moved}."
    )


def provisioning_words(rows: pd.DataFrame) -> str:
    """Say what dynamic provisioning brought."""
    gain = _ratio(rows, DYNAMIC, STATIC)
    if gain is None:
        return "Only one policy was tried: there is nothing to compare."
    return (
        f"Dynamic provisioning brings {gain:.2f} times the throughput of the static one over the whole run, in which"
        f" clients come one by one. In seed 000 the rate grew by {SEED_GROWTH:.2f} when the second queue was there."
    )


def _table(caption: str, rows: pd.DataFrame, column: str, name: str) -> Html:
    body: list[list[str]] = []
    for policy in dict.fromkeys(rows["policy"]):
        own = rows[rows["policy"] == policy]
        rates = own["throughput"].astype(float)
        mean = _mean(rows, policy, column)
        body.append(
            [
                str(policy),
                whole(len(own)),
                student(float(rates.mean()), half_width(len(rates), float(rates.std()))),
                NOTHING if mean is None else amount(mean),
            ]
        )
    return table(caption, ["Policy", "Runs", "Throughput [messages/s]", name], body)


def _mean(rows: pd.DataFrame, policy: str, column: str) -> float | None:
    found = float(pd.to_numeric(rows.loc[rows["policy"] == policy, column]).mean())
    return found if is_number(found) else None


def _ratio(rows: pd.DataFrame, policy: str, other: str) -> float | None:
    ours, theirs = _mean(rows, policy, "throughput"), _mean(rows, other, "throughput")
    return ours / theirs if ours is not None and theirs else None
