"""Builds a law with limits from the options: designed for a plant, or with given gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from flyball.cli.control_commands.failures import WrongUse
from flyball.cli.control_commands.requests import LawName, Tuning
from flyball.control.design import LAMBDA, design_law
from flyball.control.laws import Law, Multiplicative, Scheduled, SelfTuning, law_from_json, law_to_json
from flyball.control.limits import Limits
from flyball.control.plant import Plant

MODEL_FREE = (LawName.MULTIPLICATIVE, LawName.SELF_TUNING)
# Tuning options that each law accepts.
TAKEN: dict[LawName, set[str]] = {
    LawName.LAMBDA_PI: {"pole"},
    LawName.P: {"pole", "poles"},
    LawName.I: {"pole"},
    LawName.PI: {"pole", "poles", "settling_samples", "overshoot"},
    LawName.PID: {"pole", "poles", "settling_samples", "overshoot"},
    LawName.SCHEDULED: {"pole"},
    LawName.MULTIPLICATIVE: {"exponent"},
    LawName.SELF_TUNING: {"pole"},
}
# Number of poles that each law can place.
POLES = {LawName.P: 1, LawName.PI: 2, LawName.PID: 3}
# Alternative ways to specify poles.
WAYS = ({"pole"}, {"poles"}, {"settling_samples", "overshoot"})


def check_tuning(names: Sequence[LawName], tuning: Tuning) -> None:
    """Raise WrongUse for conflicting options, and options that none of the laws accepts."""
    given = {field.name for field in fields(tuning) if getattr(tuning, field.name) is not None}
    if "gains" in given and len(given) > 1:
        raise WrongUse(f"--gains excludes {_flags(given - {'gains'})}")
    unused = given - {"gains"}.union(*(TAKEN[name] for name in names))
    if unused:
        raise WrongUse(f"{_flags(unused)} does not apply to {', '.join(names)}")
    for name in names:
        if sum(bool(way & given & TAKEN[name]) for way in WAYS) > 1:
            raise WrongUse(f"{name}: use only one of --pole, --poles, or --settling-samples with --overshoot")


def limits_of(wanted: tuple[float, float]) -> Limits:
    """Return the limits of a window or rate."""
    if min(wanted) < 0:
        raise WrongUse(f"invalid --limits {wanted[0]:g} {wanted[1]:g}: the lower bound must be at least 0")
    return Limits(*wanted)


def goal_warning(plant: Plant | None, setpoint: float | None) -> str | None:
    """Return a warning if the setpoint is outside the data that the plant was identified from."""
    if plant is None or setpoint is None or not plant.curve:
        return None
    measured = [measurement for _, measurement in plant.curve]
    if min(measured) <= setpoint <= max(measured):
        return None
    return (
        f"the setpoint {setpoint:g} is outside the range that the model was identified from, {min(measured):.4g} to"
        f" {max(measured):.4g}: identify the plant around the setpoint"
    )


def law_for(name: LawName, plant: Plant | None, tuning: Tuning) -> Law[Any]:
    """Return the law. Raises ControlError if it cannot be designed for this plant, or without one."""
    if tuning.gains is not None:
        return law_from_json({"kind": "pi" if name is LawName.LAMBDA_PI else name.value, **_gains(tuning.gains)})
    if name is LawName.MULTIPLICATIVE:
        return Multiplicative() if tuning.exponent is None else Multiplicative(tuning.exponent)
    if name is LawName.SELF_TUNING:
        return SelfTuning() if tuning.pole is None else SelfTuning(tuning.pole)
    if plant is None:
        raise WrongUse(f"a {name} law needs a model: use MODEL.json, or --law {' or '.join(MODEL_FREE)}")
    if name is LawName.SCHEDULED:
        return Scheduled.on(plant.curve, LAMBDA if tuning.pole is None else tuning.pole)
    return design_law(
        name.value,
        plant,
        pole=tuning.pole,
        poles=None if tuning.poles is None else _poles(tuning.poles, POLES[name]),
        settling_steps=tuning.settling_samples,
        overshoot=tuning.overshoot,
    )


def described(law: Law[Any]) -> str:
    """Format the gains of a law."""
    gains = {name: value for name, value in law_to_json(law).items() if name != "kind"}
    texts = [f"{name} {value:.5g}" for name, value in gains.items() if isinstance(value, float | int)]
    if isinstance(law, Scheduled):
        texts.insert(0, f"curve of {len(law.actions)} points")
    return ", ".join(texts)


def _flags(names: set[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def _poles(text: str, count: int) -> tuple[complex, ...]:
    try:
        poles = tuple(complex(part.strip().replace("i", "j")) for part in text.split(","))
    except ValueError:
        raise WrongUse(f"invalid --poles {text}: use numbers such as 0.5+0.3i,0.5-0.3i") from None
    if len(poles) != count:
        raise WrongUse(f"--poles {text}: this law has {count} poles, not {len(poles)}")
    return poles


def _gains(text: str) -> dict[str, float]:
    gains = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            gains[name.strip()] = float(value)
        except ValueError:
            raise WrongUse(f"invalid --gains {text}: use NAME=VALUE pairs, as in kp=0.002,ki=0.006") from None
    return gains
