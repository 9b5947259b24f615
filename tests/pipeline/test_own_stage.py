"""The stage that the documentation writes as an example works, and is as short as promised."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from flyball.pipeline.events import of_requests
from tests.pipeline.rows import requests

DOCS = Path(__file__).parents[2] / "docs"


def test_the_documented_stage_tells_how_large_messages_are(spark: SparkSession) -> None:
    [page] = [page for page in DOCS.glob("how-it-works/pipeline*.md") if "## Write a stage" in page.read_text()]
    stage = re.findall(r"```python\n(.*?)```", page.read_text().partition("## Write a stage")[2], re.DOTALL)[0]
    assert len(stage.splitlines()) < 40
    names: dict[str, Any] = {}
    exec(stage, names)
    rows = [
        {"kind": "put", "size_bytes": 100, "weight": 3},
        {"kind": "put", "size_bytes": 1_000, "message_count": 2},
        {"kind": "ping", "message_count": 0},
    ]
    expected = spark.createDataFrame([("r1", "put", 5, 260.0, 500)], names["SIZES"])
    assertDataFrameEqual(names["sizes"](of_requests(requests(spark, rows))), expected, ignoreNullable=True)
