"""How often a certificate is wrong: plants that are hard to identify, under good and bad test signals.

    python -m bench.identification --cases 10000

Each case identifies a plant with the defaults, designs a law for what was found and certifies it. The plant itself is
known, so that two rates can be counted:

* false-sound: the certificate is sound, but the law on the true plant is unstable, or becomes so when the plant's
  gain doubles or falls. Nonlinear plants are simulated in the closed loop as well. Half of the laws have the largest
  gains that are sound on paper; of those 1.5 times the gain is asked for. Half of these are naive: their gains are
  for a model with delay 0 and order 1, whatever the plant is, and on paper only the confidence set of that model
  counts.
* naive: how often those are sound on paper and fail on the true plant. It says how hard the plants are.
* false-refused: the model is right, and the law holds the true plant, but the certificate is not sound. A model is
  right if the plant is linear and constant and the model's frequency response is within 25 % of the plant's gain.
  Models from a ramp do not count: what they find is chance, and refusing them is right.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from scipy.signal import lfilter

from flyball.control.certificate import LEAST_GAIN_MARGIN, Certificate
from flyball.control.design import lambda_pi
from flyball.control.identification import identify
from flyball.control.laws import ProportionalIntegral
from flyball.control.laws.linear import VelocityLaw
from flyball.control.margins import closed_loop_poles, gain_limits, loops_of
from flyball.control.plant import Diagnostics, Plant
from flyball.control.signals import prbs, random_steps, staircase
from flyball.control.verification import certify
from flyball.errors import ControlError

Numbers = npt.NDArray[np.float64]

KINDS = (
    "delay",
    "order 2",
    "negative gain",
    "coloured noise",
    "dead zone",
    "saturation",
    "hysteresis",
    "quantised",
    "drifting gain",
)
# Plants that a linear model with constant parameters can describe.
LINEAR = {"delay", "order 2", "negative gain", "coloured noise"}
SIGNALS = ("prbs", "steps", "ramp", "weak")
# How a case is designed: lambda tuning with a pole, unchanged or with gains raised to the edge of what is sound;
# and on what the model says, or naively, on a model with delay 0 and order 1 and nothing but its confidence set.
DESIGNS = ((0.8, False, False), (0.5, False, False), (0.5, True, False), (0.5, True, True))
# The true gain margin below which a law at the edge has failed: its certificate has exactly the least margin, with a
# confidence of 90 %, so that a little less is to be expected.
EDGE_MARGIN = 1.5
# A model is right if its frequency response differs from the plant's by no more than this share of the plant's gain.
RIGHT = 0.25
# Steps of a closed loop that is simulated, and those at its end that are looked at.
STEPS, LAST = 600, 100
FREQUENCIES = np.exp(1j * np.linspace(0, np.pi, 64))


@dataclass(frozen=True, slots=True)
class Actuator:
    """The way of an action before the plant sees it; its numbers are shares of the test signal's half span."""

    kind: str
    width: float = 0.0
    centre: float = 0.0

    def taken(self, actions: Numbers) -> Numbers:
        """Return what the plant sees."""
        match self.kind:
            case "dead zone":
                away = actions - self.centre
                return np.sign(away) * np.maximum(np.abs(away) - self.width, 0.0)
            case "saturation":
                return np.minimum(actions, self.centre)
            case "quantised":
                return self.width * np.round((actions + self.centre) / self.width)
            case "hysteresis":
                found, held = np.empty(len(actions)), float(actions[0])
                for k, action in enumerate(actions.tolist()):
                    held = min(max(held, action - self.width), action + self.width)
                    found[k] = held
                return found
        return actions


