"""Certificates say the truth about the whole confidence set, and loops without a sound one are refused."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.control.certificate import (
    UNTESTED,
    Certificate,
    certificate_from_json,
    certificate_summary,
    certificate_to_json,
    check,
)
from flyball.control.design import lambda_pi, place_pi
from flyball.control.identification import identify
from flyball.control.laws import (
    Integral,
    Law,
    Multiplicative,
    Pid,
    Proportional,
    ProportionalIntegral,
    Scheduled,
    SelfTuning,
)
from flyball.control.limits import Limits
from flyball.control.margins import closed_loop_poles, gain_margin
from flyball.control.model_file import read_model
from flyball.control.plant import DIAGNOSTICS_MISSING, Check, Diagnostics, LinearRange, OperatingPoint, Plant
from flyball.control.signals import random_steps
from flyball.control.uncertainty import confidence_set
from flyball.control.verification import certify, describe
from flyball.errors import ControlError

from .plants import measured

PAPER_PLANT = Plant(a=0.26, b=59.73)
TESTED = Diagnostics((Check("whiteness", 0.4, 0.001),))
VAGUE = Plant(a=0.26, b=59.73, covariance=((0.0025, -0.1), (-0.1, 64.0)), degrees_of_freedom=50, diagnostics=TESTED)
CURVE = tuple((u, 1250 * u / (u + 3.34)) for u in (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0))

LAWS = (lambda_pi(PAPER_PLANT), ProportionalIntegral(-0.0016, 0.006), Pid(-0.000385, 0.007919, 0.0018417))
VAGUELY_CERTIFIED = [(law, certify(law, VAGUE)) for law in LAWS]


def test_a_lambda_tuned_law_on_a_plant_that_is_known_well_is_sound() -> None:
    certificate = certify(lambda_pi(PAPER_PLANT), PAPER_PLANT)
    assert certificate.is_sound
    assert certificate.reason is None
    assert certificate.poles == pytest.approx((0.8, 0.26))
    assert certificate.gain_margin == certificate.nominal_gain_margin == pytest.approx(10)
    assert certificate.delay_margin_samples == 7


def test_doubt_about_the_plant_costs_margin() -> None:
    sure, unsure = certify(lambda_pi(PAPER_PLANT), PAPER_PLANT), certify(lambda_pi(PAPER_PLANT), VAGUE)
    assert unsure.gain_margin < sure.gain_margin
    assert unsure.largest_pole > sure.largest_pole
    assert unsure.delay_margin_samples <= sure.delay_margin_samples
    assert unsure.nominal_gain_margin == pytest.approx(10)
    assert abs(unsure.worst_poles[0]) == unsure.largest_pole


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(VAGUELY_CERTIFIED),
    st.floats(0, 1),
    st.floats(0, 2 * math.pi),
)
def test_no_plant_of_the_confidence_set_is_worse_than_the_certificate(
    certified: tuple[Law[Any], Certificate], radius: float, angle: float
) -> None:
    law, certificate = certified
    inverse = _inverse(VAGUE.covariance)
    direction = (math.cos(angle) * 0.05, math.sin(angle) * 8)
    # The boundary in this direction, by the equation of the ellipse: 2 F(2, 50) at 90 % is 4.824.
    length = math.sqrt(4.824 / sum(inverse[i][j] * direction[i] * direction[j] for i in (0, 1) for j in (0, 1)))
    plant = Plant(a=0.26 + radius * length * direction[0], b=59.73 + radius * length * direction[1])
    assert gain_margin(law, plant) >= 0.98 * certificate.gain_margin
    assert abs(closed_loop_poles(law, plant)[0]) <= certificate.largest_pole + 0.01


def _inverse(covariance: Any) -> list[list[float]]:
    (p, q), (_, r) = covariance
    determinant = p * r - q * q
    return [[r / determinant, -q / determinant], [-q / determinant, p / determinant]]


def test_the_confidence_set_holds_the_estimate_the_boundary_and_the_inside() -> None:
    plants = confidence_set(VAGUE)
    assert len(plants) == 1 + 3 * 24
    assert (plants[0].a, plants[0].b) == (VAGUE.a, VAGUE.b)
    assert confidence_set(PAPER_PLANT) == [PAPER_PLANT]


def test_the_seeds_proportional_gain_is_refused_and_told_what_would_pass() -> None:
    certificate = certify(Proportional(0.0205), PAPER_PLANT)
    assert not certificate.is_sound
    assert certificate.reason is not None
    assert "gain margin on y(k+1) = 0.26 y(k) + 59.7 u(k) is 1.03, below 2: multiply the gains by 0.51" in (
        certificate.reason
    )
    assert certify(Proportional(0.51 * 0.0205), PAPER_PLANT).is_sound


def test_what_only_the_doubt_makes_unsound_asks_for_more_samples() -> None:
    law = lambda_pi(PAPER_PLANT, 0.1)
    reason = certify(law, VAGUE).reason
    assert reason is not None
    assert "multiply the gains by 0." in reason
    assert "or identify the plant with more samples" in reason


def test_an_unstable_law_is_refused_with_the_factor_that_would_make_it_sound() -> None:
    certificate = certify(ProportionalIntegral(0.02, 0.03), PAPER_PLANT)
    assert certificate.largest_pole > 1
    assert certificate.reason is not None
    assert "unstable" in certificate.reason
    factor = float(certificate.reason.split("multiply the gains by ")[1])
    assert certify(ProportionalIntegral(0.02 * factor, 0.03 * factor), PAPER_PLANT).is_sound


def test_a_law_with_the_wrong_sign_is_not_told_to_be_smaller() -> None:
    reason = certify(Integral(-0.001), PAPER_PLANT).reason
    assert reason is not None
    assert reason.endswith("no smaller gains help, design others for this plant")


def test_lambda_tuning_with_delay_is_sound_however_fast_it_is_asked_to_be() -> None:
    for delay in (1, 2, 5):
        plant = Plant(a=0.3, b=2.0, delay=delay)
        assert certify(lambda_pi(plant, 0.0), plant).is_sound


@pytest.mark.parametrize("pole", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("delay", [0, 1, 2, 5])
@pytest.mark.parametrize("a", [0.0, 0.3, 0.8])
def test_lambda_tuning_passes_its_own_certificate_on_an_uncertain_plant(a: float, delay: int, pole: float) -> None:
    plant = dataclasses.replace(VAGUE, a=a, delay=delay)
    certificate = certify(lambda_pi(plant, pole), plant)
    assert certificate.is_sound, certificate.reason
    assert certificate.gain_margin >= 2.499


@pytest.mark.parametrize("seed", range(10))
def test_lambda_tuning_of_an_identified_delayed_plant_is_sound(seed: int) -> None:
    actions = random_steps(1, 22, 200, seed=seed)
    y = measured(Plant(a=0.5, b=30.0, delay=3), actions, noise=60, seed=100 + seed)
    plant = identify(y, actions, sample_time_s=1.0)
    assert plant.objections == ()
    certificate = certify(lambda_pi(plant, 0.5), plant)
    assert certificate.is_sound, certificate.reason
    assert gain_margin(lambda_pi(plant, 0.5), Plant(a=0.5, b=30.0, delay=3)) > 2


@pytest.mark.parametrize(
    "plant",
    [
        Plant(a=1.1, ar=(-0.5,), b=10.0, bs=(15.0,), delay=2),
        Plant(a=0.4, ar=(0.2, 0.1), b=1.0, bs=(1.0, 2.0)),
        Plant(a=-0.2, ar=(0.1,), b=-3.0, bs=(-1.0,)),
    ],
)
def test_lambda_tuning_of_a_higher_order_keeps_its_margins(plant: Plant) -> None:
    for pole in (0.0, 0.5, 0.8):
        assert certify(lambda_pi(plant, pole), plant).is_sound


def test_a_loop_that_becomes_unstable_when_the_gain_falls_is_not_sound() -> None:
    certificate = certify(Proportional(0.7), Plant(a=1.2, b=1.0))
    assert certificate.largest_pole < 1
    assert certificate.gain_margin > 2
    assert certificate.lowest_gain_factor == pytest.approx(0.2 / 0.7)
    assert not certificate.is_sound
    assert "when the plant's gain falls to 0.286 times what it is" in str(certificate.reason)


def test_other_delays_that_the_data_allow_count() -> None:
    law = lambda_pi(PAPER_PLANT, 0.5)
    late = Plant(a=0.26, b=59.73, delay=2)
    plant = dataclasses.replace(VAGUE, alternatives=(late,))
    assert certify(law, plant).gain_margin == pytest.approx(gain_margin(law, late))


def test_a_steeper_part_of_the_curve_counts() -> None:
    plant = dataclasses.replace(VAGUE, steepest_ratio=2.0)
    law = lambda_pi(PAPER_PLANT)
    assert certify(law, plant).gain_margin == pytest.approx(certify(law, VAGUE).gain_margin / 2)


DOUBTFUL = dataclasses.replace(
    VAGUE, diagnostics=Diagnostics((Check("whiteness", 1e-9, 0.001, "the residuals are not white"),))
)


def test_a_certificate_repeats_what_speaks_against_its_model() -> None:
    law = lambda_pi(DOUBTFUL)
    certificate = certify(law, DOUBTFUL)
    assert certificate.reasons == ("the residuals are not white",)
    assert not certificate.is_sound
    with pytest.raises(ControlError, match="does not start with the pi law: the residuals are not white"):
        check(certificate, law)
    assert certificate_summary(certificate)["reasons"] == ["the residuals are not white"]


def test_a_forced_certificate_lets_the_loop_start_and_says_so() -> None:
    law = lambda_pi(DOUBTFUL)
    certificate = certificate_from_json(json.loads(json.dumps(certificate_to_json(certify(law, DOUBTFUL).forced()))))
    check(certificate, law)
    assert certificate.is_forced
    assert not certificate.is_sound
    summary = certificate_summary(certificate)
    assert (summary["is_forced"], summary["is_sound"]) == (True, False)
    assert not certify(lambda_pi(VAGUE), VAGUE).forced().is_forced


def test_a_model_without_diagnostics_is_read_and_its_design_is_not_sound() -> None:
    entry = {key: value for key, value in VAGUE.to_json().items() if key not in NEW_FIELDS}
    plant = read_model(json.dumps({"version": 1, "kind": "plant", "plants": [entry]}))
    assert plant.warnings == (DIAGNOSTICS_MISSING,)
    assert certify(lambda_pi(plant), plant).reasons == (DIAGNOSTICS_MISSING,)


NEW_FIELDS = ("diagnostics", "alternatives", "steepest_ratio")


def test_a_certificate_of_an_earlier_version_stays_sound_and_has_a_warning() -> None:
    law = lambda_pi(VAGUE)
    document = certificate_to_json(certify(law, VAGUE))
    for key in ("version", "objections", "warnings", "is_forced", "lowest_gain_factor"):
        del document[key]
    certificate = certificate_from_json(document)
    assert certificate.is_sound
    assert certificate.warnings == (UNTESTED,)
    check(certificate, law)
    assert certificate_summary(certificate)["warnings"] == [UNTESTED]


def test_a_filter_belongs_to_the_certificate() -> None:
    law = place_pi(PAPER_PLANT, 0.1, 0.1)
    assert certify(law, PAPER_PLANT).largest_pole < certify(law, PAPER_PLANT, smoothing_share=0.2).largest_pole


@pytest.mark.parametrize(
    ("law", "margin", "delay_samples"),
    [(Multiplicative(0.4), 5.0, 3), (Multiplicative(1.0), 2.0, 0), (SelfTuning(), 2.0, 1)],
)
def test_laws_without_model_are_sound_on_every_concave_curve(
    law: Law[Any], margin: float, delay_samples: int
) -> None:
    certificate = certify(law, None)
    assert certificate.is_sound
    assert certificate.gain_margin == pytest.approx(margin)
    assert certificate.delay_margin_samples == pytest.approx(delay_samples, abs=1)


def test_too_much_of_a_law_without_model_is_refused() -> None:
    assert not certify(Multiplicative(1.2), None).is_sound
    assert not certify(SelfTuning(pole=0.5, lowest_elasticity=0.2), None).is_sound
    assert certify(SelfTuning(pole=0.5, lowest_elasticity=0.5), None).is_sound


@pytest.mark.parametrize("law", [Multiplicative(0.4), SelfTuning()])
def test_with_a_plant_they_are_integral_action_on_its_memory_and_delay(law: Law[Any]) -> None:
    gain = 0.4 if isinstance(law, Multiplicative) else 1.0
    assert certify(law, PAPER_PLANT).gain_margin == pytest.approx(2 * 1.26 / (gain * 0.74))
    delayed = Plant(a=0.0, b=59.73, delay=1)
    assert certify(law, delayed).gain_margin == pytest.approx(1 / gain)


def test_an_elasticity_above_one_at_the_operating_point_counts() -> None:
    convex = Plant(a=0.0, b=100.0, offset=-200.0, operating_point=OperatingPoint(6.0, 400.0))
    assert certify(Multiplicative(0.4), convex).gain_margin == pytest.approx(5 / 1.5)


def test_a_scheduled_law_on_its_own_curve_is_linear() -> None:
    law = Scheduled.on(CURVE)
    plant = Plant(a=0.0, b=173.0, curve=CURVE)
    assert certify(law, plant).gain_margin == pytest.approx(10)
    assert certify(law, None).gain_margin == pytest.approx(10)


def test_a_scheduled_law_loses_margin_in_proportion_to_a_steeper_curve() -> None:
    law = Scheduled.on(CURVE)
    steeper = Plant(a=0.0, b=173.0, curve=tuple((u, 3 * y) for u, y in CURVE))
    assert certify(law, steeper).gain_margin == pytest.approx(10 / 3)


def test_a_scheduled_law_is_compared_only_within_limits_and_linear_range() -> None:
    law = Scheduled((0.0, 1.0, 2.0), (0.0, 100.0, 101.0))
    plant = Plant(a=0.0, b=100.0, linear_range=LinearRange(0.0, 2.0, True, 0.25))
    assert not certify(law, plant).is_sound
    assert certify(law, plant, Limits(0.0, 1.0)).gain_margin == pytest.approx(10)
    with pytest.raises(ControlError, match="outside of the limits"):
        certify(law, plant, Limits(3.0, 4.0))


@pytest.mark.parametrize(
    ("law", "plant", "complaint"),
    [
        (lambda_pi(PAPER_PLANT), None, "give its model"),
        (lambda_pi(PAPER_PLANT), Plant(a=0.2, b=0.0), "no effect"),
        (Multiplicative(), Plant(a=0.2, b=-1.0), "rises with the action"),
        (Multiplicative(), Plant(a=1.0, b=1.0), "rises with the action and settles"),
    ],
)
def test_what_cannot_be_verified_is_refused(law: Law[Any], plant: Plant | None, complaint: str) -> None:
    with pytest.raises(ControlError, match=complaint):
        certify(law, plant)


def test_a_certificate_goes_through_json_unharmed() -> None:
    for certificate in (certify(lambda_pi(PAPER_PLANT), VAGUE, smoothing_share=0.5), certify(Multiplicative(), None)):
        assert certificate_from_json(json.loads(json.dumps(certificate_to_json(certificate)))) == certificate


def test_infinite_margins_are_null_and_no_number_is_no_margin() -> None:
    certificate = certify(Proportional(0.0, 0.0124), PAPER_PLANT)
    document = certificate_to_json(certificate)
    assert document["gain_margin"] is None
    assert certificate_from_json(document).gain_margin == math.inf
    broken = Certificate({}, "", (), 0.5, math.nan, 0.0)
    assert not certificate_from_json(certificate_to_json(broken)).is_sound


@pytest.mark.parametrize("document", [None, [], {}, {"law": {}, "plant": "", "poles": 1}, {"law": None}])
def test_what_is_no_certificate_is_refused(document: object) -> None:
    with pytest.raises(ControlError, match="certificate"):
        certificate_from_json(document)


def test_a_loop_starts_only_with_a_sound_certificate_of_its_own() -> None:
    law = lambda_pi(PAPER_PLANT)
    certificate = certify(law, PAPER_PLANT)
    check(certificate, law)
    check(certificate, law, sample_time_s=1.0)
    with pytest.raises(ControlError, match="has no certificate"):
        check(None, law)
    with pytest.raises(ControlError, match="of other gains"):
        check(certificate, lambda_pi(PAPER_PLANT, 0.7))
    with pytest.raises(ControlError, match=r"for a sample time of 1.0 s, not 10.0 s"):
        check(certificate, law, sample_time_s=10.0)
    with pytest.raises(ControlError, match=r"for no filter of measurements, but it has a filter with the share 0\.3"):
        check(certificate, law, smoothing_share=0.3)
    with pytest.raises(ControlError, match="does not start with the p law: its gain margin"):
        check(certify(Proportional(0.0205), PAPER_PLANT), Proportional(0.0205))


def test_a_plant_is_described_by_its_equation() -> None:
    plant = Plant(a=0.5, b=-2.0, offset=-3.0, ar=(-0.1,), bs=(1.0,), delay=1)
    assert describe(plant) == "y(k+1) = 0.5 y(k) - 0.1 y(k-1) - 2 u(k-1) + 1 u(k-2) - 3"
    assert describe(Plant(a=-0.5, b=2.0)) == "y(k+1) = - 0.5 y(k) + 2 u(k)"
    assert describe(VAGUE).endswith("within its 90% confidence")
