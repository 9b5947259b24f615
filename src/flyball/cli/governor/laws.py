"""From what was asked for to a law: by design for a plant, or with the gains that were given."""

from __future__ import annotations

from typing import Any, Literal

from flyball.cli.governor.requests import LawName, Tuning
from flyball.cli.governor.telling import WrongUse
from flyball.control.design import LAMBDA, integral, lambda_pi, place_p, place_pi, place_pid, poles_for
from flyball.control.laws import Law, Multiplicative, Scheduled, SelfTuning, law_from_json, law_to_json
from flyball.control.plant import Plant

MODEL_FREE = (LawName.MULTIPLICATIVE, LawName.SELF_TUNING)


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
    pole = LAMBDA if tuning.pole is None else tuning.pole
    match name:
        case LawName.LAMBDA_PI:
            return lambda_pi(plant, pole)
        case LawName.I:
            return integral(plant, pole)
        case LawName.SCHEDULED:
            return Scheduled.on(plant.curve, pole)
        case LawName.P:
            return place_p(plant, pole if tuning.poles is None else _poles(tuning.poles, 1)[0])
        case LawName.PI:
            return place_pi(plant, *_chosen_poles(tuning, 2))
        case LawName.PID:
            return place_pid(plant, *_chosen_poles(tuning, 3))


def described(law: Law[Any]) -> str:
    """Return the gains of a law in a line."""
    gains = {name: value for name, value in law_to_json(law).items() if name != "kind"}
    texts = [f"{name} {value:.5g}" for name, value in gains.items() if isinstance(value, float | int)]
    if isinstance(law, Scheduled):
        texts.insert(0, f"curve of {len(law.actions)} points")
    return ", ".join(texts)


def _chosen_poles(tuning: Tuning, count: Literal[2, 3]) -> tuple[complex, ...]:
    if tuning.poles is not None:
        return _poles(tuning.poles, count)
    if tuning.pole is not None:
        return (complex(tuning.pole),) * count
    return poles_for(tuning.settling_samples, tuning.overshoot, count)


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
