"""Options of `flyball control` as plain values. Quick to import: `--help` needs it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path


class LawName(enum.StrEnum):
    """Control laws."""

    LAMBDA_PI = "lambda_pi"
    P = "p"
    I = "i"  # noqa: E741  # the law is called so
    PI = "pi"
    PID = "pid"
    SCHEDULED = "scheduled"
    MULTIPLICATIVE = "multiplicative"
    SELF_TUNING = "self_tuning"


class SignalName(enum.StrEnum):
    """Test signals for identification."""

    RANDOM = "random"
    PRBS = "prbs"
    STAIRCASE = "staircase"


class ActuatorName(enum.StrEnum):
    """How a consumer is slowed down."""

    PACER = "pacer"
    WINDOW = "window"
    FRACTIONAL = "fractional"


@dataclass(frozen=True, slots=True)
class Files:
    """Output files and display options of a command."""

    folder: Path
    # Path of the figure, if not the default; its suffix selects the format.
    plot: Path | None
    # Whether samples are not shown.
    is_quiet: bool = False

    def plot_path(self, usual_name: str) -> Path:
        return self.plot or self.folder / usual_name


@dataclass(frozen=True, slots=True)
class Tuning:
    """Speed of a law, or its gains. None is the law's default."""

    # For laws with one free pole; for others, all poles.
    pole: float | None = None
    poles: str | None = None
    settling_samples: float | None = None
    overshoot: float | None = None
    exponent: float | None = None
    gains: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Source of messages, and their handler."""

    # May contain a password: show it with `live.shown_url`.
    url: str
    queue: str
    handler: str | None
    handler_ms: float | None
    # Maximum concurrent handlers; None: as many as the window allows.
    concurrency: int | None
    actuator: ActuatorName | None


@dataclass(frozen=True, slots=True)
class Fit:
    """Order and delay of the model, and the loop to fit."""

    delay: str
    order: str
    loop: str | None


@dataclass(frozen=True, slots=True)
class Excitation:
    """The test signal for identification."""

    signal: SignalName
    lowest: float
    highest: float
    count: int
    hold: int
    seed: int


@dataclass(frozen=True, slots=True)
class WantedGoal:
    """The goal of a consumer: exactly one is set."""

    rate_per_s: float | None
    latency_ms: float | None
    is_fast: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings of a simulation."""

    setpoint: float | None
    limits: tuple[float, float]
    steps: int
    noise_ratio: float
    is_quantised: bool
    seed: int
    start: float | None
