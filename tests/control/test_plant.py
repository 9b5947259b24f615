"""A plant knows its confidence set, and goes to a model file and back without loss."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from flyball.control.model_file import model_to_json, read_model
from flyball.control.plant import Errors, Interval, LinearRange, NoPlant, OperatingPoint, Plant, set_size
from flyball.errors import ControlError

finite = st.floats(-1e6, 1e6)
positive = st.floats(1e-6, 1e6)


@st.composite
def plants(draw: st.DrawFn) -> Plant:
    order = draw(st.integers(1, 3))
    root = np.array(draw(st.lists(st.lists(finite, min_size=6, max_size=6), min_size=6, max_size=6)))[: 2 * order]
    curve = draw(st.lists(st.tuples(finite, finite), max_size=3))
    further = st.tuples(*[finite] * (order - 1))
    return Plant(
        a=draw(finite),
        b=draw(finite),
        offset=draw(finite),
        delay=draw(st.integers(0, 9)),
        sample_time_s=draw(positive),
        loop=draw(st.text()),
        ar=draw(further),
        bs=draw(further),
        covariance=draw(st.none() | st.just(tuple(tuple(row) for row in (root @ root.T).tolist()))),
        degrees_of_freedom=draw(st.integers(1, 10**6)),
        confidence_ratio=draw(st.floats(0.01, 0.999)),
        intervals=draw(st.none() | st.tuples(*[st.builds(Interval, finite, finite)] * 2)),
        operating_point=draw(st.none() | st.builds(OperatingPoint, finite, finite)),
        linear_range=draw(
            st.none() | st.builds(LinearRange, finite, finite, st.booleans(), positive, st.none() | st.text())
        ),
        curve=tuple(curve),
        curve_pairs=draw(st.just(tuple(range(len(curve)))) | st.just(())),
        condition=draw(st.none() | positive),
        pairs=draw(st.none() | st.integers(0, 10**9)),
        fit=draw(st.none() | st.builds(Errors, st.integers(0, 10**9), st.none() | positive, st.none() | finite)),
        warnings=tuple(draw(st.lists(st.text(), max_size=2))),
    )


@settings(deadline=None)
@given(plants())
def test_a_plant_survives_its_model_file(plant: Plant) -> None:
    text = json.dumps(model_to_json([plant]), allow_nan=False)
    assert read_model(text) == plant


@settings(deadline=None)
@given(plants(), st.integers(1, 20))
def test_every_plant_has_a_boundary_of_finite_numbers(plant: Plant, count: int) -> None:
    is_sure = plant.covariance is None
    boundary, variants = plant.boundary(count), plant.variants(count)
    assert boundary[0] == (plant.a, plant.b)
    assert variants[0] is plant
    assert len(boundary) == (1 if is_sure else 1 + count)
    assert len(variants) == (1 if is_sure else 1 + count * math.comb(2 * plant.order, 2))
    assert all(math.isfinite(value) for point in boundary for value in point)


@pytest.mark.parametrize("parameters", [2, 4, 6])
@pytest.mark.parametrize("freedom", [1, 7, 100, 100_000])
@pytest.mark.parametrize("ratio", [0.5, 0.9, 0.999])
def test_the_size_of_a_confidence_set_is_that_of_fishers_distribution(
    parameters: int, freedom: int, ratio: float
) -> None:
    expected = parameters * stats.f.ppf(ratio, parameters, freedom)
    assert set_size(parameters, freedom, ratio) == pytest.approx(expected, rel=1e-7)


def test_the_boundary_is_the_ellipse_of_the_covariance() -> None:
    covariance = ((0.01, -0.8), (-0.8, 100.0))
    plant = Plant(a=0.26, b=59.73, covariance=covariance, degrees_of_freedom=50)
    centre, *points = plant.boundary(24)
    assert centre == (0.26, 59.73)
    assert len(set(points)) == 24
    for a, b in points:
        away = np.array([a - 0.26, b - 59.73])
        distance = away @ np.linalg.inv(np.array(covariance)) @ away
        assert distance == pytest.approx(2 * stats.f.ppf(0.9, 2, 50))
    # The points go round: some of them nearly reach as far as the ellipse does.
    reach = math.sqrt(2 * stats.f.ppf(0.9, 2, 50))
    assert max(a for a, _ in points) == pytest.approx(0.26 + reach * 0.1, rel=0.01)
    assert min(b for _, b in points) == pytest.approx(59.73 - reach * 10, rel=0.01)
    assert [(one.a, one.b) for one in plant.variants(24)] == plant.boundary(24)


def test_variants_of_a_higher_order_lie_on_the_ellipsoid_of_all_parameters() -> None:
    root = np.random.default_rng(1).normal(0, 1, (4, 4))
    covariance = root @ root.T
    plant = Plant(
        a=1.0,
        ar=(2.0,),
        b=3.0,
        bs=(4.0,),
        covariance=tuple(tuple(row) for row in covariance.tolist()),
        degrees_of_freedom=30,
    )
    for one in plant.variants(8)[1:]:
        away = np.array([*one.all_a, *one.all_b]) - [1, 2, 3, 4]
        assert away @ np.linalg.inv(covariance) @ away == pytest.approx(4 * stats.f.ppf(0.9, 4, 30))
        assert one.covariance is None


def test_the_gain_is_where_the_measurement_settles_for_one_unit_of_action() -> None:
    assert Plant(a=0.26, b=59.73).gain == pytest.approx(80.7, abs=0.05)
    assert Plant(a=0.5, ar=(0.1,), b=1.0, bs=(3.0,)).gain == pytest.approx(10)
    integrating = Plant(a=1.0, b=-2.0)
    assert integrating.gain == -math.inf
    assert integrating.to_json()["gain"] is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"a": math.nan}, "not finite"),
        ({"offset": math.inf}, "not finite"),
        ({"delay": -1}, "cannot be negative"),
        ({"sample_time_s": 0.0}, "must be positive"),
        ({"confidence_ratio": 1.0}, "not within 0 and 1"),
        ({"ar": (0.1,)}, "1 further a but 0 further b"),
        ({"covariance": ((1.0,),), "degrees_of_freedom": 5}, "not 2 by 2"),
        ({"covariance": ((1.0, 0.0), (0.0, math.nan)), "degrees_of_freedom": 5}, "not finite"),
        ({"covariance": ((-1.0, 0.0), (0.0, 1.0)), "degrees_of_freedom": 5}, "negative variance"),
        ({"covariance": ((1.0, 0.0), (0.0, 1.0))}, "no degrees of freedom"),
    ],
)
def test_what_no_plant_can_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ControlError, match=message):
        Plant(**{"a": 0.5, "b": 1.0, "loop": "prefetch", **wrong})


def model(*entries: object) -> str:
    return json.dumps({"version": 1, "kind": "plant", "plants": entries})


FAST = {"loop": "prefetch", "sample_time_s": 1.0, "reason": None, "a": 0.26, "b": 59.73}
SLOW = {**FAST, "sample_time_s": 10.0}


def test_a_model_with_the_parameters_alone_is_enough() -> None:
    assert read_model(model(FAST)) == Plant(a=0.26, b=59.73, loop="prefetch")


def test_one_of_several_plants_is_chosen_by_loop_and_sample_time() -> None:
    other = {**FAST, "loop": "pacer"}
    assert read_model(model(FAST, SLOW, other), loop="pacer").loop == "pacer"
    assert read_model(model(FAST, SLOW, other), sample_time_s=10.0).sample_time_s == 10.0
    with pytest.raises(ControlError, match=r"2 such plants.*'prefetch' at 1.0 s, 'prefetch' at 10.0 s"):
        read_model(model(FAST, SLOW))
    with pytest.raises(ControlError, match=r"no such plant; it has 'prefetch' at 1.0 s"):
        read_model(model(FAST), loop="pacer")
    with pytest.raises(ControlError, match="it has none"):
        read_model(model())


def test_a_loop_of_several_brokers_is_chosen_by_the_words_before_its_name() -> None:
    def on(experiment: str, target: str, b: float) -> dict[str, Any]:
        return {**FAST, "experiment": experiment, "target": target, "factors": {"target.kind": target}, "b": b}

    text = model(on("s/open", "rabbitmq", 1.0), on("s/random", "rabbitmq", 2.0), on("s/random", "flyball", 3.0))
    assert read_model(text, loop="flyball/prefetch").b == 3
    assert read_model(text, loop="random/rabbitmq/prefetch").b == 2
    assert read_model(text, loop="s/open/rabbitmq/prefetch").b == 1
    with pytest.raises(ControlError, match=r"2 such plants.*'s/open/rabbitmq.*'s/random/rabbitmq"):
        read_model(text, loop="rabbitmq/prefetch")
    with pytest.raises(ControlError, match="no such plant"):
        read_model(text, loop="mq/prefetch")


def test_cells_of_an_experiment_are_told_apart_by_their_factors() -> None:
    cells = [{**FAST, "target": "flyball", "factors": {"workload.handler_time_s": time_s}} for time_s in (0.1, 0.2)]
    assert read_model(model(*cells), loop="handler_time_s=0.2/prefetch").loop == "prefetch"
    with pytest.raises(ControlError, match=r"'flyball/handler_time_s=0\.1/prefetch'"):
        read_model(model(*cells), loop="prefetch")


def test_a_loop_without_a_plant_is_no_choice_beside_one_that_has_one() -> None:
    without = {"loop": "prefetch", "sample_time_s": 1.0, "reason": "too few samples"}
    assert read_model(model(without, FAST)).b == 59.73
    with pytest.raises(ControlError, match="too few samples"):
        read_model(model(without))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a model of a plant"),
        ('{"kind": "profile"}', "not a model of a plant"),
        ('{"kind": "plant", "version": 2}', "version 2, only 1"),
        ('{"kind": "plant", "version": 1}', 'no list of "plants"'),
        ('{"kind": "plant", "version": 1, "plants": [7]}', 'no list of "plants"'),
        (model({**FAST, "a": None}), "loop 'prefetch' cannot be read"),
        (model({**FAST, "a": "much"}), "loop 'prefetch' cannot be read"),
        (model({**FAST, "covariance": 5}), "loop 'prefetch' cannot be read"),
        (model({**FAST, "operating_point": [1, 2]}), "loop 'prefetch' cannot be read"),
        (model({**FAST, "linear_range": {}}), "loop 'prefetch' lacks 'from'"),
        (model({"loop": "prefetch", "sample_time_s": 1.0}), "lacks 'a': identify it again"),
        (model({**FAST, "b": 1e999}).replace("Infinity", "1e999"), "not finite"),
        (
            json.dumps(model_to_json([NoPlant("prefetch", 1.0, 3, "3 pairs are too few")])),
            "loop 'prefetch' has no plant: 3 pairs are too few",
        ),
    ],
)
def test_a_model_that_cannot_be_used_is_one_line_that_says_why(text: str, message: str) -> None:
    with pytest.raises(ControlError, match=message) as caught:
        read_model(text)
    assert "\n" not in str(caught.value)


def test_reading_a_model_or_making_an_input_needs_no_scipy() -> None:
    code = "import sys; sys.modules['scipy'] = None; import flyball.control.plant, flyball.control.signals"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)
