"""A process of clients: `python -m flyball.lab.worker`. It reads commands and writes events as lines of JSON.

It connects its clients, runs them, and reports their tallies. It ends when stdin is closed, so that no worker is
left behind. Independent of experiments.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop
from pydantic import BaseModel, ConfigDict, ValidationError

from flyball.errors import LabError
from flyball.lab.alarm import Alarm
from flyball.lab.drivers import Session, Target, connect
from flyball.lab.workloads import Workload, make_workload
from flyball.lab.workloads.client import Client, Stage
from flyball.lab.workloads.workload import first_error
from flyball.trace.calls import CallWriter

LINE_LIMIT_BYTES = 2**28
CONNECTING_AT_ONCE = 50
CLOSE_LIMIT_S = 5.0
# Without any message for this time after the end, clients wait for something that will not arrive.
STOP_LIMIT_S = 30.0
# Clients start one after the other within this time, so that they do not run in lockstep.
START_SPREAD_S = 0.1

Say = Callable[[dict[str, Any]], None]


class Assignment(BaseModel):
    """The first command of a worker."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    worker: str
    workload: dict[str, Any]
    targets: tuple[Target, ...]
    clients: tuple[int, ...]
    set_up: dict[str, Any]
    seed: int
    traces: Path
    report_every_s: float = 1.0


class Abandoned(Exception):
    """The input with commands has ended."""


class Commands:
    """Reads the input's lines."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines

    async def next(self) -> dict[str, Any]:
        """Return the next command. Raises Abandoned at the end of the input."""
        line = await self._lines.readline()
        if not line:
            raise Abandoned
        command: dict[str, Any] = json.loads(line)
        return command

    async def expect(self, name: str) -> dict[str, Any]:
        """Return the next command, which must have this name."""
        command = await self.next()
        if command.get("command") != name:
            raise LabError(f"expected the command {name}, got {json.dumps(command)}")
        return command


class Worker:
    """Some of a workload's clients, from connecting to the last record of the traces."""

    def __init__(self, assignment: Assignment, commands: Commands, say: Say) -> None:
        self._assignment = assignment
        self._commands = commands
        self._say = say
        self._workload: Workload = make_workload(assignment.workload)
        self._alarm = Alarm()
        self._writer = CallWriter(assignment.traces, assignment.worker)
        self._stage = Stage(self._writer, self._alarm, assignment.traces, assignment.worker)
        self._sessions: list[Session] = []
        self._clients: list[Client] = []
        self._running = 0
        self._cpu_s = 0.0

    async def run(self) -> None:
        """Run the clients. Raises LabError on a failure, and Abandoned."""
        self._writer.start()
        try:
            await self._connect()
            # Exempt existing objects from garbage collection: scanning them repeatedly would show in the latencies.
            gc.freeze()
            self._say({"event": "ready"})
            start = await self._commands.expect("start")
            await self._alarm.until(self._stage.begin(start["at_us"]))
            self._cpu_s = time.process_time()
            await self._let_clients_run()
            wall_s = (time.perf_counter_ns() - self._stage.begin_ns) / 1e9
        finally:
            await self._close()
        self._say(
            {
                "event": "done",
                **self._progress(),
                "wall_s": wall_s,
                "dropped": self._writer.dropped,
                "tally": self._stage.tally.as_dict(),
            }
        )

    async def _connect(self) -> None:
        gate = asyncio.Semaphore(CONNECTING_AT_ONCE)

        async def connect_one(number: int) -> Client:
            assignment, workload = self._assignment, self._workload
            target = assignment.targets[number % len(assignment.targets)]
            async with gate:
                with _naming(number):
                    session = await connect(workload.protocol, target)
                    self._sessions.append(session)
                    await session.identify(assignment.set_up["addresses"][str(number)])
            role = workload.role_of(number)
            return Client(number, role, session, target.name, assignment.set_up, self._stage, assignment.seed)

        async with asyncio.TaskGroup() as tasks:
            connecting = [tasks.create_task(connect_one(number)) for number in self._assignment.clients]
        self._clients = [task.result() for task in connecting]

    async def _close(self) -> None:
        # Their errors were reported before, and an unresponsive server is not waited for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await asyncio.gather(*[session.close() for session in self._sessions], return_exceptions=True)
        self._writer.stop()
        self._alarm.close()

    async def _let_clients_run(self) -> None:
        stage, workload = self._stage, self._workload
        self._running = len(self._clients)
        async with asyncio.TaskGroup() as tasks:
            senders: list[asyncio.Task[None]] = []
            listeners: list[asyncio.Task[None]] = []
            for place, client in enumerate(self._clients):
                # An open loop's schedule staggers them already.
                delay_s = 0.0 if workload.is_open else START_SPREAD_S * place / len(self._clients)
                group = listeners if workload.listens(client) else senders
                group.append(tasks.create_task(self._behave(client, delay_s)))
            reporting = tasks.create_task(self._report())
            await self._commands.expect("stop")
            stage.stop()
            await self._until_stopped(senders)
            self._say({"event": "stopped", **self._progress()})
            await self._commands.expect("finish")
            stage.finish()
            await asyncio.gather(*listeners)
            reporting.cancel()

    async def _until_stopped(self, senders: list[asyncio.Task[None]]) -> None:
        counts, waiting = self._stage.counts, set(senders)
        while waiting:
            before = counts.sent, counts.received
            _, waiting = await asyncio.wait(waiting, timeout=STOP_LIMIT_S)
            if waiting and (counts.sent, counts.received) == before:
                late = f"{len(waiting)} clients still wait for an answer"
                raise LabError(f"{late}, and nothing has moved for {STOP_LIMIT_S:g} s")

    async def _behave(self, client: Client, delay_s: float) -> None:
        await client.pause(delay_s)
        with _naming(client.number):
            await self._workload.behave(client)
        self._running -= 1
        if self._running == 0:
            # At once: the measured time of a run whose clients have finished ends now.
            self._say({"event": "progress", **self._progress()})

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(self._assignment.report_every_s)
            self._say({"event": "progress", **self._progress()})

    def _progress(self) -> dict[str, Any]:
        counts = self._stage.counts
        return {
            "calls": counts.calls,
            "failed": counts.failed,
            "sent": counts.sent,
            "received": counts.received,
            "running": self._running,
            "has_stopped": self._stage.stopping,
            "cpu_s": time.process_time() - self._cpu_s,
            "at_s": time.time(),
        }


@contextlib.contextmanager
def _naming(number: int) -> Iterator[None]:
    """Add the client's number to a LabError."""
    try:
        yield
    except LabError as error:
        raise LabError(f"client {number}: {error}") from error


async def serve(commands: Commands, say: Say) -> int:
    """Run a worker; return the exit code."""
    try:
        assignment = Assignment.model_validate(await commands.next())
        await Worker(assignment, commands, say).run()
    except (Exception, BaseExceptionGroup) as group:
        error = first_error(group)
        if isinstance(error, Abandoned):
            return 1
        if not isinstance(error, LabError | ValidationError):
            traceback.print_exception(group)
        text = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
        say({"event": "failed", "reason": text})
        return 1
    return 0


async def _serve_pipes() -> int:
    lines = asyncio.StreamReader(limit=LINE_LIMIT_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    return await serve(Commands(lines), _say_aloud)


def _say_aloud(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(uvloop.run(_serve_pipes()))
