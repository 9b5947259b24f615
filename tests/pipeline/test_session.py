"""Spark starts, is silent, and uses this interpreter."""

from __future__ import annotations

import sys

import pytest
from pyspark.sql import SparkSession


def test_workers_run_the_interpreter_of_the_driver(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert found == [sys.executable]


def test_a_query_prints_nothing(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    assert spark.range(10).selectExpr("sum(id)").collect()[0][0] == 45
    assert capfd.readouterr() == ("", "")
