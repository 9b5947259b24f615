"""Queues as a Spark data source: `spark.read.format("flyball")`, `readStream`, `write` and `writeStream`.

Built on Flyball's client. See docs/guides/spark.md for the guarantees.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from flyball.spark_source.acknowledgement import acknowledge
from flyball.spark_source.options import InvalidOption
from flyball.spark_source.source import FlyballSource

__all__ = ["FlyballSource", "InvalidOption", "acknowledge", "register"]


def register(spark: SparkSession) -> None:
    """Register the format `flyball` with a session that has not discovered it."""
    spark.dataSource.register(FlyballSource)
