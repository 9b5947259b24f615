"""Effects of factorial designs, checked against a textbook's figures and against designs made of known effects."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.errors import PipelineError
from flyball.pipeline.factorial import COLUMNS, Term, effects_of, factorial, sign_table
from flyball.pipeline.manifest import Experiment, Measured, Run


def by_name(terms: list[Term]) -> dict[str, Term]:
    return {term.name: term for term in terms}


def test_effects_of_a_textbook_design_without_repetitions() -> None:
    found = by_name(effects_of(np.array([[15.0], [45.0], [25.0], [75.0]]), ["A", "B"]))
    assert {name: term.effect for name, term in found.items() if name != "error"} == {
        "mean": 40,
        "A": 20,
        "B": 10,
        "A:B": 5,
    }
    assert [found[name].share_ratio for name in ("A", "B", "A:B", "error")] == pytest.approx(
        [1600 / 2100, 400 / 2100, 100 / 2100, 0]
    )


def test_without_repetitions_there_is_no_interval() -> None:
    for term in effects_of(np.array([[15.0], [45.0], [25.0], [75.0]]), ["A", "B"]):
        assert math.isnan(term.low)
        assert math.isnan(term.high)


def test_effects_intervals_and_shares_of_a_textbook_design_with_repetitions() -> None:
    responses = np.array([[15.0, 18, 12], [45, 48, 51], [25, 28, 19], [75, 75, 81]])
    found = by_name(effects_of(responses, ["A", "B"]))
    assert [found[name].effect for name in ("mean", "A", "B", "A:B")] == pytest.approx([41, 21.5, 9.5, 5])
    assert found["error"].effect == pytest.approx(3.57, abs=0.005)
    assert (found["A"].low, found["A"].high) == pytest.approx((19.58, 23.41), abs=0.01)
    assert (found["A:B"].low, found["A:B"].high) == pytest.approx((3.08, 6.91), abs=0.01)
    shares = [found[name].share_ratio for name in ("A", "B", "A:B", "error")]
    assert shares == pytest.approx([5547 / 7032, 1083 / 7032, 300 / 7032, 102 / 7032])


@settings(deadline=None)
@given(st.integers(1, 4))
def test_columns_of_a_sign_table_are_orthogonal(factor_count: int) -> None:
    signs = sign_table(factor_count)
    assert (signs.T @ signs == 2**factor_count * np.eye(2**factor_count)).all()


@settings(deadline=None)
@given(
    st.integers(1, 3).flatmap(
        lambda k: st.lists(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2), min_size=2**k, max_size=2**k)
    )
)
def test_effects_give_back_the_mean_response_of_each_corner_and_shares_add_up(responses: list[list[float]]) -> None:
    values = np.array(responses)
    names = "ABC"[: int(math.log2(len(values)))]
    terms = effects_of(values, list(names))
    again = sign_table(len(names)) @ np.array([term.effect for term in terms[:-1]])
    assert again == pytest.approx(values.mean(axis=1), abs=1e-6)
    total = sum(term.share_ratio for term in terms[1:])
    assert total == pytest.approx(1) or (values == values[0, 0]).all() or total == 0


def test_a_response_that_is_constant_has_no_effects_and_no_shares() -> None:
    terms = effects_of(np.full((4, 3), 7.0), ["A", "B"])
    assert [term.effect for term in terms] == [7, 0, 0, 0, 0]
    assert [term.share_ratio for term in terms[1:]] == [0, 0, 0, 0]


def test_effects_of_a_product_are_its_factors() -> None:
    responses = np.array(
        [[10 * a**i * b**j] * 2 for j, i in itertools.product((-1, 1), repeat=2) for a, b in [(3, 2)]]
    )
    found = by_name(effects_of(responses, ["A", "B"], is_multiplicative=True))
    assert [found[name].effect for name in ("mean", "A", "B", "A:B")] == pytest.approx([10, 3, 2, 1])
    assert found["A:B"].share_ratio == pytest.approx(0)


def test_intervals_contain_the_true_effect_about_nine_times_in_ten() -> None:
    random = np.random.default_rng(5)
    hits = 0
    for _ in range(400):
        responses = np.array([[40 + 20 * a] * 4 for a in (-1, 1)]) + random.normal(0, 5, (2, 4))
        term = by_name(effects_of(responses, ["A"]))["A"]
        hits += term.low <= 20 <= term.high
    assert 0.86 <= hits / 400 <= 0.94


WORKERS, CONNECTIONS = "target.settings.workers", "target.settings.connections"


def design(
    factors: dict[str, list[Any]], response: Any, repetitions: int = 2
) -> tuple[pd.DataFrame, list[Run], Experiment]:
    """Make the runs of a full factorial, with throughputs from `response(*levels, repetition)`."""
    runs, rows = [], []
    for levels in itertools.product(*factors.values()):
        for repetition in range(1, repetitions + 1):
            name = f"{'-'.join(map(str, levels))}.r{repetition}"
            cell = dict(zip(factors, levels, strict=True))
            runs.append(Run(name, Measured(0, 1), experiment="e", factors=cell, repetition=repetition))
            rows.append((name, "clients", "throughput", "all", "1/s", response(*levels, repetition)))
    measures = pd.DataFrame(rows, columns=["run", "source", "metric", "kind", "unit", "mean"])
    return measures, runs, Experiment("e", factors=factors)


def additive(workers: int, connections: int, repetition: int) -> float:
    return 100.0 + 10 * workers + connections + repetition


def test_the_table_has_a_row_for_each_term_and_one_for_the_error() -> None:
    table = factorial(*design({WORKERS: [1, 3], CONNECTIONS: [10, 20]}, additive))
    assert list(table.columns) == list(COLUMNS)
    assert list(table["term"]) == ["mean", WORKERS, CONNECTIONS, f"{WORKERS}:{CONNECTIONS}", "error"]
    assert list(table["effect"][:4]) == pytest.approx([136.5, 10, 5, 0])
    assert set(table["model"]) == {"additive"}
    assert set(table["unit"]) == {"1/s"}


def test_of_many_levels_only_the_lowest_and_the_highest_count() -> None:
    wide = design({WORKERS: [3, 2, 1], CONNECTIONS: [20, 10, 15]}, additive)
    narrow = design({WORKERS: [1, 3], CONNECTIONS: [10, 20]}, additive)
    pd.testing.assert_frame_equal(factorial(*wide), factorial(*narrow))


def test_levels_that_are_texts_keep_the_order_of_the_experiment() -> None:
    factors: dict[str, list[Any]] = {"target.store": ["memory", "embedded"]}
    table = factorial(*design(factors, lambda store, repetition: {"memory": 100.0, "embedded": 40.0}[store]))
    assert table["effect"][1] == pytest.approx(-30)


def test_a_response_that_spans_decades_is_taken_as_a_product() -> None:
    table = factorial(
        *design({WORKERS: [1, 2], CONNECTIONS: [1, 2]}, lambda w, c, r: 16.0 ** (w - 1) * 4.0 ** (c - 1))
    )
    assert set(table["model"]) == {"multiplicative"}
    assert list(table["effect"][:4]) == pytest.approx([8, 4, 2, 1])


def test_a_factor_with_a_single_level_is_no_factor() -> None:
    factors: dict[str, list[Any]] = {WORKERS: [1, 3], "target.nodes": [2]}
    table = factorial(*design(factors, lambda workers, nodes, repetition: float(workers)))
    assert list(table["term"]) == ["mean", WORKERS, "error"]


def test_a_corner_that_was_never_run_is_named() -> None:
    measures, runs, experiment = design({WORKERS: [1, 3], CONNECTIONS: [10, 20]}, additive)
    rest = [run for run in runs if run.factors != {WORKERS: 3, CONNECTIONS: 20}]
    with pytest.raises(PipelineError, match=f"e has no run with {WORKERS} = 3, {CONNECTIONS} = 20"):
        factorial(measures, rest, experiment)


def test_an_experiment_without_two_levels_is_no_design() -> None:
    with pytest.raises(PipelineError, match="none of its factors has two levels"):
        factorial(*design({WORKERS: [1]}, lambda workers, repetition: 1.0))


def test_corners_with_more_repetitions_than_others_give_only_as_many() -> None:
    measures, runs, experiment = design({WORKERS: [1, 3]}, lambda workers, repetition: workers + 0.0, repetitions=3)
    fewer = [run for run in runs if run.run != "1.r3"]
    table = factorial(measures, fewer, experiment)
    assert list(table["effect"][:2]) == pytest.approx([2, 1])


def test_a_metric_of_nodes_alone_is_used_and_one_of_neither_gives_no_rows() -> None:
    measures, runs, experiment = design({WORKERS: [1, 3]}, lambda workers, repetition: workers + 0.0)
    measures["source"] = "nodes"
    table = factorial(measures, runs, experiment, metrics=("throughput", "store"))
    assert set(table["source"]) == {"nodes"}
    assert set(table["metric"]) == {"throughput"}
