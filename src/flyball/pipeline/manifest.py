"""The description of a folder of results: its experiments, and the complete runs.

Reads `experiment.json` and `run.json`, which the lab writes. Independent of Spark and of the traces.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from flyball.errors import PipelineError
from flyball.pipeline.places import LOCAL, Files

EXPERIMENT_FILE = "experiment.json"
RUN_FILE = "run.json"
VERSION = 1

Factors = dict[str, Any]


@dataclass(frozen=True, slots=True)
class View:
    """A figure or table that the report of an experiment shows."""

    # One of the report's `KINDS`, or `table`.
    kind: str
    metric: str = "throughput"
    # A kind of request, or `all`.
    request: str = "all"
    # The source of the measurement: `clients` or `nodes`.
    source: str = "clients"
    # The factor on the horizontal axis.
    x: str | None = None
    # The factor with a line for each level.
    series: str | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A published figure for one cell of the experiment."""

    label: str
    metric: str
    mean: float
    factors: Factors = field(default_factory=dict)
    request: str = "all"
    source: str = "clients"
    # The lower end of the 90 % interval, as an offset from the mean: negative. None if unknown.
    low: float | None = None
    # The upper end, as an offset from the mean.
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """The definition of an experiment, and how its results are shown."""

    name: str
    title: str = ""
    about: str = ""
    # Its origin, for example `ThorBangMQ report, table 8`.
    source: str = ""
    # Why the results differ from the published ones.
    differs: str = ""
    # The experiment whose results this one builds on.
    needs: str = ""
    # The command that repeats it, as it was typed; empty if unknown.
    command: str = ""
    # The levels of each factor, by its dotted name.
    factors: dict[str, list[Any]] = field(default_factory=dict)
    repetitions: int = 1
    is_quick: bool = False
    run_count: int = 0
    views: list[View] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured part of a run, without warm-up and cool-down: microseconds since 1970, UTC."""

    from_us: int
    until_us: int


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition of one cell of an experiment, and its facts other than its traces."""

    # Its id: the part after `run=` in the path of its traces.
    run: str
    measured: Measured
    # The name of its experiment.
    experiment: str = ""
    factors: Factors = field(default_factory=dict)
    repetition: int = 1
    seed: int = 0
    is_quick: bool = False
    target: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    clients: dict[str, Any] = field(default_factory=dict)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    # The messages exchanged by nodes that share a queue, and other facts of their domain.
    domain: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    started_at: str = ""
    ended_at: str = ""

    @property
    def cell(self) -> str:
        """The name of its cell in tables."""
        return cell_of(self.factors)


def cell_of(factors: Mapping[str, Any]) -> str:
    """Return the name of a cell of an experiment: the same for the same levels in any order."""
    return json.dumps(dict(factors), sort_keys=True)


def read_experiments(folder: str | Path, files: Files = LOCAL) -> list[Experiment]:
    """Return the experiments described in `folder` and below, by name.

    Raises PipelineError, naming the file, if this version cannot read a description.
    """
    return sorted(_read_all(folder, EXPERIMENT_FILE, TypeAdapter(Experiment), files), key=lambda found: found.name)


def read_runs(folder: str | Path, files: Files = LOCAL) -> list[Run]:
    """Return the complete runs in `folder` and below, by id.

    Raises PipelineError, naming the file, if this version cannot read a manifest, or if an id is not unique.
    """
    runs = sorted(_read_all(folder, RUN_FILE, TypeAdapter(Run), files), key=lambda found: found.run)
    for one, other in itertools.pairwise(runs):
        if one.run == other.run:
            raise PipelineError(f"{folder} holds two runs {one.run!r}: give their folders one by one")
    return runs


T = TypeVar("T")


def _read_all(folder: str | Path, name: str, kind: TypeAdapter[T], files: Files) -> list[T]:
    return [_read(place, kind, files) for place in find_files(folder, name, files)]


def find_files(folder: str | Path, pattern: str, files: Files = LOCAL) -> list[str]:
    """Return the files in `folder` and below whose name matches, by path."""
    return [entry.place for entry in files.find(str(folder), pattern)]


def _read(path: str, kind: TypeAdapter[T], files: Files) -> T:
    try:
        facts = json.loads(files.read(path))
    except OSError as error:
        raise PipelineError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PipelineError(f"{path} is not JSON: {error}") from error
    if not isinstance(facts, dict):
        raise PipelineError(f"{path} is not a JSON object")
    if facts.get("version") != VERSION:
        raise PipelineError(f"{path} has version {facts.get('version')!r}, this pipeline reads {VERSION}")
    try:
        return kind.validate_python(facts)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise PipelineError(f"{path}: {place}: {first['msg']}") from error
