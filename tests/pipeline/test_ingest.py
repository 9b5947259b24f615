"""Files become tables: each once, malformed rows are rejected, and every rejected row is counted."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructType

from flyball.client.sync import Client
from flyball.errors import PipelineError
from flyball.pipeline import schemas
from flyball.pipeline.ingest import ingest
from flyball.pipeline.log_formats import LogFormat
from flyball.pipeline.rules import RULES
from flyball.pipeline.stored import Ingested, drill_down, open_store
from flyball.pipeline.trace_store import INCOMPLETE, Store
from flyball.trace import schema as written
from tests.nodes import RunningNode
from tests.pipeline.traces import (
    START_US,
    Row,
    admission,
    call,
    request,
    sample,
    steady_requests,
    write_admissions,
    write_calls,
    write_experiment,
    write_requests,
    write_run,
    write_samples,
    write_steady_run,
)


class Found:
    """The content of a store, and the rows that it has added up."""

    def __init__(self, spark: SparkSession, store: Path, ingested: Ingested) -> None:
        self._spark = spark
        self._store = store
        self._ingested = ingested

    def __getattr__(self, name: str) -> Any:
        if name in ("requests", "calls", "admissions"):
            return drill_down(self._spark, self._store, name)
        return getattr(self._ingested, name)

    def counted(self, source: str = "nodes") -> int:
        """Return how many rows have been added up."""
        rows = self.seconds.where(f"source = '{source}'").agg({"records": "sum"}).collect()
        return int(rows[0][0] or 0)


Ingest = Callable[[], Found]


def taken(spark: SparkSession, source: Path, store: Path, log_format: LogFormat | None = None) -> Found:
    return Found(spark, store, ingest(spark, source, store, log_format))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.fixture
def take(spark: SparkSession, source: Path, tmp_path: Path) -> Ingest:
    """Ingest the source once more."""
    return lambda: taken(spark, source, tmp_path / "store")


def sequences(table: DataFrame) -> list[int]:
    return sorted(row.sequence for row in table.select("sequence").collect())


def numbered(*numbers: int, **columns: object) -> list[Row]:
    return [request(sequence=number, **columns) for number in numbers]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (schemas.REQUESTS, written.SCHEMA),
        (schemas.CALLS, written.CALL_SCHEMA),
        (schemas.SAMPLES, written.SAMPLE_SCHEMA),
        (schemas.ADMISSIONS, written.ADMISSION_SCHEMA),
        (schemas.NODES, written.NODE_SCHEMA),
        (schemas.QUEUES, written.QUEUE_SCHEMA),
        (schemas.TIMES, written.TIME_SCHEMA),
    ],
)
def test_the_tables_have_the_columns_that_are_written(ours: StructType, theirs: pa.Schema) -> None:
    kinds = {pa.int64(): LongType(), pa.float64(): DoubleType(), pa.string(): StringType()}
    expected = [("run", StringType()), *((field.name, kinds[plain(field.type)]) for field in theirs)]
    assert [(field.name, field.dataType) for field in ours] == expected


@pytest.mark.parametrize(
    ("table", "theirs"),
    [
        ("requests", written.SCHEMA),
        ("calls", written.CALL_SCHEMA),
        ("samples", written.SAMPLE_SCHEMA),
        ("admissions", written.ADMISSION_SCHEMA),
        ("nodes", written.NODE_SCHEMA),
        ("queues", written.QUEUE_SCHEMA),
        ("times", written.TIME_SCHEMA),
    ],
)
def test_the_rules_know_the_columns_that_are_written(table: str, theirs: pa.Schema) -> None:
    assert list(RULES[table].columns.items()) == [(field.name, plain(field.type)) for field in theirs]


def plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def test_all_four_tables_are_found_at_any_depth_with_their_run(source: Path, take: Ingest) -> None:
    write_requests(source / "trace-a-1.parquet", numbered(1))
    write_requests(source / "deep" / "run=x.y.r1" / "traces" / "trace-a-1.parquet", numbered(2))
    write_calls(source / "deep" / "run=007" / "traces" / "calls-w-1.parquet", [call(sequence=3)])
    write_samples(source / "run=007" / "samples-l-1.parquet", [sample(sequence=4)])
    write_admissions(source / "run=007" / "admissions-shop-1.parquet", [admission(sequence=5)])
    found = take()
    assert {(row.run, row.sequence) for row in found.requests.collect()} == {("", 1), ("x.y.r1", 2)}
    assert [(row.run, row.sequence) for row in found.calls.collect()] == [("007", 3)]
    assert [(row.run, row.sequence) for row in found.samples.collect()] == [("007", 4)]
    assert [(row.run, row.sequence) for row in found.admissions.collect()] == [("007", 5)]
    assert found.quarantine == []
    assert found.rows == {"requests": 2, "calls": 1, "samples": 1, "admissions": 1}
    schemas.require(found.requests, schemas.REQUESTS, "requests")
    schemas.require(found.calls, schemas.CALLS, "calls")
    schemas.require(found.samples, schemas.SAMPLES, "samples")
    schemas.require(found.admissions, schemas.ADMISSIONS, "admissions")


def test_tables_without_files_are_empty_and_have_their_columns(source: Path, take: Ingest) -> None:
    write_requests(source / "trace-a-1.parquet", numbered(1))
    found = take()
    assert found.calls.count() == 0
    schemas.require(found.calls, schemas.CALLS, "calls")
    schemas.require(found.samples, schemas.SAMPLES, "samples")
    schemas.require(found.admissions, schemas.ADMISSIONS, "admissions")


def test_a_second_run_takes_new_files_only(source: Path, take: Ingest) -> None:
    write_requests(source / "trace-a-1.parquet", numbered(1))
    assert sequences(take().requests) == [1]
    write_requests(source / "trace-a-2.parquet", numbered(2))
    assert sequences(take().requests) == [1, 2]
    assert sequences(take().requests) == [1, 2]


def test_rows_are_added_up_and_not_kept(source: Path, take: Ingest, tmp_path: Path) -> None:
    write_requests(source / "trace-a-1.parquet", steady_requests(20_000, 1000.0))
    found = take()
    assert found.counted() == 20_000
    assert found.seconds.count() == 20 * 2
    kept = sum(path.stat().st_size for path in (tmp_path / "store").rglob("*.parquet"))
    assert kept < (source / "trace-a-1.parquet").stat().st_size


def test_half_written_files_are_left_alone(source: Path, take: Ingest) -> None:
    write_requests(source / "trace-a-1.parquet", numbered(1))
    (source / ".trace-a-2.parquet").write_bytes(b"PAR1")
    found = take()
    assert sequences(found.requests) == [1]
    assert found.quarantine == []


def test_names_with_blanks_and_signs_are_read(source: Path, take: Ingest) -> None:
    write_requests(source / "my traces [1] {2}, 100 %*" / "run=a b%20c" / "trace-a-1.parquet", numbered(1))
    assert [row.run for row in take().requests.collect()] == ["a b%20c"]


def test_a_source_and_a_store_may_have_patterns_as_names(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "results [1] {2} *"
    write_requests(path / "trace-a-1.parquet", numbered(1))
    assert sequences(taken(spark, path, tmp_path / "store [1]").requests) == [1]


def other_version(path: Path) -> None:
    write_requests(path, numbered(2), schema_version="2")


def other_table(path: Path) -> None:
    write_requests(path, numbered(2), table="weather")


def no_trace(path: Path) -> None:
    pq.write_table(pa.table({"kind": ["put"]}), path)


def lacking_columns(path: Path) -> None:
    write_requests(path, numbered(2))
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["store_ns", "node", "weight"]), path)


def other_type(path: Path) -> None:
    write_requests(path, numbered(2))
    table = pq.read_table(path)
    place = table.schema.get_field_index("wait_ns")
    pq.write_table(table.set_column(place, "wait_ns", table["wait_ns"].cast(pa.float64())), path)


def truncated(path: Path) -> None:
    write_requests(path, numbered(2))
    path.write_bytes(path.read_bytes()[:-100])


def damaged_inside(path: Path) -> None:
    write_requests(path, steady_requests(1000))
    data = bytearray(path.read_bytes())
    data[4:2000] = bytes(1996)
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


SPOILED = {
    other_version: "has schema version 2, this pipeline reads 1",
    other_table: "holds the unknown table 'weather'",
    no_trace: "is not a trace",
    lacking_columns: "lacks the columns store_ns, node",
    other_type: "has double in the column wait_ns, not int64",
    truncated: "is truncated, or not a Parquet file",
    damaged_inside: "is damaged",
    empty: "is truncated, or not a Parquet file",
}


def test_malformed_files_are_left_out_and_taken_when_they_are_whole(source: Path, take: Ingest) -> None:
    write_requests(source / "trace-a.parquet", numbered(0))
    paths = {source / f"trace-{spoil.__name__}.parquet": spoil for spoil in SPOILED}
    for path, spoil in paths.items():
        spoil(path)
    found = take()
    assert sequences(found.requests) == [0]
    assert len(found.quarantine) == len(SPOILED)
    for left_out in found.quarantine:
        assert SPOILED[paths[Path(left_out.file)]] in left_out.reason
    assert take().quarantine == found.quarantine
    for number, path in enumerate(paths, 1):
        write_requests(path, numbered(number))
    found = take()
    assert sequences(found.requests) == list(range(len(SPOILED) + 1))
    assert found.quarantine == []
    assert sequences(take().requests) == list(range(len(SPOILED) + 1))


MALFORMED_ROWS: list[tuple[Row, str]] = [
    ({"kind": None}, "kind is missing"),
    ({"store_ns": None}, "store_ns is missing"),
    ({"wait_ns": -1}, "wait_ns is negative"),
    ({"kind": ""}, "kind is not a name"),
    ({"result": "perhaps" * 20}, "result is not a name"),
    ({"received_us": 86_400_000_000}, "received_us is too small"),
    ({"received_us": 2**62}, "received_us is too large"),
    ({"weight": 0}, "weight is not above 0"),
    ({"weight": 10**10}, "weight is too large"),
    ({"message_count": 10**12}, "message_count is too large"),
    ({"emit_ns": 2**62}, "emit_ns is too large"),
]


def test_malformed_rows_go_to_quarantine_with_their_reason(source: Path, take: Ingest, tmp_path: Path) -> None:
    rows = [request(sequence=number, **columns) for number, (columns, _) in enumerate(MALFORMED_ROWS)]
    path = write_requests(source / "trace-a-1.parquet", [*numbered(100), *rows, *numbered(101)])
    found = take()
    assert sequences(found.requests) == [100, 101]
    assert found.quarantine == sorted((str(path), reason, 1) for _, reason in MALFORMED_ROWS)
    kept = pq.read_table(tmp_path / "store" / "quarantine" / "requests", partitioning=None).to_pylist()
    assert sorted((row["sequence"], row["reason"], row["file"]) for row in kept) == [
        (number, reason, str(path)) for number, (_, reason) in enumerate(MALFORMED_ROWS)
    ]


def test_samples_that_are_no_numbers_go_to_quarantine(source: Path, take: Ingest) -> None:
    rows = [sample(sequence=1), sample(sequence=2, measurement=float("nan")), sample(sequence=3, sample_time_s=0.0)]
    path = write_samples(source / "samples-l-1.parquet", rows)
    found = take()
    assert sequences(found.samples) == [1]
    assert found.quarantine == [
        (str(path), "measurement is not a sound number", 1),
        (str(path), "sample_time_s is not a sound number", 1),
    ]


def test_admissions_that_break_the_rules_go_to_quarantine(source: Path, take: Ingest) -> None:
    rows = [admission(sequence=1), admission(outcome=""), admission(busy_ns=-1), admission(key=None)]
    path = write_admissions(source / "admissions-shop-1.parquet", rows)
    found = take()
    assert sequences(found.admissions) == [1]
    assert found.quarantine == [
        (str(path), "busy_ns is negative", 1),
        (str(path), "key is missing", 1),
        (str(path), "outcome is not a name", 1),
    ]


def test_a_large_file_loses_only_its_malformed_rows(source: Path, take: Ingest) -> None:
    rows = steady_requests(20_000)
    rows[7]["engine_ns"] = -5
    path = write_requests(source / "trace-a-1.parquet", rows)
    found = take()
    assert found.requests.count() == 19_999
    assert found.quarantine == [(str(path), "engine_ns is negative", 1)]
    assert found.rows == {"requests": 19_999}


def test_what_was_sampled_stands_for_all(source: Path, take: Ingest) -> None:
    write_requests(source / "trace-a-1.parquet", numbered(1, weight=64), sample_ratio="0.25")
    assert [row.weight for row in take().requests.collect()] == [256]


def test_what_was_sampled_too_thinly_goes_to_quarantine(source: Path, take: Ingest) -> None:
    rows = [*numbered(1, weight=1), *numbered(2, weight=1000)]
    path = write_requests(source / "trace-a-1.parquet", rows, sample_ratio="0.0001")
    found = take()
    assert [(row.sequence, row.weight) for row in found.requests.collect()] == [(1, 10_000)]
    assert found.quarantine == [(str(path), "weight is too large", 1)]


def test_records_that_writers_dropped_are_counted_once(source: Path, take: Ingest) -> None:
    write_requests(source / "a" / "trace-a-1.parquet", numbered(1), dropped="3")
    write_requests(source / "a" / "trace-a-2.parquet", numbered(2), dropped="5")
    write_requests(source / "b" / "trace-b-1.parquet", numbered(3), dropped="1")
    assert take().dropped == 6


def test_windows_come_from_the_manifest_or_from_what_was_recorded(source: Path, take: Ingest) -> None:
    experiment = write_experiment(source / "clients")
    write_steady_run(experiment, "known", length_s=2)
    write_requests(
        source / "trace-a-1.parquet", [request(received_us=START_US + 5), request(received_us=START_US + 9)]
    )
    assert [tuple(row) for row in take().windows.collect()] == [
        ("", START_US + 5, START_US + 10),
        ("known", START_US, START_US + 2_000_000),
    ]


def test_a_run_that_is_not_complete_waits_until_it_is(source: Path, take: Ingest) -> None:
    experiment = write_experiment(source / "clients")
    write_steady_run(experiment, "r1")
    path = write_requests(experiment / "run=r2" / "traces" / "trace-a-1.parquet", numbered(1))
    found = take()
    assert found.quarantine == [(str(path), INCOMPLETE, 0)]
    write_run(experiment, "r2")
    found = take()
    assert found.quarantine == []
    assert {row.run for row in found.requests.select("run").distinct().collect()} == {"r1", "r2"}


def test_a_crash_in_the_middle_leaves_nothing_twice(
    source: Path, take: Ingest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_requests(source / "trace-a-1.parquet", numbered(1))
    take()
    write_requests(source / "trace-a-2.parquet", numbered(2))
    with monkeypatch.context() as patch:
        patch.setattr("flyball.pipeline.trace_store.Store.commit", fail)
        with pytest.raises(PipelineError, match="the power went"):
            take()
    assert open_store(spark, tmp_path / "store").rows == {"requests": 1}, "what is half-written does not count"
    found = take()
    assert sequences(found.requests) == [1, 2]
    assert found.counted() == 2


def fail(*_: object) -> None:
    raise PipelineError("the power went")


def test_a_full_disk_is_said_in_one_line(source: Path, take: Ingest, monkeypatch: pytest.MonkeyPatch) -> None:
    write_requests(source / "trace-a-1.parquet", numbered(1))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "store/a.json")

    with monkeypatch.context() as patch:
        patch.setattr("flyball.pipeline.places.LocalFiles.write", full)
        with pytest.raises(PipelineError, match=r"store/a.json|No space left on device"):
            take()
    assert sequences(take().requests) == [1]


def test_a_store_inside_its_source_does_not_eat_itself(source: Path, spark: SparkSession) -> None:
    write_requests(source / "trace-a-1.parquet", steady_requests(20_000))
    write_steady_run(write_experiment(source / "clients"), "r1", length_s=2)
    for _ in range(2):
        assert taken(spark, source, source / "store").requests.count() == 20_200


def test_a_file_that_is_reached_from_two_sources_is_taken_once(spark: SparkSession, tmp_path: Path) -> None:
    write_requests(tmp_path / "a" / "deep" / "trace-a-1.parquet", numbered(1))
    ingest(spark, tmp_path / "a", tmp_path / "store")
    assert sequences(taken(spark, tmp_path / "a" / "deep", tmp_path / "store").requests) == [1]


def test_two_sources_share_a_store(spark: SparkSession, tmp_path: Path) -> None:
    write_requests(tmp_path / "a" / "trace-a-1.parquet", numbered(1))
    write_requests(tmp_path / "b" / "trace-a-1.parquet", numbered(2))
    ingest(spark, tmp_path / "a", tmp_path / "store")
    assert sequences(taken(spark, tmp_path / "b", tmp_path / "store").requests) == [1, 2]


def test_a_single_file_is_a_source(spark: SparkSession, tmp_path: Path) -> None:
    path = write_requests(tmp_path / "trace-a-1.parquet", numbered(1))
    assert sequences(taken(spark, path, tmp_path / "store").requests) == [1]


def test_a_store_outlives_its_source(source: Path, take: Ingest, spark: SparkSession, tmp_path: Path) -> None:
    write_steady_run(write_experiment(source / "clients"), "r1", length_s=2)
    take()
    shutil.rmtree(source)
    found = open_store(spark, tmp_path / "store")
    assert found.rows == {"requests": 200, "calls": 200}
    assert [row.until_us for row in found.windows.collect()] == [START_US + 2_000_000]


def test_nothing_to_take_is_said_in_one_line(source: Path, take: Ingest) -> None:
    with pytest.raises(PipelineError, match="no traces in"):
        take()


def test_files_without_rows_are_said_in_one_line(source: Path, take: Ingest) -> None:
    write_requests(source / "trace-a-1.parquet", [])
    with pytest.raises(PipelineError, match="hold no rows"):
        take()


def test_files_that_are_all_malformed_are_said_in_one_line(source: Path, take: Ingest) -> None:
    truncated(source / "trace-a-1.parquet")
    truncated(source / "trace-a-2.parquet")
    with pytest.raises(PipelineError, match=r"trace-a-1.parquet is truncated, or not a Parquet file, and 1 more"):
        take()


def test_a_missing_source_and_a_folder_of_other_things_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="does not exist"):
        ingest(spark, tmp_path / "nowhere", tmp_path / "store")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(PipelineError, match="is not empty and not a store"):
        ingest(spark, tmp_path, tmp_path / "full")
    with pytest.raises(PipelineError, match="is not a store"):
        open_store(spark, tmp_path / "full")


def test_a_store_of_another_version_is_refused(
    source: Path, take: Ingest, spark: SparkSession, tmp_path: Path
) -> None:
    write_requests(source / "trace-a-1.parquet", numbered(1))
    take()
    assert Store(tmp_path / "store").is_there()
    (tmp_path / "store" / "flyball-store.json").write_text(json.dumps({"version": 9}), encoding="utf-8")
    with pytest.raises(PipelineError, match="version 9"):
        open_store(spark, tmp_path / "store")


def test_what_a_real_node_records_is_taken_without_loss(
    spark: SparkSession, tmp_path: Path, start_memory_node: Callable[..., RunningNode]
) -> None:
    node = start_memory_node(trace="on")
    with Client.connect(str(node.address("amqp"))) as client:
        client.create_queue("q")
        for _ in range(5):
            client.put("q", b"hello")
    node.stop()
    found = taken(spark, tmp_path / "data", tmp_path / "store")
    assert found.quarantine == []
    puts = found.requests.where("kind = 'put'").collect()
    assert len(puts) == 5
    assert {(row.run, row.size_bytes, row.result) for row in puts} == {("", 5, "ok")}
    assert all(row.engine_ns > 0 for row in puts)


def test_the_rows_of_another_store_are_not_taken_twice(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    write_requests(source / "trace-a-1.parquet", steady_requests(20_000))
    ingest(spark, source, source / "older")
    assert taken(spark, source, tmp_path / "store").requests.count() == 20_000


def test_a_store_is_no_source_for_another(spark: SparkSession, source: Path, take: Ingest, tmp_path: Path) -> None:
    write_requests(source / "trace-a-1.parquet", numbered(1))
    take()
    with pytest.raises(PipelineError, match="is a store already"):
        ingest(spark, tmp_path / "store", tmp_path / "other")


def test_a_log_that_was_left_out_is_not_looked_at_as_a_trace(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "push.log"
    log.parent.mkdir()
    log.write_bytes(b"\xff\xff")
    write_requests(tmp_path / "traces" / "trace-a-1.parquet", numbered(1))
    with pytest.raises(PipelineError, match="is not text"):
        ingest(spark, log.parent, tmp_path / "store", LogFormat.THORBANG_CLIENT)
    log.write_text("10,1.5\n", encoding="utf-8")
    assert taken(spark, tmp_path / "traces", tmp_path / "store").counted("clients") == 0
    assert taken(spark, log.parent, tmp_path / "store", LogFormat.THORBANG_CLIENT).counted("clients") == 1


def test_a_second_look_that_crashed_does_not_block_the_store(
    source: Path, take: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = source / "trace-a-1.parquet"
    truncated(path)
    write_requests(source / "trace-a-2.parquet", numbered(9))
    take()
    write_requests(path, numbered(1))
    with monkeypatch.context() as patch:
        patch.setattr("flyball.pipeline.trace_store.Store.commit", fail)
        with pytest.raises(PipelineError, match="the power went"):
            take()
    write_requests(path, numbered(1, 2))
    assert sequences(take().requests) == [1, 2, 9]


def test_a_run_does_not_take_the_place_of_another_with_its_name(spark: SparkSession, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        write_steady_run(write_experiment(tmp_path / name / "clients"), "r1", length_s=1, seed=seed)
    ingest(spark, tmp_path / "a", tmp_path / "store")
    with pytest.raises(PipelineError, match=r"another run 'r1'.*store of its own"):
        ingest(spark, tmp_path / "b", tmp_path / "store")
    assert taken(spark, tmp_path / "a", tmp_path / "store").requests.count() == 100


def test_every_writer_of_a_folder_says_what_it_dropped(source: Path, take: Ingest) -> None:
    write_calls(source / "calls-worker-1-20260101T000000000000Z-000001.parquet", [call()], dropped="3")
    write_calls(source / "calls-worker-1-20260101T000005000000Z-000002.parquet", [call()], dropped="5")
    write_calls(source / "calls-worker-2-20260101T000000000000Z-000001.parquet", [call()], dropped="2")
    assert take().dropped == 7
