"""The kinds of models: each document is parsed as its consumers parse the file. Pure.

Returns summaries of documents. `certify` decides whether a version may be put in force.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flyball.admission.profile import profile_from
from flyball.broker.models.capacity import options_of_model
from flyball.control.certificate import check
from flyball.control.documents import design_from_json
from flyball.control.laws import law_to_json
from flyball.control.model_file import read_plants
from flyball.errors import AdmissionError, ClusterError, ControlError, InvalidArgument

SERVICE_TIMES_VERSION = 1
# Parameters of a law in a summary.
MAX_SHOWN = 4
NO_CERTIFICATE = "the design has no certificate"


@dataclass(frozen=True, slots=True)
class Facts:
    """The summary of a document, and the document's own verdict on its soundness; None without a verdict."""

    summary: str
    is_sound: bool | None = None
    objections: tuple[str, ...] = ()


Reader = Callable[[Mapping[str, Any]], Facts]


def read_document(kind: str, document: Mapping[str, Any]) -> Facts:
    """Parse a model's document. Raises InvalidArgument that names the problem."""
    check_kind(kind)
    try:
        return READERS[kind](document)
    except (ControlError, AdmissionError, ClusterError) as error:
        raise InvalidArgument(f"invalid {kind} model: {error}") from error
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        # Parsers of files trust the pipeline that wrote them; a document in a request may contain anything.
        raise InvalidArgument(f"invalid {kind} model: malformed ({error})") from error


def check_kind(kind: str) -> None:
    """Raise InvalidArgument for an unknown kind."""
    if kind not in READERS:
        raise InvalidArgument(f"unknown kind of model {kind!r}: use {', '.join(READERS)}")


def certify(facts: Facts, certificate: Mapping[str, Any] | None) -> Facts:
    """Return the facts with the verdict of a certificate: sound only if document and certificate are.

    Raises InvalidArgument unless the certificate has a boolean `is_sound`.
    """
    if certificate is None:
        return facts
    is_sound = certificate.get("is_sound")
    if not isinstance(is_sound, bool):
        raise InvalidArgument('invalid certificate: "is_sound" must be true or false')
    objections = facts.objections if is_sound else (*facts.objections, *_reasons(certificate))
    return Facts(facts.summary, is_sound and facts.is_sound is not False, tuple(dict.fromkeys(objections)))


def _reasons(certificate: Mapping[str, Any]) -> Sequence[str]:
    found = certificate.get("reasons") or certificate.get("objections") or certificate.get("reason")
    if isinstance(found, str):
        return (found,)
    if isinstance(found, list) and all(isinstance(one, str) for one in found):
        return found
    return ("the certificate gives no reason",)


def _design(document: Mapping[str, Any]) -> Facts:
    design = design_from_json(document)
    law = {name: value for name, value in law_to_json(design.law).items() if name != "kind"}
    summary = f"{design.law.kind} law of {design.loop}{_listed(law)}"
    certificate = design.certificate
    if certificate is None:
        return Facts(summary, False, (NO_CERTIFICATE,))
    objections = certificate.reasons
    try:
        # Forced, so that only a certificate of another law or loop is refused.
        check(
            certificate.forced(),
            design.law,
            sample_time_s=design.sample_time_s,
            smoothing_share=design.smoothing_share,
        )
    except ControlError as error:
        objections = (str(error), *objections)
    return Facts(summary, not objections, objections)


def _plant(document: Mapping[str, Any]) -> Facts:
    plants = read_plants(document)
    if not plants:
        raise ControlError("no plant was found in it")
    objections = [objection for plant in plants for objection in plant.objections]
    first = plants[0]
    values = {"a": first.a, "b": first.b, "delay": first.delay}
    summary = f"{first.loop}{_listed(values)}" if len(plants) == 1 else f"{len(plants)} plants"
    return Facts(summary, not objections, tuple(objections))


def _profile(document: Mapping[str, Any]) -> Facts:
    profile = profile_from(document)
    return Facts(f"{len(profile.classes)} classes of {len(profile.keys)} kinds of requests, in {profile.unit}")


def _capacity(document: Mapping[str, Any]) -> Facts:
    options = options_of_model(json.dumps(document), "capacity")
    values = {name.replace("_", " "): value for name, value in options.items()}
    return Facts(_listed(values).removeprefix(": "))


def _service_times(document: Mapping[str, Any]) -> Facts:
    """Quantiles of the service time of a queue's messages, rising with their share."""
    if document.get("kind") != SERVICE_TIMES or document.get("version") != SERVICE_TIMES_VERSION:
        raise ValueError(f'"kind" must be "{SERVICE_TIMES}" and "version" {SERVICE_TIMES_VERSION}')
    samples, quantiles = document.get("samples"), document.get("quantiles_ms")
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        raise ValueError('"samples" must be a positive integer')
    if not isinstance(quantiles, Mapping) or not quantiles:
        raise ValueError('"quantiles_ms" must map shares, such as "0.99", to milliseconds')
    rising = sorted((float(share), value) for share, value in quantiles.items())
    for share, value in rising:
        if not (0 < share <= 1) or isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError('"quantiles_ms" must map shares above 0 and up to 1 to numbers')
        if not (math.isfinite(value) and value >= 0):
            raise ValueError('"quantiles_ms" must be finite and at least 0')
    times = [value for _, value in rising]
    if times != sorted(times):
        raise ValueError('"quantiles_ms" must not fall with their share')
    shown = ", ".join(f"p{100 * share:g} {value:.3g} ms" for share, value in rising[-MAX_SHOWN:])
    return Facts(f"{shown} of {samples} messages")


def _listed(values: Mapping[str, Any]) -> str:
    numbers = {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    shown = ", ".join(f"{name} {value:.3g}" for name, value in list(numbers.items())[:MAX_SHOWN])
    return f": {shown}" if shown else ""


SERVICE_TIMES = "service-times"

READERS: Mapping[str, Reader] = {
    "plant": _plant,
    "design": _design,
    "profile": _profile,
    "capacity": _capacity,
    SERVICE_TIMES: _service_times,
}
