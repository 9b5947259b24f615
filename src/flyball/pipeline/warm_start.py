"""Creates the archive of Java classes that halves the start time of Spark.

    python -m flyball.pipeline.warm_start

It runs a small job of each type that the pipeline uses, while Java records the loaded classes. If that fails, no
archive is written, and Spark starts at its usual speed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from flyball.errors import PipelineError
from flyball.pipeline.class_archive import archive_of, keep
from flyball.pipeline.java import find_java
from flyball.pipeline.session import SparkSettings, spark_session


def make_archive() -> Path | None:
    """Create the archive unless it exists, and return it; None if it cannot be created here."""
    with tempfile.TemporaryDirectory(prefix="flyball-spark-") as folder:
        archive = archive_of(find_java(Path(folder)))
        if archive.exists():
            return archive
        try:
            archive.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        # In the same folder: a move from another file system would not be atomic.
        unfinished = archive.with_name(f".{archive.name}.{Path(folder).name}")
        options = (f"-XX:ArchiveClassesAtExit={unfinished}",)
        with spark_session(SparkSettings("local[1]", "1g", is_brief=True, java_options=options)) as spark:
            _exercise(spark, Path(folder))
        return archive if keep(unfinished, archive) else None


def _exercise(spark: SparkSession, folder: Path) -> None:
    """Make Spark load its classes for queries, files and streams."""
    numbers = spark.range(1000).selectExpr("id", "id % 7 as kind", "cast(id as string) as text", "id / 3 as part")
    numbers.write.parquet(str(folder / "numbers"))
    read = spark.read.parquet(str(folder / "numbers"))
    groups = read.groupBy("kind", "text").agg({"part": "avg", "id": "sum"}).join(numbers, ["kind", "text"])
    groups.cache().orderBy("kind").toArrow()
    read.unpivot(["kind"], ["id", "part"], "name", "value").groupBy("name").agg({"value": "stddev"}).toPandas()
    read.selectExpr("kind", "row_number() over (partition by kind order by id) as place").collect()
    read.groupBy("kind").agg({"part": "median"}).write.csv(str(folder / "medians"))
    query = (
        spark.readStream.schema(read.schema)
        .parquet(str(folder / "numbers"))
        .writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(_count)
        .start()
    )
    query.awaitTermination()


def _count(batch: DataFrame, _number: int) -> None:
    batch.count()


if __name__ == "__main__":
    try:
        archive = make_archive()
    except PipelineError as error:
        raise SystemExit(f"flyball: {error}") from None
    print(archive or "this Java makes no archive; Spark starts without")
