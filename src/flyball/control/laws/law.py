"""Control laws: functions from state and measurement to action.

A law is a constant; its memory between two steps is a state that the caller passes back. The sample time is fixed, so
gains are per sample. Limits, filters and freezing the action belong to the controller.
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
    # Whether a larger action would have an effect; if not, the measurement carries no information about the action.
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
        """Return the state from which the law continues with this action.

        With a reading, the last one, the next action follows without a bump, whatever chose the present one. Without
        a reading the loop starts.
        """

    @abstractmethod
    def step(self, state: State, reading: Reading) -> tuple[State, float]:
        """Return the next state and the wanted action, which may be outside the actuator's range."""

    @abstractmethod
    def settle(self, state: State, action: float) -> State:
        """Return the state after this action was applied instead of the wanted one, to prevent integral windup."""


def check_gains(law: Law[Any]) -> None:
    """Raise ControlError if a numeric field of the law is not finite."""
    for field in dataclasses.fields(law):  # type: ignore[arg-type]  # every law is a dataclass
        value = getattr(law, field.name)
        if isinstance(value, float | int) and not math.isfinite(value):
            raise ControlError(f"{law.kind}: {field.name} is {value}, which is not a gain")
