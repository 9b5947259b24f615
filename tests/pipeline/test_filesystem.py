"""Places are paths or URIs; nothing of the pipeline bypasses Spark's and Hadoop's file systems."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from flyball.errors import PipelineError
from flyball.pipeline.analysis import analyse
from flyball.pipeline.filesystem import files_at
from flyball.pipeline.ingest import ingest
from flyball.pipeline.places import Files, is_local, join, path_of, uri_of
from flyball.pipeline.trace_store import Store
from tests.pipeline.traces import write_experiment, write_steady_run


@pytest.fixture
def mounted(spark: SparkSession, tmp_path: Path) -> str:
    """The URI of `tmp_path`, by a scheme that is not a path: `viewfs` of Hadoop's client mounts the folder."""
    name = f"t{abs(hash(tmp_path))}"
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set(f"fs.viewfs.mounttable.{name}.link./data", uri_of(tmp_path))
    return f"viewfs://{name}/data"


@pytest.fixture(params=["path", "file", "viewfs"])
def place(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, mounted: str) -> str:
    return {"path": str(tmp_path), "file": tmp_path.as_uri(), "viewfs": mounted}[str(request.param)]


@pytest.fixture
def files(place: str, spark: SparkSession) -> Files:
    return files_at(place, spark)


def test_files_are_written_found_and_removed(files: Files, place: str) -> None:
    text = join(place, "a b", "deep", "text.txt")
    files.write(text, b"one")
    files.write(text, b"two")
    files.write(join(place, "a b", ".hidden", "text.txt"), b"")
    assert files.read(text) == b"two"
    [found] = files.find(place, "*.txt")
    assert (found.place.endswith("a b/deep/text.txt"), found.size_bytes) == (True, 3)
    assert abs(files.modified_s(text) * 1000 - found.modified_ms) < 1000
    assert files.folders(join(place, "a b")) == [".hidden", "deep"]
    assert (files.exists(text), files.is_folder(text), files.is_folder(place)) == (True, False, True)
    files.rename(text, join(place, "other.txt"))
    assert (files.exists(text), files.read(join(place, "other.txt"))) == (False, b"two")
    files.delete(join(place, "a b"))
    files.delete(join(place, "a b"))
    assert not files.exists(join(place, "a b"))
    assert list(files.find(join(place, "missing"), "*")) == []
    assert files.folders(join(place, "missing")) == []


def test_one_of_several_creates_a_file(files: Files, place: str) -> None:
    files.create(join(place, "lock"), b"first")
    with pytest.raises(FileExistsError):
        files.create(join(place, "lock"), b"second")
    assert files.read(join(place, "lock")) == b"first"


def test_a_missing_file_is_an_os_error(files: Files, place: str) -> None:
    with pytest.raises(FileNotFoundError):
        files.read(join(place, "missing"))


def test_places_of_this_machine() -> None:
    assert [is_local(place) for place in ("data", "/data", "file:/data", "s3a://bucket/data")] == [True] * 3 + [False]
    assert path_of("file:///my%20data") == Path("/my data")


def test_a_place_elsewhere_needs_spark() -> None:
    with pytest.raises(PipelineError, match=r"s3a://bucket cannot be reached with Spark Connect"):
        files_at("s3a://bucket")


def test_everything_works_behind_a_uri(spark: SparkSession, tmp_path: Path, mounted: str) -> None:
    """Traces, store, tables and models lie where only Hadoop's FileSystem can reach them."""
    write_steady_run(write_experiment(tmp_path / "results" / "clients"), "r1", length_s=2)
    (tmp_path / "results" / "trace-broken.parquet").write_bytes(b"PAR1")
    expected = analyse(spark, tmp_path / "results", tmp_path / "expected").tables
    found = ingest(spark, f"{mounted}/results", f"{mounted}/store")
    assert [one.file for one in found.quarantine] == [f"{mounted}/results/trace-broken.parquet"]
    assert ingest(spark, f"{mounted}/results", f"{mounted}/store").rows == {"requests": 200, "calls": 200}
    Store(f"{mounted}/store", spark).compact(spark)
    tables = analyse(spark, f"{mounted}/store", f"{mounted}/out").tables
    keys = ["source", "metric", "kind"]
    one, other = (table["measures"].sort_values(keys).reset_index(drop=True) for table in (expected, tables))
    pd.testing.assert_frame_equal(one, other)
    assert len(pd.read_parquet(tmp_path / "out" / "tables" / "throughput.parquet")) == 8
    assert (tmp_path / "out" / "profile.json").is_file()
