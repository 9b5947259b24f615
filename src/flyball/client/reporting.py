"""Reports the loops of this process to a Flyball node, so that its console can show and switch them.

The observed code never waits: samples go into a bounded buffer, which a task sends about once a second; while the
node is unreachable the oldest are dropped. It does not depend on consumers or measurements.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from flyball.backoff import Backoff, Retries
from flyball.client.http import AWAY, Line, Place, Refused, path_of
from flyball.control.loop import Sample
from flyball.errors import ControlError

log = logging.getLogger(__name__)

PERIOD_S = 1.0
# Time limit of the node's answer.
ANSWER_S = 5.0
KEPT_SAMPLES = 300
# Kinds of requests in a report of admission control: the most frequent ones.
MOST_KEYS = 200
# Time limit for the final report at shutdown.
FAREWELL_S = 1.0

_RETRIES = Backoff(first_s=2.0, max_s=30.0)
_FAULTS = 500

_used_names: dict[str, itertools.count[int]] = {}


class Reported(ABC):
    """Something that is reported."""

    def __init__(self, path: str) -> None:
        # Path below the node's URL.
        self.path = path
        # One document at a time: a failed one is repeated before new ones.
        self.sending = asyncio.Lock()
        # Backoff after refusals and failures.
        self.setbacks = Retries(_RETRIES)
        # Not before this time of the event loop's clock.
        self.next_s = 0.0

    @abstractmethod
    def document(self) -> dict[str, Any] | None:
        """Return the document to send now; None if there is none."""

    @abstractmethod
    def accepted(self, answer: Mapping[str, Any]) -> None:
        """The node accepted the last document, and answered."""

    def missed(self) -> None:  # noqa: B027  # most reports are of the present state only
        """The node did not receive the last document, or refused it."""


class ReportedLoop(Reported):
    """A loop: its description is sent once, then its samples. The answer may request another mode."""

    def __init__(self, name: str, facts: Mapping[str, Any], on_mode: Callable[[str], str | None]) -> None:
        """`on_mode` is called with "shadow" or "active" on a mode request; it returns a reason to refuse."""
        super().__init__(path_of("flyball", "loops", name, "samples"))
        self.name = name
        self.is_shadow = False
        self._facts = dict(facts)
        self._on_mode = on_mode
        self._needs_facts = True
        self._samples: deque[dict[str, float | None]] = deque(maxlen=KEPT_SAMPLES)
        self._on_way: list[dict[str, float | None]] = []
        self._refusal: str | None = None

    def change(self, facts: Mapping[str, Any]) -> None:
        """Send changed facts."""
        self._facts |= facts
        self._needs_facts = True

    def record(self, sample: Sample) -> None:
        """Report a sample."""
        self._samples.append(
            {
                "at": time.time(),
                "setpoint": sample.setpoint,
                "measurement": sample.measurement,
                "action": sample.action,
            }
        )

    def document(self) -> dict[str, Any]:
        self._on_way = list(self._samples)
        self._samples.clear()
        report = {"is_shadow": self.is_shadow, "refusal": self._refusal, "samples": self._on_way}
        return {"facts": self._facts, **report} if self._needs_facts else report

    def accepted(self, answer: Mapping[str, Any]) -> None:
        self._needs_facts = bool(answer.get("needs_facts"))
        if self._needs_facts:
            self.missed()
        mode = answer.get("mode")
        if mode in ("shadow", "active") and (mode == "shadow") != self.is_shadow:
            refusal = self._on_mode(mode)
            if refusal is not None and refusal != self._refusal:
                log.warning("loop %r refused mode %s: %s", self.name, mode, refusal)
            self._refusal = refusal

    def missed(self) -> None:
        self._needs_facts = True
        newer = list(self._samples)
        self._samples.clear()
        self._samples.extend((*self._on_way, *newer))
        self._on_way = []


class ReportedState(Reported):
    """A state that is sent in full each time, such as that of admission control."""

    def __init__(
        self,
        name: str,
        state: Callable[[], Mapping[str, Any]],
        facts: Mapping[str, Any],
        on_mode: Callable[[str], None],
    ) -> None:
        super().__init__(path_of("flyball", "admission", name))
        self._state = state
        self._facts = facts
        self._on_mode = on_mode

    def document(self) -> dict[str, Any]:
        state = dict(self._state())
        keys = state.get("keys", {})
        if len(keys) > MOST_KEYS:
            often = sorted(keys, key=lambda key: -keys[key]["requests"])[:MOST_KEYS]
            state["keys"] = {key: keys[key] for key in often}
        return {**state, "facts": {**self._facts, "client": process_name()}}

    def accepted(self, answer: Mapping[str, Any]) -> None:
        if answer.get("mode") in ("shadow", "active"):
            self._on_mode(answer["mode"])


class LoopReporter:
    """Reports to one node. May be shared by all loops of a process on one event loop."""

    def __init__(self, url: str, *, period_s: float = PERIOD_S) -> None:
        """`url` is the address of a node's console, http://user:password@host:15672. Raises ControlError."""
        try:
            self._place = Place(url)
        except ValueError as error:
            raise ControlError(f"cannot report: {error}") from None
        self._period_s = period_s
        self._reported: dict[Reported, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_away = False
        # Reports that failed.
        self.failures = 0

    @property
    def address(self) -> str:
        """The node's address, without credentials."""
        return self._place.shown

    def watch(self, reported: Reported) -> None:
        """Start reporting an object. Must be called on a running event loop."""
        self._reported[reported] = None
        if self._task is None:
            # Kept here, and awaited in `forget`.
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def forget(self, reported: Reported) -> None:
        """Send the rest within a short time limit, and stop reporting. Never raises."""
        if reported not in self._reported:
            return
        del self._reported[reported]
        if not self._is_away:
            line = Line(self._place)
            with contextlib.suppress(Exception), contextlib.closing(line):
                async with asyncio.timeout(FAREWELL_S):
                    await self._send(line, reported)
        if not self._reported and self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.wait([task])

    def watch_loop(self, title: str, facts: Mapping[str, Any], on_mode: Callable[[str], str | None]) -> ReportedLoop:
        """Start reporting a loop, under its title and this process's name, and return the object that takes its
        samples.
        """
        name = own_name(title)
        reported = ReportedLoop(name, {"title": title, "client": process_name(), **facts}, on_mode)
        self.watch(reported)
        return reported

    def watch_admission(
        self,
        name: str,
        state: Callable[[], Mapping[str, Any]],
        facts: Mapping[str, Any],
        set_shadow: Callable[[bool], None],
    ) -> ReportedState:
        """Start reporting admission control, and let the console switch it."""
        reported = ReportedState(own_name(name), state, facts, lambda mode: set_shadow(mode == "shadow"))
        self.watch(reported)
        return reported

    async def _run(self) -> None:
        """Report everything about once a second; back off while the node does not answer."""
        line = Line(self._place)
        loop = asyncio.get_running_loop()
        retries = Retries(_RETRIES)
        try:
            while True:
                is_there = True
                for reported in list(self._reported):
                    if loop.time() >= reported.next_s:
                        is_there = await self._try_to_send(line, reported) and is_there
                if is_there:
                    retries.reset()
                await asyncio.sleep(max(self._period_s, 0.0 if is_there else retries.next_delay_s()))
        finally:
            line.close()

    async def _try_to_send(self, line: Line, reported: Reported) -> bool:
        """Return whether the node is reachable, even if it refuses this report."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._send(line, reported)
        except Refused as error:
            if error.status >= _FAULTS:
                self._note_away(error)
                return False
            self._put_off(reported, f"refused by {self.address}: {error}")
        except AWAY as error:
            self._note_away(error)
            return False
        except Exception as error:
            # Reported objects are code of others: a failure must not stop the other reports.
            self._put_off(reported, "report failed", error)
        else:
            reported.setbacks.reset()
        if self._is_away:
            self._is_away = False
            log.warning("resumed reporting to %s", self.address)
        return True

    def _note_away(self, error: Exception) -> None:
        self.failures += 1
        if not self._is_away:
            self._is_away = True
            log.warning("reporting to %s failed; retrying: %s", self.address, error or type(error).__name__)

    def _put_off(self, reported: Reported, why: str, error: Exception | None = None) -> None:
        """Delay one report; the others continue."""
        self.failures += 1
        if not reported.setbacks.attempts:
            log.warning("report %s failed; retrying: %s", reported.path, why, exc_info=error)
        reported.next_s = asyncio.get_running_loop().time() + reported.setbacks.next_delay_s()

    async def _send(self, line: Line, reported: Reported) -> None:
        async with reported.sending:
            document = reported.document()
            if document is None:
                return
            try:
                status, answer = await line.ask("POST", reported.path, _without_nan(document))
                if not isinstance(answer, dict):
                    raise Refused(status)
            except BaseException:
                reported.missed()
                raise
            reported.accepted(answer)


def process_name() -> str:
    """Return a name that identifies this process."""
    return f"{socket.gethostname()}-{os.getpid()}"


def own_name(title: str) -> str:
    """Return a unique name with this title: other loops may have the same title."""
    name = f"{title}@{process_name()}"
    number = next(_used_names.setdefault(name, itertools.count(1)))
    return name if number == 1 else f"{name}-{number}"


def _without_nan(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by null."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, Mapping):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return value
