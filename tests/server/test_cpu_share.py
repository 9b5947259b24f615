"""A node that models a slower machine works no larger part of the time than it may."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flyball.server.cpu_share import PERIOD_S, CpuShare
from tests.nodes import RunningNode


class Machine:
    """A thread whose work, and whose clock, a test controls."""

    def __init__(self, oversleep_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.used_s = 5.0
        self.paused_s = 0.0
        self._oversleep_s = oversleep_s

    def share(self, ratio: float) -> CpuShare:
        return CpuShare(ratio, clock=lambda: self.now_s, used=lambda: self.used_s, pause=self._pause)

    def work(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.used_s += duration_s

    def idle(self, duration_s: float) -> None:
        self.now_s += duration_s

    def _pause(self, duration_s: float) -> None:
        self.paused_s += duration_s
        self.now_s += duration_s + self._oversleep_s


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.5])
def test_a_busy_thread_works_exactly_its_share_of_the_time(ratio: float) -> None:
    machine = Machine()
    share = machine.share(ratio)
    for _ in range(100):
        machine.work(0.005)
        share.settle()
    assert (machine.used_s - 5.0) / (machine.now_s - 100.0) == pytest.approx(ratio)


def test_pauses_that_last_too_long_are_made_up_for() -> None:
    machine = Machine(oversleep_s=0.002)
    share = machine.share(0.5)
    for _ in range(1000):
        machine.work(0.005)
        share.settle()
    assert (machine.used_s - 5.0) / (machine.now_s - 100.0) == pytest.approx(0.5, rel=0.01)


def test_a_thread_that_works_less_than_its_share_is_never_paused() -> None:
    machine = Machine()
    share = machine.share(0.5)
    for _ in range(100):
        machine.work(0.004)
        machine.idle(0.006)
        share.settle()
    assert machine.paused_s == 0


def test_idle_time_is_not_saved_up() -> None:
    machine = Machine()
    share = machine.share(0.5)
    machine.idle(60)
    share.settle()
    machine.work(1)
    share.settle()
    assert machine.paused_s == pytest.approx(1)


def test_a_node_with_a_share_pauses_while_it_works(tmp_path: Path) -> None:
    with RunningNode(tmp_path, store="memory", cpu_share="0.2") as node:
        began_s = time.monotonic()
        used_s = node.call(lambda _: time.thread_time())
        for _ in range(20):
            node.call(lambda _: _work(0.01))
        used_s = node.call(lambda _: time.thread_time()) - used_s
        # What was done since the use was looked at last has had no pause yet.
        assert time.monotonic() - began_s > (used_s - PERIOD_S - 0.02) / 0.2


def _work(duration_s: float) -> None:
    until_s = time.thread_time() + duration_s
    while time.thread_time() < until_s:
        pass
