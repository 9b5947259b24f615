from contextvars import copy_context

from flyball.admission.meter import Meter, current_use
from flyball.admission.use import Unit, Usage, Use
from tests.admission.conftest import Clock


def test_connection_is_waited_for_then_busy_until_returned(meter: Meter, clock: Clock) -> None:
    hold = meter.ask()
    clock.now_s = 1.0
    hold.got()
    clock.now_s = 3.0
    hold.end()
    clock.now_s = 10.0
    assert meter.usage == Usage(connections=1, busy_s=2.0, waiting_s=1.0)


def test_what_is_still_held_counts_until_now(meter: Meter, clock: Clock) -> None:
    for _ in range(3):
        meter.ask().got()
    meter.ask()
    clock.now_s = 2.0
    assert meter.usage == Usage(connections=3, busy_s=6.0, waiting_s=2.0, busy=3, waiting=1)


def test_who_gives_up_waiting_has_taken_no_connection(meter: Meter, clock: Clock) -> None:
    hold = meter.ask()
    clock.now_s = 4.0
    hold.end()
    assert meter.usage == Usage(waiting_s=4.0)


def test_what_happens_twice_counts_once(meter: Meter, clock: Clock) -> None:
    hold = meter.ask()
    hold.got()
    hold.got()
    clock.now_s = 1.0
    hold.end()
    hold.end()
    hold.got()
    assert meter.usage == Usage(connections=1, busy_s=1.0)


def test_a_request_is_told_what_it_took_wherever_the_connection_is_given_back(meter: Meter, clock: Clock) -> None:
    use = Use()
    context = copy_context()
    context.run(current_use.set, use)
    hold = context.run(meter.ask)
    clock.now_s = 0.5
    hold.got()
    clock.now_s = 2.0
    hold.end()
    assert use == Use(connections=1, busy_s=1.5, waiting_s=0.5)
    assert current_use.get() is None


def test_a_request_is_told_how_many_connections_it_has_not_given_back(meter: Meter) -> None:
    use = Use()
    current_use.set(use)
    first, second = meter.ask(), meter.ask()
    current_use.set(None)
    first.got()
    second.got()
    assert use.held == 2
    first.end()
    first.end()
    assert use.held == 1
    second.end()
    assert use.held == 0


def test_the_sizes_of_all_pools_add_up(meter: Meter) -> None:
    one, other = object(), object()
    assert meter.usage.size is None
    meter.size_of(one, 10)
    meter.size_of(other, 5)
    meter.size_of(one, 20)
    assert meter.usage.size == 25


def test_with_a_pool_without_bound_no_size_is_known(meter: Meter) -> None:
    meter.size_of("bounded", 10)
    meter.size_of("unbounded", None)
    assert meter.usage.size is None


def test_cost_is_busy_time_or_connections() -> None:
    use = Use(connections=3, busy_s=0.02)
    assert Unit.BUSY_MS.cost_of(use) == 20.0
    assert Unit.CONNECTIONS.cost_of(use) == 3.0
