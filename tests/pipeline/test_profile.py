"""What requests cost, and the classes they fall into, from rows whose costs are known."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from flyball.errors import PipelineError
from flyball.pipeline.profile import profile, profile_of
from flyball.pipeline.schemas import REQUESTS

from .traces import request

Costs = Sequence[tuple[str, float, int]]


def rows_of(spark: SparkSession, costs: Costs) -> DataFrame:
    return spark.createDataFrame(costs, "key string not null, cost double, weight bigint not null")


def requests_of(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    filled = [{"run": "", **request(**row)} for row in rows]
    return spark.createDataFrame([tuple(row[name] for name in REQUESTS.names) for row in filled], REQUESTS)


def around(key: str, cost: float, count: int, spread: float = 0.2) -> Costs:
    """`count` rows of a key whose costs scatter log-normally."""
    random = np.random.default_rng(count)
    return [(key, float(cost * math.exp(random.normal(0, spread))), 1) for _ in range(count)]


@pytest.fixture(scope="module")
def of_three_classes(spark_process: SparkSession) -> dict[str, Any]:
    """Two keys that are cheap, one in the middle, one that is rare and dear."""
    costs = [
        *around("GET /", 1.0, 500),
        *around("GET /items/{id}", 1.2, 300),
        *around("POST /bids", 30.0, 200),
        *around("GET /regions/{id}/items", 2000.0, 10),
    ]
    return profile_of(rows_of(spark_process.newSession(), costs), "ms")


def test_classes_go_from_small_to_large(of_three_classes: dict[str, Any]) -> None:
    assert of_three_classes["class_count"] == 3
    centres = [found["centre"] for found in of_three_classes["classes"]]
    assert centres == pytest.approx([1.07, 30, 2000], rel=0.15)
    assert [found["class"] for found in of_three_classes["classes"]] == [0, 1, 2]


def test_each_key_has_the_class_of_most_of_its_requests(of_three_classes: dict[str, Any]) -> None:
    assert {key: found["class"] for key, found in of_three_classes["keys"].items()} == {
        "GET /": 0,
        "GET /items/{id}": 0,
        "POST /bids": 1,
        "GET /regions/{id}/items": 2,
    }


def test_shares_of_requests_and_of_cost_add_up(of_three_classes: dict[str, Any]) -> None:
    classes = of_three_classes["classes"]
    assert [found["request_ratio"] for found in classes] == pytest.approx([800 / 1010, 200 / 1010, 10 / 1010])
    assert sum(found["cost_ratio"] for found in classes) == pytest.approx(1)
    assert classes[2]["cost_ratio"] > 0.6


def test_bounds_lie_between_the_classes(of_three_classes: dict[str, Any]) -> None:
    below = [found["below"] for found in of_three_classes["classes"]]
    assert below[:2] == of_three_classes["bounds"]
    assert 1.2 < below[0] < 30 < below[1] < 2000
    assert below[2] is None


def test_a_profile_is_json(of_three_classes: dict[str, Any]) -> None:
    assert json.loads(json.dumps(of_three_classes, allow_nan=False)) == of_three_classes
    assert (of_three_classes["version"], of_three_classes["kind"]) == (1, "profile")


def test_costs_without_a_gap_are_one_class(spark: SparkSession) -> None:
    found = profile_of(rows_of(spark, around("put", 5.0, 400, spread=0.6)), "ms")
    assert found["class_count"] == 1
    assert found["reason"].startswith("no clear classes")
    assert set(found["silhouettes"]) == {"2", "3", "4", "5", "6"}


def test_as_many_classes_are_found_as_there_are(spark: SparkSession) -> None:
    costs = [(f"key {number}", 10.0**number, 1) for number in range(5) for _ in range(20)]
    found = profile_of(rows_of(spark, costs), "ms")
    assert [facts["class"] for facts in found["keys"].values()] == [0, 1, 2, 3, 4]


def test_equal_costs_are_one_class(spark: SparkSession) -> None:
    found = profile_of(rows_of(spark, [("put", 3.0, 1), ("take", 3.0, 1)] * 50), "ms")
    assert (found["class_count"], found["reason"]) == (1, "all requests cost the same")
    assert found["classes"][0]["centre"] == pytest.approx(3, rel=0.005)
    assert found["classes"][0]["mean"] == pytest.approx(3)


def test_few_rows_make_no_classes(spark: SparkSession) -> None:
    found = profile_of(rows_of(spark, [("put", 1.0, 1), ("take", 100.0, 1)]), "ms")
    assert found["class_count"] == 1
    assert found["reason"] == "2 rows are too few for classes, 20 are needed"


def test_requests_that_cost_nothing_are_small(spark: SparkSession) -> None:
    found = profile_of(rows_of(spark, [("form", 0.0, 1), ("read", 1.0, 1), ("search", 50.0, 1)] * 20), "queries")
    assert {key: facts["class"] for key, facts in found["keys"].items()} == {"form": 0, "read": 0, "search": 1}
    assert found["keys"]["form"]["mean"] == 0
    assert found["unit"] == "queries"


def test_if_nothing_costs_anything_there_is_one_class(spark: SparkSession) -> None:
    found = profile_of(rows_of(spark, [("form", 0.0, 1)] * 30), "queries")
    assert [(facts["centre"], facts["mean"], facts["cost_ratio"]) for facts in found["classes"]] == [(0, 0, 0)]


def test_figures_of_a_key_count_each_row_as_often_as_its_weight(spark: SparkSession) -> None:
    found = profile_of(rows_of(spark, [("put", 10.0, 64), ("put", 20.0, 36)]), "ms")["keys"]["put"]
    assert (found["rows"], found["requests"]) == (2, 100)
    assert found["mean"] == pytest.approx(13.6)
    assert found["sd"] == pytest.approx(4.8)
    assert (found["p50"], found["p95"], found["p99"]) == (10, 20, 20)


def test_percentiles_are_right_to_half_a_percent(of_three_classes: dict[str, Any]) -> None:
    found = of_three_classes["keys"]["GET /"]
    exact = np.percentile([cost for _, cost, _ in around("GET /", 1.0, 500)], [50, 95, 99], method="inverted_cdf")
    assert [found["p50"], found["p95"], found["p99"]] == pytest.approx(list(exact), rel=0.005)


def test_the_cost_of_a_request_is_all_but_its_waiting(spark: SparkSession) -> None:
    phases = {"wait_ns": 9_000_000, "parse_ns": 1, "engine_ns": 20, "store_ns": 300, "emit_ns": 1_000_000}
    found = profile(requests_of(spark, [phases]))
    assert found["keys"]["put"]["mean"] == pytest.approx(1.000321)
    assert found["unit"] == "ms"


def test_failed_requests_are_left_out_and_counted(spark: SparkSession) -> None:
    rows: list[dict[str, Any]] = [{}, {"result": "failed", "store_ns": 30_000_000_000, "weight": 64}]
    found = profile(requests_of(spark, rows))
    assert found["left_out"] == {"failed": 64}
    assert found["requests"] == 1


def test_requests_are_profiled_by_kind_and_by_protocol(spark: SparkSession) -> None:
    rows: list[dict[str, Any]] = [
        {"protocol": "amqp", "engine_ns": 50_000},
        {"protocol": "telesto", "engine_ns": 150_000},
        {"protocol": "telesto", "kind": "take"},
    ]
    found = profile(requests_of(spark, rows))
    assert found["keys"]["put"]["requests"] == 2
    assert found["protocols"]["telesto"]["put"]["mean"] - found["protocols"]["amqp"]["put"]["mean"] == pytest.approx(
        0.1
    )
    assert list(found["protocols"]["telesto"]) == ["put", "take"]


def test_no_requests_are_an_error_that_says_so(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="there is no request to make a profile of"):
        profile(requests_of(spark, []))


def test_rows_without_the_right_columns_are_refused(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="the rows lacks weight"):
        profile_of(spark.createDataFrame([("put", 1.0)], "key string, cost double"), "ms")
