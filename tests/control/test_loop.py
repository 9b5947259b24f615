"""The runner of loops, on a clock that the tests move."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flyball.control.certificate import Certificate
from flyball.control.controller import Controller
from flyball.control.laws import Integral, Law, law_to_json
from flyball.control.limits import Limits
from flyball.control.loop import Loop, Measurement, Sample
from flyball.errors import ControlError
from tests.control.clock import run_leaping

LAW = Integral(0.25)


class Plant:
    """y = 2 u, as sensor and actuator at once."""

    def __init__(self) -> None:
        self.action = 0.0
        self.applied: list[float] = []
        self.reads: list[float] = []
        self.slow_read_s = 0.0
        self.is_whole = False
        self.can_rise = True

    async def read(self) -> Measurement:
        self.reads.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.slow_read_s)
        return Measurement(2 * self.action, self.can_rise)

    async def apply(self, action: float) -> float:
        self.action = round(action) if self.is_whole else action
        self.applied.append(self.action)
        return self.action


def certificate_of(law: Law[Any], gain_margin: float = 4.0, largest_pole: float = 0.5) -> Certificate:
    return Certificate(law_to_json(law), "y = 2 u", (0.5 + 0j,), largest_pole, gain_margin, 3.0)


def loop_of(plant: Plant, samples: list[Sample], **options: Any) -> Loop:
    controller = Controller(LAW, Limits(0.0, 100.0), 40.0, 5.0)
    options = {"certificate": certificate_of(LAW), **options}
    return Loop("test", plant, controller, plant, 0.5, record=samples.append, **options)


async def run_for(loop: Loop, seconds: float) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(loop.run())
        await asyncio.sleep(seconds)
        loop.stop()


def test_a_loop_holds_its_goal_and_records_every_sample() -> None:
    plant, samples = Plant(), list[Sample]()
    run_leaping(run_for(loop_of(plant, samples), 10.2))
    assert [sample.sequence for sample in samples] == list(range(1, 21))
    assert [sample.at_s for sample in samples] == pytest.approx([0.5 * number for number in range(1, 21)])
    first, last = samples[0], samples[-1]
    assert (first.loop, first.sample_time_s, first.setpoint) == ("test", 0.5, 40.0)
    # The first action was the start, 5; it gave 10, and half of the error is made up for.
    assert (first.measurement, first.action) == (10.0, 12.5)
    assert last.measurement == pytest.approx(40.0, abs=1e-3)
    assert plant.applied[0] == 5.0


def test_what_happened_before_the_first_action_is_not_measured() -> None:
    plant = Plant()
    run_leaping(run_for(loop_of(plant, []), 0.7))
    assert plant.reads == pytest.approx([0.0, 0.5])


def test_what_the_actuator_really_did_is_recorded() -> None:
    plant, samples = Plant(), list[Sample]()
    plant.is_whole = True
    run_leaping(run_for(loop_of(plant, samples), 5.1))
    assert all(sample.action == int(sample.action) for sample in samples)


def test_a_tick_that_is_missed_is_left_out_and_counted() -> None:
    plant, samples = Plant(), list[Sample]()
    plant.slow_read_s = 0.7
    loop = loop_of(plant, samples)
    run_leaping(run_for(loop, 5.1))
    assert [sample.sequence for sample in samples] == [1, 3, 5, 7, 9][: len(samples)]
    assert loop.late_ticks == len(samples)


def test_in_shadow_mode_a_loop_computes_and_does_not_act() -> None:
    plant, samples = Plant(), list[Sample]()
    run_leaping(run_for(loop_of(plant, samples, is_shadow=True, certificate=None), 2.2))
    assert plant.applied == []
    assert [sample.action for sample in samples] == [15.0, 25.0, 35.0, 45.0]


def test_a_loop_that_leaves_shadow_mode_acts_from_its_last_applied_action() -> None:
    plant, samples = Plant(), list[Sample]()
    loop = loop_of(plant, samples)

    async def scenario() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(loop.run())
            await asyncio.sleep(0.7)
            assert plant.applied == [5.0, 12.5]
            loop.set_shadow(True)
            await asyncio.sleep(2)
            assert plant.applied == [5.0, 12.5], "what was applied last stays"
            assert samples[-1].action > 20, "what it computes meanwhile has run away"
            loop.set_shadow(False)
            await asyncio.sleep(0.01)
            assert plant.applied == [5.0, 12.5, 12.5], "at once, and without a bump"
            await asyncio.sleep(0.5)
            loop.stop()

    run_leaping(scenario())
    assert plant.applied == [5.0, 12.5, 12.5, 16.25]


def test_a_loop_that_began_in_shadow_mode_begins_to_act_with_its_first_action() -> None:
    plant = Plant()
    loop = loop_of(plant, [], is_shadow=True)

    async def scenario() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(loop.run())
            await asyncio.sleep(2.2)
            loop.set_shadow(False)
            await asyncio.sleep(0.01)
            loop.stop()

    run_leaping(scenario())
    assert plant.applied == [5.0]


@pytest.mark.parametrize("certificate", [None, certificate_of(LAW, gain_margin=1.3)])
def test_a_loop_without_a_sound_certificate_stays_in_shadow_mode(certificate: Certificate | None) -> None:
    loop = loop_of(Plant(), [], is_shadow=True, certificate=certificate)
    with pytest.raises(ControlError, match="does not start"):
        loop.set_shadow(False)
    assert loop.is_shadow


def test_while_the_loop_is_open_the_action_does_not_grow() -> None:
    plant, samples = Plant(), list[Sample]()
    plant.can_rise = False
    run_leaping(run_for(loop_of(plant, samples), 2.2))
    assert [sample.action for sample in samples] == [5.0] * 4


def test_a_loop_stops_between_samples_and_may_be_stopped_twice_or_early() -> None:
    async def scenario() -> int:
        plant, samples = Plant(), list[Sample]()
        loop = loop_of(plant, samples)
        loop.stop()
        loop.stop()
        await loop.run()
        return len(samples)

    assert run_leaping(scenario()) == 0


def test_an_error_of_the_sensor_ends_the_loop() -> None:
    class Broken(Plant):
        async def read(self) -> Measurement:
            if self.reads:
                raise ConnectionError("gone")
            return await super().read()

    with pytest.raises(ConnectionError, match="gone"):
        run_leaping(loop_of(Broken(), []).run())


@pytest.mark.parametrize(
    ("certificate", "complaint"),
    [
        (None, "has no certificate"),
        (certificate_of(Integral(0.3)), "of other gains"),
        (certificate_of(LAW, gain_margin=1.3), "gain margin on y = 2 u is 1.3, below 2"),
        (certificate_of(LAW, gain_margin=float("nan")), "gain margin"),
        (certificate_of(LAW, largest_pole=1.0), "unstable on y = 2 u"),
        (certificate_of(LAW, largest_pole=float("nan")), "unstable"),
    ],
)
def test_a_loop_refuses_a_law_that_is_not_proven_and_says_why(
    certificate: Certificate | None, complaint: str
) -> None:
    with pytest.raises(ControlError, match=complaint):
        loop_of(Plant(), [], certificate=certificate)


def test_a_law_that_is_not_proven_can_be_tried_on_purpose() -> None:
    samples: list[Sample] = []
    run_leaping(run_for(loop_of(Plant(), samples, certificate=None, allow_uncertified=True), 1.2))
    assert len(samples) == 2


@pytest.mark.parametrize("sample_time_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_sample_time_that_is_none_is_refused(sample_time_s: float) -> None:
    plant = Plant()
    controller = Controller(LAW, Limits(0.0, 100.0), 40.0, 5.0)
    with pytest.raises(ControlError, match="sample time"):
        Loop("test", plant, controller, plant, sample_time_s, certificate=certificate_of(LAW))
