"""Admission policies between the auction site and its visitors, by name: none, Flyball's variants, or common limits.

Wraps an application, and defines what it records. Starts and serves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Scope

from flyball.admission import AdmissionOptions
from flyball.admission.admission import Admission
from flyball.admission.asgi import AdmissionMiddleware
from flyball.admission.classes import RequestClasses
from flyball.admission.classifier import Classifier, OneClass
from flyball.admission.profile import profile_from
from flyball.admission.recording import Recording
from flyball.admission.sensors.sensor import Sensor
from flyball.admission.use import Unit
from flyball.lab.auction.limits import Gradient2, GradientLimit, SemaphoreLimit
from flyball.lab.auction.settings import CONTROLLED, SiteSettings
from flyball.lab.auction.watching import LOOP, LoadSampler, Watch

STATE_PATH = "/admission"
# Policies whose name is not that of their scheduler.
SCHEDULERS = {"integral": "fifo", "classes": "fifo"}


@dataclass(frozen=True, slots=True)
class Guarded:
    """A site wrapped in its policy."""

    app: ASGIApp
    # Additional options of uvicorn.
    server_options: dict[str, Any] = field(default_factory=dict)
    # Must be started; None if admission control itself records the load.
    sampler: LoadSampler | None = None


def guarded(
    site: ASGIApp, key: Callable[[Scope], str], sensor: Sensor, settings: SiteSettings, recording: Recording
) -> Guarded:
    """Wrap a site in the policy of the settings. Raises AdmissionError if the profile does not fit."""
    if settings.policy in CONTROLLED:
        admission = Admission(
            sensor,
            options=AdmissionOptions(
                classifier=_classifier(settings),
                scheduler=SCHEDULERS.get(settings.policy, settings.policy),
                reference=settings.reference,
                unit=Unit(settings.unit),
                gain=settings.gain,
                period_s=settings.period_s,
                deadline_s=settings.deadline_s,
                queue_limit=settings.queue_limit,
                full_ratio=settings.full_ratio,
                record=recording.record,
                note=recording.note,
                name=LOOP,
            ),
        )
        return Guarded(AdmissionMiddleware(site, admission, key=key, state_path=STATE_PATH))
    app: ASGIApp = Watch(site, key, recording.note)
    sampler = LoadSampler(sensor.meter, Unit(settings.unit), settings.period_s, recording.record)
    if settings.policy == "semaphore":
        return Guarded(SemaphoreLimit(app, settings.limit), sampler=sampler)
    if settings.policy == "gradient":
        return Guarded(GradientLimit(app, Gradient2(settings.limit)), sampler=sampler)
    options = {"limit_concurrency": settings.limit} if settings.policy == "uvicorn" else {}
    return Guarded(app, options, sampler)


def _classifier(settings: SiteSettings) -> RequestClasses:
    if settings.policy == "integral":
        return OneClass()
    return Classifier(None if settings.profile is None else profile_from(settings.profile))
