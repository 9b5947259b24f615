"""The settings of the workload `adaptive`: its load, its control loop and the disturbances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_serializer, model_validator

from flyball.control.design import DESIGNS
from flyball.control.laws import law_from_json
from flyball.errors import ControlError
from flyball.lab.workloads.stream import HEAD
from flyball.lab.workloads.workload import Seconds, Workload

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Change(BaseModel):
    """A disturbance, or another goal, at a sample. Ratios are relative to the workload's values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at_sample: Annotated[int, Field(ge=1)]
    goal_per_s: Positive | None = None
    producers_ratio: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    # The rate at a constant window is multiplied by this: network and handler times are divided by it.
    capacity_ratio: Positive | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.goal_per_s is self.producers_ratio is self.capacity_ratio is None:
            raise ValueError("give goal_per_s, producers_ratio or capacity_ratio")
        return self

    @model_serializer
    def _without_nothing(self) -> dict[str, float]:
        return {name: value for name, value in self if value is not None}


class AdaptiveLoop(Workload):
    """Settings of the loop of the workload `adaptive`, and its disturbances."""

    producers: Annotated[int, Field(ge=1)] = 25
    # Mean interval between the messages of a publisher.
    gap_s: Positive = 0.01
    gap_deviation_s: Seconds = 0.001
    body_bytes: Annotated[int, Field(ge=HEAD.size)] = 256
    persistent: bool = True
    # Maximum number of a publisher's unconfirmed messages.
    in_flight: Annotated[int, Field(ge=1)] = 1000
    # Time that the publishers run before the loop starts.
    fill_s: Seconds = 1.0
    # Duration of the simulated handler; handlers run in parallel.
    handler_time_s: Seconds = 0.001
    # Added network delay between consumer and broker.
    round_trip_ms: Seconds = 0.0
    sample_time_s: Positive = 1.0
    goal_per_s: Positive = 400.0
    # A closed loop, or a signal between `lowest` and `highest` that identifies the plant.
    signal: Literal["closed", "staircase", "geometric", "random", "prbs"] = "closed"
    # Number of actions of the signal, one per sample; the last is held.
    levels: Annotated[int, Field(ge=2)] = 360
    lowest: Positive = 1.0
    highest: Positive = 360.0
    # The first action; the default is the lowest.
    start: Positive | None = None
    # A law and its gains, or {kind = "designed", as = ...} for the plant that an earlier experiment identified.
    law: dict[str, Any] = Field(default_factory=lambda: {"kind": "multiplicative"})
    actuator: Literal["integer", "fractional", "pacer"] = "fractional"
    # Run a law without a sound certificate.
    allow_uncertified: bool = False
    schedule: tuple[Change, ...] = ()
    # Report the controller to the console at this address, host:port, with the target's user.
    report: Annotated[str, Field(pattern=r"^(\S+:\d+)?$")] = ""

    @field_validator("law")
    @classmethod
    def _is_a_law(cls, law: dict[str, Any]) -> dict[str, Any]:
        if law.get("kind") == "designed":
            _check_design(law)
            return law
        try:
            law_from_json(law)
        except ControlError as error:
            raise ValueError(str(error)) from None
        return law

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError("lowest must be below highest")
        if self.signal != "closed" and not (
            self.actuator == "integer" and self.lowest.is_integer() and self.highest.is_integer()
        ):
            raise ValueError("a test signal has whole windows: use actuator = 'integer' and integer limits")
        if [change.at_sample for change in self.schedule] != sorted({change.at_sample for change in self.schedule}):
            raise ValueError("the samples in schedule must increase")
        return self

    def sample_at_s(self, sample: int) -> float:
        """Return the time of a sample since the start."""
        return self.fill_s + sample * self.sample_time_s


def _check_design(law: Mapping[str, Any]) -> None:
    wanted = {name: value for name, value in law.items() if name != "kind"}
    if wanted.pop("as", None) not in DESIGNS:
        raise ValueError(f"a designed law is made as one of {', '.join(DESIGNS)}; give that with `as`")
    for name, value in wanted.items():
        if name not in ("pole", "settling_samples", "overshoot") or not isinstance(value, int | float):
            raise ValueError(f"a designed law has a pole, or settling_samples and overshoot, not {name} = {value!r}")
