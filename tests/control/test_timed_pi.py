"""The proportional-integral law, on numbers and on a simulated commit queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest

from flyball.control.limits import Limits
from flyball.control.timed_pi import PiLaw, PiState

SAMPLE_S = 0.02
LAW = PiLaw(setpoint=100.0, kp=5.0, ki_per_s=6.25, limits=Limits(0.0, 1000.0))


def actions(law: PiLaw, measurements: Sequence[float], **options: float) -> list[float]:
    state = PiState(0.0, 0.0)
    found: list[float] = []
    for number, measurement in enumerate(measurements, 1):
        state, action = law.step(state, measurement, number * SAMPLE_S, **options)  # type: ignore[arg-type]
        found.append(action)
    return found


def commit_queue(
    law: PiLaw, drain: Callable[[float], float], duration_s: float, delay_samples: int, level: float = 50.0
) -> list[tuple[float, float, float]]:
    """Simulate a level that rises by the action, `delay` samples late, and falls by the drain.

    Returns (time, level, action) of each sample.
    """
    state = PiState(0.0, 0.0)
    on_the_way = deque([0.0] * delay_samples)
    course: list[tuple[float, float, float]] = []
    for number in range(1, round(duration_s / SAMPLE_S) + 1):
        now = number * SAMPLE_S
        state, action = law.step(state, level, now)
        on_the_way.append(action)
        level = max(0.0, level + (on_the_way.popleft() - drain(now)) * SAMPLE_S)
        course.append((now, level, action))
    return course


def test_the_action_is_proportional_to_the_error_and_adds_up_its_past() -> None:
    law = PiLaw(setpoint=10.0, kp=2.0, ki_per_s=50.0, limits=Limits(-100.0, 100.0))
    assert actions(law, [9.0, 9.0, 10.0, 12.0]) == pytest.approx([3.0, 4.0, 2.0, -4.0])


def test_the_feedforward_is_added() -> None:
    assert actions(LAW, [100.0, 100.0], feedforward=70.0) == [70.0, 70.0]


def test_the_action_keeps_within_its_limits() -> None:
    assert actions(LAW, [1e6, -1e6]) == [0.0, 1000.0]


def test_an_action_at_its_limit_returns_when_the_error_changes_sign() -> None:
    measurements = [150.0] * 500 + [90.0]
    *saturated, back = actions(LAW, measurements)
    assert set(saturated) == {0.0}
    assert back == pytest.approx(5.0 * 10.0 + 6.25 * 10.0 * SAMPLE_S)


def test_the_integral_stands_still_while_nobody_uses_what_the_action_allows() -> None:
    assert set(actions(LAW, [90.0] * 100, is_open=True)) == {50.0}


@pytest.mark.parametrize("delay_samples", [0, 1, 2, 5])
def test_a_commit_queue_settles_at_its_setpoint_without_swinging(delay_samples: int) -> None:
    course = commit_queue(LAW, lambda now: 200.0, 6.0, delay_samples)
    late = [(level, action) for now, level, action in course if now > 4.0]
    assert all(level == pytest.approx(100.0, abs=0.5) for level, _ in late)
    assert all(action == pytest.approx(200.0, abs=2.0) for _, action in late)


def test_a_commit_queue_settles_though_each_byte_costs_three_times_as_much() -> None:
    law = PiLaw(LAW.setpoint, 3 * LAW.kp, 3 * LAW.ki_per_s, LAW.limits)
    course = commit_queue(law, lambda now: 200.0, 6.0, 2)
    assert all(level == pytest.approx(100.0, abs=0.5) for now, level, _ in course if now > 4.0)


def test_a_queue_whose_store_hangs_stops_near_its_setpoint_and_goes_on_at_once() -> None:
    course = commit_queue(LAW, lambda now: 0.0 if 4.0 < now <= 8.0 else 200.0, 12.0, 2)
    assert max(level for _, level, _ in course) < 1.5 * LAW.setpoint
    assert {action for now, _, action in course if 5.0 < now <= 8.0} == {0.0}
    below = next(now for now, level, _ in course if now > 8.0 and level < LAW.setpoint)
    moving = next(now for now, _, action in course if now > 8.0 and action > 0)
    assert moving - below <= 2 * SAMPLE_S
    assert all(level == pytest.approx(100.0, abs=2.0) for now, level, _ in course if now > 11.0)
