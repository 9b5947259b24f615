"""The complete analysis, from traces to the tables and models of a report: runs the stages in order.

The only module that uses all stages. They compute statistics and models; the report arranges them.
"""

from __future__ import annotations

import contextlib
import io
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.utils import is_remote

from flyball.errors import PipelineError
from flyball.pipeline.activity import nodes_over_time, queues_over_time
from flyball.pipeline.capacity import capacity
from flyball.pipeline.factorial import COLUMNS as EFFECT_COLUMNS
from flyball.pipeline.factorial import factorial
from flyball.pipeline.filesystem import files_at
from flyball.pipeline.gaps import gaps
from flyball.pipeline.ingest import check_ingestible, ingest_once, take_new
from flyball.pipeline.latency import histogram, percentiles, quantile_columns
from flyball.pipeline.log_tables import downtime_of, phases_of, throughput_of
from flyball.pipeline.loops import ADMISSION, closed_loops, loop_measures, loops, plants
from flyball.pipeline.manifest import Experiment, Run, read_experiments, read_runs
from flyball.pipeline.measures import cells, measures, references, telesto_metrics, whole_points
from flyball.pipeline.operational_laws import laws
from flyball.pipeline.phases import phases
from flyball.pipeline.places import Files, join, name_of, uri_of
from flyball.pipeline.policies import (
    UNCONTROLLED,
    class_percentiles,
    compared_runs,
    load_cdf,
    loads,
    policies,
    policy_of,
    policy_runs,
    response_over_time,
)
from flyball.pipeline.profile import profile_of_admitted, profile_of_costs
from flyball.pipeline.queues import placement, provisioning, queue_measures, queue_over_time, queue_runs, scaling
from flyball.pipeline.spark_errors import one_line_errors
from flyball.pipeline.store_tables import AGGREGATES
from flyball.pipeline.stored import Ingested, open_store
from flyball.pipeline.throughput import THROUGHPUT, THROUGHPUT_OF_ALL, joined, measured, series, throughput
from flyball.pipeline.trace_store import Quarantined, Store
from flyball.pipeline.warm_up import warm_up

# Each is a file `<name>.json`.
MODELS = ("profile", "model", "capacity")

# Tables written only if the traces hold samples of control loops; the second only for closed loops.
ONLY_OF_LOOPS = ("loops", "closed_loops")

# Tables written only if admission policies were compared.
ONLY_OF_POLICIES = ("policies", "policy_runs", "load_cdf", "response_over_time")

# Tables written only if clients shared a queue; all but the first only if the experiment varied that factor.
ONLY_OF_QUEUES = ("queue_over_time", "placement", "provisioning", "scaling")

# Tables written only if nodes recorded their activity; the second only if queues were busy.
ONLY_OF_NODES = ("nodes_over_time", "queues_over_time")

# Called with the stage that starts, the number of completed stages, and the number of all stages.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Analysis:
    """The results for one folder of traces; they fit into memory, whatever the size of the traces."""

    experiments: list[Experiment]
    runs: list[Run]
    # By name, as `docs/how-it-works/pipeline.md` lists them; a table without rows still has its columns.
    #
    # Here `throughput` sums all queues; `throughput.parquet` lists the busiest ones separately.
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    # The content of the JSON files: `profile`, `model` and `capacity`, as far as the data allow them.
    models: Mapping[str, dict[str, Any]] = field(default_factory=dict)


def no_progress(stage: str, done: int, of: int) -> None:
    """Show no progress."""


