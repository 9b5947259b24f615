"""The search for the reference, on simulated databases whose knee is known."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.admission.reference import FixedReference, Observation, SlowStart
from flyball.admission.use import Unit
from flyball.errors import AdmissionError
from tests.admission.databases import Database, run


def held(database: Database, reference: SlowStart, seconds: float = 40.0, unit: Unit = Unit.BUSY_MS) -> float:
    """What is held on average, after the time that it takes to find it."""
    values = []
    for _ in range(round(seconds / 0.25)):
        run(database, reference, 0.25, unit)
        values.append(reference.value)
    return fmean(values)


@pytest.mark.parametrize("servers", [0.8, 3.0, 8.0, 40.0])
def test_the_knee_of_databases_of_any_size_is_found(servers: float) -> None:
    database, reference = Database(servers, pool=max(20, round(5 * servers))), SlowStart()
    run(database, reference, 40.0)
    assert reference.state == "cruise"
    assert held(database, reference) == pytest.approx(database.knee, rel=0.2)


def test_at_the_knee_nearly_all_the_work_is_done_that_the_database_can_do() -> None:
    database, reference = Database(8.0, pool=40, noise=0.03), SlowStart()
    run(database, reference, 40.0)
    assert fmean(seen.work_per_s for seen in run(database, reference, 60.0)) > 0.87 * database.knee


def test_a_database_that_does_less_when_it_is_crowded_is_not_crowded() -> None:
    database, reference = Database(4.0, penalty=0.1), SlowStart()
    run(database, reference, 40.0)
    assert 0.6 * database.knee < held(database, reference) < 1.1 * database.knee


def test_when_the_database_does_half_as_much_the_reference_follows_and_when_it_recovers_too() -> None:
    database, reference = Database(6.0, pool=30), SlowStart()
    run(database, reference, 60.0)
    database.servers = 3.0
    run(database, reference, 60.0)
    assert held(database, reference) == pytest.approx(3000.0, rel=0.25)
    database.servers = 6.0
    run(database, reference, 60.0)
    assert held(database, reference) == pytest.approx(6000.0, rel=0.25)


def test_counted_in_connections_nine_tenths_of_the_most_are_held() -> None:
    database, reference = Database(4.0), SlowStart(50.0)
    run(database, reference, 40.0, Unit.CONNECTIONS)
    assert held(database, reference, unit=Unit.CONNECTIONS) == pytest.approx(200.0, rel=0.15)


def test_while_nobody_waits_nothing_is_concluded() -> None:
    database, reference = Database(4.0), SlowStart()
    database.demand_per_s = 300.0
    run(database, reference, 60.0)
    assert (reference.state, reference.value) == ("startup", 500.0)


def test_what_was_found_outlives_a_quiet_night() -> None:
    database, reference = Database(4.0), SlowStart()
    run(database, reference, 60.0)
    before = held(database, reference, 20.0)
    database.demand_per_s = 50.0
    run(database, reference, 600.0)
    assert reference.value == pytest.approx(before, rel=0.2)
    database.demand_per_s = math.inf
    assert held(database, reference) == pytest.approx(database.knee, rel=0.2)


def test_failures_under_load_lower_the_reference_at_once_and_it_grows_again_slowly() -> None:
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
    assert held(database, reference) == pytest.approx(database.knee, rel=0.25)


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
    assert held(database, reference) > 0.7 * database.knee


def test_a_page_that_breaks_later_does_not_either() -> None:
    database, reference = Database(4.0), SlowStart()
    run(database, reference, 40.0)
    database.broken_share = 0.2
    run(database, reference, 30.0)
    assert held(database, reference) > 0.7 * database.knee


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
    reference = SlowStart(100.0)
    values = [reference.observe(seen(reference.value)) for _ in range(16)]
    assert values[3::4] == [200.0, 400.0, 800.0, 1600.0]


def test_when_more_load_brings_no_more_work_and_is_slow_the_start_ends_in_the_same_round() -> None:
    reference = SlowStart(100.0)
    for _ in range(8):
        reference.observe(seen(reference.value))
    for _ in range(4):
        reference.observe(seen(200.0, load_per_s=400.0, response_s=0.05))
    assert (reference.state, reference.value) == ("drain", 200.0)


def test_slow_responses_alone_do_not_end_the_start() -> None:
    reference = SlowStart(100.0)
    for _ in range(4):
        reference.observe(seen(reference.value))
    for _ in range(4):
        reference.observe(seen(reference.value, response_s=0.05))
    assert reference.state == "startup"


def test_late_failures_of_requests_from_before_do_not_lower_the_reference_again() -> None:
    reference = SlowStart(100.0)
    for _ in range(8):
        reference.observe(seen(reference.value))
    reference.observe(seen(100.0))
    lowered = reference.observe(seen(100.0, failures=20, failed_s=5.0))
    assert reference.state == "recover"
    for _ in range(19):
        assert reference.observe(seen(100.0, failures=20, failed_s=5.0)) == lowered


def test_a_round_goes_on_until_enough_has_ended_to_judge_by() -> None:
    reference = SlowStart(100.0)
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
            SlowStart(**{name: bad})


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
    reference = SlowStart(100.0, least=10.0)
    for each in observations:
        value = reference.observe(each)
        assert math.isfinite(value)
        assert value >= 10.0
