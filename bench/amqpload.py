"""The load generator amqpload: building it, running it against a broker, and the CPU time by process meanwhile."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.nodes import cpu_seconds

READING_INTERVAL_S = 0.5
# A broker that does not answer while queues are declared or connections opened would stop the generator forever.
RUN_LIMIT_S = 900.0


class LoadFailed(Exception):
    """The generator could not be built, or what it saw of the broker is wrong."""


@dataclass(slots=True, frozen=True)
class Broker:
    """A running broker: its main process has the processes below it that belong to it, as PostgreSQL's to a node."""

    uri: str
    process: psutil.Process

    def memory_bytes(self) -> int:
        """Return the resident memory of the main process and the share (PSS) that those below it have of theirs."""
        below = 0
        for child in self.process.children(recursive=True):
            try:
                below += child.memory_full_info().pss
            except psutil.NoSuchProcess:
                continue
        return int(self.process.memory_info().rss) + below


@dataclass(slots=True, frozen=True)
class Cores:
    """Processors used on average over some time: 1.0 is one of them, all the time."""

    main: float
    below: float
    generator: float
    # All else on the machine, the kernel's own threads included.
    others: float


@dataclass(slots=True, frozen=True)
class Run:
    """The generator's report, and the CPU time by process while it measured, or else of the whole run."""

    report: dict[str, Any]
    cores: Cores


@dataclass(slots=True, frozen=True)
class _Reading:
    at: float
    main_s: float
    below_s: float
    generator_s: float
    machine_s: float


def build(source: Path, folder: Path) -> Path:
    """Compile the generator into the folder. Raises LoadFailed with what the compiler says."""
    if not (source / "amqpload.c").exists():
        raise LoadFailed(f"there is no amqpload.c in {source}: say where it is with --amqpload")
    command = ["make", "-C", str(folder), "-f", str(source / "Makefile"), f"VPATH={source}", "amqpload"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise LoadFailed(f"amqpload needs gcc, make, pkg-config and librabbitmq-dev: {done.stdout}{done.stderr}")
    return folder / "amqpload"


def generate(
    program: Path, broker: Broker, arguments: Sequence[str], warm_up_s: float = 0.0, seconds: float = 0.0
) -> Run:
    """Run the generator to its end. Raises LoadFailed if messages were lost, duplicated, refused or not confirmed."""
    arguments = [*arguments, "--warmup", str(warm_up_s), "--seconds", str(seconds)]
    readings: list[_Reading] = []
    with _running(program, broker, arguments) as generator:
        began = time.monotonic()
        while generator.poll() is None:
            if time.monotonic() > began + RUN_LIMIT_S:
                raise LoadFailed(f"the generator was still at it after {RUN_LIMIT_S:.0f} s")
            readings += _read(broker, generator)
            try:
                generator.wait(READING_INTERVAL_S)
            except subprocess.TimeoutExpired:
                continue
        report = _finish(generator)
    start = began + report["declare_s"] + report["connect_s"] + warm_up_s
    within = [reading for reading in readings if start <= reading.at <= start + seconds]
    return Run(report, _cores(within if len(within) > 1 else readings))


@contextmanager
def idle_connections(program: Path, broker: Broker, count: int) -> Iterator[None]:
    """Hold this number of idle connections to the broker; they are open when this yields."""
    before = broker.process.num_fds()
    arguments = ["--producers", "0", "--consumers", "0", "--queues", "0", "--seconds", str(RUN_LIMIT_S)]
    with _running(program, broker, [*arguments, "--idle", str(count)]) as generator:
        began = time.monotonic()
        while broker.process.num_fds() < before + count:
            if generator.poll() is not None:
                _finish(generator)
            if time.monotonic() > began + RUN_LIMIT_S:
                raise LoadFailed(f"{count} connections were not open after {RUN_LIMIT_S:.0f} s")
            time.sleep(0.1)
        yield
        generator.terminate()
        _finish(generator)


@contextmanager
def _running(program: Path, broker: Broker, arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    command = [str(program), "--uri", broker.uri, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as generator:
        try:
            yield generator
        finally:
            if generator.poll() is None:
                generator.kill()


def _finish(generator: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the report of a generator that ends, if all went well."""
    output, complaint = generator.communicate(timeout=RUN_LIMIT_S)
    if generator.returncode != 0:
        raise LoadFailed(f"amqpload ended with exit code {generator.returncode}: {complaint.strip()}")
    report: dict[str, Any] = json.loads(output)
    # These do not change its exit code, but here no message may be refused and there is no other publisher.
    for wrong in ("nacked", "foreign"):
        if report[wrong]:
            raise LoadFailed(f"amqpload saw {report[wrong]} {wrong} messages: {complaint.strip()}")
    return report


def _read(broker: Broker, generator: subprocess.Popen[str]) -> list[_Reading]:
    """Return a reading, or none if the generator has ended."""
    try:
        generator_s = sum(psutil.Process(generator.pid).cpu_times()[:2])
    except psutil.NoSuchProcess:
        return []
    machine = psutil.cpu_times()
    # Time of guests is part of user and nice.
    machine_s = machine.user + machine.nice + machine.system + machine.irq + machine.softirq
    return [_Reading(time.monotonic(), *cpu_seconds(broker.process), generator_s, machine_s)]


def _cores(readings: list[_Reading]) -> Cores:
    first, last = readings[0], readings[-1]
    passed_s = last.at - first.at
    if passed_s == 0:
        return Cores(0, 0, 0, 0)
    main_s, below_s = last.main_s - first.main_s, last.below_s - first.below_s
    generator_s = last.generator_s - first.generator_s
    others_s = last.machine_s - first.machine_s - main_s - below_s - generator_s
    return Cores(main_s / passed_s, below_s / passed_s, generator_s / passed_s, max(0.0, others_s) / passed_s)
