"""The runner's side of the dialogue with workers, in the process of the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import uvloop

from flyball.lab.drivers import Target
from flyball.lab.tally import Verdict, judge
from flyball.lab.worker import Commands, serve
from flyball.lab.workloads import Workload, make_workload
from tests.nodes import RunningNode

TIMEOUT_S = 100.0
REPORT_EVERY_S = 0.01
# Reports in a row that have to say that what is missing stays so.
LAST_LOOKS = 20

Event = dict[str, Any]


class Conductor:
    """Sends one worker commands and reads its reports."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._lines = asyncio.StreamReader()
        self._news = asyncio.Event()

    async def be_a_worker(self) -> int:
        return await serve(Commands(self._lines), self._hear)

    def tell(self, line: Event) -> None:
        self._lines.feed_data(json.dumps(line).encode() + b"\n")

    def hang_up(self) -> None:
        self._lines.feed_eof()

    async def until(self, condition: Callable[[Event], bool]) -> Event:
        """Return the next event that fulfils the condition, or the failure if the worker fails before."""
        seen = len(self.events)
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                for event in self.events[seen:]:
                    if condition(event) or event["event"] == "failed":
                        return event
                seen = len(self.events)
                self._news.clear()
                await self._news.wait()

    async def heard(self, name: str) -> Event:
        """Return the event of that name, also if it is in the past, or the failure."""
        for event in self.events:
            if event["event"] in (name, "failed"):
                return event
        return await self.until(lambda event: event["event"] == name)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()


@dataclass(frozen=True)
class Outcome:
    """Last reports of the workers of a run, and their records."""

    last: list[Event]
    traces: Path
    # When the clients got the command to begin; none of them does so before.
    began_us: int = 0

    @property
    def failure(self) -> str:
        """The failure, empty if there was none."""
        return next((event["reason"] for event in self.last if event["event"] == "failed"), "")

    @property
    def verdict(self) -> Verdict:
        return judge(event["tally"] for event in self.last)

    def total(self, name: str) -> int:
        return sum(event[name] for event in self.last)

    def calls(self) -> pa.Table:
        return pq.ParquetDataset(sorted(self.traces.glob("calls-*.parquet"))).read()


def tables_in(traces: Path) -> dict[str, pa.Table]:
    """Return what was recorded by which writer: each may have begun another file at any time."""
    files: dict[str, list[Path]] = {}
    for path in sorted(traces.iterdir()):
        files.setdefault(re.sub(r"-\d{8}T\d+Z-\d+\.parquet$", "", path.name), []).append(path)
    return {writer: pq.ParquetDataset(paths).read() for writer, paths in files.items()}


def target_of(node: RunningNode, protocol: str, name: str = "node-1") -> Target:
    host, port = node.address(protocol)
    return Target(name=name, host=host, port=port)


def run(
    parameters: dict[str, Any],
    targets: Sequence[Target],
    traces: Path,
    calls: int = 100,
    workers: int = 1,
    meanwhile: Callable[[Workload, dict[str, Any], list[Conductor]], Any] | None = None,
    missing: int = 0,
) -> Outcome:
    """Run a workload until each worker has made this number of calls, and `meanwhile`, if any, has ended.

    `missing` messages do not arrive: the run does not wait for them.
    """
    return uvloop.run(_run(make_workload(parameters), targets, traces, calls, workers, meanwhile, missing))


async def _run(
    workload: Workload,
    targets: Sequence[Target],
    traces: Path,
    calls: int,
    workers: int,
    meanwhile: Callable[[Workload, dict[str, Any], list[Conductor]], Any] | None = None,
    missing: int = 0,
) -> Outcome:
    set_up = {**await workload.set_up(targets), **workload.prepare([])}
    return await conduct(workload, set_up, targets, traces, calls, workers, meanwhile, missing)


async def conduct(
    workload: Workload,
    set_up: dict[str, Any],
    targets: Sequence[Target],
    traces: Path,
    calls: int,
    workers: int = 1,
    meanwhile: Callable[[Workload, dict[str, Any], list[Conductor]], Any] | None = None,
    missing: int = 0,
) -> Outcome:
    """Run a workload that is set up; see `run`."""
    conductors = [Conductor() for _ in range(workers)]
    async with asyncio.TaskGroup() as tasks:
        for place, (conductor, numbers) in enumerate(
            zip(conductors, workload.numbers_of_workers(workers), strict=True)
        ):
            tasks.create_task(conductor.be_a_worker())
            conductor.tell(assignment(workload, targets, traces, set_up, list(numbers), f"worker-{place}"))
        began_us = await _conduct(workload, set_up, conductors, calls, meanwhile, missing)
        for conductor in conductors:
            conductor.hang_up()
    return Outcome([conductor.events[-1] for conductor in conductors], traces, began_us)


async def _conduct(
    workload: Workload,
    set_up: dict[str, Any],
    conductors: list[Conductor],
    calls: int,
    meanwhile: Callable[[Workload, dict[str, Any], list[Conductor]], Any] | None,
    missing: int,
) -> int:
    """Lead the workers through the run; return when they got the command to begin, 0 if they never did."""

    async def all_hear(name: str) -> bool:
        heard = [await conductor.heard(name) for conductor in conductors]
        return all(event["event"] == name for event in heard)

    def all_told(command: Event) -> None:
        for conductor in conductors:
            conductor.tell(command)

    if not await all_hear("ready"):
        return 0
    began_us = time.time_ns() // 1000
    all_told({"command": "start", "at_us": began_us})
    for conductor in conductors:
        await conductor.until(lambda event: event.get("calls", 0) >= calls or event.get("running") == 0)
    if meanwhile is not None:
        await meanwhile(workload, set_up, conductors)
    all_told({"command": "stop"})
    if await all_hear("stopped"):
        if workload.drains:
            await _until_drained(conductors, missing)
        all_told({"command": "finish"})
        await all_hear("done")
    return began_us


async def _until_drained(conductors: list[Conductor], missing: int) -> None:
    """Return when all that was sent is received but for those that are missing, or at the timeout."""
    still = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(TIMEOUT_S):
            while still < LAST_LOOKS:
                latest = [await conductor.until(_is_progress) for conductor in conductors]
                if any(event["event"] == "failed" for event in latest):
                    return
                sent, received = (sum(event[name] for event in latest) for name in ("sent", "received"))
                if sent == received:
                    return
                still = still + 1 if sent == received + missing else 0


def _is_progress(event: Event) -> bool:
    return bool(event["event"] == "progress")


def assignment(
    workload: Workload,
    targets: Sequence[Target],
    traces: Path,
    set_up: dict[str, Any],
    numbers: list[int],
    worker: str = "worker-1",
) -> Event:
    return {
        "worker": worker,
        "workload": workload.model_dump(mode="json"),
        "targets": [target.model_dump() for target in targets],
        "clients": numbers,
        "set_up": set_up,
        "seed": 1,
        "traces": str(traces),
        "report_every_s": REPORT_EVERY_S,
    }
