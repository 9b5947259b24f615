"""The registry of control loops of the node and of clients that report theirs, with their last samples.

It only records; the loops run elsewhere. Both the number of loops and the samples of each are bounded.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flyball.control.certificate import Certificate, certificate_summary
from flyball.errors import LoopNotFound, NotPermitted, NotSwitchable, TooManyLoops

MAX_LOOPS = 500
# Limit per user, so that one user cannot use up `MAX_LOOPS`.
MAX_LOOPS_OF_USER = 200
KEPT_SAMPLES = 300
SAMPLE_FIELDS = ("at", "setpoint", "measurement", "action")
GONE_AFTER_SAMPLES = 10
# Minimum silence before a loop counts as gone: clients with short sample times report in batches.
MIN_ABSENCE_S = 5.0
FORGOTTEN_AFTER_S = 600.0

SHADOW = "shadow"
ACTIVE = "active"
Mode = Literal["shadow", "active"]

Text = Annotated[str, Field(max_length=500)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class _Report(BaseModel):
    """Immutable input from clients; unknown fields are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Quantity(_Report):
    """A measured or set quantity."""

    what: Text
    unit: Text


class Bounds(_Report):
    """Lower and upper bound of the control action; None is unbounded."""

    lowest: Number | None = None
    highest: Number | None = None


class Margins(_Report):
    """Stability margins; None is infinite."""

    gain: Number | None = None
    delay_samples: Number | None = None
    largest_pole: Number | None = None


class Proof(_Report):
    """The verification of a law on its plant; see `flyball.control.certificate`."""

    is_sound: bool
    kind: Text
    margins: Margins
    # Why a loop must not be activated with it.
    reasons: Annotated[list[Text], Field(max_length=10)]
    text: Text
    # An operator has accepted the reasons: the loop may act although the certificate is not sound.
    is_forced: bool = False
    # Warnings, even if the certificate is sound.
    warnings: Annotated[list[Text], Field(max_length=10)] = []


class LoopFacts(_Report):
    """The description of a loop, which changes rarely."""

    title: Text
    # Its purpose, in a sentence.
    about: Text
    measures: Quantity
    acts: Quantity
    law: Text
    gains: Annotated[dict[Name, Number | Annotated[list[Number], Field(max_length=20)]], Field(max_length=20)]
    limits: Bounds = Bounds()
    sample_time_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]
    certificate: Proof | None = None
    # The process that runs it, if not the node.
    client: Text | None = None


class LoopSample(_Report):
    """One step of a loop; None for a missing value, such as the action while nothing is limited."""

    # Unix time.
    at: Number
    setpoint: Number | None = None
    measurement: Number | None = None
    action: Number | None = None


class LoopReport(_Report):
    """A client's report of its loop, about once a second."""

    facts: LoopFacts | None = None
    is_shadow: bool = False
    # Reason for refusing the requested mode.
    refusal: Text | None = None
    samples: Annotated[list[LoopSample], Field(max_length=KEPT_SAMPLES)] = []


@dataclass(slots=True, frozen=True)
class Reading:
    """The state of a loop that runs in the node; it is idle if `action` is None."""

    setpoint: float
    measurement: float
    action: float | None


class Ring:
    """A ring buffer of rows of floats in an array: a hundred rings use only a megabyte."""

    __slots__ = ("_length", "_names", "_next", "_values", "count")

    def __init__(self, names: Sequence[str], length: int = KEPT_SAMPLES) -> None:
        self._names = names
        self._length = length
        self._values = array("d", bytes(8 * len(names) * length))
        self._next = 0
        self.count = 0

    def append(self, *row: float | None) -> None:
        """Append a row with a number or None for each name; drop the oldest row if full."""
        width = len(self._names)
        begin = self._next * width
        self._values[begin : begin + width] = array("d", [math.nan if value is None else value for value in row])
        self._next = (self._next + 1) % self._length
        self.count = min(self.count + 1, self._length)

    def last(self) -> dict[str, float | None] | None:
        """Return the newest row, as JSON values."""
        return self._row(self._next - 1) if self.count else None

    def all(self) -> list[dict[str, float | None]]:
        """Return the rows, newest last."""
        return [self._row(self._next - self.count + index) for index in range(self.count)]

    def _row(self, index: int) -> dict[str, float | None]:
        width = len(self._names)
        begin = index % self._length * width
        values = self._values[begin : begin + width]
        return {
            name: value if math.isfinite(value) else None for name, value in zip(self._names, values, strict=True)
        }


