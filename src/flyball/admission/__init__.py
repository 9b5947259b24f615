"""Admission control: requests wait in front of an application while its database is busy."""

from flyball.admission.admission import Admission, Admitted, Waiting
from flyball.admission.asgi import AdmissionMiddleware
from flyball.admission.classifier import Classifier, OneClass
from flyball.admission.counts import Served
from flyball.admission.keys import django_key, litestar_key, path_key, starlette_key
from flyball.admission.meter import Meter, current_use
from flyball.admission.metrics import AdmissionCollector
from flyball.admission.options import AdmissionOptions
from flyball.admission.profile import Profile, load_profile
from flyball.admission.reference import FixedReference, Reference, SlowStart
from flyball.admission.schedulers import Dps, Fifo, Memoryless, RoundRobin, Scheduler, Static, Strict, make_scheduler
from flyball.admission.use import Unit, Use

__all__ = [
    "Admission",
    "AdmissionCollector",
    "AdmissionMiddleware",
    "AdmissionOptions",
    "Admitted",
    "Classifier",
    "Dps",
    "Fifo",
    "FixedReference",
    "Memoryless",
    "Meter",
    "OneClass",
    "Profile",
    "Reference",
    "RoundRobin",
    "Scheduler",
    "Served",
    "SlowStart",
    "Static",
    "Strict",
    "Unit",
    "Use",
    "Waiting",
    "current_use",
    "django_key",
    "litestar_key",
    "load_profile",
    "make_scheduler",
    "path_key",
    "starlette_key",
]
