"""Properties that hold for every scheduler."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.admission.schedulers import SCHEDULERS, Dps, Memoryless, Standing, Turnout, make_scheduler
from flyball.errors import AdmissionError
from tests.admission.schedulers.standings import chances, standings, turnouts

counts = st.integers(0, 10_000)
costs = st.lists(st.floats(0.01, 1e5), min_size=1, max_size=4).map(sorted)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[Turnout]], list[Standing]]:
    """Draw what became of some classes in some periods, and how they stand then, at least one of them waiting."""
    of_classes = draw(costs)
    periods = draw(
        st.lists(
            st.lists(st.tuples(counts, counts, counts, counts), min_size=len(of_classes), max_size=len(of_classes)),
            max_size=8,
        )
    )
    waiting = draw(st.lists(st.integers(0, 3), min_size=len(of_classes), max_size=len(of_classes)).filter(any))
    ages_s = [draw(st.floats(0.0, 100.0)) if number else 0.0 for number in waiting]
    # A class that waits has come: the average of its arrivals may be small but is not 0, except in the first period.
    arrivals_per_s = [draw(st.floats(0.01, 1e4)) if periods else 0.0 for _ in of_classes]
    learned = [[Turnout(cost, *row) for cost, row in zip(of_classes, rows, strict=True)] for rows in periods]
    return learned, standings(of_classes, waiting, ages_s, arrivals_per_s)


@settings(deadline=None)
@given(name=st.sampled_from(sorted(SCHEDULERS)), history=histories())
def test_whatever_was_learned_somebody_who_waits_passes_for_certain(
    name: str, history: tuple[list[list[Turnout]], list[Standing]]
) -> None:
    scheduler = make_scheduler(name)
    periods, classes = history
    for period in periods:
        scheduler.end_period(period)
    found = chances(scheduler, classes)
    assert max(found) == 1.0
    assert min(found) >= 0.0


@settings(deadline=None)
@given(name=st.sampled_from(["dps", "memoryless", "static", "round_robin", "strict"]), history=histories())
def test_the_cheapest_that_waits_always_passes(
    name: str, history: tuple[list[list[Turnout]], list[Standing]]
) -> None:
    scheduler = make_scheduler(name)
    periods, classes = history
    for period in periods:
        scheduler.end_period(period)
    assert chances(scheduler, classes)[0] == 1.0


@settings(deadline=None)
@given(scheduler=st.builds(Dps) | st.builds(Memoryless), history=histories())
def test_no_class_starves_under_dps_whatever_was_learned(
    scheduler: Dps | Memoryless, history: tuple[list[list[Turnout]], list[Standing]]
) -> None:
    periods, classes = history
    for period in periods:
        scheduler.end_period(period)
    assert min(chances(scheduler, classes)) > 0.0


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_schedulers_survive_a_change_of_classes(name: str) -> None:
    scheduler = make_scheduler(name)
    for of_classes in ((1.0, 10.0), (1.0, 4.0, 16.0), (2.0,), (1.0, 10.0)):
        many = [5] * len(of_classes)
        # A period may have begun before the scheduler learns of it: it is asked about classes that it does not know.
        assert max(chances(scheduler, standings(of_classes, many))) == 1.0
        scheduler.end_period(turnouts(of_classes, many, many))
        assert len(scheduler.probabilities()) == len(of_classes)
        assert max(chances(scheduler, standings(of_classes, many))) == 1.0


def test_an_unknown_scheduler_is_refused_with_the_names_of_those_that_exist() -> None:
    with pytest.raises(
        AdmissionError, match="unknown scheduler 'lifo': use one of dps, memoryless, static, round_robin"
    ):
        make_scheduler("lifo")
