"""The best admission policy, and whether the paper's goals were reached: in numbers and in plain words.

It reads the table of policies' runs; the stage that computes it defines its figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields

import pandas as pd

from flyball.pipeline.intervals import half_width
from flyball.pipeline.report.chapters import Chapter
from flyball.pipeline.report.content import Findings, Goal, Mark, Passage, Table
from flyball.pipeline.report.formatting import amount, count_of, is_number, percent, student, whole
from flyball.pipeline.report.percentiles import PERCENTILES

UNCONTROLLED = "none"
# Flyball's own policies, in order of preference: the first one with results is judged.
OURS = ("dps", "memoryless", "static", "round_robin", "strict", "classes", "integral")

# Goodput is held if it is within 10 % of the best.
NEAR_BEST_RATIO = 0.9
# A site with more errors has collapsed. With control a refusal is not an error: it is intended.
MOST_FAILED_RATIO = 0.05
WANTED_CLIENTS_RATIO = 2.5
# The clients that the site of the admission paper held without and with control.
PAPER_CLIENTS = (150, 400)
MOST_STD_RATIO = 0.2
MOST_P99_RATIO = 0.1
# Maximum difference between the admitted ratio of large requests and the value of the law.
LAW_ERROR = 0.05
# Small requests with at least this admitted ratio hardly wait, and the law is not binding.
ALL_ADMITTED_RATIO = 0.99

_KEYS = ("policy", "clients")
_NAMES = {
    "none": "no control",
    "integral": "integral, no classes",
    "integral_ki_1": "integral, no classes, K_I = 1",
    "classes": "integral, classes",
    "round_robin": "round robin",
    "static": "static probabilities",
    "strict": "strict priority",
    "dps": "DPS",
    "dps_ki_1": "DPS, K_I = 1",
    "memoryless": "DPS, memoryless",
    "semaphore": "semaphore",
    "uvicorn": "uvicorn's limit",
    "gradient": "gradient limiter",
}

# Captions of the tables of policies.
_ENDS, _TIMES = "Policies of admission", "Response times of small and large requests, by policy"

_MEANINGS = (
    "Goodput: requests that succeeded. Times are of requests that were not refused; one that failed counts with the"
    " time that was waited for it. Load and r in cost/s: milliseconds of database connections per second, unless the"
    " runs used another unit. Means over repetitions, with intervals of 90 % where there are several."
    " tables/policy_runs.csv has each run by itself."
)


@dataclass(frozen=True, slots=True)
class Judged:
    """One policy with one number of clients; means over the repetitions. An unknown value is NaN."""

    policy: str
    clients: int
    runs: int
    goodput: float
    goodput_half_width: float
    errors: float
    refused: float
    failed: float
    p50_small: float
    p95_small: float
    p99_small: float
    p50_large: float
    p95_large: float
    p99_large: float
    admitted_small: float
    admitted_large: float
    load_mean: float
    load_std: float
    r: float
    kappa: float
    # By name of the percentile: half of its interval over repetitions, NaN for a single run.
    half_widths: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        return policy_name(self.policy)


@dataclass(frozen=True, slots=True)
class ClientCapacity:
    """The number of clients that the site held without control and with Flyball."""

    # The uncontrolled site with the most clients that it held; None if it held none.
    without: Judged | None
    # The same with the next larger number of clients; None if no larger one was tried.
    collapsed: Judged | None
    # Flyball with the most clients that it held, None if it held none.
    ours: Judged | None
    # Of any policy, with any number of clients.
    best_goodput: float
    most_clients: int

    @property
    def ratio(self) -> float:
        return self.ours.clients / self.without.clients if self.ours and self.without else math.nan


def policy_name(policy: str) -> str:
    """Return the words for a policy; an unknown policy keeps its name."""
    return _NAMES.get(policy, policy.replace("_", " "))


def judged_of(chapter: Chapter) -> list[Judged]:
    """Return the results of each policy of a chapter with each number of clients, in the experiment's order."""
    rows = chapter.tables["policy_runs"]
    levels = [str(level) for level in chapter.experiment.factors.get("policy", [])] if chapter.experiment else []
    order = {policy: place for place, policy in enumerate(dict.fromkeys([*levels, *rows["policy"]]))}
    groups = [(str(own["policy"].iloc[0]), int(own["clients"].iloc[0]), own) for _, own in rows.groupby(list(_KEYS))]
    groups.sort(key=lambda group: (order[group[0]], group[1]))
    return [_judged(policy, clients, own) for policy, clients, own in groups]


