"""The knee, the ratio and the weights of made-up targets whose capacity is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.pipeline.capacity import SCALABILITY_LAW, TWO_LINES, capacity, knee_of, scalability_law, two_lines
from flyball.pipeline.manifest import Measured, Run

from .traces import START_US

CLIENTS = np.array([1.0, 2, 4, 8, 16, 32, 64])
LENGTH_S = 30

Numbers = npt.NDArray[np.float64]


def bounded(clients: Numbers) -> Numbers:
    """100 requests a second for each client, and no more than 1000."""
    return np.minimum(100 * clients, 1000)


def contended(clients: Numbers) -> Numbers:
    """The law with contention 0.05 and crosstalk 0.001: at most about 987 a second, at 31 clients."""
    return 100 * clients / (1 + 0.05 * (clients - 1) + 0.001 * clients * (clients - 1))


@pytest.mark.parametrize(("shape", "model"), [(bounded, TWO_LINES), (contended, SCALABILITY_LAW)])
def test_the_curve_that_fits_better_is_chosen(shape: Callable[[Numbers], Numbers], model: str) -> None:
    noise = np.exp(np.random.default_rng(1).normal(0, 0.01, 3 * len(CLIENTS)))
    clients = CLIENTS.repeat(3)
    assert knee_of(clients, shape(clients) * noise).model == model


def test_the_knee_of_two_lines_is_where_they_meet() -> None:
    knee = two_lines(CLIENTS, bounded(CLIENTS))
    assert knee.clients_at_knee == pytest.approx(10)
    assert knee.max_throughput_per_s == pytest.approx(1000)
    assert knee.rmse_ratio == pytest.approx(0, abs=1e-9)
    assert knee.is_passed


def test_knee_of_the_scalability_law_is_where_light_load_reaches_the_peak() -> None:
    knee = scalability_law(CLIENTS, contended(CLIENTS))
    assert knee.parameters == pytest.approx(
        {"per_client_per_s": 100, "contention": 0.05, "crosstalk": 0.001}, rel=1e-3
    )
    assert knee.max_throughput_per_s == pytest.approx(contended(np.arange(1.0, 65.0)).max(), rel=1e-3)
    assert knee.clients_at_knee == pytest.approx(knee.max_throughput_per_s / 100, rel=1e-3)


@settings(deadline=None)
@given(
    per_client=st.floats(1, 1e4),
    knee=st.floats(2, 30),
    noise=st.integers(0, 50).map(lambda seed: np.random.default_rng(seed)),
)
def test_any_two_lines_are_found_again(per_client: float, knee: float, noise: np.random.Generator) -> None:
    clients = CLIENTS.repeat(2)
    throughput = np.minimum(per_client * clients, per_client * knee) * np.exp(noise.normal(0, 0.01, len(clients)))
    found = two_lines(clients, throughput)
    assert found.clients_at_knee == pytest.approx(knee, rel=0.06)
    assert found.max_throughput_per_s == pytest.approx(per_client * knee, rel=0.04)


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 1e6), min_size=6, max_size=12))
def test_any_throughputs_give_a_knee_that_is_a_number(throughput: list[float]) -> None:
    clients = np.arange(1.0, len(throughput) + 1)
    knee = knee_of(clients, np.array(throughput))
    assert np.isfinite([knee.clients_at_knee, knee.max_throughput_per_s, knee.rmse_ratio]).all()


def run_of(
    name: str,
    count: int,
    cpu_s: float | None = None,
    nodes: int = 1,
    factors: dict[str, Any] | None = None,
    **workload: int,
) -> Run:
    return Run(
        name,
        Measured(START_US, START_US + LENGTH_S * 1_000_000),
        experiment="e",
        factors={**{f"workload.{key}": value for key, value in workload.items()}, **(factors or {})},
        target={"kind": "flyball", "nodes": nodes},
        workload={"kind": "stream", "protocol": "amqp", **workload},
        clients={"count": count},
        nodes=[{"name": "node-1", "cpu_s": cpu_s, "store_cpu_s": 0.0}] if cpu_s is not None else [],
    )


def measures_of(rows: Sequence[tuple[str, str, str, float]]) -> pd.DataFrame:
    """Rows of run, metric, kind and mean, as measured by the clients."""
    frame = pd.DataFrame(rows, columns=["run", "metric", "kind", "mean"])
    frame["source"] = "clients"
    return frame


def sweep(shape: Callable[[Numbers], Numbers], clients: Numbers = CLIENTS, repetitions: int = 2) -> dict[str, Any]:
    """The only target of an experiment that sweeps the number of clients, with 1 % of noise."""
    random = np.random.default_rng(4)
    runs, rows = [], []
    for count in clients:
        for repetition in range(repetitions):
            name = f"{int(count)}.r{repetition}"
            runs.append(run_of(name, int(count), clients=int(count)))
            value = float(shape(np.array([count]))[0] * np.exp(random.normal(0, 0.01)))
            rows.append((name, "throughput", "all", value))
    found = capacity(measures_of(rows), runs)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    (target,) = found["targets"]
    assert isinstance(target, dict)
    return target


def test_a_sweep_of_clients_gives_the_knee_with_intervals() -> None:
    target = sweep(bounded)
    assert target["clients_at_knee"] == pytest.approx(10, rel=0.03)
    assert target["max_throughput_per_s"] == pytest.approx(1000, rel=0.02)
    assert target["light_load_s"] == pytest.approx(0.01, rel=0.02)
    low, high = target["intervals"]["max_throughput_per_s"]
    assert 950 < low < target["max_throughput_per_s"] < high < 1050
    assert (target["fit"]["model"], target["reason"]) == (TWO_LINES, None)
    assert (target["target"], target["nodes"], target["runs"]) == ("flyball", 1, 14)


def test_throughput_that_still_grows_has_no_knee_and_says_so() -> None:
    target = sweep(lambda clients: 100 * clients)
    assert target["clients_at_knee"] is None
    assert target["max_throughput_per_s"] is None
    assert target["reason"] == "throughput still grew at 64 clients: measure with more"
    assert target["highest_throughput_per_s"] == pytest.approx(6400, rel=0.03)


def test_two_numbers_of_clients_are_too_few_for_a_knee() -> None:
    assert sweep(bounded, CLIENTS[:2])["reason"] == "throughput is known for 2 numbers of clients, 3 are needed"


def test_a_workload_without_producers_has_no_weights_and_says_so() -> None:
    target = sweep(bounded)
    assert (target["producer_weight"], target["consumer_weight"], target["consumers_per_producer"]) == (None,) * 3
    assert target["weights_reason"] == target["ratio_reason"] == "no run has producers and consumers"


def test_runs_that_do_not_differ_in_clients_give_no_target() -> None:
    runs = [run_of("a", 5, clients=5), run_of("b", 5, clients=5)]
    found = capacity(measures_of([("a", "throughput", "all", 1.0), ("b", "throughput", "all", 1.0)]), runs)
    assert found["targets"] == []
    assert found["reason"] == "no experiment here has runs that differ in their number of clients only"


def test_each_number_of_nodes_is_a_target_of_its_own() -> None:
    runs, rows = [], []
    for nodes in (1, 2):
        for count in CLIENTS:
            name = f"{nodes}.{count}"
            runs.append(run_of(name, int(count), nodes=nodes, factors={"target.nodes": nodes}, clients=int(count)))
            rows.append((name, "throughput", "all", float(min(100 * count, 1000 * nodes))))
    found = capacity(measures_of(rows), runs)["targets"]
    assert [(target["nodes"], round(target["max_throughput_per_s"])) for target in found] == [(1, 1000), (2, 2000)]


def test_clients_that_were_the_bottleneck_are_warned_of() -> None:
    runs = [run_of(f"{count}", int(count), clients=int(count)) for count in CLIENTS]
    runs[-1].clients["are_bottleneck"] = True
    rows = [(run.run, "throughput", "all", float(bounded(np.array([run.clients["count"]]))[0])) for run in runs]
    (target,) = capacity(measures_of(rows), runs)["targets"]
    assert target["warnings"] == ["in 1 of 7 runs the clients were the bottleneck"]


PUT_CPU_S, TAKE_CPU_S = 0.0004, 0.0008
PUT_PER_S, TAKEN_PER_S = 200.0, 100.0


def queue_run(producers: int, consumers: int, has_cpu: bool = True) -> tuple[Run, list[tuple[str, str, str, float]]]:
    """One run at a node that one CPU limits: unhindered a producer puts 200 a second, a consumer takes 100."""
    put, taken = producers * PUT_PER_S, consumers * TAKEN_PER_S
    taken = min(taken, put)
    busy = put * PUT_CPU_S + taken * TAKE_CPU_S
    scale = min(1.0, 1.0 / busy)
    put, taken, busy = put * scale, taken * scale, busy * scale
    name = f"{producers}-{consumers}"
    run = run_of(
        name,
        producers + consumers,
        cpu_s=busy * LENGTH_S if has_cpu else None,
        producers=producers,
        consumers=consumers,
    )
    return run, [
        (name, "throughput", "all", put + taken),
        (name, "messages", "put", put),
        (name, "messages", "deliver", taken),
    ]


def queue_target(mixes: Sequence[tuple[int, int]], has_cpu: bool = True) -> dict[str, Any]:
    made = [queue_run(producers, consumers, has_cpu) for producers, consumers in mixes]
    (target,) = capacity(measures_of([row for _, rows in made for row in rows]), [run for run, _ in made])["targets"]
    assert isinstance(target, dict)
    return target


GRID = [(producers, consumers) for producers in (1, 2, 4, 8, 16) for consumers in (1, 2, 4, 8, 16)]


def test_the_ratio_is_the_one_at_which_the_queue_stays_level() -> None:
    target = queue_target(GRID)
    assert target["consumers_per_producer"] == pytest.approx(2)
    assert target["consumers_per_producer_at_most"] == 2


def test_queues_that_were_always_level_only_bound_the_ratio() -> None:
    target = queue_target([(1, 2), (1, 4), (2, 8)])
    assert target["consumers_per_producer"] is None
    assert target["consumers_per_producer_at_most"] == 2
    assert target["ratio_reason"] == "in no run the queue grew or emptied: measure with fewer consumers"


def test_weights_are_the_shares_of_a_node_that_unhindered_clients_take() -> None:
    target = queue_target(GRID)
    assert (target["put_cpu_s"], target["take_cpu_s"]) == pytest.approx((PUT_CPU_S, TAKE_CPU_S))
    assert target["producer_weight"] == pytest.approx(PUT_PER_S * PUT_CPU_S)
    assert target["consumer_weight"] == pytest.approx(TAKEN_PER_S * TAKE_CPU_S)


def test_weights_need_runs_with_different_proportions() -> None:
    target = queue_target([(1, 2), (2, 4), (4, 8), (8, 16)])
    assert target["producer_weight"] is None
    assert target["weights_reason"].startswith("puts and takes came in the same proportion")


def test_weights_need_the_cpu_time_of_nodes() -> None:
    target = queue_target(GRID, has_cpu=False)
    assert target["weights_reason"] == "the runs do not say how much CPU time the nodes used"


def test_of_several_mixes_of_as_many_clients_the_best_counts() -> None:
    target = queue_target(GRID)
    at_five = [point["throughput_per_s"] for point in target["points"] if point["clients"] == 5]
    assert at_five == [max(sum(row[3] for row in queue_run(*mix)[1][1:]) for mix in ((1, 4), (4, 1)))]
