"""One Spark for all tests of the pipeline, and a session of its own for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from flyball.pipeline.session import SparkSettings, spark_session


@pytest.fixture(scope="session")
def spark_process() -> Iterator[SparkSession]:
    """The process: it takes seconds to start."""
    settings = SparkSettings(master="local[2]", memory="1g", is_brief=True, shuffle_partitions=1)
    with spark_session(settings) as session:
        yield session


@pytest.fixture
def spark(spark_process: SparkSession) -> SparkSession:
    """A session that shares nothing with other tests but the process."""
    return spark_process.newSession()
