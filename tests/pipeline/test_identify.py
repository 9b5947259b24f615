"""Plants with known parameters are identified, with their linear range, and doubtful data are reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from flyball.control.identification import identify as identify_numbers
from flyball.control.lagged import lagged
from flyball.control.model_file import read_model
from flyball.control.plant import Plant
from flyball.errors import PipelineError
from flyball.pipeline.identify import identify, lag_moments, with_next
from flyball.pipeline.schemas import SAMPLES

from .traces import START_US

A, B = 0.83, 0.21

Numbers = npt.NDArray[np.float64]
Shape = Callable[[float], float]


def measurements(curve: Shape, actions: Numbers, a: float = A, noise: float = 0.05, seed: int = 1) -> Numbers:
    """The measurements of a plant y(k+1) = a·y(k) + curve(u(k)), with noise in the process."""
    random = np.random.default_rng(seed)
    found = [curve(actions[0]) / (1 - a)]
    for action in actions[:-1]:
        found.append(a * found[-1] + curve(action) + random.normal(0, noise))
    return np.array(found)


def samples_of(
    loop: str, actions: Sequence[float] | Numbers, measured: Sequence[float] | Numbers, run: str = "", start: int = 0
) -> pd.DataFrame:
    sequence = np.arange(start, start + len(actions))
    return pd.DataFrame(
        {
            "run": run,
            "loop": loop,
            "at_us": START_US + sequence * 1_000_000,
            "sample_time_s": 1.0,
            "setpoint": 0.0,
            "measurement": np.asarray(measured, dtype=float),
            "action": np.asarray(actions, dtype=float),
            "sequence": sequence,
            **dict.fromkeys(("mode", "gains", "fingerprint", "model_version", "process"), ""),
            "feedforward": 0.0,
            "lowest": 0.0,
            "highest": 100.0,
            "started_us": 0,
        }
    )


def frame_of(spark: SparkSession, *parts: pd.DataFrame) -> DataFrame:
    return spark.createDataFrame(pd.concat(parts)[SAMPLES.names], SAMPLES)


def at_random(low: float, high: float, count: int = 2000) -> Numbers:
    return np.random.default_rng(7).uniform(low, high, count)


def memoryless(actions: Numbers) -> Numbers:
    """Little's law with a handler that saturates and 5 % of noise: the effect of prefetch, without memory."""
    noise = 1 + np.random.default_rng(3).normal(0, 0.05, len(actions))
    rates = 1250 * actions / (actions + 3.34) * noise
    return np.array([rates[0], *rates[:-1]])


def late(actions: Numbers, samples: int = 3) -> Numbers:
    return np.concatenate([np.repeat(actions[0], samples), actions[:-samples]])


@pytest.fixture(scope="module")
def plants(spark_process: SparkSession) -> dict[str, dict[str, Any]]:
    """All plants below, identified in one go, by loop."""
    wide, narrow = at_random(0, 20), at_random(0, 10)
    climb = np.repeat(np.arange(1.0, 61.0), 20)
    ramp = np.linspace(0, 10, 600)
    levels = np.where(narrow > 5, 3.0, 7.0)
    still = np.full(100, 3.0)
    found = identify(
        frame_of(
            spark_process.newSession(),
            samples_of("linear", narrow, measurements(lambda u: 1 + B * u, narrow)),
            samples_of("late", narrow, measurements(lambda u: 1 + B * u, late(narrow))),
            samples_of("few", narrow[:40], measurements(lambda u: 1 + B * u, late(narrow, 1))[:40]),
            samples_of("saturating", wide, measurements(lambda u: B * min(u, 8.0), wide)),
            samples_of("dead zone", wide, measurements(lambda u: B * max(u, 12.0), wide)),
            samples_of("two levels", levels, measurements(lambda u: B * u, levels)),
            samples_of("climbing", climb, memoryless(climb)),
            samples_of("ramp", ramp, measurements(lambda u: B * u, ramp)),
            samples_of("still", still, measurements(lambda u: B * u, still)),
            samples_of("no effect", narrow, measurements(lambda u: 5.0, narrow)),
            samples_of("short", narrow[:20], narrow[:20]),
        )
    )
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["version"], found["kind"]) == (1, "plant")
    return {plant["loop"]: plant for plant in found["plants"]}


