"""The warm-up is found in series of which it is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from flyball.pipeline.intervals import Numbers
from flyball.pipeline.warm_up import settled_after, warm_up


def test_a_steady_series_needs_no_warm_up() -> None:
    assert settled_after(np.full(100, 7.0)) == 0


def test_a_ramp_is_cut_off_where_it_ends() -> None:
    ramp = np.minimum(np.arange(200.0) / 40, 1.0) * 1_000
    noisy = ramp + np.random.default_rng(1).normal(0, 20, 200)
    assert settled_after(noisy) == pytest.approx(40, abs=10)


def test_a_series_that_only_grows_never_settles() -> None:
    assert settled_after(np.arange(100.0)) is None


def test_of_a_few_samples_nothing_can_be_said() -> None:
    assert settled_after(np.array([1.0, 100.0, 100.0])) == 0


def test_a_step_is_cut_off_with_its_batch() -> None:
    values = np.concatenate([np.zeros(8), np.full(95, 10.0)])
    assert settled_after(values) == 10
    assert settled_after(values, batch=1) == 8


def test_a_run_that_settled_before_it_was_measured_had_enough() -> None:
    found = verdict(first=-11, counts=ramp_of(70, settles=6))
    assert (found["given_s"], found["is_enough"]) == (10, True)
    assert 5 <= found["needed_s"] <= 10


def test_a_run_that_was_measured_while_it_still_grew_had_not_enough() -> None:
    found = verdict(first=-6, counts=ramp_of(66, settles=25))
    assert not found["is_enough"]
    assert "moves the mean by" in found["says"]


def test_a_run_without_any_trace_before_it_was_measured_was_given_none() -> None:
    found = verdict(first=0, counts=np.full(60, 50.0))
    assert (found["given_s"], found["needed_s"], found["is_enough"]) == (0, 0, True)


def test_seconds_after_the_measured_time_do_not_count() -> None:
    counts = np.concatenate([np.full(66, 50.0), np.zeros(20), [1.0]])
    assert verdict(first=-6, counts=counts)["needed_s"] == 0


def ramp_of(length: int, settles: int) -> Numbers:
    return np.round(np.minimum((np.arange(length) + 1.0) / settles, 1.0) * 1_000)


def verdict(first: int, counts: Numbers, length_s: int = 60) -> dict[str, Any]:
    """The verdict on a run whose trace begins at the second `first`; `counts` are the requests per second."""
    series = pd.DataFrame(
        {"run": "r1", "source": "clients", "place": "node-1", "kind": "put", "second": np.arange(counts.size) + first}
    ).assign(requests=counts)
    length_s = min(length_s, counts.size + first) if first < 0 or counts.size <= length_s else length_s
    windows = pd.DataFrame({"run": ["r1"], "from_us": [0], "until_us": [length_s * 1_000_000]})
    [row] = warm_up(series, windows).to_dict("records")
    return {str(name): value for name, value in row.items()}
