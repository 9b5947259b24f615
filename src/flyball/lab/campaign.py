"""Makes all missing runs of a plan, one after the other, and stores their results.

Decides whether a run is kept, discarded or not retried; the runner makes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import uvloop

from flyball.errors import LabError
from flyball.lab.plan import Plan, PlannedRun
from flyball.lab.results import Results
from flyball.lab.runner import Live, make_run
from flyball.lab.workloads import make_workload


class Watcher(Protocol):
    """Receives the progress of a campaign."""

    def begin(self, run: PlannedRun) -> None:
        """A run starts."""

    def live(self, live: Live) -> None:
        """The present run has made progress."""

    def end(self, run: PlannedRun, manifest: Mapping[str, Any]) -> None:
        """The run is complete: now, or from an earlier invocation."""

    def fail(self, run: PlannedRun, reason: str, folder: Path) -> None:
        """The run has failed; the folder contains what is left of it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed run, the reason, and the folder of its logs."""

    run_id: str
    reason: str
    folder: Path


def run_all(plan: Plan, results: Results, watcher: Watcher, *, keeps_going: bool) -> list[Failure]:
    """Make all missing runs; return those that failed, at most one unless it `keeps_going`.

    On KeyboardInterrupt the present run is stopped gracefully and discarded. Raises LabError before the first run if
    required results of an earlier experiment are missing or unusable.
    """
    failures: list[Failure] = []
    prepared = _prepared([run for run in plan.runs if not results.is_complete(run)], results)
    for planned in plan.runs:
        if results.is_complete(planned):
            watcher.end(planned, results.manifest(planned))
            continue
        run = prepared[planned.run_id]
        watcher.begin(run)
        try:
            folder = results.begin(run)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                manifest = runner.run(make_run(run, folder, watcher.live))
        except LabError as error:
            kept = results.fail(run, str(error))
            failures.append(Failure(run.run_id, str(error), kept))
            watcher.fail(run, str(error), kept)
            if not keeps_going:
                break
        except BaseException:
            results.discard(run)
            raise
        else:
            results.complete(run, manifest)
            watcher.end(run, manifest)
    return failures


def _prepared(runs: Sequence[PlannedRun], results: Results) -> dict[str, PlannedRun]:
    """Return the runs with the parameters that their workloads derive from the experiment that this one needs."""
    earlier = results.earlier_runs() if runs else []
    found = {}
    for run in runs:
        target = run.experiment.target
        there = [one for one in earlier if _place(one.manifest["target"]) == (target.kind, *target.addresses)]
        if earlier and not there:
            where = " ".join([target.kind, *target.addresses])
            raise LabError(f"{run.run_id}: {run.experiment.needs} was not run on {where}; run it there first")
        found[run.run_id] = replace(run, prepared=make_workload(run.experiment.workload).prepare(there))
    return found


def _place(target: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where a run took place, by its manifest: two foreign targets are two plants."""
    return (target["kind"], *target.get("addresses", ()))
