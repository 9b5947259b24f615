"""Sensors that measure connection pools.

A driver is imported only with its sensor.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from flyball.admission.sensors.sensor import Sensor
from flyball.admission.sensors.thread import ThreadSensor
from flyball.errors import AdmissionError

if TYPE_CHECKING:
    from flyball.admission.sensors.asyncpg import AsyncpgSensor
    from flyball.admission.sensors.psycopg import PsycopgSensor
    from flyball.admission.sensors.sqlalchemy import SqlalchemySensor

__all__ = ["AsyncpgSensor", "PsycopgSensor", "Sensor", "SqlalchemySensor", "ThreadSensor"]

# By sensor: its module, and the package to install.
_NEEDS = {
    "AsyncpgSensor": ("asyncpg", "asyncpg"),
    "PsycopgSensor": ("psycopg", "psycopg[pool]"),
    "SqlalchemySensor": ("sqlalchemy", "sqlalchemy"),
}


def __getattr__(name: str) -> object:
    if name not in _NEEDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, package = _NEEDS[name]
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        raise AdmissionError(f"{name} needs {error.name}: pip install '{package}'") from error
