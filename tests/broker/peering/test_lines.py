"""Lines of those who wait for nodes: each node's order, and no node waits for another's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flyball.broker.peering.lines import Lines, Waiting
from flyball.faults import Faults


class Bench:
    """Lines of which a test says which nodes are congested. Records the order of the actions."""

    def __init__(self, *congested: int) -> None:
        self.congested = set(congested)
        self.acted: list[str] = []
        self.lines = Lines(self.congested.__contains__, Faults())

    def put(self, name: str, owner: object = None, **queues: int) -> None:
        """Act now, or stand in line, for queues whose names begin with `q`, given with their nodes."""
        by_id = {int(queue[1:]): node_id for queue, node_id in queues.items()}
        nodes = self.lines.nodes_of(by_id)
        if not self.lines.must_wait(nodes):
            self.acted.append(name)
            return
        self.lines.join(Waiting(nodes, self._noting(name), by_id, owner, self._noting(f"{name} dropped")))

    def _noting(self, text: str) -> Callable[[], None]:
        return lambda: self.acted.append(text)

    def clear(self, node_id: int) -> None:
        self.congested.discard(node_id)
        self.lines.go_on()


def test_only_those_wait_whose_node_is_congested() -> None:
    bench = Bench(1)
    bench.put("a", q1=1)
    bench.put("b", q2=2)
    assert bench.acted == ["b"]
    bench.clear(1)
    assert bench.acted == ["b", "a"]
    assert not bench.lines


def test_each_node_gets_what_is_for_it_in_order() -> None:
    bench = Bench(1)
    bench.put("both", q1=1, q2=2)
    bench.put("after", q2=2)
    bench.put("elsewhere", q3=3)
    assert bench.acted == ["elsewhere"]
    bench.clear(1)
    assert bench.acted == ["elsewhere", "both", "after"]


def test_those_behind_go_on_when_the_owner_of_the_first_has_gone() -> None:
    bench, owner = Bench(1), object()
    bench.put("both", owner, q1=1, q2=2)
    bench.put("after", q2=2)
    assert bench.lines.forget(owner)
    bench.lines.go_on()
    assert bench.acted == ["both dropped", "after"]
    assert not bench.lines.forget(owner)


def test_order_of_a_queue_holds_though_it_moves_to_another_node() -> None:
    bench = Bench(1)
    bench.put("before", q7=1)
    bench.put("after", q7=2)
    bench.put("last", q7=2)
    assert bench.acted == []
    bench.clear(1)
    assert bench.acted == ["before", "after", "last"]


def test_congestion_that_comes_back_keeps_the_rest_waiting() -> None:
    bench = Bench(1)
    lines = bench.lines
    lines.join(Waiting({1}, lambda: bench.congested.add(1)))
    bench.put("a", q1=1)
    bench.clear(1)
    assert (bench.acted, len(lines)) == ([], 1)
    bench.clear(1)
    assert bench.acted == ["a"]


def test_one_that_fails_is_dropped_and_others_go_on() -> None:
    bench = Bench(1)

    def fail() -> None:
        raise ValueError

    bench.lines.join(Waiting({1}, fail, drop=lambda: bench.acted.append("dropped")))
    bench.put("a", q1=1)
    bench.clear(1)
    assert bench.acted == ["dropped", "a"]


@pytest.mark.parametrize("count", [1, 3])
def test_queue_is_forgotten_when_nothing_waits_for_it(count: int) -> None:
    bench = Bench(1)
    for number in range(count):
        bench.put(str(number), q7=1)
    bench.clear(1)
    bench.put("later", q7=2)
    assert bench.acted == [*map(str, range(count)), "later"]
    assert bench.lines.nodes_of({7: 2}) == {2}
