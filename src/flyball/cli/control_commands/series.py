"""Samples of control loops from files: recorded ones, or CSV tables."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flyball.control.loop import Sample
from flyball.errors import ControlError

COLUMNS = ("loop", "at_us", "sample_time_s", "measurement", "action", "sequence")


@dataclass(slots=True)
class Series:
    """Measurements and subsequent actions of a loop. May contain several runs in sequence."""

    loop: str
    sample_time_s: float
    measurements: list[float] = field(default_factory=list)
    actions: list[float] = field(default_factory=list)
    # Indexes of samples that do not follow the one before: start of a run, or after a gap.
    breaks: list[int] = field(default_factory=list)
    _last: int | None = None

    def add(self, measurement: float, action: float, sequence: int) -> None:
        if self._last is not None and sequence != self._last + 1:
            self.breaks.append(len(self.measurements))
        self._last = sequence
        self.measurements.append(measurement)
        self.actions.append(action)

    def end_run(self) -> None:
        """End a run: the next sample starts another one."""
        if self._last is not None:
            self._last = -2


def series_of(samples: Sequence[Sample]) -> Series:
    """Return the series of one loop."""
    found = Series(samples[0].loop, samples[0].sample_time_s)
    for sample in samples:
        found.add(sample.measurement, sample.action, sample.sequence)
    return found


def read_series(sources: Iterable[Path], sample_time_s: float) -> list[Series]:
    """Read files and folders, by loop and sample time.

    A CSV file has the columns measurement and action, and the given sample time. Raises ControlError if there are no
    samples, or a file is unreadable.
    """
    found: dict[tuple[str, float], Series] = {}
    for source in sources:
        for paths in _runs(source):
            if paths[0].suffix.lower() == ".csv":
                _add_csv(found, paths[0], sample_time_s)
            else:
                _add_parquet(found, paths)
    if not any(series.measurements for series in found.values()):
        raise ControlError("no samples in the files: let the loop run first")
    return [found[key] for key in sorted(found)]


def _runs(source: Path) -> list[list[Path]]:
    """Return the files of each run: those in the same folder."""
    if source.is_file():
        return [[source]]
    if not source.is_dir():
        raise ControlError(f"no such file or folder: {source}")
    folders: dict[Path, list[Path]] = {}
    for path in sorted(source.rglob("samples-*.parquet")):
        folders.setdefault(path.parent, []).append(path)
    if not folders:
        raise ControlError(f"no samples-*.parquet in {source}: use a folder with recorded samples")
    return list(folders.values())


def _add_parquet(found: dict[tuple[str, float], Series], paths: Sequence[Path]) -> None:
    columns = [_columns(path) for path in paths]
    rows = [row for one in columns for row in zip(*(one[name] for name in COLUMNS), strict=True)]
    rows.sort(key=lambda row: row[1])
    touched = set()
    for loop, _, sample_time_s, measurement, action, sequence in rows:
        key = (str(loop), float(sample_time_s))
        touched.add(key)
        found.setdefault(key, Series(*key)).add(measurement, action, sequence)
    for key in touched:
        found[key].end_run()


def _columns(path: Path) -> dict[str, list[object]]:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ControlError(f"cannot read Parquet file {path}: {error}") from error
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise ControlError(f"{path} has no samples of a loop: missing column {', '.join(missing)}")
    columns: dict[str, list[object]] = {name: table.column(name).to_pylist() for name in COLUMNS}
    return columns


def _add_csv(found: dict[tuple[str, float], Series], path: Path, sample_time_s: float) -> None:
    key = (path.stem, sample_time_s)
    series = found.setdefault(key, Series(*key))
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            lines = csv.DictReader(file, skipinitialspace=True)
            for name in ("measurement", "action"):
                if name not in (lines.fieldnames or ()):
                    raise ControlError(
                        f"{path} has no column {name!r}: the first line must name measurement and action"
                    )
            for sequence, line in enumerate(lines):
                measurement = _number(path, lines.line_num, line["measurement"])
                series.add(measurement, _number(path, lines.line_num, line["action"]), sequence)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ControlError(f"cannot read CSV file {path}: {error}") from error
    series.end_run()


def _number(path: Path, line: int, text: str | None) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ControlError(f"{path}, line {line}: invalid number {text or ''!r}")
    return number
