"""Laws of every kind, for tests that hold for all of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from flyball.control.laws import (
    Integral,
    Law,
    Multiplicative,
    Pid,
    PositionalPid,
    Proportional,
    ProportionalIntegral,
    Scheduled,
    SelfTuning,
)

gains = st.floats(-1e6, 1e6)
poles = st.floats(0.0, 0.99)
curves = st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=2, max_size=6).map(
    # Steps above 0, added up: a curve that rises.
    lambda steps: (
        tuple(sum(step[0] for step in steps[: place + 1]) for place in range(len(steps))),
        tuple(sum(step[1] for step in steps[: place + 1]) for place in range(len(steps))),
    )
)

# Of any gains, sensible or not.
laws: st.SearchStrategy[Law[Any]] = st.one_of(
    st.builds(Proportional, gains, gains),
    st.builds(Integral, gains),
    st.builds(ProportionalIntegral, gains, gains),
    st.builds(Pid, gains, gains, gains),
    st.builds(PositionalPid, gains, gains, gains),
    st.builds(Multiplicative, st.floats(0.01, 2.0)),
    st.builds(SelfTuning, poles, st.floats(0.5, 1.0)),
    st.builds(lambda curve, pole: Scheduled(curve[0], curve[1], pole), curves, poles),
)
