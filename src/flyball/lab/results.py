"""The folder of an experiment's results: complete and failed runs, and the definition that they belong to.

The pipeline reads nothing else of the lab. Handles files only; the runner makes runs.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flyball.errors import LabError
from flyball.lab.experiment import label_of, slug_of
from flyball.lab.plan import Plan, PlannedRun, definition_of
from flyball.lab.workloads import EarlierRun

VERSION = 1
MANIFEST = "run.json"
DESCRIPTION = "experiment.json"
# The definition that the results were made with, to check whether further ones match.
DEFINITION = "definition.json"
SHOWN_DIFFERENCES = 3


class Results:
    """The results of one experiment, in a folder of their own below `out`."""

    def __init__(self, out: Path, plan: Plan, command: str = "") -> None:
        """`command` repeats the experiment; reports show it."""
        self.folder = out / plan.experiment.slug
        self._plan = plan
        self._command = command

    def open(self, *, is_fresh: bool) -> None:
        """Create the folder, or continue with its content.

        Raises LabError if that was made with another definition; `is_fresh` deletes it, unless results that this
        experiment needs are missing.
        """
        definition = definition_of(self._plan)
        if is_fresh:
            # Raises if required results are missing: without them the deleted runs could not be made again.
            self.earlier_runs()
            self._throw_away()
        elif (self.folder / DEFINITION).exists():
            # Before its first run a definition is not binding.
            if any(self.folder.glob(f"run=*/{MANIFEST}")):
                self._compare(read_json(self.folder / DEFINITION), definition)
        elif (self.folder / DESCRIPTION).exists():
            raise LabError(f"{self.folder} holds results that this program did not make: give another --out")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LabError(f"cannot write to {self.folder}: {error.strerror}; give another --out") from error
        for half_made in self.folder.glob(".run=*"):
            shutil.rmtree(half_made)
        write_json(self.folder / DEFINITION, definition)
        write_json(self.folder / DESCRIPTION, {**description_of(self._plan), "command": self._command})

    def _throw_away(self) -> None:
        # Delete only folders with results of the lab: --out may be any folder.
        if (self.folder / DEFINITION).exists():
            shutil.rmtree(self.folder)

    def _compare(self, theirs: Mapping[str, object], ours: Mapping[str, object]) -> None:
        differences = [
            f"{key} was {json.dumps(theirs.get(key))}, now {json.dumps(ours.get(key))}"
            for key in sorted(theirs.keys() | ours.keys())
            if theirs.get(key) != ours.get(key)
        ]
        if differences:
            shown = "; ".join(differences[:SHOWN_DIFFERENCES])
            more = f" and {len(differences) - SHOWN_DIFFERENCES} more" if len(differences) > SHOWN_DIFFERENCES else ""
            raise LabError(
                f"{self.folder} holds results of another definition ({shown}{more}): "
                "give --fresh to delete them, or another --out"
            )

    def earlier_runs(self) -> list[EarlierRun]:
        """Return the runs of the experiment that this one needs, from the same `out`; empty if it needs none.

        Raises LabError with the command to run first if some are missing, or were made with other settings than
        these.
        """
        experiment = self._plan.experiment
        if not experiment.needs:
            return []
        out = self.folder.parent
        folder = out / slug_of(experiment.needs)
        found = [
            EarlierRun(read_json(path), path.parent / "traces") for path in sorted(folder.glob(f"run=*/{MANIFEST}"))
        ]
        lacking, unlike = self._lacking(folder, len(found)), self._unlike(folder)
        if lacking or unlike:
            options = (" --quick" if self._plan.is_quick else "") + (" --fresh" if unlike else "")
            raise LabError(
                f"{experiment.name} begins with the results of {experiment.needs}, and in {out} they "
                f"{unlike or lacking}; first: flyball lab run {experiment.needs}{options} --out {out}"
            )
        return found

    def _lacking(self, folder: Path, run_count: int) -> str:
        """Describe which runs are missing in `folder`; empty if none."""
        if not (folder / DESCRIPTION).exists():
            return "are not there"
        wanted = read_json(folder / DESCRIPTION)["run_count"]
        return f"are not complete: {run_count} of {wanted} runs" if run_count < wanted else ""

    def _unlike(self, folder: Path) -> str:
        """Describe how the definition of the results in `folder` differs from this one's; empty if it does not."""
        if not (folder / DEFINITION).exists():
            return ""
        ours, theirs = definition_of(self._plan), read_json(folder / DEFINITION)
        if theirs["flyball"] != ours["flyball"]:
            return f"are of Flyball {theirs['flyball']}, not {ours['flyball']}"
        if theirs["is_quick"] != ours["is_quick"]:
            return f"were made with{'' if theirs['is_quick'] else 'out'} --quick"
        return ""

    def is_complete(self, run: PlannedRun) -> bool:
        """Whether the run has results already."""
        return (self.folder / f"run={run.run_id}" / MANIFEST).exists()

    def begin(self, run: PlannedRun) -> Path:
        """Return the empty folder for the run; it gets its final name only when the run is complete."""
        folder = self.folder / f".run={run.run_id}"
        for old in (folder, self.folder / f"failed={run.run_id}", self.folder / f"run={run.run_id}"):
            shutil.rmtree(old, ignore_errors=True)
        for part in ("traces", "logs"):
            (folder / part).mkdir(parents=True)
        return folder

    def complete(self, run: PlannedRun, manifest: Mapping[str, object]) -> Path:
        """Keep the run."""
        folder = self.folder / f".run={run.run_id}"
        write_json(folder / MANIFEST, manifest)
        return folder.rename(self.folder / f"run={run.run_id}")

    def fail(self, run: PlannedRun, reason: str) -> Path:
        """Keep the remains of a failed run next to the others, under a name that the pipeline ignores."""
        folder = self.folder / f".run={run.run_id}"
        (folder / "reason.txt").write_text(reason + "\n", encoding="utf-8")
        shutil.rmtree(folder / "traces", ignore_errors=True)
        return folder.rename(self.folder / f"failed={run.run_id}")

    def discard(self, run: PlannedRun) -> None:
        """Delete the remains of an interrupted run."""
        shutil.rmtree(self.folder / f".run={run.run_id}", ignore_errors=True)

    def manifest(self, run: PlannedRun) -> dict[str, Any]:
        """Return the manifest of a complete run."""
        return read_json(self.folder / f"run={run.run_id}" / MANIFEST)


def description_of(plan: Plan) -> dict[str, object]:
    """Return the description of an experiment for the pipeline."""
    experiment = plan.experiment
    return {
        "version": VERSION,
        "name": experiment.name,
        "title": experiment.title,
        "about": experiment.about,
        "source": experiment.source,
        "differs": experiment.differs,
        "needs": experiment.needs,
        "factors": {factor: [label_of(level) for level in levels] for factor, levels in experiment.sweep.items()},
        "repetitions": experiment.run.repetitions,
        "is_quick": plan.is_quick,
        "run_count": len(plan.runs),
        "views": [view.model_dump(exclude_none=True) for view in experiment.views],
        "references": [reference.model_dump(exclude_none=True) for reference in experiment.references],
    }


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that the lab wrote. Raises LabError if it is damaged."""
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LabError(f"cannot read {path}: {error}; use --fresh to delete the results") from error
    return document


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write a file atomically."""
    partial = path.with_name(f".{path.name}")
    partial.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, path)
