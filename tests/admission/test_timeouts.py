"""Whose time is up."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from flyball.admission.timeouts import Timeouts


def test_nobody_is_due_while_nobody_waits() -> None:
    timeouts: Timeouts[str] = Timeouts()
    assert timeouts.next_s() == math.inf
    assert timeouts.pop_due(1e9) == []


def test_a_short_limit_is_over_before_a_long_one_that_began_earlier() -> None:
    timeouts: Timeouts[str] = Timeouts()
    assert timeouts.add("patient", 5.0, 0.0) == 5.0
    assert timeouts.add("hasty", 0.5, 1.0) == 1.5
    assert timeouts.next_s() == 1.5
    assert timeouts.pop_due(1.5) == ["hasty"]
    assert timeouts.next_s() == 5.0


def test_to_remove_twice_is_to_remove_once() -> None:
    timeouts: Timeouts[str] = Timeouts()
    timeouts.add("gone", 1.0, 0.0)
    timeouts.remove("gone", 1.0)
    timeouts.remove("gone", 1.0)
    timeouts.remove("never there", 2.0)
    assert timeouts.next_s() == math.inf


def test_all_can_be_forgotten() -> None:
    timeouts: Timeouts[str] = Timeouts()
    timeouts.add("one", 1.0, 0.0)
    timeouts.clear()
    assert timeouts.pop_due(10.0) == []


@given(st.lists(st.tuples(st.sampled_from([0.01, 0.5, 5.0]), st.floats(0.0, 1.0), st.booleans()), max_size=50))
def test_each_is_due_once_and_when_its_own_time_is_up(visits: list[tuple[float, float, bool]]) -> None:
    timeouts: Timeouts[int] = Timeouts()
    until_s: dict[int, float] = {}
    now_s = 0.0
    for number, (limit_s, pause_s, leaves) in enumerate(visits):
        now_s += pause_s
        expected = {each for each, end_s in until_s.items() if end_s <= now_s}
        assert set(timeouts.pop_due(now_s)) == expected
        for each in expected:
            del until_s[each]
        until_s[number] = timeouts.add(number, limit_s, now_s)
        if leaves:
            timeouts.remove(number, limit_s)
            del until_s[number]
        assert timeouts.next_s() == min(until_s.values(), default=math.inf)
