"""The effect of placement and provisioning policies, and of more nodes, on a clustered queue.

In numbers and words, from the tables of placement, provisioning and scaling. The stage that computes them defines
their figures.
"""

from __future__ import annotations

import pandas as pd

from flyball.pipeline.intervals import half_width
from flyball.pipeline.report.chapters import Chapter
from flyball.pipeline.report.content import Block, Passage, Table
from flyball.pipeline.report.formatting import NOTHING, amount, is_number, student, whole

STANDARD, OPTIMISED = "standard", "optimised"
STATIC, DYNAMIC = "static", "dynamic"
# The Selfware report: 0.35 against 0.3 messages/ms.
WANTED_GAIN = 1.17
# The Selfware report: the gain of a second queue.
PAPER_GROWTH = 3.7 / 1.9
# Throughput that nodes should reach, as a multiple of one node's.
WANTED_GROWTH = {2: 1.9, 4: 3.7}


def queue_policies(chapter: Chapter) -> list[Passage]:
    """Return the comparison of policies, a row for each, and the goals reached; empty if none was varied."""
    shown: list[Block] = []
    placed, provided = chapter.tables["placement"], chapter.tables["provisioning"]
    if len(placed):
        shown.append(_table("Policies of placement", placed, "transfers", "Transfers"))
        shown.append(placement_words(placed))
    if len(provided):
        shown.append(_table("Policies of provisioning", provided, "nodes", "Most nodes at a time"))
        shown.append(provisioning_words(provided))
    scaled = chapter.tables["scaling"]
    if len(scaled):
        shown.append(scaling_words(scaled))
    return [Passage("", shown)] if shown else []


def placement_words(rows: pd.DataFrame) -> str:
    """Return the gain of optimised placement in words."""
    gain = _ratio(rows, OPTIMISED, STANDARD)
    if gain is None:
        return "Only one policy was tried: there is nothing to compare."
    transfers = _mean(rows, OPTIMISED, "transfers")
    moved = "were not counted" if transfers is None else f"were {amount(transfers)} of a run"
    return (
        f"Optimised placement brings {gain:.2f} times the standard throughput (Selfware report: {WANTED_GAIN});"
        f" the goal of {WANTED_GAIN} is {_verdict(gain, WANTED_GAIN)}. Its transfers between members {moved}."
    )


def provisioning_words(rows: pd.DataFrame) -> str:
    """Return the gain of dynamic provisioning in words."""
    gain = _ratio(rows, DYNAMIC, STATIC)
    if gain is None:
        return "Only one policy was tried: there is nothing to compare."
    return (
        f"Dynamic provisioning brings {gain:.2f} times the throughput of the static one over the whole run, in which"
        f" clients come one by one. In the Selfware report a second queue brought {PAPER_GROWTH:.2f} times the rate."
    )


def scaling_words(rows: pd.DataFrame) -> str:
    """Describe the throughput of several nodes as a multiple of one node's."""
    rates = {int(str(nodes)): float(own["throughput"].mean()) for nodes, own in rows.groupby("nodes")}
    alone = rates.pop(1, 0.0)
    if not alone or not rates:
        return "Only one number of nodes was tried: there is nothing to compare."
    parts = []
    for nodes, rate in sorted(rates.items()):
        wanted = WANTED_GROWTH.get(nodes)
        reached = "" if wanted is None else f" (the goal of {wanted} is {_verdict(rate / alone, wanted)})"
        parts.append(f"{nodes} nodes bring {rate / alone:.2f} times the throughput of one{reached}")
    return "; ".join(parts) + "."


def _verdict(found: float, wanted: float) -> str:
    return "reached" if found >= wanted else "not reached"


def _table(caption: str, rows: pd.DataFrame, column: str, name: str) -> Table:
    body: list[list[str]] = []
    # The baselines come before the policies compared with them.
    for policy in sorted(dict.fromkeys(rows["policy"]), key=lambda policy: policy not in (STANDARD, STATIC)):
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
    return Table(caption, ["Policy", "Runs", "Throughput [messages/s]", name], body)


def _mean(rows: pd.DataFrame, policy: str, column: str) -> float | None:
    found = float(pd.to_numeric(rows.loc[rows["policy"] == policy, column]).mean())
    return found if is_number(found) else None


def _ratio(rows: pd.DataFrame, policy: str, other: str) -> float | None:
    ours, theirs = _mean(rows, policy, "throughput"), _mean(rows, other, "throughput")
    return ours / theirs if ours is not None and theirs else None
