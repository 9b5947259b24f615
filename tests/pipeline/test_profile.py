"""The costs of requests and their classes, from rows whose costs are known."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from flyball.admission import kmeans
from flyball.admission import profile as in_process
from flyball.admission.kmeans import divide
from flyball.admission.profile import Profile, profile_from
from flyball.admission.profile import profile_of as made_in_process
from flyball.errors import PipelineError
from flyball.pipeline.events import WINDOWS
from flyball.pipeline.profile import (
    BUCKETS_PER_E,
    CLEARLY_BETTER,
    FEW_CLASSES,
    FEWEST_ROWS,
    LEAST_SILHOUETTE,
    VERSION,
    WIDE_RATIO,
    admitted,
    profile,
    profile_of,
    profile_of_admissions,
    profile_of_admitted,
)
from flyball.pipeline.schemas import REQUESTS

from .rows import admissions
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


# Two keys that are cheap, one in the middle, one that is rare and expensive.
THREE_CLASSES = [
    *around("GET /", 1.0, 500),
    *around("GET /items/{id}", 1.2, 300),
    *around("POST /bids", 30.0, 200),
    *around("GET /regions/{id}/items", 2000.0, 10),
]


@pytest.fixture(scope="module")
def of_three_classes(spark_process: SparkSession) -> dict[str, Any]:
    return profile_of(rows_of(spark_process.newSession(), THREE_CLASSES), "ms")


def test_a_number_of_classes_may_be_given(spark: SparkSession) -> None:
    rows = [{"key": key, "busy_ns": round(ms * 1e6)} for key, ms, _ in THREE_CLASSES]
    rows += [{"key": "GET /free", "busy_ns": 0}] * 50
    windows = spark.createDataFrame([("r1", 0, 1 << 62)], WINDOWS)
    found = profile_of_admitted(admitted(admissions(spark, rows), windows), class_count=2)
    classes = {key: facts["class"] for key, facts in found["keys"].items()}
    assert classes == {
        "GET /free": 0,
        "GET /": 0,
        "GET /items/{id}": 0,
        "POST /bids": 0,
        "GET /regions/{id}/items": 1,
    }


def same(ours: Profile, theirs: dict[str, Any]) -> bool:
    """Whether a profile made without Spark says the same, to the precision at which k-means of Spark ends."""
    spark_profile = profile_from(theirs)
    assert [found.mean for found in ours.classes] == pytest.approx([found.mean for found in spark_profile.classes])
    assert [found.below for found in ours.classes[:-1]] == pytest.approx(theirs["bounds"], rel=0.05)
    assert ours.keys.keys() == spark_profile.keys.keys()
    for key, facts in ours.keys.items():
        expected = spark_profile.keys[key]
        assert (facts.class_number, facts.requests) == (expected.class_number, expected.requests)
        assert (facts.mean, facts.sd) == pytest.approx((expected.mean, expected.sd))
    return True


def test_the_fit_without_spark_finds_the_same_three_classes(of_three_classes: dict[str, Any]) -> None:
    assert same(made_in_process([(key, cost) for key, cost, _ in THREE_CLASSES], "ms"), of_three_classes)


def test_the_fit_without_spark_has_the_same_silhouettes(of_three_classes: dict[str, Any]) -> None:
    costs = np.array([cost for _, cost, _ in THREE_CLASSES])
    points, which = np.unique(np.floor(np.log(costs) * BUCKETS_PER_E), return_inverse=True)
    places = (points + 0.5) / BUCKETS_PER_E
    found = divide(places, np.bincount(which).astype(float), np.bincount(which, costs).astype(float), most=3)
    # Only where the classes are clear does Spark's k-means find the best division of all.
    assert found.silhouettes[1] == pytest.approx(of_three_classes["silhouettes"]["3"], abs=0.001)


def test_both_fits_go_by_the_same_rules() -> None:
    assert (kmeans.LEAST_SILHOUETTE, kmeans.CLEARLY_BETTER) == (LEAST_SILHOUETTE, CLEARLY_BETTER)
    assert kmeans.WIDE_RATIO == WIDE_RATIO
    assert (in_process.FEWEST_ROWS, in_process.POINTS_PER_E) == (FEWEST_ROWS, BUCKETS_PER_E)
    assert (in_process.MOST_CLASSES, in_process.VERSION) == (FEW_CLASSES, VERSION)


@pytest.mark.parametrize(
    "costs",
    [
        [("put", 5.0 * math.exp(0.6 * math.sin(number * number))) for number in range(300)],
        [*[("form", 0.0)] * 20, *[("read", 1.0)] * 20, *[("search", 50.0)] * 20],
        [("put", 3.0), ("take", 3.0)] * 20,
        [("put", 1.0), ("take", 100.0)],
    ],
    ids=["one hump", "free ones", "equal costs", "few rows"],
)
def test_the_fit_without_spark_agrees_where_classes_are_not_clear(
    spark: SparkSession, costs: list[tuple[str, float]]
) -> None:
    theirs = profile_of(rows_of(spark, [(key, cost, 1) for key, cost in costs]), "ms")
    assert same(made_in_process(costs, "ms"), theirs)


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


def test_costs_without_a_gap_that_differ_widely_are_two_classes(spark: SparkSession) -> None:
    costs = [row for number in range(7) for row in around(f"key {number}", 1.8**number, 40, spread=0.4)]
    found = profile_of(rows_of(spark, costs), "ms")
    assert max(found["silhouettes"].values()) < LEAST_SILHOUETTE
    assert [facts["class"] for facts in found["keys"].values()] == [0, 0, 0, 0, 1, 1, 1]
    ours = made_in_process([(key, cost) for key, cost, _ in costs], "ms")
    assert [facts.class_number for facts in ours.keys.values()] == [0, 0, 0, 0, 1, 1, 1]


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


def test_free_requests_are_no_class_of_their_own(spark: SparkSession) -> None:
    paid = [*around("read", 2.0, 300), *around("search", 60.0, 100), ("read", 0.002, 1)]
    found = profile_of(rows_of(spark, [("form", 0.0, 1)] * 400 + paid), "ms")
    assert {key: facts["class"] for key, facts in found["keys"].items()} == {"form": 0, "read": 0, "search": 1}


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


def test_the_cost_of_an_admission_is_how_long_it_held_connections(spark: SparkSession) -> None:
    rows = [{"key": "GET /", "busy_ns": 2_000_000, "connections": 4, "served_ns": 9_000_000, "pool_ns": 5_000_000}]
    found = profile_of_admissions(admissions(spark, rows))
    assert (found["unit"], found["keys"]["GET /"]["mean"]) == ("ms", 2)


def test_the_cost_of_an_admission_can_be_the_connections_it_took(spark: SparkSession) -> None:
    rows = [{"connections": 3, "busy_ns": 1}, {"connections": 5, "busy_ns": 1}]
    found = profile_of_admissions(admissions(spark, rows), "connections")
    assert (found["unit"], found["keys"]["GET /"]["mean"]) == ("connections", 4)


def test_only_requests_that_were_served_say_what_it_costs(spark: SparkSession) -> None:
    others = [{"outcome": outcome, "busy_ns": 9_000_000_000} for outcome in ("failed", "refused", "refused", "left")]
    found = profile_of_admissions(admissions(spark, [{"busy_ns": 1_000_000}, *others]))
    assert (found["requests"], found["keys"]["GET /"]["mean"]) == (1, 1)
    assert found["left_out"] == {"failed": 1, "left": 1, "refused": 2}


def test_a_unit_that_there_is_not_is_refused(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="unknown unit of cost 'coins': give ms or connections"):
        profile_of_admissions(admissions(spark, [{}]), "coins")


def test_admissions_of_which_none_was_served_are_an_error_that_says_so(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="there is no request to make a profile of"):
        profile_of_admissions(admissions(spark, [{"outcome": "refused"}]))
