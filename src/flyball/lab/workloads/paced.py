"""Parameters of workloads whose clients choose when to send: think times, rates, recorded curves."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from flyball.lab.workloads.arrivals import Arrivals, RateCurve, Scheduled, Thinking
from flyball.lab.workloads.client import Client
from flyball.lab.workloads.workload import Seconds, Workload

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PacedWorkload(Workload):
    """A closed loop with think time, or with a rate an open loop: then arrivals follow a schedule."""

    # Closed loop: time from an answer to the next request.
    think_time_s: Seconds = 0.0
    think: Literal["fixed", "exponential"] = "fixed"
    # Open loop: requests per second of all clients together; 0 is a closed loop.
    rate_per_s: Rate = 0.0
    # Open loop with a changing rate: points (seconds, requests per second), or the path of a CSV file of them.
    rate_curve: tuple[tuple[Seconds, Rate], ...] = ()
    arrivals: Literal["uniform", "poisson"] = "uniform"

    @field_validator("rate_curve", mode="before")
    @classmethod
    def _read_curve(cls, curve: object) -> object:
        return read_curve(Path(curve)) if isinstance(curve, str | Path) else curve

    @field_validator("rate_curve")
    @classmethod
    def _is_in_order(cls, curve: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        if any(later[0] <= earlier[0] for earlier, later in pairwise(curve)):
            raise ValueError("the seconds of its points must increase")
        return curve

    @property
    def is_open(self) -> bool:
        return bool(self.rate_per_s or self.rate_curve)

    def arrivals_of(self, client: Client, number: int, clients: int) -> Arrivals:
        """Return the intended send times of the client with this number, of `clients` that share the rate."""
        if self.is_open:
            curve = RateCurve(self.rate_curve or ((0.0, self.rate_per_s),))
            return Scheduled(curve, number, clients, client.random if self.arrivals == "poisson" else None)
        return Thinking(self.think_time_s, client.random if self.think == "exponential" else None)


def read_curve(path: Path) -> list[tuple[float, float]]:
    """Return the points of a CSV file: seconds and rate in its first two columns, with an optional header.

    Raises ValueError that describes the error.
    """
    try:
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    points: list[tuple[float, float]] = []
    for line, row in enumerate(rows, 1):
        try:
            seconds, rate = row[:2]
            points.append((float(seconds), float(rate)))
        except ValueError:
            if line > 1:
                raise ValueError(f"{path}, row {line}: two numbers are needed, seconds and rate") from None
    if not points:
        raise ValueError(f"{path} holds no points: two numbers a row are needed, seconds and rate")
    return points
