"""When arrivals are meant: think times, rates, curves, and that chance can be repeated."""

from __future__ import annotations

import itertools
import math
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.lab.workloads.arrivals import Gaps, RateCurve, Scheduled, Thinking
from flyball.lab.workloads.paced import read_curve

rates = st.one_of(st.just(0.0), st.floats(0.1, 1000))
curves = st.lists(st.tuples(st.floats(0.1, 10), rates), min_size=1, max_size=6)


def integral(points: list[tuple[float, float]], until_s: float) -> float:
    """Return how many arrivals come until then, summed up in small steps."""
    points = [(0.0, points[0][1]), *points, (1e9, points[-1][1])]
    total = 0.0
    for (start_s, rate), (stop_s, next_rate) in pairwise(points):
        end_s = min(stop_s, until_s)
        if end_s > start_s:
            at_end = rate + (next_rate - rate) * (end_s - start_s) / (stop_s - start_s)
            total += (end_s - start_s) * (rate + at_end) / 2
    return total


@given(curves, st.lists(st.floats(0.5, 50), min_size=1, max_size=20))
def test_an_arrival_comes_when_the_rate_adds_up_to_it(pieces: list[tuple[float, float]], steps: list[float]) -> None:
    points, at_s = [], 0.0
    for length_s, rate in pieces:
        at_s += length_s
        points.append((at_s, rate))
    curve = RateCurve(points)
    count, before_s = 0.0, 0.0
    for step in steps:
        count += step
        when_s = curve.when(count)
        if when_s == math.inf:
            assert points[-1][1] == 0
            assert integral(points, 1e8) < count + 1e-6
            return
        assert when_s >= before_s - 1e-9
        assert integral(points, when_s) == pytest.approx(count, rel=1e-6, abs=1e-6)
        before_s = when_s


def test_clients_take_turns_at_a_rate() -> None:
    clients = [Scheduled(RateCurve([(0, 100.0)]), number, 4, None) for number in range(4)]
    times = sorted(client.next_s() for client in clients for _ in range(25))
    assert times == pytest.approx([number / 100 for number in range(1, 101)])


def test_poisson_arrivals_have_the_rate_on_average_and_repeat_with_the_seed() -> None:
    def times(seed: int) -> list[float]:
        arrivals = Scheduled(RateCurve([(0, 200.0)]), 0, 2, random.Random(seed))
        return [arrivals.next_s() for _ in range(5000)]

    assert times(1)[-1] == pytest.approx(50, rel=0.1)
    assert times(1) == times(1)
    assert times(1) != times(2)


def test_think_times_are_fixed_or_exponential() -> None:
    assert [Thinking(0.3, None).next_s() for _ in range(2)] == [0.3, 0.3]
    assert Thinking(0.0, random.Random(1)).next_s() == 0.0
    chance = Thinking(0.3, random.Random(1))
    pauses = [chance.next_s() for _ in range(5000)]
    assert sum(pauses) / len(pauses) == pytest.approx(0.3, rel=0.1)
    assert len(set(pauses)) == 5000


def test_a_curve_is_read_from_a_file_with_a_heading(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("seconds,rate\n0,10\n\n60,20.5,noted\n")
    assert read_curve(tmp_path / "rates.csv") == [(0.0, 10.0), (60.0, 20.5)]


@pytest.mark.parametrize(("text", "complaint"), [("", "no points"), ("0,1\n5,x\n", "row 2"), ("0,1\n5\n", "row 2")])
def test_a_file_without_a_curve_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        read_curve(tmp_path / "rates.csv")


def test_gaps_are_normally_distributed_and_above_0() -> None:
    arrivals = Gaps(0.01, 0.008, [(0.0, math.inf)], random.Random(1))
    times = [arrivals.next_s() for _ in range(5000)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert 0 <= times[0] < 0.01
    assert min(gaps) > 0
    # Cut off below 0, the mean is a little higher.
    assert sum(gaps) / len(gaps) == pytest.approx(0.0115, rel=0.03)
    narrow = Gaps(0.01, 0.001, [(0.0, math.inf)], random.Random(1))
    assert [narrow.next_s() for _ in range(1000)][-1] == pytest.approx(10, rel=0.01)


def test_gaps_lie_within_their_spans() -> None:
    arrivals = Gaps(0.01, 0.001, [(1.0, 1.1), (3.0, 3.1)], random.Random(1))
    times = list(itertools.takewhile(math.isfinite, iter(arrivals.next_s, None)))
    assert all(1.0 <= at_s < 1.1 or 3.0 <= at_s < 3.1 for at_s in times)
    assert 18 <= len(times) <= 22
    assert arrivals.next_s() == math.inf


def test_those_who_begin_together_do_not_march_in_step() -> None:
    firsts = [Gaps(0.01, 0.0, [(1.0, 2.0)], random.Random(seed)).next_s() for seed in range(50)]
    assert min(firsts) < 1.002
    assert max(firsts) > 1.008
