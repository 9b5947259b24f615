"""Samples of flow control, taken from a simulated commit queue: they show its plant, an integrator."""

from __future__ import annotations

import itertools
import random

import pytest

from flyball.broker.core.flow_controller import JOURNAL_KI_PER_S, JOURNAL_KP, MAX_RATE, SAMPLE_S, Tank
from flyball.broker.core.flow_samples import RECORDED_S, TankSamples
from flyball.control.identification import identify
from flyball.control.loop import Sample
from flyball.control.tuning import UNTUNED

SETPOINT = 8 * 2**20


class CommitQueue:
    """A commit queue under flow control whose publishers use all or a part of what they may."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.tank = Tank("busy", SETPOINT, JOURNAL_KP, JOURNAL_KI_PER_S)
        self._noted = TankSamples("queue", self.tank, UNTUNED, self.samples.append)
        self._random = random.Random(1)
        self.now_s = 100.0
        self.level = 0.9 * SETPOINT
        self.drained = 0.0
        self.tank.begin(round(self.level), 0, 4e6, self.now_s)

    def run(self, decisions: int, *, used: float = 1.0, is_measured: bool = True, was_limited: bool = True) -> None:
        for _ in range(decisions):
            inflow = min(self.tank.rate_per_s * used, 2e7) * SAMPLE_S
            outflow = self._random.uniform(3e6, 5e6) * SAMPLE_S
            self.level += inflow - outflow
            self.drained += outflow
            self.now_s += SAMPLE_S
            self.tank.sample(round(self.level), round(self.drained), self.now_s, is_open=not was_limited)
            drained = round(self.drained) if is_measured else None
            self._noted.note(round(self.level), drained, self.now_s, was_limited=was_limited, other_per_s=MAX_RATE)

    @property
    def gaps(self) -> int:
        numbers = [sample.sequence for sample in self.samples]
        return sum(after - before > 1 for before, after in itertools.pairwise(numbers))


def test_plant_is_identified_from_the_samples() -> None:
    queue = CommitQueue()
    for number in range(60):
        # Publishers come and go: the level moves.
        queue.run(25, used=(1.0, 0.2, 0.6)[number % 3])
    assert queue.gaps == 0
    plant = identify(
        [sample.measurement for sample in queue.samples],
        [sample.action - sample.feedforward for sample in queue.samples],
        sample_time_s=RECORDED_S,
        delay=0,
        order=1,
    )
    assert plant.a == pytest.approx(1.0, abs=0.02)
    assert plant.b == pytest.approx(RECORDED_S, rel=0.1)


def test_unused_rate_leaves_a_gap_where_the_inflow_is_not_measured() -> None:
    limited, free = CommitQueue(), CommitQueue()
    limited.run(50, is_measured=False)
    free.run(50, is_measured=False, was_limited=False)
    assert (len(limited.samples), limited.gaps) == (len(free.samples), 0)
    assert free.gaps == len(free.samples) - 1


def test_rest_between_two_floods_leaves_a_gap() -> None:
    queue = CommitQueue()
    queue.run(20)
    queue.now_s += 3.0
    queue.run(20)
    assert queue.gaps == 1


def test_level_below_pressure_is_not_recorded() -> None:
    queue = CommitQueue()
    queue.level = 0.1 * SETPOINT
    queue.run(20, used=0.1)
    assert queue.samples == []
