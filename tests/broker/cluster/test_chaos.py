"""A short run of `python -m bench.chaos --minutes 5`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import uvloop
from bench.chaos.faults import CUT_LINK, KINDS, Plan
from bench.chaos.nodes import can_wire_links
from bench.chaos.run import Inflicted, Result, Service
from bench.chaos.scenarios import ScenarioResult, play

from flyball.lab.history import Kind, Operation, Verdict

NODES = ["a", "b", "c"]


# What a domain has to bear at least. With this seed all of them take some 30 s, and what has to be repaired.
FAULTS = {
    "kill -9",
    "suspend beyond the lease",
    "restart PostgreSQL immediately",
    "cut a node off from PostgreSQL",
    CUT_LINK.name,
}

# How soon everything is served again depends on the machine; test_time_to_repair.py does not.
SERVED_LIMIT_S = 60


@pytest.mark.timeout(900)
def test_no_message_is_lost_or_doubled_under_chaos(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.chaos", "--seed", "10", "--rounds", "1"]
    command += ["--served-limit-s", str(SERVED_LIMIT_S)]
    command += [word for kind in FAULTS for word in ("--only", kind)]
    output = tmp_path / "result.json"
    done = subprocess.run(
        [*command, "--keep", str(tmp_path / "site"), "--json", str(output)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(output.read_text())
    assert result["operations"]["acked"] > 100
    possible = FAULTS if can_wire_links() else FAULTS - {CUT_LINK.name}
    assert Counter(fault["kind"] for fault in result["faults"]) == Counter(possible)


COURSES = ("poisoned-dead-letters", "kill-in-commit", "failed-commit", "poisoned-batch", "copies")


def test_what_once_lost_messages_or_ended_a_node_does_so_no_more(tmp_path: Path) -> None:
    async def play_all() -> list[ScenarioResult]:
        for name in COURSES:
            (tmp_path / name).mkdir()
        return await asyncio.gather(*(play(name, tmp_path / name) for name in COURSES))

    results = uvloop.run(play_all())
    assert all(result.is_good for result in results), "\n".join(map(str, results))


def faults_of(seed: int, count: int, nodes: list[str]) -> list[tuple[str, str, float, float]]:
    plan = Plan(seed, nodes, 5.0)
    planned = islice(iter(plan.next, None), count)
    return [(fault.kind.name, fault.node, fault.calm_s, fault.lasts_s) for fault in planned]


def test_a_seed_gives_the_same_faults_again() -> None:
    assert faults_of(7, 50, NODES) == faults_of(7, 50, NODES)
    assert faults_of(7, 50, NODES) != faults_of(8, 50, NODES)


def test_every_fault_comes_before_one_comes_again() -> None:
    names = [name for name, *_ in faults_of(7, 2 * len(KINDS), NODES)]
    assert sorted(names[: len(KINDS)]) == sorted(kind.name for kind in KINDS) == sorted(names[len(KINDS) :])


def test_a_single_node_is_not_paused_beyond_its_lease() -> None:
    assert "suspend beyond the lease" not in {name for name, *_ in faults_of(7, 50, ["a"])}


def test_faults_of_a_volley_are_about_different_nodes() -> None:
    plan = Plan(7, NODES, 5.0)
    for _ in range(20):
        volley = plan.volley(2)
        assert len({fault.node for fault in volley}) == len(volley) == 2
    assert len(Plan(7, ["a"], 5.0).volley(2)) == 1


def operation(kind: Kind, number: int, queue: str = "") -> Operation:
    return Operation(0, 0.0, kind, "p", number, queue=queue)


def served(act: Callable[[Service], None]) -> float | None:
    """Return how long it took, at half a second for each look at the clock, until two queues were served."""
    ticks = iter(range(1000))

    async def run() -> float | None:
        service = Service(["one", "two"], lambda: next(ticks) / 2)
        service.begin()
        act(service)
        return service.took_s

    return uvloop.run(run())


def test_service_is_restored_once_every_queue_works() -> None:
    def act(service: Service) -> None:
        for number, queue in enumerate(("one", "two")):
            service.note(operation(Kind.PUBLISH, number, queue))
            service.note(operation(Kind.DELIVERED, number, queue))
            assert not service.is_back.is_set()
            service.note(operation(Kind.CONFIRMED, number))

    assert served(act) == 0.5


def test_messages_from_before_do_not_count_as_service() -> None:
    def act(service: Service) -> None:
        service.note(operation(Kind.PUBLISH, 0, "one"))
        service.begin()
        service.note(operation(Kind.CONFIRMED, 0))
        service.note(operation(Kind.DELIVERED, 0, "one"))

    assert served(act) is None


def result_of(*served_s: float | None) -> Result:
    faults = [Inflicted("kill -9", "a", 1.0, 2.0, served) for served in served_s]
    return Result(1, 60.0, 3, 5.0, Verdict({}, {}, ()), faults, [], [])


def test_a_run_is_good_if_everything_was_served_again_in_time() -> None:
    assert result_of(1.0, 9.0).is_good
    assert not result_of(1.0, 11.0).is_good
    assert not result_of(1.0, None).is_good


def test_times_are_told_by_kind_of_fault_with_percentiles() -> None:
    table = result_of(*map(float, range(101))).served_s()
    assert table == {"kill -9": {"count": 101, "p50": 50, "p90": 90, "p99": 99, "max": 100}, "all": table["kill -9"]}