def analyse(
    spark: SparkSession,
    source: str | Path,
    out: str | Path,
    progress: Progress = no_progress,
    store: str | Path | None = None,
) -> Analysis:
    """Analyse the traces in `source`, or in a store, and write the results into `out`.

    Writes OUT/tables/*.parquet and *.csv, the models as OUT/*.json. With `store` the files of `source` that are new
    are ingested into it first, and the whole store is analysed. Raises PipelineError, in one line, if the traces
    cannot be used.
    """
    stages = _Stages(progress)
    with one_line_errors("the analysis"), _opened(spark, source, out, stages, store) as opened, _beside() as beside:
        # With Spark Connect a model can be queried only in the thread of its session.
        profile_ = None if is_remote() else beside.submit(_profile, opened)
        counted = _counted(opened.found, stages)
        tables = _tables(opened, counted, stages)
        models = _models(opened, profile_, tables["measures"], stages)
        stages.begin("writing")
        analysis = Analysis(opened.experiments, opened.runs, tables, models)
        _write(analysis, str(out), files_at(out, spark))
        _write_throughput(spark, counted, tables["throughput"], str(out))
    return analysis


def find_model(
    spark: SparkSession,
    name: str,
    source: str | Path,
    out: str | Path,
    progress: Progress = no_progress,
    unit: str = "ms",
    class_count: int | None = None,
) -> str:
    """Write one of the MODELS into `out` and return its file. Raises PipelineError if the traces do not allow it.

    `unit` is that of the costs in a profile, `class_count` the number of its classes; by default it is determined.
    """
    stages = _Stages(progress, of=4 if name == "capacity" else 1)
    with one_line_errors(f"the {name}"), _opened(spark, source, out, stages) as opened:
        if name == "profile":
            model = _profile_in(opened, unit, class_count)
        elif name == "model":
            model = plants(opened.found.samples, opened.runs)
        else:
            counted = _counted(opened.found, stages)
            stages.begin("measures")
            model = capacity(_measures(counted), opened.runs)
            if not model["targets"]:
                raise PipelineError(f"no capacity can be found: {model['reason']}")
    return _write_model(name, model, str(out), files_at(out, spark))


class _Stages:
    """Reports the start of each stage."""

    def __init__(self, progress: Progress, of: int = 9) -> None:
        self._progress = progress
        self._done = 0
        self._of = of

    def begin(self, name: str) -> None:
        self._progress(name, self._done, max(self._of, self._done))
        self._done += 1


@dataclass(frozen=True, slots=True)
class _Opened:
    """The input of all stages."""

    source: str
    found: Ingested
    experiments: list[Experiment]
    runs: list[Run]


@contextmanager
def _opened(
    spark: SparkSession, source: str | Path, out: str | Path, stages: _Stages, store: str | Path | None = None
) -> Iterator[_Opened]:
    """Open a store, ingest new files into one, or ingest traces into a temporary one that lasts for the block."""
    stages.begin("ingest")
    files = files_at(out, spark)
    passing = join(out, f".store-{uuid.uuid4().hex[:8]}")
    try:
        files.write(join(passing, ".marker"), b"")
        files.delete(passing)
    except OSError as error:
        raise PipelineError(f"{out} cannot be written to: {error.strerror}") from error
    try:
        place = source if store is None and Store(source, spark).is_there() else store or passing
        if store is not None:
            kept = Store(store, spark)
            check_ingestible(source, spark)
            kept.create()
            with kept.locked():
                take_new(spark, source, kept)
        found = ingest_once(spark, source, passing) if place == passing else open_store(spark, place)
        manifests, of_store = Store(place, spark).manifests, files_at(place, spark)
        yield _Opened(str(source), found, read_experiments(manifests, of_store), read_runs(manifests, of_store))
    finally:
        with contextlib.suppress(OSError):
            files.delete(passing)


@dataclass(frozen=True, slots=True)
class _Counted:
    """The small tables computed by the passes over all events; all statistics are derived from them."""

    # SECONDS, including those before and after the measured time.
    seconds: DataFrame
    # SPREAD of the measured time.
    spread: DataFrame
    windows: DataFrame


def _counted(found: Ingested, stages: _Stages) -> _Counted:
    """Join the counts into the points of each run."""
    stages.begin("throughput")
    return _Counted(joined(found.seconds, found.windows), found.spread, found.windows)