def overloaded(found: Sequence[Judged]) -> list[Judged]:
    """Return each policy with the most clients that all of them were tried with, or else that any of them was."""
    counts = [{one.clients for one in found if one.policy == policy} for policy in {one.policy for one in found}]
    common = set.intersection(*counts) if counts else set()
    most = max(common or set().union(*counts), default=0)
    return [one for one in found if one.clients == most]


def ours_of(found: Sequence[Judged]) -> str | None:
    """Return the policy of Flyball that is judged, None if none was tried."""
    return next((policy for policy in OURS if any(one.policy == policy for one in found)), None)


def client_capacity(found: Sequence[Judged]) -> ClientCapacity | None:
    """Return the number of clients that were held, None if the number was not varied.

    Without control a number is held if goodput is within 10 % of the best of this policy and fewer than 5 % of the
    calls end with an error. With control goodput must be within 10 % of the best of all policies, and fewer than 5 %
    of the calls may fail: a refusal is intended.
    """
    counts = sorted({one.clients for one in found})
    if len(counts) < 2:
        return None
    plain = [one for one in found if one.policy == UNCONTROLLED]
    own = [one for one in found if one.policy == ours_of(found)]
    best = max(one.goodput for one in found)
    without = _most_clients(plain, max((one.goodput for one in plain), default=0.0), lambda one: one.errors)
    beyond = [one for one in plain if without is None or one.clients > without.clients]
    collapsed = min(beyond, key=lambda one: one.clients, default=None)
    return ClientCapacity(without, collapsed, _most_clients(own, best, lambda one: one.failed), best, counts[-1])


def clients_held(own: Sequence[Judged], found: Sequence[Judged]) -> int:
    """Return the number of clients that one policy held: by the criteria of `client_capacity`."""
    is_plain = own[0].policy == UNCONTROLLED
    best = max(one.goodput for one in (own if is_plain else found))
    held = _most_clients(own, best, (lambda one: one.errors) if is_plain else (lambda one: one.failed))
    return held.clients if held else 0


def _most_clients(found: Sequence[Judged], best: float, errors: Callable[[Judged], float]) -> Judged | None:
    held = [one for one in found if one.goodput >= NEAR_BEST_RATIO * best and errors(one) < MOST_FAILED_RATIO]
    return max(held, key=lambda one: one.clients, default=None)


def goals_of(found: Sequence[Judged]) -> list[Goal]:
    """Compare Flyball in plain words with no control and with the goals."""
    ours = ours_of(found)
    if ours is None:
        return []
    held = client_capacity(found)
    said = _clients_goals(held, policy_name(ours)) if held else []
    under = {one.policy: one for one in overloaded(found)}
    if ours in under:
        said += _load_goals(under[ours])
        if UNCONTROLLED in under:
            said += _tail_goals(under[ours], under[UNCONTROLLED])
        said += _law_goals(under[ours])
    return said


def policy_findings(chapters: Sequence[Chapter]) -> list[Findings]:
    """Describe in plain words which goals were reached; empty if no policies were compared."""
    said = {chapter.title: goals for chapter in chapters if (goals := goals_of(judged_of(chapter)))}
    return [Findings("Admission control against the goals of the admission paper:", said)] if said else []


