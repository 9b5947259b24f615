"""One running client of a workload: its session, its pace, and the records and counts of its calls.

This is the interface for a workload's `behave`. Every answer is checked here; an unexpected one ends the run.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from flyball.errors import LabError
from flyball.lab.alarm import Alarm
from flyball.lab.drivers import QueueRef, Received, Session
from flyball.lab.tally import Tally
from flyball.lab.workloads.arrivals import Arrivals
from flyball.trace.calls import CallWriter
from flyball.trace.clock import epoch_ns
from flyball.trace.schema import Kind, Result

_PUT, _TAKE, _PEEK = int(Kind.PUT), int(Kind.TAKE), int(Kind.PEEK)
_OK, _EMPTY = int(Result.OK), int(Result.EMPTY)


@dataclass(slots=True)
class Counts:
    """Counts of all clients of a process. `sent` counts a message from the start of its put."""

    calls: int = 0
    failed: int = 0
    sent: int = 0
    received: int = 0


class Stage:
    """State shared by the clients of a process: the stage of the run, its start time, the writer of records."""

    def __init__(self, writer: CallWriter, alarm: Alarm, traces: Path, worker: str) -> None:
        self.writer = writer
        self.alarm = alarm
        self.traces = traces
        self.worker = worker
        self.tally = Tally()
        self.counts = Counts()
        self.epoch_ns = epoch_ns()
        self.begin_ns = 0
        self.stopping = False
        self.finishing = False
        self.listeners: list[Callable[[], None]] = []

    def begin(self, at_us: int) -> int:
        """Start at that time, in microseconds since 1970, or now if it has passed; return the time as `begin_ns`."""
        self.begin_ns = max(at_us * 1000 - self.epoch_ns, time.perf_counter_ns())
        return self.begin_ns

    def stop(self) -> None:
        """Let sending clients finish."""
        self.stopping = True
        self._wake()

    def finish(self) -> None:
        """Let all clients finish."""
        self.stopping = self.finishing = True
        self._wake()

    def _wake(self) -> None:
        self.alarm.wake_all()
        for wake in self.listeners:
            wake()


class Client:
    """One client. `number` counts the clients of all processes from 0; `random` depends on it and the run's seed."""

    def __init__(
        self,
        number: int,
        role: str,
        session: Session,
        target_name: str,
        set_up: Mapping[str, Any],
        stage: Stage,
        seed: int,
    ) -> None:
        self.number = number
        self.role = role
        self.session = session
        self.target = target_name
        self.set_up = set_up
        self.tally = stage.tally
        self.counts = stage.counts
        self.random = random.Random(f"{seed}.{number}")
        self._stage = stage
        self._arrivals: Arrivals | None = None
        self._intended_ns = 0
        self._answered_ns = 0
        self._codes = (int(session.protocol), stage.writer.role(role), stage.writer.target(target_name))
        self._queue_codes: dict[QueueRef, int] = {}
        self._queues: dict[str, QueueRef] = set_up["queues"][target_name]
        for name, queue in self._queues.items():
            self._queue_codes[queue] = stage.writer.queue(name)

    @property
    def stopping(self) -> bool:
        """Whether the client must not send any further messages."""
        return self._stage.stopping

    @property
    def finishing(self) -> bool:
        """Whether the client must end."""
        return self._stage.finishing

    @property
    def address(self) -> int:
        """The address of messages for this client."""
        return self.session.address

    def address_of(self, number: int) -> int:
        """Return the address of another client of the same target."""
        address: int = self.set_up["addresses"][str(number)]
        return address

    def queue(self, name: str) -> QueueRef:
        """Return the reference of this client's target to the queue that the set-up created under that name."""
        return self._queues[name]

    @property
    def intended_ns(self) -> int:
        """Scheduled time of the call after `pace`, by `time.perf_counter_ns`; 0 in a closed loop."""
        return self._intended_ns

    @property
    def begin_ns(self) -> int:
        """Start time of the run, common to all clients, by `time.perf_counter_ns`."""
        return self._stage.begin_ns

    @property
    def traces(self) -> Path:
        """The folder for records of this process."""
        return self._stage.traces

    @property
    def worker(self) -> str:
        """The name of this process."""
        return self._stage.worker

    @property
    def epoch_ns(self) -> int:
        """Offset from times of `time.perf_counter_ns` to 1970."""
        return self._stage.epoch_ns

    def at_next_stage(self, wake: Callable[[], None]) -> None:
        """Register `wake` to be called when the client must stop, and when it must finish."""
        self._stage.listeners.append(wake)

    def follow(self, arrivals: Arrivals) -> None:
        """Let `pace` use these arrivals."""
        self._arrivals = arrivals

    async def pace(self) -> bool:
        """Wait until the next call is due; return False if there is none because the run stops."""
        stage = self._stage
        if stage.stopping:
            return False
        arrivals = self._arrivals
        if arrivals is None:
            return True
        next_s = arrivals.next_s()
        if arrivals.is_open:
            if next_s == math.inf:
                next_s = 1e9
            self._intended_ns = stage.begin_ns + int(next_s * 1e9)
            await stage.alarm.until(self._intended_ns)
        elif next_s > 0:
            await stage.alarm.until(time.perf_counter_ns() + int(next_s * 1e9))
        if stage.stopping:
            # Woken early: a call made nevertheless has no scheduled time.
            self._intended_ns = 0
            return False
        return True

    async def pause(self, seconds: float) -> None:
        """Wait for this time, or until the run enters its next stage."""
        await self._stage.alarm.until(time.perf_counter_ns() + int(seconds * 1e9))

    async def put(self, queue: QueueRef, receiver: int, body: bytes, context: int = 0) -> None:
        """Put a message, and return when the server has confirmed it."""
        self.counts.sent += 1
        await self.session.put(queue, receiver, body, context)
        self._note(_PUT, _OK, queue, len(body), 1)

    async def take(
        self, queue: QueueRef, context: int = 0, *, by_time: bool = True, unaddressed: bool = False
    ) -> Received | None:
        """Take a message, None if there is none; see Session.take."""
        message = await self.session.take(queue, context, by_time=by_time, unaddressed=unaddressed)
        self._note_read(_TAKE, queue, message)
        return message

    async def peek(self, queue: QueueRef, *, by_time: bool = True) -> Received | None:
        """Read a message without removing it, None if there is none."""
        message = await self.session.peek(queue, by_time=by_time)
        self._note_read(_PEEK, queue, message)
        return message

    async def expect_nothing(self, queue: QueueRef) -> None:
        """Fail if a message is left, which would be a duplicate. Not counted as a call of the run."""
        message = await self.session.take(queue)
        if message is not None:
            self.fail(f"duplicate message: {message}")

    def fail(self, reason: str) -> NoReturn:
        """End the run because of a wrong answer."""
        self.counts.failed += 1
        raise LabError(reason)

    def _note_read(self, kind: int, queue: QueueRef, message: Received | None) -> None:
        if message is None:
            self._note(kind, _EMPTY, queue, 0, 0)
        else:
            if kind == _TAKE:
                self.counts.received += 1
            self._note(kind, _OK, queue, len(message.body), 1)

    def _note(self, kind: int, result: int, queue: QueueRef, size_bytes: int, message_count: int) -> None:
        session = self.session
        sent_ns, answered_ns = session.sent_ns, session.answered_ns
        intended_ns = self._intended_ns or sent_ns
        before_ns = self._answered_ns or intended_ns
        think_ns = intended_ns - before_ns if intended_ns > before_ns else 0
        self._intended_ns = 0
        self._answered_ns = answered_ns
        self._write(kind, result, queue, size_bytes, intended_ns, sent_ns, answered_ns, think_ns, message_count)

    def note(self, kind: int, result: int, queue: QueueRef, size_bytes: int) -> None:
        """Record the session's last call, whatever its result: the workload decides what is a failure."""
        self._note(kind, result, queue, size_bytes, 1)

    def record(
        self, kind: int, queue: QueueRef, size_bytes: int, intended_ns: int, sent_ns: int, answered_ns: int
    ) -> None:
        """Record a successful call about one message, for sessions with many calls in flight."""
        self._write(kind, _OK, queue, size_bytes, intended_ns, sent_ns, answered_ns, 0, 1)

    def _write(
        self,
        kind: int,
        result: int,
        queue: QueueRef,
        size_bytes: int,
        intended_ns: int,
        sent_ns: int,
        answered_ns: int,
        think_ns: int,
        message_count: int,
    ) -> None:
        stage = self._stage
        stage.counts.calls += 1
        protocol, role, target = self._codes
        stage.writer.record(
            kind,
            protocol,
            result,
            role,
            target,
            self._queue_codes[queue],
            self.number,
            size_bytes,
            (intended_ns + stage.epoch_ns) // 1000,
            sent_ns - intended_ns,
            answered_ns - sent_ns,
            think_ns,
            message_count,
        )
