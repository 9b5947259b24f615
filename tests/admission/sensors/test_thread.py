import threading
import time

from flyball.admission.sensors import ThreadSensor


def test_a_thread_that_works_is_busy_and_one_that_waits_is_not() -> None:
    sensor = ThreadSensor()
    before_s = sensor.meter.usage.busy_s
    end_s = time.thread_time() + 0.02
    while time.thread_time() < end_s:
        pass
    busy_s = sensor.meter.usage.busy_s
    assert busy_s - before_s >= 0.02
    threading.Event().wait(0.05)
    assert sensor.meter.usage.busy_s - busy_s < 0.04


def test_it_has_no_pool_that_could_be_full() -> None:
    usage = ThreadSensor().meter.usage
    assert (usage.size, usage.busy, usage.waiting) == (None, 0, 0)
