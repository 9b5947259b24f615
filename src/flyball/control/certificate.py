"""The proof that a law holds a plant, as it is stored with the gains: poles and margins, and whether they are enough.

Plain data: a loop that starts reads it without any library of control theory. How it is found is in `verification`
and `model_free`.
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
ROUNDING = 1e-9
"""A law that is designed for exactly the least margin has it up to rounding."""


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
    worst_poles: tuple[complex, ...] = ()
    """Of the closed loop with the plant of the confidence set on which it is slowest, or unstable."""
    nominal_gain_margin: float | None = None
    """With the plant as it was estimated. The more it exceeds the worst one, the less sure the estimate is."""
    nominal_delay_margin_samples: float | None = None
    sample_time_s: float | None = None
    """Only a loop with this sample time has these margins; None if they are the same for every one."""
    smoothing_share: float | None = None
    """Of the filter of measurements, which is a part of the loop."""

    @property
    def reason(self) -> str | None:
        """Why a loop should not be started with this law; None if nothing speaks against it."""
        if not self.largest_pole < 1:
            return (
                f"it is unstable on {self.plant}: a pole has the absolute value {self.largest_pole:.3g}, not below 1:"
                f" {self._advice()}"
            )
        if not self.gain_margin >= LEAST_GAIN_MARGIN * (1 - ROUNDING):
            return (
                f"its gain margin on {self.plant} is {self.gain_margin:.3g}, below {LEAST_GAIN_MARGIN:g}:"
                f" {self._advice()}"
            )
        return None

    def _advice(self) -> str:
        cures = []
        if self.gain_margin > 0:
            cures.append(f"multiply the gains by {_rounded_down(self.gain_margin / LEAST_GAIN_MARGIN):g}")
        if (self.nominal_gain_margin or 0) >= LEAST_GAIN_MARGIN:
            cures.append("identify the plant with more samples")
        return ", or ".join(cures or ["no smaller gains help, design others for this plant"])

    @property
    def is_sound(self) -> bool:
        return self.reason is None


def check(
    certificate: Certificate | None,
    law: Law[Any],
    *,
    sample_time_s: float | None = None,
    smoothing_share: float | None = None,
) -> None:
    """Raise ControlError unless there is a sound certificate of this very law, with this sample time and filter."""
    refused = "the loop does not start"
    remedy = "make one with `flyball control design`"
    if certificate is None:
        raise ControlError(f"{refused}: the {law.kind} law has no certificate; {remedy}")
    if dict(certificate.law) != law_to_json(law):
        raise ControlError(f"{refused}: its certificate is of other gains; {remedy}")
    if None not in (certificate.sample_time_s, sample_time_s) and certificate.sample_time_s != sample_time_s:
        raise ControlError(
            f"{refused}: its certificate is for a sample time of {certificate.sample_time_s} s, not {sample_time_s} s"
        )
    if certificate.smoothing_share != smoothing_share:
        filters = [
            "no filter" if share is None else f"a filter with the share {share:g}"
            for share in (certificate.smoothing_share, smoothing_share)
        ]
        raise ControlError(f"{refused}: its certificate is for {filters[0]} of measurements, but it has {filters[1]}")
    if certificate.reason is not None:
        raise ControlError(f"{refused} with the {law.kind} law: {certificate.reason}")


def certificate_to_json(certificate: Certificate) -> dict[str, Any]:
    """Return a certificate as a document; what is infinite is null, which JSON can say."""
    nominal = certificate.nominal_gain_margin, certificate.nominal_delay_margin_samples
    return {
        "law": dict(certificate.law),
        "plant": certificate.plant,
        "poles": _poles_to_json(certificate.poles),
        "largest_pole": certificate.largest_pole if math.isfinite(certificate.largest_pole) else None,
        "gain_margin": _finite(certificate.gain_margin),
        "delay_margin_samples": _finite(certificate.delay_margin_samples),
        "worst_poles": _poles_to_json(certificate.worst_poles),
        "nominal": (
            None
            if nominal[0] is None or nominal[1] is None
            else {"gain_margin": _finite(nominal[0]), "delay_margin_samples": _finite(nominal[1])}
        ),
        "sample_time_s": certificate.sample_time_s,
        "smoothing_share": certificate.smoothing_share,
        "is_sound": certificate.is_sound,
        "reason": certificate.reason,
    }


def certificate_summary(certificate: Certificate) -> dict[str, Any]:
    """Return what is shown of a certificate beside its loop; a margin without a bound is null."""
    gain, delay_samples = _finite(certificate.gain_margin), _finite(certificate.delay_margin_samples)
    times = "any gain" if gain is None else f"{gain:.3g} times the gain"
    later = "any delay" if delay_samples is None else f"{delay_samples:.3g} samples of delay"
    return {
        "is_sound": certificate.is_sound,
        "kind": "model free" if certificate.sample_time_s is None else "model",
        "margins": {
            "gain": gain,
            "delay_samples": delay_samples,
            "largest_pole": certificate.largest_pole if math.isfinite(certificate.largest_pole) else None,
        },
        "reasons": [] if certificate.reason is None else [certificate.reason],
        "text": f"On {certificate.plant} the loop bears {times} and {later} before it swings.",
    }


def certificate_from_json(document: object) -> Certificate:
    """Return the certificate of a document. Raises ControlError if it is none."""
    if not isinstance(document, Mapping):
        raise ControlError(f"a certificate is an object, not {document!r}")
    try:
        nominal = document.get("nominal")
        return Certificate(
            dict(document["law"]),
            str(document["plant"]),
            _poles_from_json(document["poles"]),
            _number(document["largest_pole"]),
            _number(document["gain_margin"]),
            _number(document["delay_margin_samples"]),
            _poles_from_json(document.get("worst_poles", ())),
            None if nominal is None else _number(nominal["gain_margin"]),
            None if nominal is None else _number(nominal["delay_margin_samples"]),
            *(
                None if document.get(key) is None else _number(document[key])
                for key in ("sample_time_s", "smoothing_share")
            ),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ControlError(f"this is no certificate: {error!r}; make one with `flyball control design`") from error


def _poles_to_json(poles: tuple[complex, ...]) -> list[list[float]]:
    return [[pole.real, pole.imag] for pole in poles]


def _poles_from_json(document: Any) -> tuple[complex, ...]:
    return tuple(complex(real, imaginary) for real, imaginary in document)


def _finite(number: float) -> float | None:
    # Not a number is no margin at all. It must not come back as an infinite one.
    return None if number == math.inf else 0.0 if math.isnan(number) else number


def _number(value: object) -> float:
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _rounded_down(number: float) -> float:
    """Return a positive number with two digits: a factor rounded up would not be enough."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 1)
    return math.floor(number / unit) * unit
