"""From what was asked for to a law and its limits: by design for a plant, or with the gains that were given."""

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
# What of a tuning a law takes.
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
# How many poles a law has that can be placed.
POLES = {LawName.P: 1, LawName.PI: 2, LawName.PID: 3}
# To say which poles: one of these.
WAYS = ({"pole"}, {"poles"}, {"settling_samples", "overshoot"})


def check_tuning(names: Sequence[LawName], tuning: Tuning) -> None:
    """Raise WrongUse if something is asked for twice, or of none of these laws: it would be ignored."""
    given = {field.name for field in fields(tuning) if getattr(tuning, field.name) is not None}
    if "gains" in given and len(given) > 1:
        raise WrongUse(f"--gains say all about a law: leave out {_flags(given - {'gains'})}")
    unused = given - {"gains"}.union(*(TAKEN[name] for name in names))
    if unused:
        raise WrongUse(f"{_flags(unused)} would be ignored: no such choice for {', '.join(names)}")
    for name in names:
        if sum(bool(way & given & TAKEN[name]) for way in WAYS) > 1:
            raise WrongUse(f"{name}: give --pole, or --poles, or --settling-samples and --overshoot, not several")


def limits_of(wanted: tuple[float, float]) -> Limits:
    """Return limits of a window or a pace."""
    if min(wanted) < 0:
        raise WrongUse(f"--limits {wanted[0]:g} {wanted[1]:g}: a window or a pace is not below 0")
    return Limits(*wanted)


def goal_warning(plant: Plant | None, setpoint: float | None) -> str | None:
    """Return a warning if a plant was not seen around the goal, so that its model says little there."""
    if plant is None or setpoint is None or not plant.curve:
        return None
    measured = [measurement for _, measurement in plant.curve]
    if min(measured) <= setpoint <= max(measured):
        return None
    return (
        f"the goal {setpoint:g} lies outside of what the model was identified from, {min(measured):.4g} to"
        f" {max(measured):.4g}: identify the plant around the goal"
    )


def law_for(name: LawName, plant: Plant | None, tuning: Tuning) -> Law[Any]:
    """Return the law. Raises ControlError if this plant, or the lack of one, does not allow it."""
    if tuning.gains is not None:
        return law_from_json({"kind": "pi" if name is LawName.LAMBDA_PI else name.value, **_gains(tuning.gains)})
    if name is LawName.MULTIPLICATIVE:
        return Multiplicative() if tuning.exponent is None else Multiplicative(tuning.exponent)
    if name is LawName.SELF_TUNING:
        return SelfTuning() if tuning.pole is None else SelfTuning(tuning.pole)
    if plant is None:
        raise WrongUse(f"a {name} law is designed for a plant: give its model, or choose {' or '.join(MODEL_FREE)}")
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
    """Return the gains of a law in a line."""
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
        raise WrongUse(f"--poles {text}: give numbers such as 0.5+0.3i,0.5-0.3i") from None
    if len(poles) != count:
        raise WrongUse(f"--poles {text}: this law has {count}, not {len(poles)}")
    return poles


def _gains(text: str) -> dict[str, float]:
    gains = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            gains[name.strip()] = float(value)
        except ValueError:
            raise WrongUse(f"--gains {text}: give numbers by their names, as in kp=0.002,ki=0.006") from None
    return gains
