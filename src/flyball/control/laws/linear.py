"""The linear laws: P, I, PI and PID, with error e = setpoint - measurement.

All but P have integral action and so no steady-state error. In the velocity form a law adds to the applied action, so
limits cannot wind it up; the positional form keeps its integral separately.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from flyball.control.laws.law import Law, Reading, check_gains
from flyball.errors import ControlError

# A law without memory starts from another action with an offset that decays by this factor per step.
BUMP_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Proportional(Law[float]):
    """u = kp e + feedforward r. Without the feedforward, (1-a)/b for a plant, the error never vanishes (droop)."""

    kind: ClassVar[str] = "p"

    kp: float
    feedforward: float = 0.0

    def __post_init__(self) -> None:
        check_gains(self)

    def begin(self, action: float, reading: Reading | None) -> float:
        return 0.0 if reading is None else action - self._action(reading)

    def step(self, state: float, reading: Reading) -> tuple[float, float]:
        offset = BUMP_SHARE * state
        return offset, self._action(reading) + offset

    def settle(self, state: float, action: float) -> float:
        return state

    def _action(self, reading: Reading) -> float:
        return self.kp * reading.error + self.feedforward * reading.setpoint


@dataclass(frozen=True, slots=True)
class Velocity:
    """State of a law in velocity form: the action and the last two errors, the newer first."""

    action: float
    errors: tuple[float, float] | None


class VelocityLaw(Law[Velocity]):
    """u += kp (e - e1) + ki e + kd (e - 2 e1 + e2), with the errors e1 and e2 of the last two steps."""

    __slots__ = ()

    @abstractmethod
    def gains(self) -> tuple[float, float, float]:
        """Return kp, ki and kd."""

    def begin(self, action: float, reading: Reading | None) -> Velocity:
        return Velocity(action, None if reading is None else (reading.error, reading.error))

    def step(self, state: Velocity, reading: Reading) -> tuple[Velocity, float]:
        kp, ki, kd = self.gains()
        error = reading.error
        # The first step has no earlier error; assuming one (such as 0) would cause a kick.
        last, before = state.errors or (error, error)
        wanted = state.action + kp * (error - last) + ki * error + kd * (error - 2 * last + before)
        return Velocity(wanted, (error, last)), wanted

    def settle(self, state: Velocity, action: float) -> Velocity:
        return Velocity(action, state.errors)


@dataclass(frozen=True, slots=True)
class Integral(VelocityLaw):
    """u += ki e."""

    kind: ClassVar[str] = "i"

    ki: float

    def __post_init__(self) -> None:
        check_gains(self)

    def gains(self) -> tuple[float, float, float]:
        return 0.0, self.ki, 0.0


@dataclass(frozen=True, slots=True)
class ProportionalIntegral(VelocityLaw):
    """u += kp (e - e1) + ki e, which is the prefetch paper's u(k) = u(k-1) + (kp + ki) e(k) - kp e(k-1)."""

    kind: ClassVar[str] = "pi"

    kp: float
    ki: float

    def __post_init__(self) -> None:
        check_gains(self)

    def gains(self) -> tuple[float, float, float]:
        return self.kp, self.ki, 0.0


@dataclass(frozen=True, slots=True)
class Pid(VelocityLaw):
    """u = kp e + ki Σe + kd (e - e1), the sum including e, in increments."""

    kind: ClassVar[str] = "pid"

    kp: float
    ki: float
    kd: float

    def __post_init__(self) -> None:
        check_gains(self)

    def gains(self) -> tuple[float, float, float]:
        return self.kp, self.ki, self.kd

    @classmethod
    def as_printed(cls, kp: float, ki: float, kd: float) -> Self:
        """Return the law that the paper prints, u = kp e + ki Σ' e + kd e + kd (e - e1), the sum Σ' without e itself.

        It is a PID law with another kp than the design intended: kp - ki + kd.
        """
        return cls(kp - ki + kd, ki, kd)


@dataclass(frozen=True, slots=True)
class Positional:
    """State of the positional form: its integral, now and before the last step, and the action it wanted then."""

    integral: float
    integral_before: float
    error: float | None
    wanted: float


@dataclass(frozen=True, slots=True)
class PositionalPid(Law[Positional]):
    """u = kp e + integral + kd (e - e1), the integral growing by ki e.

    At a limit the integral is frozen while the error pushes further, so that the action can leave the limit at once.
    """

    kind: ClassVar[str] = "positional_pid"

    kp: float
    ki: float
    kd: float = 0.0

    def __post_init__(self) -> None:
        check_gains(self)

    def begin(self, action: float, reading: Reading | None) -> Positional:
        if reading is None:
            return Positional(action, action, None, action)
        integral = action - self.kp * reading.error
        return Positional(integral, integral, reading.error, action)

    def step(self, state: Positional, reading: Reading) -> tuple[Positional, float]:
        error = reading.error
        last = error if state.error is None else state.error
        integral = state.integral + self.ki * error
        wanted = self.kp * error + integral + self.kd * (error - last)
        return Positional(integral, state.integral, error, wanted), wanted

    def settle(self, state: Positional, action: float) -> Positional:
        if state.error is None or (state.wanted - action) * self.ki * state.error <= 0:
            return state
        return Positional(state.integral_before, state.integral_before, state.error, action)


def pid(kp: float, ki: float, kd: float, form: Literal["velocity", "positional"] = "velocity") -> Pid | PositionalPid:
    """Return a PID law in the given form."""
    if form not in ("velocity", "positional"):
        raise ControlError(f"a PID law has the form velocity or positional, not {form!r}")
    return Pid(kp, ki, kd) if form == "velocity" else PositionalPid(kp, ki, kd)