def _tables(opened: _Opened, counted: _Counted, stages: _Stages) -> dict[str, pd.DataFrame]:
    inside = measured(counted.seconds, counted.windows)
    around, windows = _pandas(series(counted.seconds)), _pandas(counted.windows)
    tables = {"series": _inside(around, windows)}
    tables["throughput"] = tables["series"][[*THROUGHPUT_OF_ALL, "point_s"]].assign(queue="")
    stages.begin("latency")
    tables["histogram"] = _pandas(histogram(counted.spread))
    stages.begin("phases")
    tables["phases"] = _pandas(phases(inside, counted.spread))
    stages.begin("measures")
    tables["measures"] = measures(tables["series"], _pandas(percentiles(counted.spread)), windows)
    _add_loops(tables, opened)
    _add_policies(tables, opened)
    _add_queues(tables, opened)
    _add_activity(tables, opened.found, windows)
    tables["laws"] = laws(around, windows, opened.runs)
    tables["warm_up"] = warm_up(around, windows)
    tables["telesto"] = telesto_metrics(tables["measures"])
    tables["cells"] = cells(tables["measures"], opened.runs)
    tables["references"] = references(tables["cells"], opened.experiments)
    tables["effects"] = _effects(opened, tables["measures"])
    left_out = [*_left_out(opened), *(Quarantined(opened.source, gap, 0) for gap in gaps(tables["series"], windows))]
    tables["quarantine"] = pd.DataFrame(left_out, columns=list(Quarantined._fields))
    _add_logs(tables, opened.found)
    return tables


