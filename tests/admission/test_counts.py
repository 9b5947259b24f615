from __future__ import annotations

import pytest

from flyball.admission.counts import Blocking, ClassCounts, Finished


def test_whoever_did_not_wait_is_in_the_first_bucket() -> None:
    counts = ClassCounts()
    counts.admit(0.0)
    counts.admit(0.004)
    counts.admit(100.0)
    assert (counts.waits[0], counts.waits[1], counts.waits[-1]) == (1, 1, 1)


def test_a_period_of_many_large_requests_is_not_taken_for_a_slow_one() -> None:
    finished = Finished()
    responses = []
    for small, large in [(90, 10), (10, 90), (50, 50), (90, 10)]:
        for _ in range(small):
            finished.add(0, 0.01, 1.0)
        for _ in range(large):
            finished.add(1, 0.1, 10.0)
        responses.append(finished.response_s)
        finished.end_period()
    assert max(filter(None, responses)) < 1.2 * min(filter(None, responses))


def test_a_period_in_which_all_take_twice_as_long_is_twice_as_slow() -> None:
    finished = Finished()
    responses = []
    for slowness in (1, 2):
        for number in range(100):
            finished.add(number % 2, 0.01 * slowness * (1 + number % 2), 1.0)
        responses.append(finished.response_s)
        finished.end_period()
    assert responses[1] == pytest.approx(2 * (responses[0] or 0))


def test_work_and_failures_are_those_of_the_period() -> None:
    finished = Finished()
    finished.add(0, 0.01, 3.0)
    finished.fail(2.0)
    finished.fail(1.0)
    assert (finished.work, finished.count, finished.failures, finished.failed_s) == (3.0, 1, 2, 2.0)
    finished.end_period()
    assert (finished.work, finished.count, finished.failures, finished.failed_s) == (0.0, 0, 0, 0.0)
    assert finished.response_s is None


def test_odds_are_those_who_wait_over_those_admitted_or_those_lost_if_any_are() -> None:
    blocking = Blocking()
    assert blocking.odds(0) is None
    for _ in range(300):
        blocking.end_period((10, 2), (5, 8), (0, 0))
    assert blocking.odds(0) == pytest.approx(0.5, rel=0.01)
    assert blocking.odds(1) == pytest.approx(4.0, rel=0.01)
    for _ in range(300):
        blocking.end_period((10, 2), (5, 8), (0, 1))
    assert blocking.odds(0) == pytest.approx(0.0, abs=0.01)
    assert blocking.odds(1) == pytest.approx(0.5, rel=0.01)
    blocking.end_period((1,), (0,), (0,))
    assert blocking.odds(1) is None