def policies_table(chapter: Chapter) -> list[Passage]:
    """Return all policies of a chapter side by side, the best of each number of clients marked."""
    found = judged_of(chapter)
    if not found:
        return []
    has_counts = len({one.clients for one in found}) > 1
    names: dict[str, Sequence[str | Mark]] = {"Policy": [one.name for one in found]}
    if has_counts:
        names["Clients"] = [whole(one.clients) for one in found]
    ends: dict[str, Sequence[str | Mark]] = {
        "Goodput [1/s]": _marked(
            found, lambda one: one.goodput, lambda one: student(one.goodput, one.goodput_half_width), is_most=True
        ),
        "Errors": _marked(found, lambda one: one.errors, lambda one: percent(one.errors)),
        "Of calls failed": _marked(found, lambda one: one.failed, lambda one: percent(one.failed)),
        "Load ± std [cost/s]": [student(one.load_mean, one.load_std) for one in found],
        "r [cost/s]": [amount(one.r) for one in found],
        "Std / r": _marked(found, lambda one: one.load_std / one.r, lambda one: percent(one.load_std / one.r)),
    }
    times: dict[str, Sequence[str | Mark]] = {
        f"{size.capitalize()} {name} [ms]": _percentiles(found, f"{name}_{size}")
        for size in ("small", "large")
        for name in PERCENTILES
    }
    tables = [_table(caption, names | of_it) for caption, of_it in ((_ENDS, ends), (_TIMES, times))]
    clients = "" if has_counts else f"Each with {count_of(found[0].clients, 'client')}. "
    best = "Best are bold" + (", for each number of clients. " if has_counts else ". ")
    note = Mark(f"{clients}{best}{_MEANINGS}", "note")
    return [Passage("Policies", [note, *tables])]


def _table(caption: str, columns: Mapping[str, Sequence[str | Mark]]) -> Table:
    return Table(caption, list(columns), list(zip(*columns.values(), strict=True)))


def _percentiles(found: Sequence[Judged], name: str) -> list[str | Mark]:
    return _marked(
        found,
        lambda one: float(getattr(one, name)),
        lambda one: student(float(getattr(one, name)), one.half_widths.get(name)),
    )


def _judged(policy: str, clients: int, own: pd.DataFrame) -> Judged:
    # Policy, clients and runs come first; each of the others is a column.
    names = [one.name for one in fields(Judged)[3:] if one.name not in ("goodput_half_width", "half_widths")]
    means = {name: float(own[name].mean()) for name in names}
    # As in the table of cells: for a single repetition its own interval is used.
    width = float(own["goodput_half_width"].iloc[0])
    if len(own) > 1:
        width = half_width(len(own), float(own["goodput"].std()))
    widths = {name: half_width(len(own), float(own[name].std())) for name in names if name[0] == "p"}
    more = {"goodput_half_width": width, "half_widths": widths}
    return Judged(policy=policy, clients=clients, runs=len(own), **means, **more)  # type: ignore[arg-type]


def _marked(
    found: Sequence[Judged],
    value: Callable[[Judged], float],
    text: Callable[[Judged], str],
    *,
    is_most: bool = False,
) -> list[str | Mark]:
    """Return the cells of a column, with the best for each number of clients in bold; none for a single policy."""
    best: dict[int, float] = {}
    for clients in {one.clients for one in found}:
        values = [value(one) for one in found if one.clients == clients]
        known = [number for number in values if is_number(number)]
        # If all are equal, none is the best.
        if len(set(known)) > 1:
            best[clients] = max(known) if is_most else min(known)
    return [Mark(text(one), "best") if value(one) == best.get(one.clients) else text(one) for one in found]


