"""Makes all runs of a plan that are not there yet, one after the other, and keeps what came out.

Knows when a run is kept, thrown away or tried no further; how one is made is the runner's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import uvloop

from flyball.errors import LabError
from flyball.lab.plan import Plan, PlannedRun
from flyball.lab.results import Results
from flyball.lab.runner import Live, make_run


class Watcher(Protocol):
    """Who is told how a campaign gets on."""

    def begin(self, run: PlannedRun) -> None:
        """A run begins."""

    def live(self, live: Live) -> None:
        """The run that is being made gets on."""

    def end(self, run: PlannedRun, manifest: Mapping[str, Any]) -> None:
        """The run is complete: now, or since an earlier time."""

    def fail(self, run: PlannedRun, reason: str, folder: Path) -> None:
        """The run has failed; what is left of it lies in the folder."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that failed, why, and where its logs are."""

    run_id: str
    reason: str
    folder: Path


def run_all(plan: Plan, results: Results, watcher: Watcher, *, keeps_going: bool) -> list[Failure]:
    """Make all runs that are missing; return those that failed, of which there is one unless it `keeps_going`.

    On KeyboardInterrupt the run that is being made is stopped in good order and thrown away.
    """
    failures: list[Failure] = []
    for run in plan.runs:
        if results.is_complete(run):
            watcher.end(run, results.manifest(run))
            continue
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