@dataclass(frozen=True, slots=True)
class Case:
    """A plant that is known, with a test signal and noise."""

    kind: str
    signal: str
    pole: float
    is_edge: bool
    is_naive: bool
    plant: Plant
    actuator: Actuator
    # By how much the gain has changed at the end of the record.
    drift: float
    actions: Numbers
    measurements: Numbers

    @property
    def plant_now(self) -> Plant:
        """The plant at the end of the record, where its actuator has its full slope."""
        plant = self.plant
        return replace(plant, b=self.drift * plant.b, bs=tuple(self.drift * b for b in plant.bs))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a case."""

    kind: str
    signal: str
    is_sound: bool
    # Whether the law holds the true plant with the margins that a sound certificate promises; None without a law.
    holds: bool | None
    is_right: bool
    # The true gain margin is smaller than the certificate's figure.
    is_figure_missed: bool
    # A certificate that knows only the confidence set would be sound.
    is_naively_sound: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def is_false_sound(self) -> bool:
        return self.is_sound and self.holds is False

    @property
    def is_naive_false_sound(self) -> bool:
        return self.is_naively_sound and self.holds is False

    @property
    def is_false_refused(self) -> bool:
        return self.is_right and self.holds is True and not self.is_sound


def cases(count: int, seed: int) -> Iterator[Case]:
    """Return that many cases; kinds, signals and designs take turns."""
    for number in range(count):
        random = np.random.default_rng([seed, number])
        kind = KINDS[number % len(KINDS)]
        signal = SIGNALS[number // len(KINDS) % len(SIGNALS)]
        yield _case(kind, signal, DESIGNS[number // len(KINDS) // len(SIGNALS) % len(DESIGNS)], random)


def outcome(case: Case) -> Outcome:
    """Identify, design and certify, and see what that is worth on the true plant."""
    refused = Outcome(case.kind, case.signal, False, None, False, False)
    structure = (0, 1) if case.is_naive else (None, None)
    try:
        model = identify(case.measurements, case.actions, sample_time_s=1.0, delay=structure[0], order=structure[1])
        believed = untested(model) if case.is_naive else model
        law = lambda_pi(believed, case.pole)
        if case.is_edge:
            law = at_the_edge(law, believed)
        certificate = certify(law, model)
        naive = certify(law, believed) if case.is_naive else certificate
    except ControlError as error:
        return replace(refused, reasons=(str(error),))
    margin = true_margin(law, case.plant_now)
    needed = EDGE_MARGIN if case.is_edge else LEAST_GAIN_MARGIN
    holds = margin >= needed and (case.kind in LINEAR or settles(law, case, 0.95 * needed))
    return Outcome(
        case.kind,
        case.signal,
        certificate.is_sound,
        holds,
        is_right=(
            case.kind in LINEAR
            and case.signal != "ramp"
            and not case.is_naive
            and difference(model, case.plant) <= RIGHT
        ),
        is_figure_missed=margin < certificate.gain_margin,
        is_naively_sound=case.is_naive and naive.is_sound,
        reasons=failures(model, certificate),
    )


def untested(model: Plant) -> Plant:
    """Return the model as if only its confidence set were known: without other delays, steeper parts and tests."""
    return replace(model, alternatives=(), steepest_ratio=1.0, diagnostics=Diagnostics())


def at_the_edge(law: ProportionalIntegral, model: Plant) -> ProportionalIntegral:
    """Return the law with the largest gains that have the least gain margin over what the model says."""
    margin = certify(law, model).gain_margin
    factor = margin / LEAST_GAIN_MARGIN if 0 < margin < math.inf else 1.0
    return ProportionalIntegral(factor * law.kp, factor * law.ki)


def failures(model: Plant, certificate: Certificate) -> tuple[str, ...]:
    """Return the names of what speaks against a certificate."""
    names = [] if model.diagnostics is None else [one.name for one in model.diagnostics.checks if not one.is_passed]
    return (*names, *(["margins"] if len(certificate.reasons) > len(certificate.objections) else []))


def true_margin(law: VelocityLaw, plant: Plant) -> float:
    """Return the gain margin on the plant, 0 if the loop is unstable or becomes so when the gain falls."""
    if abs(closed_loop_poles(law, plant)[0]) >= 1:
        return 0.0
    low, high = gain_limits(loops_of(law, [plant]))
    return 0.0 if low > 0 else high


def difference(model: Plant, plant: Plant) -> float:
    """Return the largest difference of both frequency responses, as a share of the plant's gain."""
    return float(np.max(np.abs(_response(model) - _response(plant)))) / abs(plant.gain)


