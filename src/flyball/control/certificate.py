"""The stored proof that a law stabilizes a plant: poles, margins, and whether the margins are sufficient.

Plain data: a loop reads it at its start without any library of control theory. `verification` and `model_free`
compute it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flyball.control.laws import Law, law_to_json
from flyball.errors import ControlError

VERSION = 2
# The loop must stay stable if the plant has twice the estimated gain.
LEAST_GAIN_MARGIN = 2.0
# A law designed for exactly the minimum margin meets it only up to rounding.
ROUNDING = 1e-9
# A certificate of version 1 does not record tests of its model.
UNTESTED = "the certificate was made by an earlier version, without tests of its model; design again"


@dataclass(frozen=True, slots=True)
class Certificate:
    """Poles and margins of a law on a plant; each is the worst over all plants that the data allow.

    `gain_margin` is the factor by which the plant's gain may grow before the loop is unstable, infinite if it never
    is. `lowest_gain_factor` is the factor to which the gain may fall, 0 if there is no lower bound.
    """

    # As in documents: the certificate holds for this law only.
    law: Mapping[str, Any]
    # For display: "y(k+1) = 0.26 y(k) + 59.7 u(k)", "every concave curve through the origin".
    plant: str
    # Of the closed loop with the estimated plant.
    poles: tuple[complex, ...]
    # The largest absolute value of a pole in the worst case; the loop is stable below 1.
    largest_pole: float
    gain_margin: float
    # Additional samples of delay before the loop is unstable, in the worst case.
    delay_margin_samples: float
    # Of the closed loop with the plant of the confidence set for which it is slowest, or unstable.
    worst_poles: tuple[complex, ...] = ()
    # With the estimated plant. The more it exceeds the worst one, the less certain the estimate is.
    nominal_gain_margin: float | None = None
    nominal_delay_margin_samples: float | None = None
    # The margins hold for this sample time only; None if they are independent of it.
    sample_time_s: float | None = None
    # Of the measurement filter, which is part of the loop.
    smoothing_share: float | None = None
    lowest_gain_factor: float = 0.0
    # Tests that the model of the plant failed.
    objections: tuple[str, ...] = ()
    # Hints that do not make the certificate unsound.
    warnings: tuple[str, ...] = ()
    # A person has accepted the reasons against it: a loop may start although it is not sound.
    is_forced: bool = False

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why a loop should not be started with this law; empty if the certificate is sound."""
        margin = self._margin_reason()
        return self.objections if margin is None else (margin, *self.objections)

    @property
    def reason(self) -> str | None:
        """All reasons in one line; None if the certificate is sound."""
        return "; ".join(self.reasons) or None

    @property
    def is_sound(self) -> bool:
        return not self.reasons

    @property
    def may_start(self) -> bool:
        """Whether a loop may start with it: it is sound, or a person has accepted its reasons."""
        return self.is_sound or self.is_forced

    def forced(self) -> Certificate:
        """Return the certificate with its reasons accepted."""
        return replace(self, is_forced=not self.is_sound)

    def _margin_reason(self) -> str | None:
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
        if self.lowest_gain_factor > 0:
            return (
                f"it becomes unstable on {self.plant} when the plant's gain falls to {self.lowest_gain_factor:.3g}"
                " times what it is: design a slower law, or identify the plant with more samples"
            )
        return None

    def _advice(self) -> str:
        remedies = []
        if self.gain_margin > 0:
            remedies.append(f"multiply the gains by {_rounded_down(self.gain_margin / LEAST_GAIN_MARGIN):g}")
        if (self.nominal_gain_margin or 0) >= LEAST_GAIN_MARGIN:
            remedies.append("identify the plant with more samples")
        return ", or ".join(remedies or ["no smaller gains help, design others for this plant"])


def check(
    certificate: Certificate | None,
    law: Law[Any],
    *,
    sample_time_s: float | None = None,
    smoothing_share: float | None = None,
) -> None:
    """Raise ControlError unless the certificate is for exactly this law, sample time and filter.

    It must also be sound, or forced.
    """
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
    if not certificate.may_start:
        raise ControlError(f"{refused} with the {law.kind} law: {certificate.reason}")


def certificate_to_json(certificate: Certificate) -> dict[str, Any]:
    """Return a certificate as a document; an infinite margin becomes null, since JSON has no infinity."""
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
        "version": VERSION,
        "lowest_gain_factor": certificate.lowest_gain_factor,
        "objections": list(certificate.objections),
        "warnings": list(certificate.warnings),
        "is_forced": certificate.is_forced,
        "is_sound": certificate.is_sound,
        "reason": certificate.reason,
    }


def certificate_summary(certificate: Certificate) -> dict[str, Any]:
    """Return the summary of a certificate that is shown with its loop; a margin without a bound is null."""
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
        "reasons": list(certificate.reasons),
        "text": f"On {certificate.plant} the loop bears {times} and {later} before it swings.",
        # Omitted if empty: a node of an earlier version refuses fields that it does not know.
        **({"is_forced": True} if certificate.is_forced else {}),
        **({"warnings": list(certificate.warnings)} if certificate.warnings else {}),
    }


def certificate_from_json(document: object) -> Certificate:
    """Return the certificate of a document. Raises ControlError if the document is not one."""
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
            sample_time_s=_number_or_none(document.get("sample_time_s")),
            smoothing_share=_number_or_none(document.get("smoothing_share")),
            lowest_gain_factor=float(document.get("lowest_gain_factor", 0.0)),
            objections=_texts(document.get("objections", ())),
            warnings=_texts(document.get("warnings", ())) if "version" in document else _untested(document),
            is_forced=document.get("is_forced") is True,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ControlError(f"this is not a certificate: {error!r}; make one with `flyball control design`") from error


def _untested(document: Mapping[str, Any]) -> tuple[str, ...]:
    # A certificate without a sample time does not depend on a model.
    return () if document.get("sample_time_s") is None else (UNTESTED,)


def _texts(document: Any) -> tuple[str, ...]:
    return tuple(map(str, document))


def _poles_to_json(poles: tuple[complex, ...]) -> list[list[float]]:
    return [[pole.real, pole.imag] for pole in poles]


def _poles_from_json(document: Any) -> tuple[complex, ...]:
    return tuple(complex(real, imaginary) for real, imaginary in document)


def _finite(number: float) -> float | None:
    # NaN is not a margin. As null it would be read back as infinite.
    return None if number == math.inf else 0.0 if math.isnan(number) else number


def _number(value: object) -> float:
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _number_or_none(value: object) -> float | None:
    return None if value is None else _number(value)


def _rounded_down(number: float) -> float:
    """Return a positive number rounded down to two digits: a factor rounded up would not be enough."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 1)
    return math.floor(number / unit) * unit
