"""A clock that tests set, and a meter that goes by it."""

from __future__ import annotations

import pytest

from flyball.admission.meter import Meter


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> Meter:
    return Meter(clock)
