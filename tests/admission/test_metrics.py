from __future__ import annotations

from prometheus_client import CollectorRegistry

from flyball.admission import Admission, AdmissionOptions, Meter, OneClass
from flyball.admission.metrics import AdmissionCollector
from tests.control.clock import run_leaping


class Sensor:
    def __init__(self) -> None:
        self.meter = Meter(lambda: 0.0)


def test_metrics_say_what_became_of_requests_and_how_busy_the_database_is() -> None:
    sensor = Sensor()
    sensor.meter.size_of(sensor, 10)
    registry = CollectorRegistry()

    async def serve() -> None:
        admission = Admission(sensor, options=AdmissionOptions(reference=1000.0, classifier=OneClass()))
        registry.register(AdmissionCollector(admission))
        (await admission.admit("GET /")).end()
        (await admission.admit("GET /")).end(is_failure=True)
        await admission.admit("GET /")
        sensor.meter.ask().got()
        admission.stop()

    run_leaping(serve())
    value = registry.get_sample_value
    assert value("flyball_admission_requests_total", {"class": "0", "outcome": "served"}) == 1
    assert value("flyball_admission_requests_total", {"class": "0", "outcome": "failed"}) == 1
    assert value("flyball_admission_wait_seconds_bucket", {"class": "0", "le": "0.0"}) == 3
    assert value("flyball_admission_wait_seconds_count", {"class": "0"}) == 3
    assert value("flyball_admission_in_flight") == 1
    assert value("flyball_admission_reference", {"unit": "ms"}) == 1000.0
    assert value("flyball_admission_pool_busy") == 1
    assert value("flyball_admission_pool_size") == 10
    assert value("flyball_admission_connections_total") == 1
    assert value("flyball_admission_waiting", {"class": "0"}) == 0


def test_metrics_exist_before_the_first_request_and_without_pool_size() -> None:
    registry = CollectorRegistry()
    registry.register(AdmissionCollector(Admission(Sensor(), options=AdmissionOptions(reference=1000.0))))
    assert registry.get_sample_value("flyball_admission_load", {"unit": "ms"}) == 0
    assert registry.get_sample_value("flyball_admission_pool_size") is None
