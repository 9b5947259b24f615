"""What stands between the auction site and its visitors, by name: nothing, our control in its variants, or others'.

Makes an application of an application, and says what records are made of it. Starts and serves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Scope

from flyball.admission.admission import Admission
from flyball.admission.asgi import AdmissionMiddleware
from flyball.admission.classes import RequestClasses
from flyball.admission.classifier import Classifier, OneClass
from flyball.admission.counts import Served
from flyball.admission.profile import profile_from
from flyball.admission.sensors.sensor import Sensor
from flyball.admission.use import Unit, Use
from flyball.lab.auction.limits import Gradient2, GradientLimit, SemaphoreLimit
from flyball.lab.auction.settings import CONTROLLED, SiteSettings
from flyball.lab.auction.watching import LOOP, LoadSampler, Watch
from flyball.trace.admissions import AdmissionWriter
from flyball.trace.samples import SampleWriter

STATE_PATH = "/admission"
SCHEDULERS = {"integral": "fifo", "classes": "fifo"}
"""Of the policies that are not called as their scheduler."""


class Records:
    """What a site records: each request, and the load of its database."""

    def __init__(self, folder: Path, name: str) -> None:
        self._admissions = AdmissionWriter(folder, name)
        self._samples = SampleWriter(folder, name)
        self.record = self._samples.record

    def start(self) -> None:
        """Begin to write. May be called once."""
        self._admissions.start()
        self._samples.start()

    def stop(self) -> None:
        """Write what is left."""
        self._admissions.stop()
        self._samples.stop()

    def note(self, served: Served) -> None:
        """Note a request that admission control has dealt with."""
        self._admissions.record(
            served.key,
            served.class_number,
            served.outcome,
            served.arrived_s,
            served.waited_s,
            served.served_s,
            served.connections,
            served.busy_s,
            served.waiting_s,
        )

    def note_use(self, key: str, outcome: str, arrived_s: float, served_s: float, use: Use) -> None:
        """Note a request that was only watched."""
        self._admissions.record(key, 0, outcome, arrived_s, 0.0, served_s, use.connections, use.busy_s, use.waiting_s)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A site with what stands before it."""

    app: ASGIApp
    server_options: dict[str, Any] = field(default_factory=dict)
    """What uvicorn is to be told besides."""
    sampler: LoadSampler | None = None
    """Somebody has to start it, unless control itself records the load."""


def guarded(
    site: ASGIApp, key: Callable[[Scope], str], sensor: Sensor, settings: SiteSettings, records: Records
) -> Guarded:
    """Put the policy of the settings before a site. Raises AdmissionError if the profile does not fit."""
    if settings.policy in CONTROLLED:
        admission = Admission(
            sensor,
            classifier=_classifier(settings),
            scheduler=SCHEDULERS.get(settings.policy, settings.policy),
            reference=settings.reference,
            unit=Unit(settings.unit),
            gain=settings.gain,
            period_s=settings.period_s,
            deadline_s=settings.deadline_s,
            queue_limit=settings.queue_limit,
            full_ratio=settings.full_ratio,
            record=records.record,
            note=records.note,
            name=LOOP,
        )
        return Guarded(AdmissionMiddleware(site, admission, key=key, state_path=STATE_PATH))
    app: ASGIApp = Watch(site, key, records.note_use)
    sampler = LoadSampler(sensor.meter, Unit(settings.unit), settings.period_s, records.record)
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