def _response(plant: Plant) -> npt.NDArray[np.complex128]:
    shift = 1 / FREQUENCIES
    above = sum(b * shift ** (1 + plant.delay + k) for k, b in enumerate(plant.all_b))
    below = 1 - sum(a * shift ** (1 + k) for k, a in enumerate(plant.all_a))
    return np.asarray(above / below)


def settles(law: VelocityLaw, case: Case, factor: float) -> bool:
    """Return whether the closed loop with the true actuator comes to rest, also with `factor` times the gain."""
    return all(_rest(law, case, each) for each in (1.0, factor))


def _rest(law: VelocityLaw, case: Case, factor: float) -> bool:
    plant, actuator = case.plant_now, case.actuator
    kp, ki, _ = law.gains()
    unit = abs(plant.gain) * factor
    wanted = float(actuator.taken(np.array([-0.3, 0.4]))[-1]) * plant.gain * factor
    order, delay = plant.order, plant.delay
    outputs, taken = [0.0] * order, [0.0] * (order + delay)
    action, error, held = 0.0, wanted, 0.0
    for _ in range(STEPS):
        effect = sum(b * taken[-1 - delay - k] for k, b in enumerate(plant.all_b)) * factor
        outputs.append(sum(a * outputs[-1 - k] for k, a in enumerate(plant.all_a)) + effect)
        now = wanted - outputs[-1]
        action += kp * (now - error) + ki * now
        error = now
        if abs(action) > 1e6:
            return False
        if actuator.kind == "hysteresis":
            held = min(max(held, action - actuator.width), action + actuator.width)
            taken.append(held)
        else:
            taken.append(float(actuator.taken(np.array([action]))[0]))
    allowed = 0.1 + (3 * actuator.width if actuator.kind in ("quantised", "hysteresis") else 0.0)
    swing = max(outputs[-LAST:]) - min(outputs[-LAST:])
    return bool(swing <= allowed * unit)