def test_parameters_of_a_known_plant_are_found(plants: dict[str, dict[str, Any]]) -> None:
    plant = plants["linear"]
    assert plant["a"] == pytest.approx(A, abs=0.005)
    assert plant["b"] == pytest.approx(B, abs=0.002)
    assert plant["gain"] == pytest.approx(B / (1 - A), rel=0.03)
    assert (plant["sample_time_s"], plant["pairs"], plant["warnings"]) == (1.0, 1999, [])
    for name, value in (("a", A), ("b", B)):
        low, high = plant["intervals"][name]
        assert low - plant["standard_errors"][name] < value < high + plant["standard_errors"][name]


def test_the_offset_belongs_to_the_operating_point(plants: dict[str, dict[str, Any]]) -> None:
    plant = plants["linear"]
    point = plant["operating_point"]
    next_one = plant["a"] * point["measurement"] + plant["b"] * point["action"] + plant["offset"]
    assert next_one == pytest.approx(point["measurement"], abs=0.02)
    assert plant["offset"] == pytest.approx(1, abs=0.05)


def test_errors_on_pairs_that_were_not_fitted_are_those_of_the_noise(plants: dict[str, dict[str, Any]]) -> None:
    plant = plants["linear"]
    assert (plant["fit"]["pairs"], plant["test"]["pairs"]) == (1339, 660)
    assert plant["test"]["rmse"] == pytest.approx(0.05, rel=0.1)
    assert plant["test"]["r2"] > 0.99


def test_a_straight_plant_is_linear_everywhere(plants: dict[str, dict[str, Any]]) -> None:
    found = plants["linear"]["linear_range"]
    assert found["is_all"]
    assert (found["from"], found["until"]) == pytest.approx((0, 10), abs=0.02)


def test_the_linear_range_of_a_saturating_plant_ends_where_it_saturates(plants: dict[str, dict[str, Any]]) -> None:
    plant = plants["saturating"]
    assert not plant["linear_range"]["is_all"]
    assert plant["linear_range"]["from"] == pytest.approx(0, abs=0.02)
    assert plant["linear_range"]["until"] == pytest.approx(8, abs=1)
    assert plant["a"] == pytest.approx(A, abs=0.01)
    assert plant["b"] == pytest.approx(B, rel=0.05)


def test_the_linear_range_of_a_plant_with_a_dead_zone_begins_after_it(plants: dict[str, dict[str, Any]]) -> None:
    plant = plants["dead zone"]
    assert plant["linear_range"]["from"] == pytest.approx(12, abs=1)
    assert plant["linear_range"]["until"] == pytest.approx(20, abs=0.02)
    assert plant["b"] == pytest.approx(B, rel=0.05)


def test_the_curve_says_where_each_action_settles(plants: dict[str, dict[str, Any]]) -> None:
    curve = plants["saturating"]["curve"]
    assert curve[-1]["measurement"] == pytest.approx(B * 8 / (1 - A), rel=0.02)
    assert curve[0]["measurement"] == pytest.approx(B * curve[0]["action"] / (1 - A), abs=0.1)


def test_two_levels_suffice_for_the_parameters_but_not_for_the_range(plants: dict[str, dict[str, Any]]) -> None:
    plant = plants["two levels"]
    assert (plant["a"], plant["b"]) == pytest.approx((A, B), abs=0.01)
    assert "took 2 levels" in plant["linear_range"]["reason"]


def test_an_action_that_only_climbs_is_warned_of(plants: dict[str, dict[str, Any]]) -> None:
    assert any("at random" in warning for warning in plants["climbing"]["warnings"])
    assert any("hardly separate a from b" in warning for warning in plants["ramp"]["warnings"])


