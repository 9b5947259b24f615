"""The search for the reference, on simulated databases of which it is known how much work they can do."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.admission.reference import HOLD_RATIO, FixedReference, Observation, SlowStart
from flyball.admission.use import Unit
from flyball.errors import AdmissionError
from tests.admission.databases import Database, run

HELD = HOLD_RATIO[Unit.BUSY_MS]


def held(database: Database, reference: SlowStart, seconds: float = 40.0, unit: Unit = Unit.BUSY_MS) -> float:
    """Return what is held on average, as a multiple of the capacity."""
    values = []
    for _ in range(round(seconds / 0.25)):
        run(database, reference, 0.25, unit)
        values.append(reference.value)
    return fmean(values) / capacity(database, unit)


def done(database: Database, reference: SlowStart, seconds: float = 40.0, unit: Unit = Unit.BUSY_MS) -> float:
    """Return what work is done on average, as a share of the capacity."""
    return fmean(seen.work_per_s for seen in run(database, reference, seconds, unit)) / capacity(database, unit)


def capacity(database: Database, unit: Unit) -> float:
    return database.capacity if unit is Unit.BUSY_MS else database.capacity / database.cost_ms


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("servers", [0.8, 3.0, 8.0, 40.0])
def test_twice_the_work_is_held_that_a_database_of_any_size_can_do(servers: float, noise: float) -> None:
    database, reference = Database(servers, pool=max(20, round(5 * servers)), noise=noise), SlowStart()
    run(database, reference, 40.0)
    assert reference.state == "cruise"
    assert held(database, reference) == pytest.approx(HELD, rel=0.25)
    assert done(database, reference) > 0.9


def test_as_much_is_held_as_is_asked_for() -> None:
    database, reference = Database(8.0, pool=40), SlowStart(hold_ratio=1.5)
    run(database, reference, 40.0)
    assert held(database, reference) == pytest.approx(1.5, rel=0.25)


def test_a_database_that_does_less_when_it_is_crowded_is_not_crowded() -> None:
    database, reference = Database(4.0, penalty=0.1), SlowStart()
    run(database, reference, 40.0)
    crowded = database.work_per_s(0.75 * database.pool) / database.capacity
    assert held(database, reference) < 0.95 * HELD
    assert done(database, reference) > 0.7 > crowded


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("unit", Unit)
def test_reference_follows_a_slower_database_and_its_recovery(unit: Unit, noise: float) -> None:
    database, reference = Database(6.0, pool=40, noise=noise), SlowStart(unit)
    run(database, reference, 60.0, unit)
    for servers in (3.0, 6.0):
        database.servers = servers
        run(database, reference, 60.0, unit)
        assert held(database, reference, unit=unit) == pytest.approx(HOLD_RATIO[unit], rel=0.25)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_counted_in_connections_nine_tenths_of_the_most_are_held(noise: float) -> None:
    database, reference = Database(4.0, noise=noise), SlowStart(Unit.CONNECTIONS)
    run(database, reference, 40.0, Unit.CONNECTIONS)
    assert held(database, reference, unit=Unit.CONNECTIONS) == pytest.approx(0.9, rel=0.1)
    assert done(database, reference, unit=Unit.CONNECTIONS) > 0.8


def test_while_nobody_waits_nothing_is_concluded() -> None:
    database, reference = Database(4.0), SlowStart()
    database.demand_per_s = 300.0
    run(database, reference, 60.0)
    assert (reference.state, reference.value) == ("startup", 500.0)


def test_what_was_found_outlives_a_quiet_night() -> None:
    database, reference = Database(4.0), SlowStart()
    run(database, reference, 60.0)
    database.demand_per_s = 50.0
    run(database, reference, 600.0)
    assert reference.value == pytest.approx(HELD * database.capacity, rel=0.25)
    database.demand_per_s = math.inf
    assert held(database, reference) == pytest.approx(HELD, rel=0.25)


def test_failures_under_load_lower_the_reference_until_it_recovers() -> None:
    database, reference = Database(8.0, pool=40), SlowStart()
    run(database, reference, 60.0)
    before = reference.value
    database.failing_above = 4.0
    run(database, reference, 1.5)
    assert reference.state == "recover"
    assert reference.value <= 0.75 * before
    database.failing_above = math.inf
    low = reference.value
    run(database, reference, 3.0)
    assert low <= reference.value < before
    run(database, reference, 60.0)
    assert held(database, reference) == pytest.approx(HELD, rel=0.25)


def test_a_database_that_fails_before_it_is_saturated_is_held_below_that() -> None:
    database, reference = Database(8.0, pool=40), SlowStart()
    database.failing_above = 4.0
    run(database, reference, 40.0)
    seen = run(database, reference, 60.0)
    assert fmean(each.failures > 0 for each in seen) < 0.25
    assert fmean(each.load_per_s for each in seen) > 1000.0


def test_a_page_that_always_fails_does_not_close_the_gate() -> None:
    database, reference = Database(4.0), SlowStart()
    database.broken_share = 0.2
    run(database, reference, 90.0)
    assert held(database, reference) > 0.75 * HELD


def test_a_page_that_breaks_later_does_not_either() -> None:
    database, reference = Database(4.0), SlowStart()
    run(database, reference, 40.0)
    database.broken_share = 0.2
    run(database, reference, 30.0)
    assert held(database, reference) > 0.75 * HELD


def seen(work: float, **changes: object) -> Observation:
    facts: dict[str, object] = {
        "period_s": 0.25,
        "load_per_s": work,
        "work_per_s": work,
        "completed": 20,
        "response_s": 0.02,
        "failures": 0,
        "in_flight": round(work / 100),
        "is_limited": True,
        **changes,
    }
    return Observation(**facts)  # type: ignore[arg-type]


def test_as_long_as_it_brings_more_work_the_reference_doubles() -> None:
    reference = SlowStart(start=100.0)
    values = [reference.observe(seen(reference.value)) for _ in range(16)]
    assert values[3::4] == [200.0, 400.0, 800.0, 1600.0]


def test_start_ends_in_a_slow_round_without_more_work() -> None:
    reference = SlowStart(start=100.0)
    for _ in range(8):
        reference.observe(seen(reference.value))
    for _ in range(4):
        reference.observe(seen(200.0, load_per_s=400.0, response_s=0.05))
    assert (reference.state, reference.value) == ("drain", 200.0)


def test_slow_responses_alone_do_not_end_the_start() -> None:
    reference = SlowStart(start=100.0)
    for _ in range(4):
        reference.observe(seen(reference.value))
    for _ in range(4):
        reference.observe(seen(reference.value, response_s=0.05))
    assert reference.state == "startup"


def test_a_round_that_does_less_by_chance_lowers_the_reference_only_a_little() -> None:
    reference = SlowStart(Unit.CONNECTIONS)

    def serve(rounds: int, most: float) -> None:
        for _ in range(4 * rounds):
            reference.observe(seen(min(reference.value, most)))

    serve(43, 200.0)
    assert reference.value == pytest.approx(180.0)
    serve(1, 130.0)
    serve(3, 200.0)
    assert reference.value == pytest.approx(162.0)


def test_late_failures_of_requests_from_before_do_not_lower_the_reference_again() -> None:
    reference = SlowStart(start=100.0)
    for _ in range(8):
        reference.observe(seen(reference.value))
    reference.observe(seen(100.0))
    lowered = reference.observe(seen(100.0, failures=20, failed_s=5.0))
    assert reference.state == "recover"
    for _ in range(19):
        assert reference.observe(seen(100.0, failures=20, failed_s=5.0)) == lowered


def test_a_round_goes_on_until_enough_has_ended_to_judge_by() -> None:
    reference = SlowStart(start=100.0)
    values = [reference.observe(seen(100.0, completed=2)) for _ in range(11)]
    assert values[9] == 100.0
    assert values[10] == 200.0


def test_a_fixed_reference_stays() -> None:
    reference = FixedReference(700)
    assert reference.observe(seen(5000.0, failures=20)) == 700.0
    assert (reference.value, reference.state) == (700.0, "fixed")


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_values_that_cannot_work_are_refused(bad: float) -> None:
    with pytest.raises(AdmissionError, match="above 0"):
        FixedReference(bad)
    for name in ("start", "least", "hold_ratio"):
        with pytest.raises(AdmissionError, match=name):
            SlowStart(Unit.BUSY_MS, **{name: bad})


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.builds(
            Observation,
            period_s=st.floats(0.01, 10.0),
            load_per_s=st.floats(0.0, 1e7),
            work_per_s=st.floats(0.0, 1e7),
            completed=st.integers(0, 1000),
            response_s=st.none() | st.floats(0.0, 100.0),
            failures=st.integers(0, 100),
            in_flight=st.integers(0, 1000),
            is_limited=st.booleans(),
            failed_s=st.floats(0.0, 60.0),
        ),
        min_size=1,
        max_size=200,
    )
)
def test_whatever_is_seen_the_reference_is_a_number_and_not_below_the_least(observations: list[Observation]) -> None:
    reference = SlowStart(start=100.0, least=10.0)
    for each in observations:
        value = reference.observe(each)
        assert math.isfinite(value)
        assert value >= 10.0
