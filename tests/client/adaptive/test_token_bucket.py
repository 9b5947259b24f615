"""The token bucket holds its rate, whenever it is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.client.adaptive.token_bucket import BURST_S, TokenBucket


@given(st.floats(0.5, 5000), st.lists(st.floats(0.0, 0.5), min_size=1, max_size=200))
def test_no_more_pass_than_the_rate_allows(per_s: float, gaps_s: list[float]) -> None:
    pace = TokenBucket(per_s, 0.0)
    now_s, passed = 0.0, 0
    for gap_s in gaps_s:
        now_s += gap_s
        while pace.take(now_s):
            passed += 1
        assert passed <= 1 + per_s * (now_s + BURST_S) + 1e-6


@given(st.floats(0.5, 5000), st.floats(0.0, 10.0), st.integers(1, 50))
def test_who_has_waited_as_long_as_it_was_told_to_need_not_wait_again(per_s: float, now_s: float, count: int) -> None:
    pace = TokenBucket(per_s, now_s)
    assert pace.take(now_s)
    for _ in range(count):
        now_s += pace.wait_s()
        assert pace.take(now_s)


def test_who_asks_often_enough_gets_the_whole_rate() -> None:
    pace = TokenBucket(400.0, 0.0)
    passed = sum(pace.take(tick * 0.001) for tick in range(10_001))
    assert passed == pytest.approx(4001, abs=1)
    assert pace.lost == 0


def test_what_nobody_wanted_is_lost_and_counted() -> None:
    pace = TokenBucket(100.0, 0.0)
    assert [pace.take(10.0) for _ in range(4)] == [True, True, True, False]
    assert pace.lost == pytest.approx(998, abs=1)


@pytest.mark.parametrize(("stall_s", "was_used"), [(0.0, True), (0.1, True), (0.3, False), (2.0, False)])
def test_a_pace_counts_as_used_in_spite_of_short_stalls(stall_s: float, was_used: bool) -> None:
    pace = TokenBucket(400.0, 0.0)
    for tick in range(2001):
        if tick * 0.001 >= stall_s:
            pace.take(tick * 0.001)
    assert pace.was_used(2.0) is was_used
    for tick in range(2001, 3001):
        pace.take(tick * 0.001)
    assert pace.was_used(3.0)


def test_the_wait_is_as_long_as_it_takes() -> None:
    pace = TokenBucket(100.0, 0.0)
    assert pace.take(0.0)
    assert not pace.take(0.0)
    assert pace.wait_s() == pytest.approx(0.01)
    pace.change(50.0, 0.005)
    assert pace.wait_s() == pytest.approx(0.01)
    assert pace.take(0.0151)
