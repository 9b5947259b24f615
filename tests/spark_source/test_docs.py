"""Every example of docs/guides/spark.md runs as it stands there, and the page knows all options and columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flyball.client.client import DEFAULT_ADDRESS
from flyball.client.sync import Client
from flyball.spark_source import options
from flyball.spark_source.rows import SCHEMA
from tests.spark_source.conftest import run

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "spark.md").read_text(encoding="utf-8")


def test_the_examples_run_one_after_the_other(
    spark: SparkSession,
    client: Client,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for queue in ("orders", "totals", "copies"):
        client.create_queue(queue)
    client.put_many("orders", ["two coffees", "one tea"])
    names: dict[str, object] = {"spark": spark}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    # Spark has folders of its own: relative paths are for a user's program, which runs where it likes.
    blocks = [re.sub(r'"(\w+\.(?:parquet|checkpoint))"', rf'"{tmp_path}/\1"', block) for block in blocks]
    for block in blocks[:3]:
        exec(compile(block.replace(DEFAULT_ADDRESS, address), "docs/guides/spark.md", "exec"), names)
    said = capsys.readouterr().out
    assert "two coffees" in said
    assert "{'orders': 2}" in said
    assert [message.text for message in client.read_messages("totals")] == ['{"priority":0,"count":2}']
    assert spark.read.parquet(f"{tmp_path}/orders.parquet").count() == 2
    client.put_many("orders", ["three", "four"])
    for block in blocks[3:]:
        exec(compile(block.replace(DEFAULT_ADDRESS, address), "docs/guides/spark.md", "exec"), names)
    once = names["once"]
    run(once.writeStream.format("noop"), str(tmp_path / "once"))  # type: ignore[attr-defined]
    keys = [message.properties for message in client.read_messages("copies")]
    assert len(set(keys)) == 2
    assert all(key.startswith(b"orders/") for key in keys)


def test_every_option_and_column_is_on_the_page() -> None:
    for name in (*options._READ, *SCHEMA.names):
        assert f"| `{name}` |" in PAGE
