"""The kinds of views that an experiment may request, and the default ones."""

from __future__ import annotations

from collections.abc import Callable

from flyball.pipeline.manifest import View
from flyball.pipeline.report.breakdowns import breakdown, effects
from flyball.pipeline.report.chapters import Chapter
from flyball.pipeline.report.distributions import histogram, over_time, percentiles
from flyball.pipeline.report.figures import Figure
from flyball.pipeline.report.levels import bars, curve, network
from flyball.pipeline.report.loops import loop
from flyball.pipeline.report.open_loops import open_loop
from flyball.pipeline.report.policy_plots import admission, goodput, load_cdf, policies, response_over_time
from flyball.pipeline.report.queue_plots import queue_over_time, rate_over_waiting

KINDS: dict[str, Callable[[Chapter, View], list[Figure]]] = {
    "curve": curve,
    "bars": bars,
    "over_time": over_time,
    "histogram": histogram,
    "percentiles": percentiles,
    "breakdown": breakdown,
    "effects": effects,
    "network": network,
    "loop": loop,
    "open_loop": open_loop,
    "goodput": goodput,
    "policies": policies,
    "load_cdf": load_cdf,
    "response_over_time": response_over_time,
    "admission": admission,
    "queue_over_time": queue_over_time,
    "rate_over_waiting": rate_over_waiting,
}

LOOP_KINDS = ("loop", "open_loop")
POLICY_KINDS = ("goodput", "policies", "load_cdf", "response_over_time", "admission")


def figures_of(chapter: Chapter, view: View) -> list[Figure]:
    """Return the plots of one view; empty for a table or without data."""
    make = KINDS.get(view.kind)
    return make(chapter, view) if make else []


def views_of(chapter: Chapter) -> list[View]:
    """Return the views of a chapter: always its control loops and policies, then the requested or the default ones.

    For policies it may request some of the plots only.
    """
    asked = list(chapter.experiment.views) if chapter.experiment else []
    kinds = {view.kind for view in asked}
    first = [View(kind) for kind in LOOP_KINDS if kind not in kinds and chapter.has_loops]
    if chapter.has_policies and not kinds & set(POLICY_KINDS):
        first += [View(kind) for kind in POLICY_KINDS]
    elif chapter.has_admission and not chapter.has_policies and "admission" not in kinds:
        first.append(View("admission"))
    is_all = (chapter.has_loops or chapter.has_policies) and chapter.experiment is not None
    return [*first, *(asked or ([] if is_all else default_views(chapter)))]


def default_views(chapter: Chapter) -> list[View]:
    """Return the views of an experiment that requests none: by its varied factors, or else over time."""
    if chapter.experiment is None:
        return [View("over_time"), View("percentiles", "response"), View("histogram"), View("breakdown")]
    if not chapter.factors:
        return [View("over_time"), View("histogram"), View("breakdown")]
    x, *others = chapter.factors
    curves = [
        View("curve", metric, x=x, series=others[0] if others else None) for metric in ("throughput", "response")
    ]
    return [*curves, View("histogram"), View("breakdown")]