def _inside(around: pd.DataFrame, windows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of SERIES that are whole points of the measured time, with the length of their points."""
    known = windows.set_index("run")
    lengths = {run: whole_points(*window) for run, window in zip(known.index, known.to_numpy(), strict=True)}
    counts, lengths_s = ({run: length[place] for run, length in lengths.items()} for place in (0, 1))
    found = around.assign(point_s=around["run"].map(lengths_s).clip(lower=1.0).astype("int64"))
    places = found["second"] // found["point_s"]
    return found[(places >= 0) & (places < found["run"].map(counts))].reset_index(drop=True)


def _add_loops(tables: dict[str, pd.DataFrame], opened: _Opened) -> None:
    """Add the results of control loops, if there are samples of any, to the tables and to the measures."""
    if not opened.found.rows.get("samples"):
        return
    tables["loops"] = _pandas(loops(opened.found.samples, opened.runs))
    if not (tables["loops"]["is_closed"] & (tables["loops"]["loop"] != ADMISSION)).any():
        return
    found = _pandas(closed_loops(_of_other_loops(opened.found), opened.runs)).sort_values(["run", "loop", "part"])
    # Sample counts stay integers although they are null for loops that never settled.
    tables["closed_loops"] = found.astype({"settling_samples": "Int64"}).reset_index(drop=True)
    more = loop_measures(tables["closed_loops"])
    parts = [table for table in (tables["measures"], more) if len(table)]
    tables["measures"] = pd.concat(parts, ignore_index=True) if parts else more


def _of_other_loops(found: Ingested) -> DataFrame:
    return found.samples.where(sf.col("loop") != ADMISSION)


def _add_policies(tables: dict[str, pd.DataFrame], opened: _Opened) -> None:
    """Add the comparison of admission policies, if there were any."""
    found, runs = opened.found, compared_runs(opened.runs)
    if not runs:
        return
    counted = found.answers
    tables["response_over_time"] = _pandas(response_over_time(counted))
    tables["load_cdf"] = _pandas(load_cdf(found.samples, runs))
    percentiles_, loads_ = _pandas(class_percentiles(counted)), _pandas(loads(found.samples, runs))
    tables["policy_runs"] = policy_runs(tables["response_over_time"], percentiles_, loads_, runs)
    tables["policies"] = policies(tables["policy_runs"])


def _add_queues(tables: dict[str, pd.DataFrame], opened: _Opened) -> None:
    """Add the results of queues that many clients shared, if any."""
    if not queue_runs(opened.runs):
        return
    over_time = queue_over_time(tables["throughput"], opened.runs)
    tables["queue_over_time"] = over_time
    for name, compare in (("placement", placement), ("provisioning", provisioning), ("scaling", scaling)):
        compared = compare(over_time, opened.runs)
        if len(compared):
            tables[name] = compared
    more = queue_measures(over_time, opened.runs)
    if len(more):
        parts = [table for table in (tables["measures"], more) if len(table)]
        tables["measures"] = pd.concat(parts, ignore_index=True)


def _add_activity(tables: dict[str, pd.DataFrame], found: Ingested, windows: pd.DataFrame) -> None:
    """Add the activity of nodes and queues over time, if nodes recorded it."""
    if found.rows.get("nodes"):
        tables["nodes_over_time"] = nodes_over_time(found.node_points, windows)
    if found.rows.get("queues"):
        tables["queues_over_time"] = queues_over_time(found.queue_points, found.time_points, windows)


def _left_out(opened: _Opened) -> list[Quarantined]:
    """Return the records that the traces should contain but the tables lack."""
    dropped = opened.found.dropped
    lost = Quarantined(opened.source, "lacks records that nodes or clients could not write", dropped)
    return [*opened.found.quarantine, *([lost] if dropped else [])]


def _measures(counted: _Counted) -> pd.DataFrame:
    inside = _pandas(series(measured(counted.seconds, counted.windows)))
    return measures(inside, _pandas(percentiles(counted.spread)), _pandas(counted.windows))


def _effects(opened: _Opened, measured: pd.DataFrame) -> pd.DataFrame:
    found = []
    for experiment in opened.experiments:
        # An incomplete experiment, or one that is not a full factorial design, has no effects.
        with contextlib.suppress(PipelineError):
            found.append(factorial(measured, opened.runs, experiment))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=list(EFFECT_COLUMNS))


def _add_logs(tables: dict[str, pd.DataFrame], found: Ingested) -> None:
    """Append rows that are computed from logs only to the tables computed from traces."""
    more: dict[str, pd.DataFrame] = {}
    if found.rows.get("intervals"):
        intervals = _pandas(AGGREGATES["intervals"].merged(joined(found.intervals, found.windows)))
        more = {"throughput": throughput_of(intervals), "phases": phases_of(intervals)}
    if found.rows.get("downtimes"):
        downtimes = joined(found.downtimes, found.windows)
        sums = [sf.sum(name).alias(name) for name in ("requests", "sum_ms", "sum_ms2")]
        over_time = _pandas(downtimes.groupBy("run", "second").agg(*sums))
        more["telesto"] = downtime_of(over_time, _pandas(downtimes.groupBy("run").agg(*quantile_columns())))
    for name, rows in more.items():
        parts = [table for table in (tables[name], rows) if len(table)]
        tables[name] = pd.concat(parts, ignore_index=True) if parts else rows


@contextmanager
def _beside() -> Iterator[ThreadPoolExecutor]:
    """Run a function in parallel with the block: a single stage leaves cores idle while Spark plans and finishes it.

    If the block fails, the function's result is not awaited; it ends with Spark at the latest.
    """
    pool = ThreadPoolExecutor(1)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _models(
    opened: _Opened, profile_: Future[dict[str, Any] | None] | None, measured: pd.DataFrame, stages: _Stages
) -> dict[str, dict[str, Any]]:
    """Return the models that the data allow."""
    models: dict[str, dict[str, Any]] = {}
    stages.begin("profile")
    found_profile = _profile(opened) if profile_ is None else profile_.result()
    if found_profile is not None:
        models["profile"] = found_profile
    stages.begin("identification")
    if opened.found.rows.get("samples"):
        with contextlib.suppress(PipelineError):
            models["model"] = plants(_of_other_loops(opened.found), opened.runs)
    stages.begin("capacity")
    # With policies, responses do not measure completed work: a refusal is a response too.
    found = capacity(measured, [run for run in opened.runs if run not in compared_runs(opened.runs)])
    if found["targets"]:
        models["capacity"] = found
    return models


def _profile(opened: _Opened) -> dict[str, Any] | None:
    found = opened.found
    if not (found.rows.get("requests") or found.rows.get("admissions")):
        return None
    with contextlib.suppress(PipelineError):
        return _profile_in(opened)
    return None


def _profile_in(opened: _Opened, unit: str = "ms", class_count: int | None = None) -> dict[str, Any]:
    """Return the profile of an application's requests, or, without any, of the nodes' requests.

    Raises PipelineError if there are neither, or if they have no cost in that unit.
    """
    found = opened.found
    if found.rows.get("admissions"):
        return profile_of_admitted(_uncontrolled(found.admitted, opened.runs), unit, class_count)
    if unit != "ms":
        raise PipelineError(f"requests of nodes have no cost in {unit}: give traces of an application, or --unit ms")
    return profile_of_costs(found.costs)


def _uncontrolled(admitted: DataFrame, runs: Sequence[Run]) -> DataFrame:
    """Omit runs under admission control if there are others: costs under overload differ."""
    controlled = {run.run for run in runs if policy_of(run) != UNCONTROLLED}
    if not controlled or controlled.issuperset(row["run"] for row in admitted.select("run").distinct().collect()):
        return admitted
    return admitted.where(~sf.col("run").isin(*controlled))


def _write(analysis: Analysis, out: str, files: Files) -> None:
    folder = join(out, "tables")
    try:
        for name, table in analysis.tables.items():
            if name == "throughput":
                continue
            content = io.BytesIO()
            table.to_parquet(content, index=False)
            files.write(join(folder, f"{name}.parquet"), content.getvalue())
            files.write(join(folder, f"{name}.csv"), table.to_csv(index=False).encode())
        files.delete(join(folder, "throughput.csv"))
        for name in {*ONLY_OF_LOOPS, *ONLY_OF_POLICIES, *ONLY_OF_QUEUES, *ONLY_OF_NODES} - set(analysis.tables):
            for suffix in ("parquet", "csv"):
                files.delete(join(folder, f"{name}.{suffix}"))
        for name in MODELS:
            if name in analysis.models:
                _write_model(name, analysis.models[name], out, files)
            else:
                # Results of an earlier analysis must not be mistaken for those of this one.
                files.delete(join(out, f"{name}.json"))
    except OSError as error:
        raise PipelineError(f"{folder} cannot be written to: {error.strerror}") from error


def _write_throughput(spark: SparkSession, counted: _Counted, known: pd.DataFrame, out: str) -> None:
    """Let Spark write THROUGHPUT: with its queues it may have more rows than the driver can hold.

    `known` has the rows for all queues together, and those from logs.
    """
    found = throughput(measured(counted.seconds, counted.windows))
    of_logs = known[known["point_s"].isna()][THROUGHPUT.names] if "point_s" in known else known
    if len(of_logs):
        rows = [tuple(row) for row in of_logs.itertuples(index=False)]
        found = found.unionByName(spark.createDataFrame(rows, THROUGHPUT))
    files, folder = files_at(out, spark), join(out, "tables")
    parts = join(folder, ".throughput")
    try:
        found.coalesce(1).write.mode("overwrite").parquet(uri_of(parts))
        [part] = files.find(parts, "part-*.parquet", is_deep=False)
        files.rename(join(parts, name_of(part.place)), join(folder, "throughput.parquet"))
    except OSError as error:
        raise PipelineError(f"{folder} cannot be written to: {error.strerror}") from error
    finally:
        files.delete(parts)


def _write_model(name: str, model: Mapping[str, Any], out: str, files: Files) -> str:
    place = join(out, f"{name}.json")
    try:
        files.write(place, (json.dumps(model, indent=2) + "\n").encode())
    except OSError as error:
        raise PipelineError(f"{place} cannot be written to: {error.strerror}") from error
    return place


def _pandas(frame: DataFrame) -> pd.DataFrame:
    table: pd.DataFrame = frame.toArrow().to_pandas()
    return table
