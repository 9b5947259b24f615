"""A store has one writer, few files after compaction, and no batch that is half there or there twice."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from flyball.errors import PipelineError
from flyball.pipeline import store_tables, trace_scan
from flyball.pipeline.analysis import analyse
from flyball.pipeline.ingest import ingest
from flyball.pipeline.places import LocalFiles
from flyball.pipeline.stored import open_store
from flyball.pipeline.trace_store import STALE_S, Batch, Store
from tests.pipeline.traces import START_US, sample, steady_requests, write_requests, write_samples


def write_second(folder: Path, number: int) -> None:
    """Write a file of a node with the requests of one second."""
    rows = steady_requests(100, 100.0, received_us=START_US + number * 1_000_000)
    write_requests(folder / f"trace-node-1-{number:06}.parquet", rows)


def test_compaction_joins_batches_and_changes_no_figure(spark: SparkSession, tmp_path: Path) -> None:
    source, store = tmp_path / "data", tmp_path / "store"
    for number in range(3):
        write_second(source, number)
        write_samples(source / f"samples-l-{number}.parquet", [sample(at_us=START_US, sequence=number)])
        ingest(spark, source, store)
    before = analyse(spark, store, tmp_path / "before").tables
    place = Store(store, spark)
    assert place.compact(spark) == 3
    assert [len(list((store / table).iterdir())) for table in ("files", "seconds", "spread", "samples")] == [1] * 4
    after = analyse(spark, store, tmp_path / "after").tables
    for name in ("measures", "series", "histogram", "phases", "laws"):
        keys = [column for column in before[name].columns if before[name][column].dtype == object]
        one, other = (
            tables[name].sort_values([*keys, *(["second"] if name == "series" else [])]) for tables in (before, after)
        )
        assert one.round(9).to_csv(index=False) == other.round(9).to_csv(index=False)
    assert ingest(spark, source, store).rows == {"requests": 300, "samples": 3}, "nothing is taken twice"
    write_second(source, 3)
    assert ingest(spark, source, store).rows == {"requests": 400, "samples": 3}


def test_a_compaction_that_a_crash_has_stopped_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, store = tmp_path / "data", tmp_path / "store"
    for number in range(2):
        write_second(source, number)
        ingest(spark, source, store)

    def fail(*_: object) -> None:
        raise PipelineError("the power went")

    for step in ("commit", "_remove_replaced"):
        with monkeypatch.context() as patch:
            real = getattr(Store, step)
            calls: list[object] = []

            def failing(
                self: Store, given: object, step: str = step, real: object = real, calls: list[object] = calls
            ) -> None:
                calls.append(given)
                if step == "commit" or len(calls) == 2:
                    fail()

            patch.setattr(Store, step, failing)
            with pytest.raises(PipelineError, match="the power went"):
                Store(store, spark).compact(spark)
        assert open_store(spark, store).seconds.agg({"records": "sum"}).collect()[0][0] == 200
    Store(store, spark).compact(spark)
    assert len(list((store / "seconds").iterdir())) == 1
    assert open_store(spark, store).seconds.agg({"records": "sum"}).collect()[0][0] == 200


def test_a_second_writer_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_second(tmp_path / "data", 0)
    store = Store(tmp_path / "store", spark)
    store.create()
    with store.locked(), pytest.raises(PipelineError, match=rf"is being written by process {os.getpid()} on"):
        ingest(spark, tmp_path / "data", tmp_path / "store")
    assert ingest(spark, tmp_path / "data", tmp_path / "store").rows == {"requests": 100}
    assert not (tmp_path / "store" / "_lock").exists()


HOLDING = """
import sys
from flyball.pipeline.trace_store import Store
with Store(sys.argv[1]).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_writer_in_another_process_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.create()
    command = [sys.executable, "-c", HOLDING, str(tmp_path / "store")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(PipelineError, match=f"is being written by process {other.pid} on"), store.locked():
            pass
        other.communicate("")
    with store.locked():
        pass


def test_of_two_writers_that_an_object_store_let_in_one_can_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some object stores create a file twice: the last one has the lock, the other finds that out and ends."""
    one, other = Store(tmp_path / "store"), Store(tmp_path / "store")
    one.create()
    monkeypatch.setattr(LocalFiles, "create", LocalFiles.write)
    with one.locked():
        with other.locked():
            with pytest.raises(PipelineError, match="has another writer now, and this one has ended"):
                one.commit(Batch("one"))
            other.commit(Batch("other"))
        with pytest.raises(PipelineError, match="has another writer now"):
            one.commit(Batch("one"))
    assert [batch.name for batch in one.batches()] == ["other"]


KILLED = """
import os, signal, sys
from flyball.pipeline.ingest import ingest
from flyball.pipeline.session import SparkSettings, spark_session
from flyball.pipeline.trace_store import Store

with spark_session(SparkSettings(master="local[1]", memory="512m", is_brief=True)) as spark:
    Store.commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    ingest(spark, sys.argv[1], sys.argv[2])
"""


def test_what_a_killed_driver_has_begun_is_ingested_once(spark: SparkSession, tmp_path: Path) -> None:
    """It is killed when all tables of its batch are written, but for the file that makes them count."""
    for number in range(2):
        write_second(tmp_path / "data", number)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "data"), str(tmp_path / "store")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert (tmp_path / "store" / "_lock").exists()
    assert any((tmp_path / "store" / "seconds").rglob("*.parquet"))
    assert Store(tmp_path / "store").batches() == []
    found = ingest(spark, tmp_path / "data", tmp_path / "store")
    assert found.rows == {"requests": 200}
    assert found.seconds.agg({"records": "sum"}).collect()[0][0] == 200


def test_a_full_disk_of_a_worker_is_a_clear_sentence_and_loses_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_second(tmp_path / "data", 0)

    def full(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield from rows

    def write(self: Store, rows: DataFrame, table: str, batch: str) -> None:
        rows.mapInArrow(full, rows.schema).write.mode("overwrite").parquet(self.folder(table, batch))

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", write)
        with pytest.raises(PipelineError, match=r"no space left on a disk\. Free some and repeat the command$"):
            ingest(spark, tmp_path / "data", tmp_path / "store")
    assert ingest(spark, tmp_path / "data", tmp_path / "store").rows == {"requests": 100}


def test_a_store_keeps_the_newest_samples_of_each_loop(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_tables, "MOST_SAMPLES", 3)
    for number in range(2):
        rows = [
            sample(loop=loop, at_us=START_US + (5 * number + second) * 1_000_000, sequence=5 * number + second)
            for second in range(5)
            for loop in ("one", "two")
        ]
        write_samples(tmp_path / "data" / f"samples-l-{number}.parquet", rows)
        found = ingest(spark, tmp_path / "data", tmp_path / "store")
        newest = [(loop, 5 * number + second) for loop in ("one", "two") for second in (2, 3, 4)]
        assert sorted((row.loop, row.sequence) for row in found.samples.collect()) == newest
    Store(tmp_path / "store", spark).compact(spark)
    assert len(pq.read_table(tmp_path / "store" / "samples", partitioning=None)) == 6
    assert open_store(spark, tmp_path / "store").rows == {"samples": 20}


def test_the_lock_of_a_writer_that_was_killed_is_broken(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.create()
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    lock = tmp_path / "store" / "_lock"
    lock.write_text(json.dumps({"host": socket.gethostname(), "pid": ended.pid}), encoding="utf-8")
    with store.locked():
        assert json.loads(lock.read_text(encoding="utf-8"))["pid"] == os.getpid()


def test_the_lock_of_another_machine_is_broken_when_it_is_stale(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.create()
    lock = tmp_path / "store" / "_lock"
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1}), encoding="utf-8")
    with pytest.raises(PipelineError, match="process 1 on elsewhere"), store.locked():
        pass
    then = time.time() - STALE_S - 1
    os.utime(lock, (then, then))
    with store.locked():
        pass


def test_a_folder_of_many_files_is_read_as_a_whole_but_for_those_that_are_bad(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_scan, "_FEW_FILES", 1)
    source = tmp_path / "data [1]"
    for number in range(3):
        write_second(source, number)
    (source / "trace-node-1-bad.parquet").write_bytes(b"PAR1 and no more")
    found = ingest(spark, source, tmp_path / "store")
    assert found.rows == {"requests": 300}
    assert [one.file for one in found.quarantine] == [str(source / "trace-node-1-bad.parquet")]
    assert found.seconds.agg({"requests": "sum"}).collect()[0][0] == 300