class KnownLoop:
    """A registered loop with its last samples."""

    __slots__ = (
        "_read",
        "_switch",
        "facts",
        "is_shadow",
        "name",
        "refusal",
        "reported_at",
        "samples",
        "user",
        "wanted_mode",
        "why_fixed",
    )

    def __init__(
        self,
        name: str,
        facts: LoopFacts,
        *,
        user: str | None = None,
        read: Callable[[], Reading | None] | None = None,
        switch: Callable[[bool], None] | None = None,
        why_fixed: str | None = None,
    ) -> None:
        self.name = name
        self.facts = facts
        # The user that reports it; None for a loop of the node.
        self.user = user
        self.is_shadow = False
        # The requested mode; None if it was never switched.
        self.wanted_mode: Mode | None = None
        self.refusal: str | None = None
        self.reported_at: float | None = None
        # Reason why it cannot be switched; None if it can be.
        self.why_fixed = why_fixed
        self.samples = Ring(SAMPLE_FIELDS)
        self._read = read
        self._switch = switch

    @property
    def is_own(self) -> bool:
        """Whether it runs in this node."""
        return self._read is not None

    def state(self, now: float) -> str:
        """Return running, idle (nothing to control) or gone (no report for `gone_after_s`)."""
        if not self.is_own:
            return "gone" if now - (self.reported_at or 0.0) > self.gone_after_s else "running"
        last = self.samples.last()
        return "idle" if last is None or last["action"] is None else "running"

    @property
    def gone_after_s(self) -> float:
        return min(max(MIN_ABSENCE_S, GONE_AFTER_SAMPLES * self.facts.sample_time_s), FORGOTTEN_AFTER_S)

    def take(self, samples: Iterable[LoopSample]) -> None:
        for sample in samples:
            self.samples.append(sample.at, sample.setpoint, sample.measurement, sample.action)

    def tick(self, now: float) -> None:
        """Sample a loop of the node."""
        if self._read is None:
            return
        reading = self._read()
        if reading is not None:
            self.samples.append(now, reading.setpoint, reading.measurement, reading.action)
            self.reported_at = now

    def check_switch(self, mode: Mode) -> None:
        """Raise NotSwitchable if the loop does not support the mode."""
        if self.why_fixed is not None:
            raise NotSwitchable(self.name, self.why_fixed)
        if mode == SHADOW or not self.is_shadow:
            return
        certificate = self.facts.certificate
        if certificate is None:
            raise NotSwitchable(self.name, "its law has no certificate; make one with `flyball control design`")
        if not (certificate.is_sound or certificate.is_forced):
            reasons = "; ".join(certificate.reasons) or certificate.text
            raise NotSwitchable(self.name, f"its certificate is not sound: {reasons}")

    def switch(self, mode: Mode) -> None:
        """Switch the loop; a client receives the mode in the response to its next report. Raises NotSwitchable."""
        self.check_switch(mode)
        self.wanted_mode = mode
        self.refusal = None
        if self._switch is not None:
            self._switch(mode == SHADOW)
            self.is_shadow = mode == SHADOW

    def document(self, node: str, now: float, *, with_samples: bool = False) -> dict[str, Any]:
        """Return the complete loop as JSON values."""
        facts = self.facts.model_dump()
        last = self.samples.last()
        found = {
            "name": self.name,
            "node": node,
            "place": "node" if self.is_own else "client",
            "user": self.user,
            "state": self.state(now),
            **facts,
            "setpoint": None if last is None else last["setpoint"],
            "is_shadow": self.is_shadow,
            "wanted_mode": self.wanted_mode,
            "can_switch": self.why_fixed is None,
            "why_fixed": self.why_fixed,
            "refusal": self.refusal,
            "reported_at": self.reported_at,
            "last": last,
        }
        if with_samples:
            found["samples"] = self.samples.all()
        return found

    def brief(self, now: float) -> dict[str, Any]:
        """Return the values that change with each sample."""
        values = self.samples.last() or dict.fromkeys(SAMPLE_FIELDS)
        return {"name": self.name, **values, "is_shadow": self.is_shadow, "state": self.state(now)}


