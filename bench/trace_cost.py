"""Measure the cost of the trace: CPU time of a node for a request, with the trace and without, in one process.

    python -m bench.trace_cost                  # about 3 minutes
    python -m bench.trace_cost --stores null --seconds 20

Two runs of a node differ by more than the trace costs. So here one node serves all the time and its trace is
switched on and off every two seconds; the CPU time of the process, the writing thread included, is counted apart.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.load import Dialect, Plan, Telesto, ThorBang, generate_elsewhere
from flyball.broker.node.node import Node, running
from flyball.broker.protocols.requests import RequestSession
from flyball.broker.settings import load_settings
from flyball.trace.recorder import Recorder

# Longer than a second: seconds are recorded once a second.
SWITCH_S = 2.0
CLIENTS = 50


class RequestCounter:
    """Counts what the sessions of this process answer."""

    def __init__(self) -> None:
        self.count = 0

    def install(self) -> None:
        finish: Callable[..., None] = RequestSession.finish

        def counted(connection: RequestSession, *arguments: Any) -> None:
            self.count += 1
            finish(connection, *arguments)

        RequestSession.finish = counted  # type: ignore[assignment, method-assign]


def switch(node: Node, recorder: Recorder | None, *, is_on: bool) -> None:
    """Switch the trace of requests, and the record of seconds and times of messages."""
    node.hub.recorder = recorder if is_on else None
    activity = node.activity
    assert activity is not None
    if is_on:
        vars(activity).pop("look", None)
    else:
        activity.look = _nothing  # type: ignore[method-assign]
        for number in list(activity._timed):
            activity._forget(number)


async def _nothing() -> None:
    """Record nothing."""


async def measure(store: str, protocol: str, seconds: float, counter: RequestCounter) -> tuple[float, float]:
    """Return the CPU time of a request in microseconds, with the trace and without: medians of the intervals."""
    of: dict[str, type[ThorBang] | type[Telesto]] = {"thorbang": ThorBang, "telesto": Telesto}
    dialect: Dialect = of[protocol](5, keeps_messages=store != "null")
    costs: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="flyball-bench-") as folder:
        listeners = dict.fromkeys(("amqp", "telesto", "thorbang"), "127.0.0.1:0")
        flags = {"store": store, "data": Path(folder), **listeners}
        async with running(load_settings(flags, {})) as node, asyncio.TaskGroup() as tasks:
            recorder = node.hub.recorder
            plan = Plan(dialect, node.addresses[protocol], CLIENTS, None, 2.0, seconds)
            load = tasks.create_task(asyncio.to_thread(generate_elsewhere, plan))
            await asyncio.sleep(3.0)
            is_on = True
            end = time.monotonic() + seconds - 2.0
            while time.monotonic() < end:
                switch(node, recorder, is_on=is_on)
                count, cpu_s = counter.count, time.process_time()
                await asyncio.sleep(SWITCH_S)
                if counter.count > count:  # else the load has not begun
                    costs[is_on].append((time.process_time() - cpu_s) / (counter.count - count) * 1e6)
                is_on = not is_on
            switch(node, recorder, is_on=True)
            await load
    return statistics.median(costs[True]), statistics.median(costs[False])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default="embedded,null")
    parser.add_argument("--protocols", default="thorbang,telesto")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each measurement")
    options = parser.parse_args()
    counter = RequestCounter()
    counter.install()
    table = Table(title=f"CPU time of a request, {CLIENTS} clients", box=None)
    for heading in ("store", "protocol", "with trace, µs", "without, µs", "ratio"):
        table.add_column(heading, justify="right" if "µs" in heading or heading == "ratio" else "left")
    for store in options.stores.split(","):
        for protocol in options.protocols.split(","):
            traced, plain = asyncio.run(measure(store, protocol, options.seconds, counter))
            table.add_row(store, protocol, f"{traced:.2f}", f"{plain:.2f}", f"{traced / plain:.3f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