def _case(kind: str, signal: str, design: tuple[float, bool, bool], random: np.random.Generator) -> Case:
    count = int(random.choice([80, 160, 320, 640, 1200]))
    plant = _plant(kind, random)
    width = {
        "dead zone": random.uniform(0.1, 0.5),
        "hysteresis": random.uniform(0.05, 0.4),
        "quantised": random.uniform(0.05, 0.8),
    }.get(kind, 0.0)
    centre = random.uniform(0.3, 0.9) if kind == "saturation" else random.uniform(-0.4, 0.4)
    actuator = Actuator(kind, width, centre)
    drift = float(np.exp(random.uniform(-1.1, 1.1))) if kind == "drifting gain" else 1.0
    hold, number = int(random.integers(1, 4)), int(random.integers(1, 10**6))
    match signal:
        case "prbs":
            actions = np.array(prbs(-1, 1, count, hold, number))
        case "ramp":
            actions = np.array(staircase(-1, 1, count, hold=int(random.integers(1, max(count // 6, 2)))))
        case _:
            actions = np.array(random_steps(-1, 1, count, hold, number))
    seen = actuator.taken(actions) * np.linspace(1.0, drift, count)
    clean = lfilter([0.0] * (1 + plant.delay) + list(plant.all_b), [1.0, *(-a for a in plant.all_a)], seen)
    spread = max(float(np.std(clean)), 1e-3 * abs(plant.gain))
    share = random.uniform(1, 8) if signal == "weak" else random.uniform(0.02, 0.4)
    noise = share * spread * _noise(kind, plant, count, random)
    return Case(kind, signal, *design, plant, actuator, drift, actions, clean + noise)


def _plant(kind: str, random: np.random.Generator) -> Plant:
    delay = int(random.integers(0, 9 if kind == "delay" else 4))
    gain = 10 ** random.uniform(-1, 2)
    if kind == "negative gain":
        gain = -gain
    if kind != "order 2":
        memory = random.uniform(-0.2, 0.9)
        return Plant(a=memory, b=gain * (1 - memory), delay=delay)
    if random.random() < 0.5:
        first, second = random.uniform(0.3, 0.9), random.uniform(-0.3, 0.8)
        a = (first + second, -first * second)
    else:
        radius, angle = random.uniform(0.3, 0.85), random.uniform(0.2, 1.5)
        a = (2 * radius * np.cos(angle), -(radius**2))
    share = random.uniform(0.3, 1.0)
    rise = gain * (1 - a[0] - a[1])
    return Plant(a=float(a[0]), ar=(float(a[1]),), b=rise * share, bs=(rise * (1 - share),), delay=delay)


def _noise(kind: str, plant: Plant, count: int, random: np.random.Generator) -> Numbers:
    """Return noise with a standard deviation of 1, in the process or, coloured, as the sensor shows it."""
    white = random.standard_normal(count)
    if kind == "coloured noise":
        # Half of them in the process with a memory of its own, half in the sensor only.
        memory = random.uniform(0.3, 0.9)
        white = lfilter([1.0], [1.0, -memory], white) if random.random() < 0.5 else white
        found = white if random.random() < 0.5 else lfilter([1.0], [1.0, *(-a for a in plant.all_a)], white)
    else:
        found = lfilter([1.0], [1.0, *(-a for a in plant.all_a)], white)
    return np.asarray(found / max(float(np.std(found)), 1e-9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="Number of cases.")
    parser.add_argument("--seed", type=int, default=1, help="Random seed, for reproducible runs.")
    wish = parser.parse_args()
    begun = time.monotonic()
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    found = []
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("cases", total=wish.cases)
        # Ctrl-C ends it with the cases that are done.
        with contextlib.suppress(KeyboardInterrupt):
            for case in cases(wish.cases, wish.seed):
                found.append(outcome(case))
                progress.update(task, advance=1)
                if found[-1].is_false_sound:
                    progress.console.print(f"false-sound: {case.kind}, {case.signal}, case {len(found) - 1}")
    print_tables(found, time.monotonic() - begun)
    sys.exit(any(one.is_false_sound for one in found))


def print_tables(found: list[Outcome], seconds: float) -> None:
    """Print the rates by plant and by test signal, and why right models were refused."""
    console = Console(width=110)
    for title, names, key in (("plant", KINDS, "kind"), ("signal", SIGNALS, "signal")):
        table = Table(
            title, "cases", "sound", "false-sound", "naive", "right models", "false-refused", "figure missed"
        )
        for name in (*names, "all"):
            own = [one for one in found if name in ("all", getattr(one, key))]
            table.add_row(name, *_rates(own))
        console.print(table)
    why = Counter(reason for one in found if one.is_false_refused for reason in one.reasons)
    console.print("why right models were refused:", ", ".join(f"{name} {n}" for name, n in why.most_common()) or "-")
    console.print(f"{len(found)} cases in {seconds:.0f} s")


def _rates(own: list[Outcome]) -> list[str]:
    sound = [one for one in own if one.is_sound]
    right = [one for one in own if one.is_right and one.holds]
    refused = sum(one.is_false_refused for one in right)
    missed = sum(one.is_figure_missed for one in sound)
    return [
        str(len(own)),
        str(len(sound)),
        str(sum(one.is_false_sound for one in own)),
        f"{sum(one.is_naive_false_sound for one in own)} of {sum(one.is_naively_sound for one in own)}",
        str(len(right)),
        f"{refused} ({refused / max(len(right), 1):.1%})",
        f"{missed} ({missed / max(len(sound), 1):.1%})",
    ]


if __name__ == "__main__":
    main()
