"""`flyball control design`: design a law for a model, certify it, write and print both."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from flyball.cli.control_commands import plots
from flyball.cli.control_commands.documents import read_plant, write_json
from flyball.cli.control_commands.failures import WrongUse, warn
from flyball.cli.control_commands.laws import check_tuning, described, goal_warning, law_for, limits_of
from flyball.cli.control_commands.requests import Files, LawName, Tuning
from flyball.cli.output import Output
from flyball.control.documents import Design, design_to_json
from flyball.control.laws import Law
from flyball.control.margins import closed_loop_poles
from flyball.control.model_free import loop_gain
from flyball.control.plant import Plant
from flyball.control.stability import step_response
from flyball.control.verification import certify
from flyball.errors import ControlError

DRAWN_STEPS = 30
DRAWN_PLANTS = 16
# Slopes, in logarithms, of the curves for which a law without model is plotted.
ELASTICITIES = {1.0: "elasticity 1", 0.75: "0.75, 0.5 and 0.25, from left to right", 0.5: "", 0.25: ""}


def design(
    model: Path | None,
    name: LawName,
    tuning: Tuning,
    limits_wanted: tuple[float, float],
    setpoint: float | None,
    sample_time_s: float | None,
    loop: str | None,
    is_forced: bool,
    files: Files,
    as_json: bool,
) -> None:
    """Design a law and certify it. Raises ControlError, after all is written, if the law must not be used."""
    plot = files.plot_path("design.svg")
    plots.check_name(plot)
    check_tuning([name], tuning)
    if setpoint is not None and not setpoint > 0:
        raise WrongUse(f"invalid --setpoint {setpoint:g}: use a value above 0")
    limits = limits_of(limits_wanted)
    plant = None if model is None else read_plant(model, loop, sample_time_s)
    law = law_for(name, plant, tuning)
    certificate = certify(law, plant, limits)
    found = Design(
        loop=(plant.loop if plant else loop) or "",
        law=law,
        limits=limits,
        sample_time_s=plant.sample_time_s if plant else sample_time_s or 1.0,
        setpoint=setpoint,
        plant=plant,
        certificate=certificate.forced() if is_forced else certificate,
    )
    path = files.folder / "design.json"
    write_json(path, design_to_json(found))
    plots.save(plots.design(responses(law, plant), f"{name}: {described(law)}"), plot)
    _print(found, path, plot, Output(sys.stdout.buffer, as_json))
    warn(goal_warning(plant, setpoint))
    if is_forced and certificate.reason is not None:
        warn(f"forced: loops start although the certificate is not sound: {certificate.reason}")
    elif certificate.reason is not None:
        raise ControlError(
            f"the certificate refuses this {law.kind} law, so no loop starts with it: {certificate.reason}"
        )


def responses(law: Law[Any], plant: Plant | None) -> list[plots.Response]:
    """Return step responses of the loop, for the plant and for the boundary of its confidence set.

    For a model-free law: for curves of different slopes, with steps in logarithms.
    """
    gain = loop_gain(law)
    if gain is not None:
        return [
            plots.Response(
                name,
                [1 - (1 - gain * steepness) ** step for step in range(DRAWN_STEPS)],
                (complex(1 - gain * steepness),),
                is_centre=steepness == 1,
            )
            for steepness, name in ELASTICITIES.items()
        ]
    assert plant is not None, "only model-free laws are designed without a model"
    return [
        plots.Response(
            "estimated plant" if number == 0 else "its confidence set" if number == 1 else "",
            step_response(law, one, DRAWN_STEPS)[0],
            closed_loop_poles(law, one),
            is_centre=number == 0,
        )
        for number, one in enumerate(plant.variants(DRAWN_PLANTS))
    ]


def _print(found: Design, path: Path, plot: Path, out: Output) -> None:
    if out.is_json:
        out.json({"design": str(path), "plot": str(plot), **design_to_json(found)})
        return
    certificate = found.certificate
    assert certificate is not None, "a design that is made here has a certificate"
    verdict = "sound" if certificate.is_sound else "NOT SOUND, forced" if certificate.is_forced else "NOT SOUND"
    rows = [
        ("law", f"{found.law.kind}: {described(found.law)}"),
        ("plant", certificate.plant),
        ("poles", ", ".join(map(_pole, certificate.poles))),
        ("largest pole", f"{certificate.largest_pole:.3g} at worst; below 1 is stable"),
        ("gain margin", f"{_margin(certificate.gain_margin)} at worst; 2 or more is wanted"),
        ("delay margin", f"{_margin(certificate.delay_margin_samples)} samples at worst"),
        ("certificate", verdict),
    ]
    if certificate.lowest_gain_factor > 0:
        rows.insert(-1, ("lowest gain", f"{certificate.lowest_gain_factor:.3g} times what it is"))
    out.table(("", ""), rows)
    for objection in certificate.objections:
        out.show(f"  model: {objection}", None)
    out.show(f"design: {path}\nplot:   {plot}", None)


def _margin(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "unlimited"


def _pole(pole: complex) -> str:
    return f"{pole.real:.3g}" if abs(pole.imag) < 1e-9 else f"{pole.real:.3g}{pole.imag:+.3g}i"
