"""Tells a Flyball node how the loops of this process are doing, so that its console can show and switch them.

Whoever is watched never waits for it: samples go into a bounded buffer, a task of its own sends them about once a
second, and while the node is away the oldest are lost. It knows neither consumers nor what they measure.
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
# A node that has not answered by then counts as away.
ANSWER_S = 5.0
KEPT_SAMPLES = 300
# Kinds of requests that admission control reports: those that come most often.
MOST_KEYS = 200
# Time limit for reporting the rest when something stops.
FAREWELL_S = 1.0

_RETRIES = Backoff(first_s=2.0, max_s=30.0)
_FAULTS = 500

_used_names: dict[str, itertools.count[int]] = {}


class Reported(ABC):
    """Something that is told about."""

    def __init__(self, path: str) -> None:
        # Where to, below the node's address.
        self.path = path
        # One document after the other: what was not heard goes before what is new.
        self.telling = asyncio.Lock()
        # How often in a row the node did not want to hear of it, or there was nothing to be had.
        self.setbacks = Retries(_RETRIES)
        # It is not told before this, by the clock of the event loop.
        self.next_s = 0.0

    @abstractmethod
    def document(self) -> dict[str, Any] | None:
        """Return what there is to tell now, None if nothing."""

    @abstractmethod
    def heard(self, answer: Mapping[str, Any]) -> None:
        """The node has got the last document, and answers."""

    def missed(self) -> None:  # noqa: B027  # most tell the present, and need not tell the past
        """The node has not got the last document, or does not want it."""


class ReportedLoop(Reported):
    """A loop: what it is is told once, then its samples. Who wants it in another mode says so in the answer."""

    def __init__(self, name: str, facts: Mapping[str, Any], on_mode: Callable[[str], str | None]) -> None:
        """`on_mode` is called with "shadow" or "active" when the loop is to change; it returns why it does not."""
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
        """Tell these facts anew: they are others now."""
        self._facts |= facts
        self._needs_facts = True

    def record(self, sample: Sample) -> None:
        """Tell of a sample, soon."""
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
        told = {"is_shadow": self.is_shadow, "refusal": self._refusal, "samples": self._on_way}
        return {"facts": self._facts, **told} if self._needs_facts else told

    def heard(self, answer: Mapping[str, Any]) -> None:
        self._needs_facts = bool(answer.get("needs_facts"))
        if self._needs_facts:
            self.missed()
        mode = answer.get("mode")
        if mode in ("shadow", "active") and (mode == "shadow") != self.is_shadow:
            refusal = self._on_mode(mode)
            if refusal is not None and refusal != self._refusal:
                log.warning("the loop %r does not become %s: %s", self.name, mode, refusal)
            self._refusal = refusal

    def missed(self) -> None:
        self._needs_facts = True
        newer = list(self._samples)
        self._samples.clear()
        self._samples.extend((*self._on_way, *newer))
        self._on_way = []


class ReportedState(Reported):
    """Something whose present state is told each time, as that of admission control."""

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

    def heard(self, answer: Mapping[str, Any]) -> None:
        if answer.get("mode") in ("shadow", "active"):
            self._on_mode(answer["mode"])


class LoopReporter:
    """Reports to one node. It may be shared by all loops of a process that run on one event loop."""

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
        """Where it reports, without user and password."""
        return self._place.shown

    def watch(self, reported: Reported) -> None:
        """Tell of this from now on. Must be called on a running event loop."""
        self._reported[reported] = None
        if self._task is None:
            # Stored, and awaited in `forget`.
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def forget(self, reported: Reported) -> None:
        """Tell the rest of it, if that is quickly done, and no more. Never raises."""
        if reported not in self._reported:
            return
        del self._reported[reported]
        if not self._is_away:
            line = Line(self._place)
            with contextlib.suppress(Exception), contextlib.closing(line):
                async with asyncio.timeout(FAREWELL_S):
                    await self._tell(line, reported)
        if not self._reported and self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.wait([task])

    def watch_loop(self, title: str, facts: Mapping[str, Any], on_mode: Callable[[str], str | None]) -> ReportedLoop:
        """Tell of a loop, under its title and the name of this process, and return what takes its samples."""
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
        """Tell of admission control, which stands as `state` says, and let it be switched."""
        reported = ReportedState(own_name(name), state, facts, lambda mode: set_shadow(mode == "shadow"))
        self.watch(reported)
        return reported

    async def _run(self) -> None:
        """Tell of everything about once a second; when the node does not answer, try again later and later."""
        line = Line(self._place)
        loop = asyncio.get_running_loop()
        retries = Retries(_RETRIES)
        try:
            while True:
                is_there = True
                for reported in list(self._reported):
                    if loop.time() >= reported.next_s:
                        is_there = await self._try_to_tell(line, reported) and is_there
                if is_there:
                    retries.reset()
                await asyncio.sleep(max(self._period_s, 0.0 if is_there else retries.next_delay_s()))
        finally:
            line.close()

    async def _try_to_tell(self, line: Line, reported: Reported) -> bool:
        """Return whether the node is there, though it may not want to hear of this one."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._tell(line, reported)
        except Refused as error:
            if error.status >= _FAULTS:
                self._note_away(error)
                return False
            self._put_off(reported, f"{self.address} does not take it: {error}")
        except AWAY as error:
            self._note_away(error)
            return False
        except Exception as error:
            # What is told about is somebody else's code: it must not silence the others.
            self._put_off(reported, "it cannot be told", error)
        else:
            reported.setbacks.reset()
        if self._is_away:
            self._is_away = False
            log.warning("reporting to %s again", self.address)
        return True

    def _note_away(self, error: Exception) -> None:
        self.failures += 1
        if not self._is_away:
            self._is_away = True
            log.warning("cannot report to %s, it is tried again: %s", self.address, error or type(error).__name__)

    def _put_off(self, reported: Reported, why: str, error: Exception | None = None) -> None:
        """Tell of one later; the others go on."""
        self.failures += 1
        if not reported.setbacks.attempts:
            log.warning("%s is not reported, it is tried again: %s", reported.path, why, exc_info=error)
        reported.next_s = asyncio.get_running_loop().time() + reported.setbacks.next_delay_s()

    async def _tell(self, line: Line, reported: Reported) -> None:
        async with reported.telling:
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
            reported.heard(answer)


def process_name() -> str:
    """Return what tells this process from others."""
    return f"{socket.gethostname()}-{os.getpid()}"


def own_name(title: str) -> str:
    """Return a name for something that other processes, and this one, may have as well."""
    name = f"{title}@{process_name()}"
    number = next(_used_names.setdefault(name, itertools.count(1)))
    return name if number == 1 else f"{name}-{number}"


def _without_nan(value: Any) -> Any:
    """Return a document in which JSON can say every number."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, Mapping):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return value