def _clients_goals(held: ClientCapacity, ours: str) -> list[Goal]:
    said = [Goal(_collapse(held))] if held.without or held.collapsed else []
    if held.ours is None:
        return [*said, Goal(f"With {ours} no number of clients was held.", is_reached=False)]
    one = held.ours
    facts = (
        f"goodput {amount(one.goodput)}/s is {percent(one.goodput / held.best_goodput)} of the best of all policies, "
        f"{percent(one.refused)} were refused and {percent(one.failed)} failed"
    )
    more = "; more were not tried" if one.clients == held.most_clients else ""
    if held.without is None or held.collapsed is None:
        return [*said, Goal(f"With {ours} {one.clients:,} clients are held: {facts}{more}.")]
    before, after = PAPER_CLIENTS
    says = (
        f"With {ours} {one.clients:,} clients are held, {amount(held.ratio)} times as many (goal: at least "
        f"{WANTED_CLIENTS_RATIO:g}; the paper: {before} → {after}, {amount(after / before)} times): {facts}{more}."
    )
    return [*said, Goal(says, held.ratio >= WANTED_CLIENTS_RATIO)]


def _collapse(held: ClientCapacity) -> str:
    fell = held.collapsed
    after = f"goodput {amount(fell.goodput)}/s, {percent(fell.errors)} errors" if fell else ""
    if held.without is None:
        assert fell is not None
        return f"Without control no number of clients is held: {after} already with {fell.clients:,}."
    n, goodput = held.without.clients, amount(held.without.goodput)
    if fell is None:
        return f"Without control {n:,} clients are held (goodput {goodput}/s); more were not tried: no collapse seen."
    return (
        f"Without control {n:,} clients are held (goodput {goodput}/s); with {fell.clients:,} it collapses: {after}, "
        f"99 % of small requests within {amount(fell.p99_small)} ms."
    )


def _load_goals(one: Judged) -> list[Goal]:
    if not (is_number(one.r) and is_number(one.load_std)):
        return []
    ratio, most = one.load_std / one.r, percent(MOST_STD_RATIO)
    says = (
        f"{one.name}, {one.clients:,} clients: database load {student(one.load_mean, one.load_std)} cost/s for "
        f"r = {amount(one.r)}: the standard deviation is {percent(ratio)} of r (goal: at most {most})."
    )
    return [Goal(says, ratio <= MOST_STD_RATIO)]


def _tail_goals(ours: Judged, plain: Judged) -> list[Goal]:
    if not (is_number(ours.p99_small) and is_number(plain.p99_small)) or not plain.p99_small:
        return []
    ratio, most = ours.p99_small / plain.p99_small, percent(MOST_P99_RATIO)
    says = (
        f"{ours.name}, {ours.clients:,} clients: 99 % of small requests within {amount(ours.p99_small)} ms, without "
        f"control within {amount(plain.p99_small)} ms: {percent(ratio)} of it (goal: at most {most})."
    )
    return [Goal(says, ratio <= MOST_P99_RATIO)]


def lawful_ratio(admitted_small: float, kappa: float) -> float:
    """Return the admitted ratio of large requests by the law (1 - A_l) / A_l = κ (1 - A_s) / A_s."""
    return admitted_small / (kappa * (1 - admitted_small) + admitted_small)


def _law_goals(one: Judged) -> list[Goal]:
    small, large = one.admitted_small, one.admitted_large
    if not (is_number(small) and is_number(large)):
        return []
    admitted = (
        f"{one.name}, {one.clients:,} clients: {percent(small)} of small and {percent(large)} of large requests"
    )
    if not is_number(one.kappa) or not small:
        return [Goal(f"{admitted} were admitted.")]
    if small >= ALL_ADMITTED_RATIO:
        return [Goal(f"{admitted} were admitted: small ones hardly wait, and large ones take what is left.")]
    law = lawful_ratio(small, one.kappa)
    says = (
        f"{admitted} were admitted; the law (1−A_l)/A_l = κ(1−A_s)/A_s with κ = {amount(one.kappa)} says "
        f"{percent(law)} of large ones."
    )
    return [Goal(says, abs(large - law) <= LAW_ERROR)]
