"""What the commands of `flyball control` are asked for, as plain values. Quick to import: `--help` needs it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path


class LawName(enum.StrEnum):
    """Which law to design."""

    LAMBDA_PI = "lambda_pi"
    P = "p"
    I = "i"  # noqa: E741  # the law is called so
    PI = "pi"
    PID = "pid"
    SCHEDULED = "scheduled"
    MULTIPLICATIVE = "multiplicative"
    SELF_TUNING = "self_tuning"


class SignalName(enum.StrEnum):
    """Which actions to identify a plant with."""

    RANDOM = "random"
    PRBS = "prbs"
    STAIRCASE = "staircase"


class ActuatorName(enum.StrEnum):
    """What a consumer does to get more or fewer messages."""

    PACER = "pacer"
    WINDOW = "window"
    FRACTIONAL = "fractional"


@dataclass(frozen=True, slots=True)
class Files:
    """Where a command leaves what it makes, and what it shows meanwhile."""

    folder: Path
    # The figure, if it has another name than usual: the suffix says what kind of picture it is.
    plot: Path | None
    # Whether samples are not shown as they come.
    is_quiet: bool = False

    def plot_path(self, usual_name: str) -> Path:
        return self.plot or self.folder / usual_name


@dataclass(frozen=True, slots=True)
class Tuning:
    """How fast a law shall be, or its gains themselves. What is None is up to the law."""

    # Of laws that have one to choose; all poles of others.
    pole: float | None = None
    poles: str | None = None
    settling_samples: float | None = None
    overshoot: float | None = None
    exponent: float | None = None
    gains: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where messages come from and what is done with them."""

    # May hold a password: show it only as `live.shown_url` does.
    url: str
    queue: str
    handler: str | None
    handler_ms: float | None
    # Handlers at once; None: as many as there are messages.
    concurrency: int | None
    actuator: ActuatorName | None


@dataclass(frozen=True, slots=True)
class Fit:
    """Which model to fit, and to which loop of the samples."""

    delay: str
    order: int
    loop: str | None


@dataclass(frozen=True, slots=True)
class Excitation:
    """The actions that a plant is identified with."""

    signal: SignalName
    lowest: float
    highest: float
    count: int
    hold: int
    seed: int


@dataclass(frozen=True, slots=True)
class WantedGoal:
    """What a consumer is to hold: one of these."""

    rate_per_s: float | None
    latency_ms: float | None
    is_fast: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """How laws are tried in a simulation."""

    setpoint: float | None
    limits: tuple[float, float]
    steps: int
    noise_ratio: float
    is_quantised: bool
    seed: int
    start: float | None
