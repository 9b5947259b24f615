"""Clocks: an interruption between two readings does not count as a difference of the clocks."""

from __future__ import annotations

import itertools
import time

import pytest

from flyball.trace.clock import epoch_ns


def test_an_interruption_between_the_clocks_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(1_000, 10)
    breaks_ns = itertools.chain([0, 5_000_000, 5_000_000], itertools.repeat(7_000_000))

    def interrupted_ns() -> int:
        # The break is over before this clock is read, and is there in all that follows.
        offset_ns[0] += next(breaks_ns)
        return next(ticks) + offset_ns[0]

    offset_ns = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(ticks) + offset_ns[0])
    monkeypatch.setattr(time, "time_ns", lambda: interrupted_ns() + 1_000_000_000_000)
    assert epoch_ns() == pytest.approx(1_000_000_000_000, abs=10)
