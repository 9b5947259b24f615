from __future__ import annotations

import pytest

from flyball.admission.schedulers import Static
from flyball.errors import AdmissionError
from tests.admission.schedulers.standings import standings, turnouts
from tests.admission.simulation import simulate

COSTS = (1.0, 4.0, 16.0)


def test_by_default_a_class_has_the_inverse_of_its_cost() -> None:
    scheduler = Static()
    assert scheduler.probability(2, standings(COSTS, (1, 1, 1))) == 1 / 16
    scheduler.end_period(turnouts(COSTS, (1, 1, 1), (1, 1, 1)))
    assert scheduler.probabilities() == (1.0, 0.25, 0.0625)


def test_given_probabilities_hold_and_the_last_one_for_all_further_classes() -> None:
    scheduler = Static((1.0, 0.3))
    assert [scheduler.probability(number, standings(COSTS, (1, 1, 1))) for number in range(3)] == [1.0, 0.3, 0.3]


def test_a_class_passes_for_certain_while_no_cheaper_one_waits() -> None:
    assert Static((1.0, 0.3)).probability(2, standings(COSTS, (0, 0, 1))) == 1.0


@pytest.mark.parametrize("probabilities", [(), (1.0, 0.0), (1.5,)])
def test_probabilities_must_let_everybody_pass_at_some_time(probabilities: tuple[float, ...]) -> None:
    with pytest.raises(AdmissionError, match="above 0 and at most 1"):
        Static(probabilities)


def test_overload_of_both_classes_splits_the_budget_in_half() -> None:
    outcome = simulate(Static(), (1.0, 10.0), (3.0, 1.5))
    assert [load * each for load, each in zip(outcome.loads, outcome.fractions, strict=True)] == pytest.approx(
        [0.5, 0.5], abs=0.03
    )
