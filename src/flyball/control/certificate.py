"""The proof that a law holds a plant, as it is stored with the gains: poles and margins, and whether they are enough.

Plain data: a loop that starts reads it without any library of control theory. How it is found is in `verification`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyball.control.laws import Law, law_to_json
from flyball.errors import ControlError

LEAST_GAIN_MARGIN = 2.0
"""The plant may turn out to have twice the gain it is believed to have."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is known about a law on a plant; the worst is over the whole confidence set of the plant."""

    law: Mapping[str, Any]
    """As in documents: the certificate is of this law and no other."""
    plant: str
    """What it holds for, in words: "y(k+1) = 0.26 y(k) + 59.7 u(k)", "every concave curve through the origin"."""
    poles: tuple[complex, ...]
    """Of the closed loop with the plant as it was estimated."""
    largest_pole: float
    """The largest absolute value of a pole, at worst; below 1 the loop is stable."""
    gain_margin: float
    """So many times the gain may be larger before the loop is unstable, at worst; infinite if it never is."""
    delay_margin_samples: float
    """So many samples later may the effect come before the loop is unstable, at worst."""

    @property
    def reason(self) -> str | None:
        """Why a loop should not be started with this law; None if nothing speaks against it."""
        if not self.largest_pole < 1:
            return (
                f"it is unstable on {self.plant}: a pole has the absolute value {self.largest_pole:.3g}, not below 1"
            )
        if not self.gain_margin >= LEAST_GAIN_MARGIN:
            share = self.gain_margin / LEAST_GAIN_MARGIN
            return (
                f"its gain margin on {self.plant} is {self.gain_margin:.3g}, below {LEAST_GAIN_MARGIN:g}:"
                f" multiply the gains by {share:.2g}, or identify the plant with more samples"
            )
        return None

    @property
    def is_sound(self) -> bool:
        return self.reason is None


def check(certificate: Certificate | None, law: Law[Any]) -> None:
    """Raise ControlError unless there is a sound certificate of this very law."""
    if certificate is None:
        raise ControlError(
            f"the loop does not start: the {law.kind} law has no certificate; make one with `flyball control design`"
        )
    if dict(certificate.law) != law_to_json(law):
        raise ControlError(
            "the loop does not start: its certificate is of other gains; make one with `flyball control design`"
        )
    if certificate.reason is not None:
        raise ControlError(f"the loop does not start with the {law.kind} law: {certificate.reason}")


def certificate_to_json(certificate: Certificate) -> dict[str, Any]:
    """Return a certificate as a document; what is infinite is null, which JSON can say."""
    return {
        "law": dict(certificate.law),
        "plant": certificate.plant,
        "poles": [[pole.real, pole.imag] for pole in certificate.poles],
        "largest_pole": _finite(certificate.largest_pole),
        "gain_margin": _finite(certificate.gain_margin),
        "delay_margin_samples": _finite(certificate.delay_margin_samples),
        "is_sound": certificate.is_sound,
        "reason": certificate.reason,
    }


def certificate_from_json(document: object) -> Certificate:
    """Return the certificate of a document. Raises ControlError if it is none."""
    if not isinstance(document, Mapping):
        raise ControlError(f"a certificate is an object, not {document!r}")
    try:
        return Certificate(
            dict(document["law"]),
            str(document["plant"]),
            tuple(complex(real, imaginary) for real, imaginary in document["poles"]),
            _number(document["largest_pole"]),
            _number(document["gain_margin"]),
            _number(document["delay_margin_samples"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ControlError(f"this is no certificate: {error!r}; make one with `flyball control design`") from error


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _number(value: object) -> float:
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)
