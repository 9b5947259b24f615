"""The loop of one tank, driven by hand."""

from __future__ import annotations

from typing import Any

import pytest

from flyball.broker.core.flow_controller import (
    JOURNAL_CERTIFICATE,
    JOURNAL_KI_PER_S,
    JOURNAL_KP,
    MAX_RATE,
    MEMORY_CERTIFICATE,
    MEMORY_KP,
    SAMPLE_S,
    Tank,
)
from flyball.control.certificate import Certificate
from flyball.control.laws import Law, Proportional, ProportionalIntegral
from flyball.control.plant import Plant
from flyball.control.verification import certify

SETPOINT = 1_000_000


@pytest.fixture
def queue() -> Tank:
    return Tank("the store does not keep up", SETPOINT, JOURNAL_KP, JOURNAL_KI_PER_S)


def flood(tank: Tank, commit_s: float, commit_per_s: float, duration_s: float) -> list[float]:
    """Use all room while each commit of the whole queue takes `commit_s`; return the fill ratio at each sample."""
    levels: list[float] = []
    waiting, flying, drained, now = SETPOINT // 2, 0, 0, 0.0
    done_at = 0.0
    tank.begin(waiting, drained, commit_per_s, now)
    while now < duration_s:
        waiting += max(0, int(tank.room_bytes(waiting + flying, drained)))
        now += SAMPLE_S
        if now >= done_at:
            drained += flying
            flying, waiting = waiting, 0
            done_at = now + commit_s + flying / commit_per_s
        tank.sample(waiting + flying, drained, now, is_open=False)
        levels.append((waiting + flying) / SETPOINT)
    return levels


def test_a_level_is_pressed_from_half_of_its_setpoint_on(queue: Tank) -> None:
    assert [queue.is_pressed(level) for level in (0, 499_999, 500_000, 2_000_000)] == [False, False, True, True]


def test_at_the_setpoint_as_much_may_come_as_drains(queue: Tank) -> None:
    queue.begin(SETPOINT, 0, 2_000_000.0, 0.0)
    assert queue.rate_per_s == 2_000_000.0
    assert queue.room_bytes(SETPOINT, 0) == 2_000_000.0 * SAMPLE_S


def test_room_is_used_up_by_what_has_come_whether_it_has_drained_or_not(queue: Tank) -> None:
    queue.begin(SETPOINT, 0, 2_000_000.0, 0.0)
    assert queue.room_bytes(SETPOINT + 10_000, 0) == 30_000.0
    assert queue.room_bytes(SETPOINT - 20_000, 30_000) == 30_000.0
    assert queue.room_bytes(SETPOINT + 50_000, 0) < 0


def test_the_more_there_is_the_less_may_come(queue: Tank) -> None:
    rates: list[float] = []
    for level in range(SETPOINT // 2, 2 * SETPOINT, SETPOINT // 10):
        queue.begin(level, 0, 2_000_000.0, 0.0)
        rates.append(queue.rate_per_s)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 2_000_000.0
    assert rates[-1] == 0.0


def test_nothing_is_let_in_above_twice_the_setpoint_however_fast_the_store_was(queue: Tank) -> None:
    queue.begin(2 * SETPOINT - 100, 0, 1e9, 0.0)
    assert queue.rate_per_s > 0
    assert queue.room_bytes(2 * SETPOINT - 100, 0) == 100.0
    queue.sample(2 * SETPOINT, 0, SAMPLE_S, is_open=False)
    assert queue.rate_per_s == 0.0


def test_a_rate_that_is_next_to_nothing_is_none() -> None:
    memory = Tank("low on memory", SETPOINT, MEMORY_KP)
    memory.begin(int(0.999 * SETPOINT), 0, 0.0, 0.0)
    assert memory.rate_per_s == 0.0
    assert memory.room_bytes(int(0.9 * SETPOINT), 0) == 0.0


def test_memory_is_filled_up_to_its_limit_and_never_beyond() -> None:
    memory = Tank("low on memory", SETPOINT, MEMORY_KP)
    level, now = SETPOINT // 2, 0.0
    memory.begin(level, 0, 0.0, now)
    while memory.rate_per_s > 0:
        level += int(memory.room_bytes(level, 0))
        now += SAMPLE_S
        memory.sample(level, 0, now, is_open=False)
    assert 0.99 * SETPOINT < level <= SETPOINT
    assert 5.0 < now < 20.0


@pytest.mark.parametrize(("commit_s", "commit_per_s"), [(0.001, 20e6), (0.005, 5e6), (0.02, 5e6), (0.02, 1e6)])
def test_a_flood_keeps_a_store_busy_and_its_queue_bounded(queue: Tank, commit_s: float, commit_per_s: float) -> None:
    levels = flood(queue, commit_s, commit_per_s, 10.0)
    assert max(levels) < 2.5
    late = levels[len(levels) // 2 :]
    assert 0.6 < sum(late) / len(late) < 1.3
    assert min(late) > 0.0


def test_after_the_pressure_nothing_is_limited(queue: Tank) -> None:
    queue.begin(2 * SETPOINT, 0, 0.0, 0.0)
    queue.rest()
    assert queue.rate_per_s == MAX_RATE


@pytest.mark.parametrize(
    ("law", "kept"),
    [
        (ProportionalIntegral(JOURNAL_KP, JOURNAL_KI_PER_S * SAMPLE_S), JOURNAL_CERTIFICATE),
        (Proportional(MEMORY_KP), MEMORY_CERTIFICATE),
    ],
)
def test_the_certificates_that_are_kept_are_those_that_are_found(law: Law[Any], kept: Certificate) -> None:
    found = certify(law, Plant(a=1.0, b=SAMPLE_S, delay=2, sample_time_s=SAMPLE_S))
    assert kept.is_sound
    assert (kept.law, kept.plant, kept.sample_time_s) == (found.law, found.plant, found.sample_time_s)
    assert [pole.real for pole in kept.poles] == pytest.approx([pole.real for pole in found.poles], abs=1e-4)
    assert kept.largest_pole == pytest.approx(found.largest_pole, abs=1e-4)
    assert kept.gain_margin == pytest.approx(found.gain_margin, rel=1e-2)
    assert kept.delay_margin_samples == found.delay_margin_samples
