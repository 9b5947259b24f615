"""Closed loops are judged over the right time, part by part, and open ones are left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from flyball.control.assessment import assess
from flyball.errors import PipelineError
from flyball.pipeline.loops import (
    CLOSED_LOOPS,
    MOST_POINTS,
    closed_loops,
    gains_of,
    loop_measures,
    loops,
    plants,
)
from flyball.pipeline.manifest import Measured, Run
from flyball.pipeline.schemas import SAMPLES

from .rows import START_US

# Samples before the measured time begins.
WARM_UP = 15
FIRST_COLUMNS = [
    *("broker", "controller", "gains", "actuator", "goal", "mean", "std", "settling_samples", "overshoot"),
]

Measurements = Sequence[float] | npt.NDArray[np.float64]
Table = Callable[..., pd.DataFrame]


def run_of(name: str = "r1", *, length: int = 100, factors: dict[str, Any] | None = None, **workload: Any) -> Run:
    """A run on RabbitMQ that is measured from the sample WARM_UP on, one sample a second."""
    from_us = START_US + WARM_UP * 1_000_000
    facts = {"kind": "adaptive", "signal": "closed", "actuator": "fractional", "law": {"kind": "pi", "kp": 0.5}}
    return Run(
        name,
        Measured(from_us, from_us + length * 1_000_000),
        experiment="prefetch/closed",
        factors=factors or {},
        target={"kind": "rabbitmq"},
        workload={**facts, **workload},
    )


# The columns that say how a loop was tuned.
UNTUNED = {
    **dict.fromkeys(("mode", "gains", "fingerprint", "model_version", "process"), ""),
    "feedforward": 0.0,
    "lowest": 0.0,
    "highest": 100.0,
    "started_us": 0,
}


def samples_of(
    measurements: Measurements, goals: float | Measurements = 400.0, actions: Measurements = (), run: str = "r1"
) -> pd.DataFrame:
    count = len(measurements)
    return pd.DataFrame(
        {
            "run": run,
            "loop": "orders",
            "at_us": START_US + np.arange(count) * 1_000_000,
            "sample_time_s": 1.0,
            "setpoint": np.broadcast_to(np.asarray(goals, dtype=float), count),
            "measurement": np.asarray(measurements, dtype=float),
            "action": np.asarray(actions if len(actions) else np.ones(count), dtype=float),
            "sequence": np.arange(count) + 1,
            **UNTUNED,
        }
    )[SAMPLES.names]


@pytest.fixture
def closed(spark: SparkSession) -> Table:
    def found(samples: pd.DataFrame, *runs: Run) -> pd.DataFrame:
        frame = spark.createDataFrame(samples[SAMPLES.names], SAMPLES)
        return closed_loops(frame, runs).toPandas().sort_values(["run", "part"], ignore_index=True)

    return found


def test_the_nine_columns_of_the_paper_come_first() -> None:
    assert CLOSED_LOOPS.names[:9] == FIRST_COLUMNS


def test_mean_and_deviation_are_those_of_the_measured_time(closed: Table) -> None:
    measured = [390.0, 410.0] * 20
    [row] = closed(samples_of([419.0] * WARM_UP + measured + [9999.0] * 10), run_of(length=40)).to_dict("records")
    assert row["mean"] == pytest.approx(400)
    assert row["std"] == pytest.approx(np.std(measured, ddof=1), rel=1e-5)
    assert (row["samples"], row["goal"], row["part"], row["disturbance"]) == (40, 400, 1, "")
    assert row["half_width"] < row["std"]


def test_a_warm_up_that_is_too_short_for_a_loop_to_settle_is_longer_for_it(closed: Table) -> None:
    run = replace(run_of(), measured=Measured(START_US, START_US + 100_000_000))
    slow = [400 * (1 - 0.8**k) for k in range(100)]
    [row] = closed(samples_of(slow), run).to_dict("records")
    figures = assess(slow, 400.0)
    assert row["mean"] == pytest.approx(figures.mean, rel=1e-5)
    assert row["mean"] == pytest.approx(400, rel=0.001)
    assert row["samples"] == 100 - figures.steady_from


def test_figures_have_as_many_digits_as_a_reader_wants(closed: Table) -> None:
    [row] = closed(samples_of([400 + 10 * np.sin(k) for k in range(50)]), run_of()).to_dict("records")
    assert all(len(str(row[name])) <= len("400.123") for name in ("mean", "std"))


def test_a_part_that_is_all_warm_up_has_no_mean(closed: Table) -> None:
    found = closed(samples_of([400.0] * 60, [300.0] * 10 + [400.0] * 50), run_of())
    assert pd.isna(found["mean"][0])
    assert (found["samples"][0], found["mean"][1]) == (0, 400)


def test_settling_and_overshoot_count_from_the_beginning_of_the_loop(closed: Table) -> None:
    measured = [0.0, 100.0, 200.0, 480.0] + [400.0] * 60
    figures = assess(measured, 400.0)
    [row] = closed(samples_of(measured), run_of()).to_dict("records")
    assert row["settling_samples"] == figures.settling_samples
    assert row["overshoot"] == pytest.approx(figures.overshoot)
    assert row["overshoot"] == pytest.approx(0.2)


def test_a_loop_that_never_settles_has_no_settling_time(closed: Table) -> None:
    [row] = closed(samples_of([100.0] * 50), run_of()).to_dict("records")
    assert pd.isna(row["settling_samples"])
    assert row["mean"] == pytest.approx(100)


def test_a_run_says_its_broker_controller_gains_and_actuator(closed: Table) -> None:
    used = {"kind": "pi", "kp": 0.00087, "ki": 0.00248}
    run = run_of(factors={"controller": "λ-PI"}, law={"kind": "designed", "as": "lambda_pi"}, law_used=used)
    [row] = closed(samples_of([400.0] * 30), run).to_dict("records")
    assert [row[name] for name in FIRST_COLUMNS[:4]] == ["rabbitmq", "λ-PI", "kp=0.00087 ki=0.00248", "fractional"]


def test_a_controller_without_a_label_is_called_after_its_law(closed: Table) -> None:
    [row] = closed(samples_of([400.0] * 30), run_of()).to_dict("records")
    assert row["controller"] == "pi"


def test_each_change_of_the_goal_begins_a_part(closed: Table) -> None:
    goals = [400.0] * 45 + [800.0] * 40 + [200.0] * 40
    late = [*goals[:45], *[400.0] * 3, *goals[48:85], *[800.0] * 3, *goals[88:]]
    found = closed(samples_of(late, goals), run_of(length=200))
    assert list(found["goal"]) == [400, 800, 200]
    assert list(found["disturbance"]) == ["", "goal 800", "goal 200"]
    assert list(found["mean"]) == [400, 800, 200], "the way to a new goal does not count"
    assert list(found["settling_samples"]) == [0, 3, 3]
    assert list(found["samples"]) == [45 - WARM_UP, 40 - 11, 40 - 11]
    assert list(found["from_s"]) == [-WARM_UP, 44 - WARM_UP, 84 - WARM_UP], "one sample before it is seen"


def test_each_disturbance_of_the_schedule_begins_a_part(closed: Table) -> None:
    schedule = [{"at_sample": 60, "producers_ratio": 2.0}, {"at_sample": 30, "capacity_ratio": 0.5}]
    measured = [400.0] * 30 + [200.0] * 4 + [400.0] * 26 + [400.0] * 20
    found = closed(samples_of(measured), run_of(schedule=schedule))
    assert list(found["disturbance"]) == ["", "capacity × 0.5", "producers × 2"]
    assert list(found["from_s"]) == [-WARM_UP, 29 - WARM_UP, 59 - WARM_UP]
    assert list(found["mean"]) == [400, 400, 400]


def test_a_goal_of_the_schedule_is_not_counted_twice(closed: Table) -> None:
    goals = [400.0] * 30 + [800.0] * 30
    found = closed(samples_of(goals, goals), run_of(schedule=[{"at_sample": 30, "goal_per_s": 800}]))
    assert len(found) == 2


def test_a_disturbance_after_the_end_is_no_part(closed: Table) -> None:
    found = closed(samples_of([400.0] * 50), run_of(schedule=[{"at_sample": 500, "capacity_ratio": 0.5}]))
    assert len(found) == 1


def test_of_a_short_part_the_second_half_counts(closed: Table) -> None:
    measured = [400.0] * 35 + [600.0] * 3 + [800.0] * 3
    found = closed(samples_of(measured, [400.0] * 35 + [800.0] * 6), run_of())
    assert (found["mean"][1], found["samples"][1]) == (800, 3)


def test_loops_held_open_are_left_out(closed: Table) -> None:
    assert closed(samples_of([400.0] * 40), run_of(signal="prbs")).empty


def test_a_loop_outside_the_lab_is_closed_if_it_has_a_goal(closed: Table) -> None:
    both = pd.concat([samples_of([9.0, 11.0] * 10 + [9.0], 10.0, run="own"), samples_of([5.0] * 20, 0.0, run="open")])
    [row] = closed(both).to_dict("records")
    assert (row["run"], row["controller"], row["mean"], row["from_s"]) == ("own", "orders", 10, 0)


def test_a_run_that_was_over_before_its_first_sample_has_no_rows(closed: Table) -> None:
    assert closed(samples_of([400.0] * 3), run_of(length=-WARM_UP)).empty


def test_gains_are_short() -> None:
    law = {"kind": "scheduled", "actions": [1.0] * 20, "pole": 0.8, "form": "velocity"}
    assert gains_of(law) == "actions=(20 values) pole=0.8 form=velocity"


def test_a_short_loop_is_shown_sample_by_sample(spark: SparkSession) -> None:
    samples = samples_of([1.0, 2.0, 3.0], actions=[10.0, 20.0, 30.0])
    found = loops(spark.createDataFrame(samples, SAMPLES), [run_of()]).toPandas()
    assert list(found["at_s"]) == [-15, -14, -13]
    assert list(found["measurement"]) == [1, 2, 3]
    assert list(found["answer"][:2]) == [2, 3], "what an action does is seen in the next sample"
    assert pd.isna(found["answer"][2])
    assert found["is_closed"].all()


def test_a_missing_sample_leaves_an_action_without_an_answer(spark: SparkSession) -> None:
    samples = spark.createDataFrame(samples_of([1.0, 2.0, 3.0, 4.0]), SAMPLES).where("measurement != 3")
    found = loops(samples, [run_of()]).toPandas()
    assert list(found["answer"].isna()) == [False, True, True]


def test_a_long_loop_is_thinned_to_the_points_of_a_plot_with_its_extremes(spark: SparkSession) -> None:
    measured = np.full(5 * MOST_POINTS, 400.0)
    measured[777] = 9999.0
    found = loops(spark.createDataFrame(samples_of(measured), SAMPLES), [run_of()]).toPandas()
    assert len(found) == MOST_POINTS
    assert found["high"].max() == 9999
    assert found["samples"].sum() == len(measured)


def test_what_a_run_held_stands_among_its_measures(closed: Table) -> None:
    found = loop_measures(closed(samples_of([0.0] * WARM_UP + [390.0, 410.0] * 20), run_of(length=40)))
    means = found.set_index("metric")["mean"]
    assert means["loop_mean"] == pytest.approx(400)
    assert means["loop_std"] == pytest.approx(10, rel=0.05)
    assert set(found["source"]) == {"clients"}
    assert loop_measures(closed(samples_of([9.0, 11.0] * 10, 10.0, run="own"))).empty, "of no experiment"


def played(gain: float, run: str) -> pd.DataFrame:
    random = np.random.default_rng(3)
    actions = random.uniform(1, 20, 200)
    measured = np.concatenate([[0.0], gain * actions[:-1]]) + random.normal(0, 0.5, 200)
    return samples_of(measured, 0.0, list(actions), run)


def test_each_cell_with_open_loops_has_its_own_plant_and_closed_ones_have_none(spark: SparkSession) -> None:
    runs = [
        run_of("one", signal="random", factors={"target.kind": "rabbitmq"}),
        run_of("two", signal="random", factors={"target.kind": "flyball"}),
        run_of("closed", factors={"target.kind": "flyball"}),
    ]
    samples = pd.concat([played(80.0, "one"), played(50.0, "two"), played(7.0, "closed")])
    model = plants(spark.createDataFrame(samples, SAMPLES), runs)
    assert (model["version"], model["kind"]) == (1, "plant")
    found = {plant["factors"]["target.kind"]: plant for plant in model["plants"]}
    assert found["rabbitmq"]["b"] == pytest.approx(80, rel=0.02)
    assert found["flyball"]["b"] == pytest.approx(50, rel=0.02)
    assert {plant["loop"] for plant in model["plants"]} == {"orders"}
    assert {plant["experiment"] for plant in model["plants"]} == {"prefetch/closed"}


def test_a_loop_of_no_run_has_a_plant_as_before(spark: SparkSession) -> None:
    [plant] = plants(spark.createDataFrame(played(80.0, ""), SAMPLES), [])["plants"]
    assert plant["loop"] == "orders"
    assert "experiment" not in plant


def test_closed_loops_alone_give_no_plant(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="no pair of samples"):
        plants(spark.createDataFrame(samples_of([400.0] * 40), SAMPLES), [run_of()])
