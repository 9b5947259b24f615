"""Control laws: functions from state and measurement to action.

A law is a constant; what it remembers between two steps is a state that it is handed back. Samples come at a fixed
pace, so gains are per sample. Limits, filters and holding still are the controller's business.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from flyball.errors import ControlError

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Reading:
    """A setpoint and a measurement."""

    setpoint: float
    measurement: float
    # Whether a larger action would have an effect; if not, the measurement says nothing about the action.
    can_rise: bool = True

    @property
    def error(self) -> float:
        return self.setpoint - self.measurement


class Law(ABC, Generic[State]):
    """A control law. Its fields are its gains; `kind` names it in documents."""

    __slots__ = ()

    kind: ClassVar[str]

    @abstractmethod
    def begin(self, action: float, reading: Reading | None) -> State:
        """Return the state from which the law goes on where the action is now.

        With a reading, the last one, the next action follows from this one without a bump, whatever has chosen it.
        Without one the loop begins here.
        """

    @abstractmethod
    def step(self, state: State, reading: Reading) -> tuple[State, float]:
        """Return the next state and the wanted action, which may lie outside of what the actuator can do."""

    @abstractmethod
    def settle(self, state: State, action: float) -> State:
        """Return the state if not the action that was wanted last was taken but this one: nothing winds up."""


def check_gains(law: Law[Any]) -> None:
    """Raise ControlError if a field of the law is a number that is none."""
    for field in dataclasses.fields(law):  # type: ignore[arg-type]  # every law is a dataclass
        value = getattr(law, field.name)
        if isinstance(value, float | int) and not math.isfinite(value):
            raise ControlError(f"{law.kind}: {field.name} is {value}, which is not a gain")
