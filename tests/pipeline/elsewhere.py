"""A job of the pipeline in a process of its own: a process can have only one Spark, and the tests' own is another.

python -m tests.pipeline.elsewhere count MASTER SOURCE STORE    ingest traces and count requests per kind
python -m tests.pipeline.elsewhere endless                      print Java's process id, then count forever
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, SparkSession

from flyball.pipeline.ingest import ingest
from flyball.pipeline.session import SparkSettings, spark_session
from flyball.pipeline.throughput import measured, throughput


def counted(spark: SparkSession, source: Path, store: Path) -> DataFrame:
    """Run three stages of the pipeline: ingest, events, throughput."""
    ingested = ingest(spark, source, store)
    inside = measured(ingested.seconds.where("source = 'nodes'"), ingested.windows)
    return throughput(inside).groupBy("kind").sum("requests")


def run_count(master: str, folder: Path, environment: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Count the requests of the traces in `folder/source` with a Spark at `master`, in another process."""
    job = ("count", master, str(folder / "source"), str(folder / "store"))
    command = [sys.executable, "-m", "tests.pipeline.elsewhere", *job]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def count(master: str, source: str, store: str) -> None:
    settings = SparkSettings(master=master, memory="512m", is_brief=True, shuffle_partitions=2)
    with spark_session(settings) as spark:
        found = {row[0]: row[1] for row in counted(spark, Path(source), Path(store)).collect()}
    print(json.dumps(found))


def endless() -> None:
    with spark_session(SparkSettings(master="local[1]", memory="512m", is_brief=True)) as spark:
        (java,) = [child.pid for child in psutil.Process().children() if child.name() == "java"]
        print(json.dumps({"java": java, "folder": spark.conf.get("spark.local.dir")}), flush=True)
        spark.range(10**15).selectExpr("sum(id % 7)").collect()


if __name__ == "__main__":
    if sys.argv[1] == "count":
        count(*sys.argv[2:])
    else:
        endless()
