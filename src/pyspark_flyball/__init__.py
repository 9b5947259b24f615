"""Where Spark looks: it searches installed packages called `pyspark_...` for a data source of this name."""

from flyball.spark_source.source import FlyballSource as DefaultSource

__all__ = ["DefaultSource"]
