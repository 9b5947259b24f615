"""Runs a control loop: at a fixed sample time it reads its sensor, updates its controller, and applies the action.

The only module of `control` that awaits. It takes the time from the event loop, and is independent of the measured
quantity and of the actuator.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flyball.control.certificate import Certificate, check
from flyball.control.controller import Controller
from flyball.control.laws import law_to_json
from flyball.control.tuning import UNTUNED, Mode, Tuning, tuning_of
from flyball.errors import ControlError


@dataclass(frozen=True, slots=True)
class Measurement:
    """A reading of a sensor: the value since the previous one, and whether a larger action could raise it now."""

    value: float
    can_rise: bool = True


@dataclass(frozen=True, slots=True)
class Sample:
    """One step of a loop: setpoint, measurement, and the resulting action."""

    loop: str
    # By the event loop's clock.
    at_s: float
    sample_time_s: float
    setpoint: float
    measurement: float
    action: float
    sequence: int
    # The part of the action that compensates for a measured disturbance; only the rest moves the measurement.
    feedforward: float = 0.0
    # A `Mode`; empty if unknown.
    mode: str = ""
    tuning: Tuning = UNTUNED


class Sensor(Protocol):
    """Reads one quantity."""

    async def read(self) -> Measurement:
        """Return the measurement since the last reading."""


class Actuator(Protocol):
    """Applies one action."""

    async def apply(self, action: float) -> float:
        """Apply the action; return the value that was really applied, such as a rounded one."""


class Loop:
    """One loop. `run` it until it is cancelled, or `stop` it.

    The first action is the controller's start; the first measurement follows a sample time later. In shadow mode the
    loop computes and records without acting: the last applied action stays. Without a sound certificate for its law
    the loop starts only in shadow mode or with `allow_uncertified`, and never leaves shadow mode.
    """

    def __init__(
        self,
        name: str,
        sensor: Sensor,
        controller: Controller,
        actuator: Actuator,
        sample_time_s: float,
        *,
        certificate: Certificate | None = None,
        record: Callable[[Sample], None] | None = None,
        is_shadow: bool = False,
        allow_uncertified: bool = False,
        is_open: bool = False,
        model_version: str = "",
    ) -> None:
        """`is_open` means that the actuator applies a signal of its own, for identification.

        `model_version` is the version of the model that the law was designed for, empty without one.
        """
        if not (math.isfinite(sample_time_s) and sample_time_s > 0):
            raise ControlError(f"a sample time is a number of seconds above 0, not {sample_time_s}")
        if not (is_shadow or allow_uncertified):
            check(
                certificate,
                controller.law,
                sample_time_s=sample_time_s,
                smoothing_share=controller.smoothing_share,
            )
        self.name = name
        self.controller = controller
        self.sample_time_s = sample_time_s
        self.certificate = certificate
        # Samples skipped because the event loop, the sensor or the actuator took too long.
        self.late_ticks = 0
        self._sensor = sensor
        self._actuator = actuator
        self._record = record
        self._is_shadow = is_shadow
        self._is_open = is_open
        self._model_version = model_version
        self._tuning = UNTUNED
        # The controller that `_tuning` describes.
        self._tuned: Controller | None = None
        # The last applied action; None before the first.
        self._applied: float | None = None
        self._is_stopping = False
        self._news = asyncio.Event()

    @property
    def is_shadow(self) -> bool:
        """Whether the loop computes without acting."""
        return self._is_shadow

    @property
    def mode(self) -> Mode:
        """The origin of its actions."""
        if self._is_shadow:
            return Mode.SHADOW
        if self._is_open:
            return Mode.OPEN
        return Mode.ACTIVE if self.certificate is not None and self.certificate.is_sound else Mode.FORCED

    @property
    def tuning(self) -> Tuning:
        """Its present gains and limits."""
        controller = self.controller
        if controller is not self._tuned:
            limits = controller.limits
            self._tuning = tuning_of(
                law_to_json(controller.law),
                lowest=limits.lowest,
                highest=limits.highest,
                model_version=self._model_version,
            )
            self._tuned = controller
        return self._tuning

    def set_shadow(self, is_shadow: bool) -> None:
        """Switch shadow mode on; or off, which acts at once, starting from the last applied action.

        Raises ControlError when it is switched off and the law has no sound certificate.
        """
        if is_shadow == self._is_shadow:
            return
        controller = self.controller
        if not is_shadow:
            share = controller.smoothing_share
            check(self.certificate, controller.law, sample_time_s=self.sample_time_s, smoothing_share=share)
            # The actions computed meanwhile had no effect, so the integral no longer matches the plant: restart it.
            controller.begin_again(self._applied)
            self._news.set()
        self._is_shadow = is_shadow

    def stop(self) -> None:
        """End `run` at once, between two samples. May be called at any time."""
        self._is_stopping = True
        self._news.set()

    async def run(self) -> None:
        """Run the loop. An error of the sensor or the actuator ends it."""
        clock = asyncio.get_running_loop().time
        await self._act(self.controller.action)
        # Discard the measurement from before the first action.
        await self._sensor.read()
        begin_s = clock()
        sequence = 0
        while True:
            sequence += 1
            skipped = math.floor((clock() - begin_s) / self.sample_time_s) - sequence
            if skipped >= 0:
                # A missed tick is skipped, not made up for: two in a row would measure nothing.
                self.late_ticks += skipped + 1
                sequence += skipped + 1
            if await self._stops_before(begin_s + sequence * self.sample_time_s):
                return
            await self._step(sequence, clock())

    async def _stops_before(self, at_s: float) -> bool:
        """Wait until `at_s`; return whether the loop is to stop. Leaving shadow mode meanwhile acts at once."""
        while not self._is_stopping:
            try:
                async with asyncio.timeout_at(at_s):
                    await self._news.wait()
            except TimeoutError:
                return False
            self._news.clear()
            if not self._is_stopping:
                await self._act(self.controller.action)
        return True

    async def _step(self, sequence: int, now_s: float) -> None:
        measured = await self._sensor.read()
        setpoint = self.controller.setpoint
        wanted = self.controller.update(measured.value, can_rise=measured.can_rise)
        action = await self._act(wanted)
        if self._record is not None:
            self._record(
                Sample(
                    self.name,
                    now_s,
                    self.sample_time_s,
                    setpoint,
                    measured.value,
                    action,
                    sequence,
                    mode=self.mode,
                    tuning=self.tuning,
                )
            )

    async def _act(self, action: float) -> float:
        if self._is_shadow:
            return action
        self._applied = action
        return await self._actuator.apply(action)