class Loops:
    """All registered loops, by name."""

    def __init__(self) -> None:
        self._loops: dict[str, KnownLoop] = {}

    def add(
        self,
        name: str,
        facts: LoopFacts,
        read: Callable[[], Reading | None],
        *,
        switch: Callable[[bool], None] | None = None,
        why_fixed: str | None = None,
    ) -> KnownLoop:
        """Register a loop of the node; `read` is called about once a second.

        `switch` is called with True for shadow mode; a loop without it states the reason in `why_fixed`.
        """
        loop = KnownLoop(name, facts, read=read, switch=switch, why_fixed=why_fixed)
        self._loops[name] = loop
        return loop

    def remove(self, name: str) -> None:
        self._loops.pop(name, None)

    def all(self) -> list[KnownLoop]:
        """Return all loops, sorted by name."""
        return [self._loops[name] for name in sorted(self._loops)]

    def find(self, name: str) -> KnownLoop | None:
        return self._loops.get(name)

    def get(self, name: str) -> KnownLoop:
        """Raises LoopNotFound."""
        found = self._loops.get(name)
        if found is None:
            raise LoopNotFound(name)
        return found

    def report(
        self, name: str, report: LoopReport, user: str, now: float, *, is_trusted: bool = False
    ) -> KnownLoop | None:
        """Record a client's report; return the loop, None if the client must send its facts first.

        A loop belongs to the user that reported it first; a trusted user may report any. Raises NotPermitted,
        TooManyLoops.
        """
        loop = self._loops.get(name)
        if loop is not None and (loop.is_own or (loop.user != user and not is_trusted)):
            raise NotPermitted(f"loop {name!r} is reported by another user: choose another name")
        if loop is None:
            if report.facts is None:
                return None
            self._check_room(user, now)
            loop = self._loops[name] = KnownLoop(name, report.facts, user=user)
        elif report.facts is not None:
            loop.facts = report.facts
        loop.is_shadow = report.is_shadow
        loop.refusal = report.refusal
        loop.reported_at = now
        loop.take(report.samples)
        return loop

    def _check_room(self, user: str, now: float) -> None:
        """Raise TooManyLoops if the user may not add a loop, even after removing loops that are gone."""
        if self._is_full(user):
            self.forget_gone(now, 0.0)
        if self._is_full(user):
            is_users = len(self._loops) < MAX_LOOPS
            raise TooManyLoops(MAX_LOOPS_OF_USER, user) if is_users else TooManyLoops(MAX_LOOPS)

    def _is_full(self, user: str) -> bool:
        of_user = sum(loop.user == user for loop in self._loops.values())
        return len(self._loops) >= MAX_LOOPS or of_user >= MAX_LOOPS_OF_USER

    def tick(self, now: float) -> None:
        """Sample each loop of the node, and remove loops that were not reported for `FORGOTTEN_AFTER_S`."""
        for loop in self._loops.values():
            loop.tick(now)
        self.forget_gone(now, FORGOTTEN_AFTER_S)

    def forget_gone(self, now: float, after_s: float) -> None:
        """Remove loops that were not reported for `after_s`."""
        gone = [
            loop.name
            for loop in self._loops.values()
            if not loop.is_own and now - (loop.reported_at or 0.0) > max(after_s, loop.gone_after_s)
        ]
        for name in gone:
            del self._loops[name]


def proof_of(certificate: Certificate) -> Proof:
    """Convert a certificate for display."""
    return Proof.model_validate(certificate_summary(certificate))
