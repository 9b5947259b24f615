"""A node that models a slower machine does no more operations in a second than it may."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flyball.broker.node.throttle import Throttle, operations_of
from flyball.client.sync import Client
from tests.nodes import RunningNode


class Machine:
    """A thread whose work, and whose clock, a test controls."""

    def __init__(self, oversleep_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.operations = 500
        self.paused_s = 0.0
        self._oversleep_s = oversleep_s

    def throttle(self, rate_per_s: float) -> Throttle:
        return Throttle(rate_per_s, lambda: self.operations, clock=lambda: self.now_s, pause=self._pause)

    def work(self, operations: int, duration_s: float = 0.0) -> None:
        self.operations += operations
        self.now_s += duration_s

    def _pause(self, duration_s: float) -> None:
        self.paused_s += duration_s
        self.now_s += duration_s + self._oversleep_s

    @property
    def rate_per_s(self) -> float:
        return (self.operations - 500) / (self.now_s - 100.0)


@pytest.mark.parametrize("duration_s", [0.0, 0.005])
def test_a_busy_thread_works_exactly_at_its_rate(duration_s: float) -> None:
    machine = Machine()
    throttle = machine.throttle(200)
    for _ in range(100):
        machine.work(2, duration_s)
        throttle.catch_up()
    assert machine.rate_per_s == pytest.approx(200)


def test_pauses_that_last_too_long_are_made_up_for() -> None:
    machine = Machine(oversleep_s=0.002)
    throttle = machine.throttle(200)
    for _ in range(1000):
        machine.work(1, 0.001)
        throttle.catch_up()
    assert machine.rate_per_s == pytest.approx(200, rel=0.01)


def test_a_thread_that_works_less_is_never_paused() -> None:
    machine = Machine()
    throttle = machine.throttle(200)
    for _ in range(100):
        machine.work(1, 0.006)
        throttle.catch_up()
    assert machine.paused_s == 0


def test_idle_time_is_not_saved_up() -> None:
    machine = Machine()
    throttle = machine.throttle(200)
    machine.work(0, 60)
    throttle.catch_up()
    machine.work(100)
    throttle.catch_up()
    assert machine.paused_s == pytest.approx(0.5)


def test_a_node_with_a_pace_takes_its_time_for_each_message(tmp_path: Path) -> None:
    with RunningNode(tmp_path, store="memory", pace_per_s="100") as node:
        before = node.call(lambda running: operations_of(running.hub.broker))
        with Client.connect(str(node.address("amqp"))) as client:
            queue = client.create_queue("jobs")
            began_s = time.monotonic()
            for _ in range(10):
                client.put(queue, "x")
            for _ in range(10):
                client.take(queue)
        # Published, put into the queue, got, acked: the last one may not have had its pause.
        assert node.call(lambda running: operations_of(running.hub.broker)) - before == 40
        assert time.monotonic() - began_s >= 29 / 100
