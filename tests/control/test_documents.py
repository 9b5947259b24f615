"""Designs go from one command to the next without loss, and what is wrong with one is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flyball.control.certificate import check
from flyball.control.design import lambda_pi
from flyball.control.documents import Design, design_from_json, design_text, design_to_json, read_design
from flyball.control.laws import Multiplicative
from flyball.control.limits import Limits
from flyball.control.plant import Check, Diagnostics, Plant
from flyball.control.verification import certify
from flyball.errors import ControlError

PLANT = Plant(
    a=0.26,
    b=59.73,
    loop="prefetch",
    covariance=((1e-4, 0.0), (0.0, 1.0)),
    degrees_of_freedom=90,
    diagnostics=Diagnostics((Check("whiteness", 0.4, 0.001),)),
)
LAW = lambda_pi(PLANT)
DESIGN = Design("prefetch", LAW, Limits(1, 360), 1.0, 400.0, 0.5, PLANT, certify(LAW, PLANT, smoothing_share=0.5))


def test_a_design_is_the_same_after_it_was_written_and_read() -> None:
    assert read_design(design_text(DESIGN)) == DESIGN
    bare = Design("rate", Multiplicative(), Limits(0.1, 100))
    assert read_design(design_text(bare)) == bare


def test_what_was_read_lets_the_loop_start() -> None:
    design = read_design(design_text(DESIGN))
    check(design.certificate, design.law, sample_time_s=design.sample_time_s, smoothing_share=design.smoothing_share)


def changed(**changes: Any) -> dict[str, Any]:
    document = json.loads(json.dumps(design_to_json(DESIGN)))
    document.update(changes)
    return {key: value for key, value in document.items() if value != "left out"}


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ([], "not a design"),
        (changed(kind="plant"), "not a design"),
        (changed(version=2), "version 2"),
        (changed(law="left out"), "lacks 'law'"),
        (changed(law={"kind": "fuzzy"}), "no law 'fuzzy'"),
        (changed(law={"kind": "pi", "kp": 1}), "ki is missing"),
        (changed(limits=[1, 2]), "lowest and highest"),
        (changed(limits={"lowest": 1}), "lacks 'highest'"),
        (changed(limits={"lowest": 3, "highest": 1}), "in order"),
        (changed(sample_time_s="1"), "sample_time_s is '1'"),
        (changed(sample_time_s=0), "must be above 0"),
        (changed(setpoint=True), "setpoint is True"),
        (changed(smoothing_share=2), "smoothing share"),
        (changed(loop=None), "loop is None"),
        (changed(plant={"loop": "x"}), "plant of loop 'x'"),
        (changed(certificate={"law": {}}), "not a certificate"),
    ],
)
def test_what_is_wrong_with_a_design_is_said(document: object, complaint: str) -> None:
    with pytest.raises(ControlError, match=complaint):
        design_from_json(document)


def test_text_that_is_no_json_is_no_design() -> None:
    with pytest.raises(ControlError, match="not JSON"):
        read_design("{")
