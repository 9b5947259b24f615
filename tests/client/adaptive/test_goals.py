"""The default laws are sound for their goals."""

from __future__ import annotations

import math

import pytest

from flyball.client.adaptive.goals import Fast, Goal, Latency, Rate, default_law
from flyball.control.certificate import check


@pytest.mark.parametrize(
    ("goal", "gain_margin", "delay_samples"), [(Rate(400), 4.0, 2), (Latency(0.1), 4.0, 2), (Fast(), 4.0, 2)]
)
def test_the_default_law_of_a_goal_has_a_sound_certificate(
    goal: Goal, gain_margin: float, delay_samples: int
) -> None:
    law, certificate = default_law(goal)
    check(certificate, law)
    assert certificate.gain_margin == pytest.approx(gain_margin)
    assert certificate.delay_margin_samples == delay_samples


@pytest.mark.parametrize("goal", [Rate(400), Fast()])
def test_the_delay_margin_is_the_last_delay_that_is_stable(goal: Goal) -> None:
    _, certificate = default_law(goal)
    gain = 2 / certificate.gain_margin
    delay = int(certificate.delay_margin_samples) + 1
    assert gain < 2 * math.sin(math.pi / (2 * (2 * delay - 1)))
    assert gain > 2 * math.sin(math.pi / (2 * (2 * (delay + 1) - 1)))
