from __future__ import annotations

import subprocess
import sys

import pytest

from flyball.admission import sensors
from flyball.errors import AdmissionError


@pytest.mark.parametrize(
    ("name", "driver", "others"),
    [
        ("AsyncpgSensor", "asyncpg", ("psycopg_pool", "sqlalchemy")),
        ("PsycopgSensor", "psycopg_pool", ("asyncpg", "sqlalchemy")),
        ("SqlalchemySensor", "sqlalchemy", ("asyncpg", "psycopg_pool")),
    ],
)
def test_a_sensor_needs_no_driver_but_its_own(name: str, driver: str, others: tuple[str, str]) -> None:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({others!r}))"
    program = f"{blocked}; from flyball.admission.sensors import {name}; {name}(); assert sys.modules[{driver!r}]"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("name", "module", "driver", "package"),
    [
        ("AsyncpgSensor", "asyncpg", "asyncpg", "asyncpg"),
        ("PsycopgSensor", "psycopg", "psycopg_pool", r"psycopg\[pool\]"),
        ("SqlalchemySensor", "sqlalchemy", "sqlalchemy", "sqlalchemy"),
    ],
)
def test_a_sensor_without_its_driver_says_what_to_install(
    name: str, module: str, driver: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, f"flyball.admission.sensors.{module}", raising=False)
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(AdmissionError, match=f"{name} needs {driver}: pip install '{package}'"):
        getattr(sensors, name)


def test_there_are_no_other_sensors() -> None:
    with pytest.raises(AttributeError, match="OracleSensor"):
        _ = sensors.OracleSensor
