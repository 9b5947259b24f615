"""Queues as a Spark data source: `spark.read.format("flyball")`, `readStream`, `write` and `writeStream`.

Knows Spark and Flyball's client, and nothing of nodes. docs/guides/spark.md says what each part promises.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from flyball.spark_source.acknowledgement import acknowledge
from flyball.spark_source.options import InvalidOption
from flyball.spark_source.source import FlyballSource

__all__ = ["FlyballSource", "InvalidOption", "acknowledge", "register"]


def register(spark: SparkSession) -> None:
    """Make the format `flyball` known to a session, where Spark has not found it by itself."""
    spark.dataSource.register(FlyballSource)
