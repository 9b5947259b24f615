"""The gate, moved through time by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.admission.gate import Full, Gate, Ticket
from flyball.admission.schedulers import SCHEDULERS, Dps, Fifo, RoundRobin, Strict, make_scheduler
from flyball.errors import AdmissionError

SMALL, LARGE = 0, 1
COSTS = (1.0, 10.0)


def ticket(class_number: int, arrived_s: float, key: str = "key") -> Ticket:
    return Ticket(key, class_number, COSTS[class_number], arrived_s)


def spent_gate(gate: Gate, rate: float = 100.0) -> Gate:
    """Return it with nothing left at time 0."""
    gate.set_rate(rate, 0.0)
    gate.arrive(Ticket("first", SMALL, gate.budget, 0.0))
    assert gate.budget == 0.0
    return gate


def classes_of(tickets: Sequence[Ticket]) -> list[int]:
    return [each.class_number for each in tickets]


def dispatch_whenever_there_is_budget(gate: Gate, now_s: float, count: int) -> list[Ticket]:
    """Return the next ones to be admitted if the gate is asked as soon as it may have budget."""
    admitted: list[Ticket] = []
    while len(admitted) < count:
        next_s = gate.next_dispatch_s(now_s)
        assert next_s is not None
        now_s = next_s
        admitted += gate.dispatch(now_s)
    return admitted


def test_a_request_passes_at_once_while_budget_remains_and_nobody_waits() -> None:
    gate = Gate(Dps(), COSTS)
    gate.set_rate(100.0, 0.0)
    request = ticket(LARGE, 0.5)
    assert gate.arrive(request) == [request]
    assert request.admitted_s == 0.5
    assert gate.waiting == (0, 0)


def test_request_waits_for_budget() -> None:
    gate = spent_gate(Gate(Dps(), COSTS), rate=100.0)
    request = ticket(SMALL, 0.0)
    assert gate.arrive(request) == []
    assert gate.waiting == (1, 0)
    assert gate.dispatch(0.0) == []
    assert gate.dispatch(0.001) == [request]
    assert request.admitted_s == 0.001


def test_debt_of_a_large_request_is_repaid_before_the_next_passes() -> None:
    gate = Gate(Dps(), COSTS)
    gate.set_rate(100.0, 0.0)
    gate.arrive(Ticket("nearly all", SMALL, 9.0, 0.0))
    assert len(gate.arrive(ticket(LARGE, 0.0))) == 1
    assert gate.budget == -9.0
    assert gate.arrive(ticket(SMALL, 0.0)) == []
    assert gate.next_dispatch_s(0.0) == pytest.approx(0.09, abs=0.002)
    assert gate.dispatch(0.0899) == []
    assert len(gate.dispatch(0.0901)) == 1


def test_the_time_of_the_next_dispatch_has_budget_whatever_is_rounded() -> None:
    gate = spent_gate(Gate(Dps(), COSTS), rate=0.3)
    now_s = 1e6 / 3
    gate.dispatch(now_s)
    gate.arrive(Ticket("all", SMALL, 100.0, now_s))
    gate.arrive(ticket(SMALL, now_s))
    next_s = gate.next_dispatch_s(now_s)
    assert next_s is not None
    assert len(gate.dispatch(next_s)) == 1


def test_an_idle_night_saves_no_more_than_a_moment_of_budget() -> None:
    gate = Gate(Dps(), COSTS, burst_s=0.1)
    gate.set_rate(1000.0, 0.0)
    gate.dispatch(40_000.0)
    assert gate.budget == pytest.approx(100.0)


def test_one_large_request_can_be_saved_for_however_low_the_rate() -> None:
    gate = Gate(Dps(), COSTS, burst_s=0.1)
    gate.set_rate(1.0, 0.0)
    gate.dispatch(40_000.0)
    assert gate.budget == COSTS[LARGE]


def test_a_lower_rate_takes_back_what_was_saved_at_the_higher_one() -> None:
    gate = Gate(Dps(), COSTS, burst_s=0.1)
    gate.set_rate(1000.0, 0.0)
    gate.set_rate(200.0, 1.0)
    assert gate.budget == pytest.approx(20.0)
    assert gate.rate == 200.0


def test_a_clock_that_goes_back_gives_no_budget_twice() -> None:
    gate = spent_gate(Gate(Dps(), COSTS), rate=10.0)
    gate.dispatch(0.5)
    gate.dispatch(0.1)
    gate.dispatch(0.5)
    assert gate.budget == pytest.approx(5.0)


def test_a_round_goes_on_where_the_budget_ran_out() -> None:
    gate = spent_gate(Gate(RoundRobin(), COSTS))
    for number in (SMALL, SMALL, SMALL, LARGE, LARGE, LARGE):
        gate.arrive(ticket(number, 0.0))
    admitted = dispatch_whenever_there_is_budget(gate, 0.0, 6)
    assert classes_of(admitted) == [SMALL, LARGE, SMALL, LARGE, SMALL, LARGE]


@pytest.mark.parametrize("name", ["dps", "memoryless", "static", "strict"])
def test_small_requests_pass_in_one_dispatch_despite_waiting_large_ones(name: str) -> None:
    gate = Gate(make_scheduler(name), COSTS, burst_s=1.0, random=Random(1))
    gate.set_rate(1000.0, 0.0)
    gate.hold(True)
    for _ in range(50):
        gate.arrive(ticket(LARGE, 0.0))
    small = [ticket(SMALL, 0.0) for _ in range(50)]
    for each in small:
        gate.arrive(each)
    gate.end_period(0.25)
    gate.hold(False)
    gate.dispatch(0.25)
    assert all(each.admitted_s == 0.25 for each in small)


def test_fifo_admits_in_the_order_of_arrival_whatever_the_class() -> None:
    gate = spent_gate(Gate(Fifo(), COSTS))
    gate.hold(True)
    requests = [ticket(number, i * 1e-6) for i, number in enumerate((LARGE, SMALL, SMALL, LARGE, SMALL, LARGE))]
    for request in requests:
        gate.arrive(request)
    gate.hold(False)
    assert dispatch_whenever_there_is_budget(gate, 0.001, 6) == requests


def test_requests_of_one_class_pass_in_the_order_of_arrival() -> None:
    gate = spent_gate(Gate(Dps(), COSTS))
    gate.hold(True)
    requests = [ticket(SMALL, i * 1e-6) for i in range(5)]
    for request in requests:
        gate.arrive(request)
    gate.hold(False)
    assert gate.dispatch(0.1) == requests


def test_free_request_passes_uncounted_while_others_wait() -> None:
    gate = spent_gate(Gate(Dps(), COSTS))
    gate.arrive(ticket(SMALL, 0.0))
    gate.hold(True)
    home_page = Ticket("GET /", SMALL, 0.0, 0.0)
    assert gate.arrive(home_page) == [home_page]
    assert home_page.admitted_s == 0.0
    assert gate.end_period(0.25).arrived == (2, 0)


def test_whoever_leaves_is_not_admitted_and_not_lost() -> None:
    gate = spent_gate(Gate(Dps(), COSTS))
    first, second = ticket(SMALL, 0.0), ticket(SMALL, 0.0)
    gate.arrive(first)
    gate.arrive(second)
    assert gate.leave(first)
    assert not gate.leave(first)
    assert gate.waiting == (1, 0)
    assert gate.dispatch(0.1) == [second]
    turnout = gate.end_period(0.25)
    assert (turnout.left, turnout.lost) == ((1, 0), (0, 0))


def test_whoever_runs_out_of_time_is_lost() -> None:
    gate = spent_gate(Gate(Dps(), COSTS))
    request = ticket(LARGE, 0.0)
    gate.arrive(request)
    assert gate.expire(request)
    assert not gate.expire(request)
    assert gate.dispatch(1.0) == []
    turnout = gate.end_period(1.0)
    assert (turnout.left, turnout.lost) == ((0, 0), (0, 1))


def test_whoever_was_admitted_can_neither_leave_nor_run_out_of_time() -> None:
    gate = Gate(Dps(), COSTS)
    gate.set_rate(100.0, 0.0)
    request = ticket(SMALL, 0.0)
    gate.arrive(request)
    assert not gate.leave(request)
    assert not gate.expire(request)
    assert gate.end_period(0.25).lost == (0, 0)


def test_a_full_queue_turns_away_its_own_class_only() -> None:
    gate = spent_gate(Gate(Dps(), COSTS, queue_limit=2))
    gate.arrive(ticket(LARGE, 0.0))
    gate.arrive(ticket(LARGE, 0.0))
    with pytest.raises(Full, match="queue of class 1 is full: 2 requests are waiting"):
        gate.arrive(ticket(LARGE, 0.0))
    gate.arrive(ticket(SMALL, 0.0))
    assert gate.waiting == (1, 2)
    assert gate.end_period(0.25).lost == (0, 1)


def test_nobody_is_admitted_while_the_gate_is_held() -> None:
    gate = Gate(Dps(), COSTS)
    gate.set_rate(100.0, 0.0)
    gate.hold(True)
    request = ticket(SMALL, 0.0)
    assert gate.arrive(request) == []
    assert gate.dispatch(10.0) == []
    assert gate.next_dispatch_s(10.0) is None
    gate.hold(False)
    assert gate.next_dispatch_s(10.0) == pytest.approx(10.0, abs=0.002)
    assert gate.dispatch(10.0) == [request]


def test_there_is_no_next_dispatch_while_nobody_waits_or_nothing_flows_in() -> None:
    gate = spent_gate(Gate(Dps(), COSTS))
    assert gate.next_dispatch_s(0.0) is None
    gate.arrive(ticket(SMALL, 0.0))
    assert gate.next_dispatch_s(0.0) is not None
    gate.set_rate(0.0, 0.0)
    assert gate.next_dispatch_s(0.0) is None


def test_a_gate_without_a_rate_admits_nobody() -> None:
    gate = Gate(Dps(), COSTS)
    assert gate.arrive(ticket(SMALL, 0.0)) == []
    assert gate.dispatch(100.0) == []


def test_period_counts_outcomes_by_class_from_zero() -> None:
    gate = Gate(Strict(), COSTS)
    gate.set_rate(100.0, 0.0)
    for number in (SMALL, LARGE, LARGE, LARGE):
        gate.arrive(ticket(number, 0.0))
    turnout = gate.end_period(0.01)
    assert turnout.arrived == (1, 3)
    assert turnout.admitted == (1, 1)
    assert turnout.waiting == (0, 2)
    assert turnout.admitted_cost == 11.0
    following = gate.end_period(0.02)
    assert (following.arrived, following.admitted, following.admitted_cost) == ((0, 0), (0, 0), 0.0)
    assert following.waiting == (0, 2)


def test_period_with_a_wait_for_budget_was_limited() -> None:
    gate = spent_gate(Gate(Dps(), COSTS))
    assert not gate.end_period(0.0).was_limited
    gate.arrive(ticket(SMALL, 0.0))
    gate.dispatch(0.1)
    turnout = gate.end_period(0.25)
    assert turnout.waiting == (0, 0)
    assert turnout.was_limited
    assert not turnout.was_held
    assert not gate.end_period(0.5).was_limited


def test_period_with_waits_only_for_a_held_gate_was_not_limited() -> None:
    gate = Gate(Dps(), COSTS)
    gate.set_rate(100.0, 0.0)
    gate.hold(True)
    gate.arrive(ticket(SMALL, 0.0))
    turnout = gate.end_period(0.25)
    assert turnout.was_held
    assert not turnout.was_limited


def test_arrivals_are_averaged_and_right_from_the_first_period_on() -> None:
    gate = Gate(Dps(), COSTS)
    gate.set_rate(1000.0, 0.0)
    for period in range(1, 200):
        for number in (SMALL, SMALL, LARGE):
            gate.arrive(ticket(number, period * 0.25))
        gate.end_period(period * 0.25)
        assert gate.arrivals_per_s == pytest.approx((8.0, 4.0))
    for period in range(200, 230):
        gate.end_period(period * 0.25)
    assert gate.arrivals_per_s == pytest.approx((8.0 * 0.36, 4.0 * 0.36), rel=0.01)


def test_waiting_requests_move_to_their_new_class_in_order() -> None:
    gate = spent_gate(Gate(RoundRobin(), COSTS))
    gate.hold(True)
    keys = ["a", "b", "c", "a", "b", "c"]
    requests = [ticket(i % 2, i * 1e-6, key) for i, key in enumerate(keys)]
    for request in requests:
        gate.arrive(request)
    gate.hold(False)
    gate.reclassify((1.0, 4.0, 10.0), {"a": 2, "b": 0, "c": 0}.__getitem__)
    assert gate.waiting == (4, 0, 2)
    assert gate.class_costs == (1.0, 4.0, 10.0)
    admitted = dispatch_whenever_there_is_budget(gate, 0.001, 6)
    for number in (0, 2):
        of_class = [request for request in admitted if request.class_number == number]
        assert of_class == [request for request in requests if request.class_number == number]


def test_whoever_has_moved_can_still_leave() -> None:
    gate = spent_gate(Gate(Dps(), COSTS))
    request = ticket(SMALL, 0.0)
    gate.arrive(request)
    gate.reclassify((2.0,), lambda key: 0)
    gate.reclassify((2.0, 3.0, 4.0), lambda key: 2)
    assert gate.leave(request)
    assert gate.waiting == (0, 0, 0)


def test_whoever_has_gone_before_its_class_did_can_be_told_so_again() -> None:
    gate = spent_gate(Gate(Dps(), COSTS))
    gone = ticket(LARGE, 0.0)
    gate.arrive(gone)
    gate.leave(gone)
    gate.reclassify((2.0,), lambda key: 0)
    assert not gate.leave(gone)
    assert not gate.expire(gone)


def test_classes_that_only_cost_something_else_keep_their_counts_and_arrivals() -> None:
    gate = Gate(Dps(), COSTS)
    gate.set_rate(100.0, 0.0)
    gate.arrive(ticket(SMALL, 0.0))
    gate.end_period(0.25)
    gate.arrive(ticket(SMALL, 0.25))
    gate.reclassify((2.0, 20.0), lambda key: 0)
    assert gate.arrivals_per_s == pytest.approx((4.0, 0.0))
    assert gate.end_period(0.5).arrived == (1, 0)


@pytest.mark.parametrize("costs", [(), (0.0, 1.0), (2.0, 1.0)])
def test_costs_of_classes_must_be_positive_and_in_order(costs: tuple[float, ...]) -> None:
    with pytest.raises(AdmissionError, match="above 0 and ascending"):
        Gate(Dps(), costs)


steps = st.lists(
    st.tuples(
        st.sampled_from(["small", "large", "pass time", "expire", "leave", "end period"]),
        st.floats(0.0, 0.3, allow_nan=False),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(name=st.sampled_from(sorted(SCHEDULERS)), steps=steps, rate=st.floats(1.0, 500.0), seed=st.integers(0, 9))
def test_requests_wait_only_for_budget_and_never_exceed_it(
    name: str, steps: list[tuple[str, float]], rate: float, seed: int
) -> None:
    gate = Gate(make_scheduler(name), COSTS, random=Random(seed))
    gate.set_rate(rate, 0.0)
    at_first, now_s = gate.budget, 0.0
    requests: list[Ticket] = []
    for what, duration_s in steps:
        now_s += duration_s
        if what in ("small", "large"):
            requests.append(ticket(SMALL if what == "small" else LARGE, now_s))
            gate.arrive(requests[-1])
        elif what in ("expire", "leave") and requests:
            (gate.expire if what == "expire" else gate.leave)(requests[len(requests) // 2])
        elif what == "end period":
            gate.end_period(now_s)
        gate.dispatch(now_s)
        assert sum(gate.waiting) == 0 or gate.budget <= 0.0
    cost = sum(request.cost for request in requests if request.admitted_s is not None)
    assert cost <= at_first + rate * now_s + COSTS[LARGE] + 1e-6
    for number in (SMALL, LARGE):
        of_class = [
            request for request in requests if request.class_number == number and request.admitted_s is not None
        ]
        assert all(one.admitted_s <= other.admitted_s for one, other in itertools.pairwise(of_class))  # type: ignore[operator]
