"""The results of a queue that many clients share: rates, waiting messages, and a comparison of policies."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from flyball.pipeline.manifest import Measured, Run
from flyball.pipeline.queues import placement, provisioning, queue_measures, queue_over_time, stable_throughput

START_US = 1_760_000_000_000_000


def run_of(name: str = "a", length_s: float = 4, **facts: Any) -> Run:
    until_us = START_US + int(length_s * 1e6)
    return Run(name, Measured(START_US, until_us), workload={"kind": "clustered"}, **facts)


def throughput_of(run: str, produced: list[int], consumed: list[int]) -> pd.DataFrame:
    """As the pipeline counts it; a second in which nothing happened has no row."""
    rows = [
        {"run": run, "source": "clients", "kind": kind, "second": second, "messages": count}
        for kind, counts in (("put", produced), ("deliver", consumed))
        for second, count in enumerate(counts)
        if count
    ]
    return pd.DataFrame([*rows, {**rows[0], "source": "nodes"}])


def test_messages_wait_from_their_production_to_their_consumption() -> None:
    found = queue_over_time(throughput_of("a", [5, 5, 0, 0], [1, 0, 4, 5]), [run_of()])
    assert found["produced"].tolist() == [5, 5, 0, 0]
    assert found["consumed"].tolist() == [1, 0, 4, 5]
    assert found["waiting"].tolist() == [4, 9, 5, 0]


def test_a_second_that_is_not_whole_is_left_out() -> None:
    found = queue_over_time(throughput_of("a", [5, 5, 1], [5, 5, 1]), [run_of(length_s=2.5)])
    assert found["second"].tolist() == [0, 1]


def test_a_message_consumed_before_its_confirm_gives_no_negative_backlog() -> None:
    assert queue_over_time(throughput_of("a", [5, 7], [6, 6]), [run_of(length_s=2)])["waiting"].tolist() == [0, 0]


def test_other_workloads_have_no_queue_over_time() -> None:
    other = Run("b", Measured(START_US, START_US + 4_000_000), workload={"kind": "stream"})
    assert queue_over_time(throughput_of("b", [1], [1]), [other]).empty


def test_beginning_and_end_of_a_run_do_not_count() -> None:
    over_time = pd.DataFrame({"second": range(20), "consumed": [0, 0, *[10] * 16, 0, 0]})
    assert stable_throughput(over_time) == pytest.approx(10)


def test_policies_are_compared_with_their_costs() -> None:
    runs = [
        run_of("a", factors={"placement": "standard"}, domain={"transfers": 70}),
        run_of("b", factors={"placement": "optimised"}, domain={"transfers": 0}),
        run_of("c", factors={"provisioning": "dynamic"}, domain={"nodes": 2}),
        run_of("d", factors={"provisioning": "static"}, nodes=[{"name": "node-1"}]),
    ]
    counts = pd.concat([throughput_of(run.run, [9] * 4, [9] * 4) for run in runs])
    over_time = queue_over_time(counts, runs)
    placed = placement(over_time, runs)
    assert list(placed.columns[:3]) == ["policy", "throughput", "transfers"]
    assert placed[["policy", "transfers"]].to_numpy().tolist() == [["optimised", 0], ["standard", 70]]
    provided = provisioning(over_time, runs)
    assert list(provided.columns[:3]) == ["policy", "nodes", "throughput"]
    assert provided[["policy", "nodes"]].to_numpy().tolist() == [["dynamic", 2], ["static", 1]]
    assert provided["throughput"].tolist() == [9, 9]


def test_rates_of_a_queue_are_measures_of_its_run() -> None:
    run = run_of(length_s=40, experiment="selfware/made")
    over_time = queue_over_time(throughput_of("a", [9] * 40, [4] * 20 + [8] * 20), [run])
    found = queue_measures(over_time, [run]).set_index("metric")
    assert found.loc["queue_rate", "mean"] == pytest.approx(6)
    assert found.loc["queue_peak", "mean"] == pytest.approx(8)
    assert set(found["unit"]) == {"1/s"}