def test_only_an_action_that_goes_one_way_is_called_so(plants: dict[str, dict[str, Any]]) -> None:
    warned = {loop for loop, plant in plants.items() if "only climbed" in " ".join(plant.get("warnings", ()))}
    assert warned == {"climbing", "ramp"}


def test_the_delay_is_found(plants: dict[str, dict[str, Any]]) -> None:
    plant = plants["late"]
    assert (plant["delay"], plant["order"], plant["warnings"]) == (3, 1, [])
    assert (plant["a"], plant["b"]) == pytest.approx((A, B), rel=0.05)
    assert plants["few"]["delay"] == 1
    assert plants["few"]["diagnostics"]["is_passed"]


def test_lag_moments_of_spark_are_those_of_numpy(spark: SparkSession) -> None:
    narrow = at_random(0, 10, 200)
    y = measurements(lambda u: 1 + B * u, narrow)
    found = lag_moments(frame_of(spark, samples_of("loop", narrow, y)))["loop", 1.0]
    expected = lagged(y, narrow)
    assert found.lags == expected.lags
    assert found.changes == pytest.approx(expected.changes)
    np.testing.assert_allclose(found.total.means, expected.total.means)
    np.testing.assert_allclose(found.total.covariance, expected.total.covariance, atol=1e-9)


@pytest.mark.parametrize("delay", [0, 3])
def test_spark_and_numpy_find_the_same_plant(plants: dict[str, dict[str, Any]], delay: int) -> None:
    narrow = at_random(0, 10)
    loop, acting = ("late", late(narrow)) if delay else ("linear", narrow)
    ours = identify_numbers(measurements(lambda u: 1 + B * u, acting), narrow, sample_time_s=1.0, loop=loop).to_json()
    theirs = plants[loop]
    assert ours.keys() == theirs.keys()
    for key in ("loop", "sample_time_s", "pairs", "delay", "order", "warnings"):
        assert ours[key] == theirs[key]
    for key in ("a", "b", "offset", "degrees_of_freedom", "fit", "test"):
        assert ours[key] == pytest.approx(theirs[key], rel=1e-6)


def test_a_model_is_read_as_the_plant_that_was_written(plants: dict[str, dict[str, Any]]) -> None:
    model = {"version": 1, "kind": "plant", "plants": list(plants.values())}
    plant = read_model(json.dumps(model), loop="saturating")
    assert plant == Plant.from_json(plants["saturating"])
    assert plant.to_json() == plants["saturating"]


def test_an_action_without_effect_is_warned_of(plants: dict[str, dict[str, Any]]) -> None:
    assert "the action has no effect that can be distinguished from chance" in plants["no effect"]["warnings"]


def test_a_constant_or_short_loop_gives_a_reason_and_no_parameters(
    plants: dict[str, dict[str, Any]],
) -> None:
    assert "stood still or moved in step" in plants["still"]["reason"]
    assert plants["short"]["reason"] == "19 pairs of samples are too few, 30 are needed"
    assert "a" not in plants["short"]


def test_samples_of_different_runs_or_with_one_missing_between_make_no_pair(spark: SparkSession) -> None:
    pairs = with_next(
        frame_of(
            spark,
            samples_of("loop", [1, 2, 3], [10, 20, 30], run="one"),
            samples_of("loop", [4, 5], [40, 50], run="one", start=4),
            samples_of("loop", [6, 7], [60, 70], run="two", start=6),
            samples_of("other", [8, 9], [80, 90], run="two", start=8),
        )
    )
    found = sorted((row["loop"], row["y"], row["u"], row["next_y"]) for row in pairs.collect())
    assert found == [
        ("loop", 10, 1, 20),
        ("loop", 20, 2, 30),
        ("loop", 40, 4, 50),
        ("loop", 60, 6, 70),
        ("other", 80, 8, 90),
    ]


def test_no_samples_are_an_error_that_says_so(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="there is no pair of samples"):
        identify(spark.createDataFrame([], SAMPLES))
