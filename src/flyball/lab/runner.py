"""Makes one run: starts the target and the clients, watches all processes, and collects their traces.

Any failure (a process that dies or falls silent, a failed call, a lost or duplicated message) ends the run at once
with a LabError that describes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import flyball
from flyball.errors import LabError
from flyball.lab.domains import DomainWatch
from flyball.lab.drivers import Target
from flyball.lab.experiment import Experiment, label_of
from flyball.lab.figures import figures_of
from flyball.lab.hosts import Host, ThisMachine, host_at, own_address_towards
from flyball.lab.peer import Event, Peer
from flyball.lab.plan import PlannedRun
from flyball.lab.tally import Verdict, judge
from flyball.lab.targets import Node, OwnNode, OwnStore, Usage, foreign_nodes
from flyball.lab.workloads import Workload, make_workload

CLIENTS_PER_WORKER = 50
WORKERS_PER_CORE = 2
# A worker that is busy for a larger share of the time may limit the result.
BOTTLENECK_RATIO = 0.85

CONNECT_LIMIT_S = 120.0
# Workers report every second or more often.
SILENCE_LIMIT_S = 15.0
# Time for a worker to stop or finish, counted from the last message sent or received.
OBEY_LIMIT_S = 60.0
# Without any progress for this time after the senders have stopped, missing messages are lost.
DRAIN_IDLE_S = 5.0
# When clients fail, time for the nodes to report that they are the cause.
BLAME_S = 0.5
# More than the node agent gives its node to stop: a killed agent would leave the node running.
NODE_END_S = 90.0
WORKER_END_S = 10.0
# Workers receive the start time this long in advance, so that all start together.
LEAD_S = 0.3


@dataclasses.dataclass(frozen=True, slots=True)
class Live:
    """Progress of a run."""

    stage: str
    calls_per_s: float
    calls: int
    failed: int


OnProgress = Callable[[Live], None]


class Worker:
    """The runner's view of a process of clients."""

    def __init__(self, peer: Peer, clients: Sequence[int]) -> None:
        self.peer = peer
        self.clients = clients
        self.counts: Event = {"calls": 0, "failed": 0, "sent": 0, "received": 0, "running": len(clients)}
        self.is_ready = asyncio.Event()
        self.has_stopped = asyncio.Event()
        self.is_done = asyncio.Event()
        self.outcome: Event = {}
        # UTC times, in seconds, and the CPU time used until then.
        self.cpu_samples: list[tuple[float, float]] = []

    def handle(self, event: Event) -> None:
        """Process an event. Raises LabError for a failed call."""
        kind = event["event"]
        if kind == "ready":
            self.is_ready.set()
            return
        self.counts |= {key: event[key] for key in self.counts.keys() & event.keys()}
        if self.counts["failed"]:
            raise LabError(f"{self.peer.name}: {self.counts['failed']} calls failed")
        if "cpu_s" in event:
            # By the worker's own clock, as its traces: late reception does not mean that it was sent late.
            self.cpu_samples.append((event.get("at_s", time.time()), event["cpu_s"]))
        if kind == "stopped":
            self.has_stopped.set()
        elif kind == "done":
            self.outcome = event
            self.peer.expect_news(None)
            self.peer.may_end()
            self.is_done.set()

    def busy_ratio(self, from_us: int, until_us: int) -> float:
        """Return the share of the measured time for which the process was busy, as far as its reports cover it."""
        within = [sample for sample in self.cpu_samples if from_us <= sample[0] * 1e6 <= until_us]
        if len(within) < 2:
            within = [self.cpu_samples[0], self.cpu_samples[-1]]
        (begin_s, begin_cpu_s), (end_s, end_cpu_s) = within[0], within[-1]
        if end_s > begin_s:
            return (end_cpu_s - begin_cpu_s) / (end_s - begin_s)
        return float(self.outcome["cpu_s"] / max(self.outcome["wall_s"], 1e-9))


def worker_count(experiment: Experiment, client_count: int, core_count: int, least: int = 1) -> int:
    """Return the number of processes for the clients: the configured one, else one per 50 clients.

    More than two per core would only compete with the nodes for CPU. At most one per client, and at least `least`.
    """
    hosts = max(1, len(experiment.clients.hosts))
    wanted = experiment.clients.workers
    if wanted == 0:
        wanted = min(math.ceil(client_count / CLIENTS_PER_WORKER), WORKERS_PER_CORE * core_count * hosts)
        wanted = max(wanted, hosts)
    return max(1, min(max(wanted, least), client_count))


async def make_run(run: PlannedRun, folder: Path, on_progress: OnProgress) -> dict[str, Any]:
    """Make the run, with traces and logs in the folder; return its manifest. Raises LabError if it fails."""
    made = _Run(run, folder, on_progress)
    try:
        return await made.make()
    except BaseExceptionGroup as group:
        raise _first(group) from group
    finally:
        # Also after Ctrl-C, which must not leave folders behind.
        await asyncio.shield(made.clear())


def _first(error: BaseException) -> BaseException:
    """Return the first cause; the rest of a group followed from it."""
    while isinstance(error, BaseExceptionGroup):
        error = next((one for one in error.exceptions if isinstance(one, LabError)), error.exceptions[0])
    return error


class _Run:
    """A run in progress."""

    def __init__(self, run: PlannedRun, folder: Path, on_progress: OnProgress) -> None:
        self._run = run
        self._experiment = run.experiment
        self._workload: Workload = make_workload(run.experiment.workload)
        self._traces = folder / "traces"
        self._logs = folder / "logs"
        self._on_progress = on_progress
        self._stage = "starting"
        self._reported = (time.monotonic(), 0)
        self._nodes: list[Node] = []
        self._store: OwnStore | None = None
        self._watch: DomainWatch | None = None
        self._domain: dict[str, Any] = {}
        self._workers: list[Worker] = []
        self._peers: list[Peer] = []
        self._folders: list[tuple[Host, str]] = []
        self._warnings: list[str] = []
        self._moved = asyncio.Event()
        self._started_at = datetime.now(UTC)

    async def make(self) -> dict[str, Any]:
        """Make the run. Its processes are ended when this returns or raises."""
        here = ThisMachine()
        node_hosts = [host_at(url) for url in self._experiment.target.hosts] or [here]
        client_hosts = [host_at(url) for url in self._experiment.clients.hosts] or [here]
        for host in dict.fromkeys([*node_hosts, *client_hosts]):
            self._warnings += await host.check()
        async with AsyncExitStack() as running:
            try:
                async with asyncio.TaskGroup() as tasks:
                    self._say("starting")
                    # Workers first: they import modules while the nodes start.
                    await self._start_workers(client_hosts, running, tasks)
                    await self._start_nodes(node_hosts, client_hosts, running, tasks)
                    await self._assign(await self._set_up())
                    noise = await self._start_noise(node_hosts, running, tasks)
                    watching = self._watch_domain(tasks)
                    window, usages = await self._let_run()
                    if watching is not None:
                        watching.cancel()
                    await asyncio.gather(*(peer.end() for peer in noise))
                    await self._drain()
                    await self._finish()
                    if self._watch is not None:
                        self._domain = await self._watch.found()
                    self._say("stopping")
                    await asyncio.gather(*(node.stop() for node in self._own_nodes()))
                    if self._store is not None:
                        await self._store.peer.end()
            except BaseException:
                await asyncio.gather(*(peer.end() for peer in self._peers))
                await running.aclose()
                # The nodes' logs contain the reason; an unreachable host must not hide it.
                with contextlib.suppress(LabError):
                    await asyncio.shield(self._collect(with_traces=False))
                raise
        await self._collect(with_traces=True)
        return self._manifest(window, usages, self._verdict())

    async def clear(self) -> None:
        """Remove all folders of processes on reachable hosts."""
        for host, folder in self._folders:
            with contextlib.suppress(LabError):
                await host.remove(folder)
        self._folders.clear()

    def _own_nodes(self) -> list[OwnNode]:
        return [node for node in self._nodes if isinstance(node, OwnNode)]

    def _say(self, stage: str) -> None:
        self._stage = stage
        self._on_progress(Live(stage, 0.0, *self._calls()))

    def _calls(self) -> tuple[int, int]:
        calls = sum(worker.counts["calls"] for worker in self._workers)
        return calls, sum(worker.counts["failed"] for worker in self._workers)

    async def _peer(self, host: Host, name: str, module: str, running: AsyncExitStack, end_limit_s: float) -> Peer:
        folder = await host.make_folder()
        self._folders.append((host, folder))
        log = self._logs / f"{name}.err"
        peer = await running.enter_async_context(Peer(name, host, module, folder, log, end_limit_s))
        self._peers.append(peer)
        return peer

    async def _start_nodes(
        self, hosts: list[Host], client_hosts: list[Host], running: AsyncExitStack, tasks: asyncio.TaskGroup
    ) -> None:
        part = self._experiment.target
        if part.kind == "foreign":
            self._nodes += foreign_nodes(part)
            return
        store = await self._start_store(hosts[0], running, tasks) if part.kind == "domain" else None
        for number in range(part.nodes):
            host = hosts[number % len(hosts)]
            listens_on, address = host.listens_on, host.address
            others = [other for other in client_hosts if not isinstance(other, ThisMachine)]
            if isinstance(host, ThisMachine) and others and part.kind != "rabbitmq":
                address = own_address_towards(others[0])
                listens_on = address
            peer = await self._peer(host, f"node-{number + 1}", "flyball.lab.node_agent", running, NODE_END_S)
            settings = self._workload.target_settings(self._run.prepared)
            node = OwnNode(peer, part, listens_on, address, settings, store)
            tasks.create_task(peer.listen(node.handle))
            self._nodes.append(node)
        await asyncio.gather(*(node.start() for node in self._own_nodes()))

    async def _start_store(self, host: Host, running: AsyncExitStack, tasks: asyncio.TaskGroup) -> str:
        """Start the store that the nodes of a domain share, and return its address."""
        peer = await self._peer(host, "store", "flyball.lab.node_agent", running, NODE_END_S)
        self._store = OwnStore(peer)
        tasks.create_task(peer.listen(self._store.handle))
        await self._store.start()
        return self._store.url

    def _watch_domain(self, tasks: asyncio.TaskGroup) -> asyncio.Task[None] | None:
        if self._experiment.target.kind != "domain":
            return None
        self._watch = DomainWatch(Target.model_validate(self._targets()[0]))
        return tasks.create_task(self._watch.run())

    def _targets(self) -> list[dict[str, object]]:
        part = self._experiment.target
        return [node.target(self._workload.protocol, part.user, part.password) for node in self._nodes]

    async def _set_up(self) -> dict[str, Any]:
        self._say("setting up")
        targets = [Target.model_validate(target) for target in self._targets()]
        try:
            return {**await self._workload.set_up(targets), **self._run.prepared}
        except (LabError, OSError) as error:
            await asyncio.sleep(BLAME_S)
            raise LabError(f"cannot set the workload up: {error}") from error

    async def _start_workers(self, hosts: list[Host], running: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        count = worker_count(
            self._experiment, self._workload.client_count, os.cpu_count() or 1, self._workload.least_workers
        )
        for number, clients in enumerate(self._workload.numbers_of_workers(count)):
            host = hosts[number % len(hosts)]
            peer = await self._peer(host, f"worker-{number + 1}", "flyball.lab.worker", running, WORKER_END_S)
            worker = Worker(peer, clients)
            self._workers.append(worker)
            tasks.create_task(self._listen(worker))

    async def _assign(self, made: dict[str, Any]) -> None:
        """Send the workers their assignments; all clients are connected on return."""
        self._say("connecting")
        for worker in self._workers:
            worker.peer.expect_news(CONNECT_LIMIT_S)
            await worker.peer.send(
                {
                    "worker": worker.peer.name,
                    "workload": self._workload.model_dump(mode="json"),
                    "targets": self._targets(),
                    "clients": list(worker.clients),
                    "set_up": made,
                    "seed": self._run.seed,
                    "traces": f"{worker.peer.folder}/traces",
                    "report_every_s": self._report_every_s(),
                }
            )
        await asyncio.gather(*(worker.is_ready.wait() for worker in self._workers))

    async def _listen(self, worker: Worker) -> None:
        try:
            await worker.peer.listen(lambda event: self._handle(worker, event))
        except LabError:
            await asyncio.sleep(BLAME_S)
            raise

    def _report_every_s(self) -> float:
        return min(1.0, self._experiment.run.length_s / 4)

    def _handle(self, worker: Worker, event: Event) -> None:
        before = dict(worker.counts)
        worker.handle(event)
        if worker.counts != before:
            self._moved.set()
        reported_at, reported_calls = self._reported
        now = time.monotonic()
        if now - reported_at >= self._report_every_s():
            calls, failed = self._calls()
            self._on_progress(Live(self._stage, (calls - reported_calls) / (now - reported_at), calls, failed))
            self._reported = now, calls

    async def _start_noise(self, hosts: list[Host], running: AsyncExitStack, tasks: asyncio.TaskGroup) -> list[Peer]:
        peers = []
        for number in range(self._experiment.noise.processes):
            peer = await self._peer(
                hosts[number % len(hosts)], f"noise-{number + 1}", "flyball.lab.noise", running, WORKER_END_S
            )
            is_ready = asyncio.Event()
            tasks.create_task(peer.listen(functools.partial(_note, is_ready)))
            await is_ready.wait()
            peers.append(peer)
        return peers

    async def _let_run(self) -> tuple[tuple[int, int], list[tuple[Usage | None, Usage | None]]]:
        """Let the clients run; return the measured window and the nodes' usage at its two ends."""
        run = self._experiment.run
        start_us = _now_us() + int(LEAD_S * 1e6)
        from_us = start_us + int(run.warm_up_s * 1e6)
        until_us = from_us + int(run.length_s * 1e6)
        for worker in self._workers:
            worker.peer.expect_news(SILENCE_LIMIT_S)
            await worker.peer.send({"command": "start", "at_us": start_us})
        self._say("warming up")
        await self._pass_until(from_us)
        before = await self._usages()
        self._say("measuring")
        if await self._pass_until(until_us):
            # All clients have finished their work.
            until_us = max(_now_us(), from_us + 1)
        after = await self._usages()
        self._say("cooling down")
        await self._pass_until(until_us + int(run.cool_down_s * 1e6))
        return (from_us, until_us), list(zip(before, after, strict=True))

    async def _pass_until(self, at_us: int) -> bool:
        """Wait until that time; return early, with True, when no client is running."""
        while any(worker.counts["running"] for worker in self._workers):
            self._moved.clear()
            try:
                async with asyncio.timeout(max(0.0, (at_us - _now_us()) / 1e6)):
                    await self._moved.wait()
            except TimeoutError:
                return False
        return True

    async def _usages(self) -> list[Usage | None]:
        return list(await asyncio.gather(*(node.usage() for node in self._nodes)))

    async def _drain(self) -> None:
        """Stop the senders and wait until all is received, or nothing moves."""
        self._say("draining")
        for worker in self._workers:
            await worker.peer.send({"command": "stop"})
        await self._await_workers("stop", lambda worker: worker.has_stopped)
        while self._workload.drains and self._total("received") < self._total("sent"):
            before = self._total("received")
            try:
                async with asyncio.timeout(DRAIN_IDLE_S):
                    while self._total("received") == before:
                        self._moved.clear()
                        await self._moved.wait()
            except TimeoutError:
                return

    async def _await_workers(self, what: str, event_of: Callable[[Worker], asyncio.Event]) -> None:
        """Wait for the event of all workers; fail if a client's pending request makes no progress."""
        while True:
            before = self._total("sent"), self._total("received")
            try:
                async with asyncio.timeout(OBEY_LIMIT_S):
                    await asyncio.gather(*(event_of(worker).wait() for worker in self._workers))
                return
            except TimeoutError:
                if (self._total("sent"), self._total("received")) == before:
                    late = next(worker for worker in self._workers if not event_of(worker).is_set())
                    raise LabError(f"{late.peer.name} did not {what} within {OBEY_LIMIT_S:.1f} s") from None

    def _total(self, key: str) -> int:
        return sum(worker.counts[key] for worker in self._workers)

    async def _finish(self) -> None:
        for worker in self._workers:
            await worker.peer.send({"command": "finish"})
        await self._await_workers("finish", lambda worker: worker.is_done)
        await asyncio.gather(*(worker.peer.end() for worker in self._workers))

    def _verdict(self) -> Verdict:
        """Return the tallies' verdict. Raises LabError if a message was lost or duplicated."""
        verdict = judge([worker.outcome["tally"] for worker in self._workers])
        if (verdict.lost and self._workload.drains) or verdict.doubled:
            raise LabError(f"{verdict.lost} messages of {verdict.sent} are lost, {verdict.doubled} duplicated")
        if verdict.unsent:
            raise LabError(f"{verdict.unsent} messages were received that were never sent")
        return verdict

    async def _collect(self, *, with_traces: bool) -> None:
        """Fetch traces and logs of the processes."""
        for node in self._own_nodes():
            for folder in ("logs", "data/log"):
                await node.peer.host.fetch(f"{node.peer.folder}/{folder}", self._logs)
        if with_traces:
            for node in self._own_nodes():
                await node.peer.host.fetch(f"{node.peer.folder}/data/traces", self._traces)
            for worker in self._workers:
                await worker.peer.host.fetch(f"{worker.peer.folder}/traces", self._traces)
        for path in self._logs.iterdir():
            if path.stat().st_size == 0:
                path.unlink()

    def _manifest(
        self, window: tuple[int, int], usages: list[tuple[Usage | None, Usage | None]], verdict: Verdict
    ) -> dict[str, Any]:
        experiment, run = self._experiment, self._run
        clients = self._clients_share(window)
        figures = figures_of(self._traces, *window)
        self._warn(clients, figures)
        return {
            "version": 1,
            "experiment": experiment.name,
            "run": run.run_id,
            "factors": run.factors,
            "repetition": run.repetition,
            "seed": run.seed,
            "is_quick": run.is_quick,
            "measured": {"from_us": window[0], "until_us": window[1]},
            "target": {
                "kind": experiment.target.kind,
                "version": self._nodes[0].version,
                "nodes": len(self._nodes),
                "store": label_of(experiment.target.store),
                "settings": experiment.target.settings,
                "hosts": list(experiment.target.hosts),
                "addresses": list(experiment.target.addresses),
                "label": experiment.target.label,
            },
            "workload": {**self._workload.model_dump(mode="json"), **run.prepared},
            "clients": clients,
            "noise": experiment.noise.model_dump(),
            "nodes": [
                _node_facts(node.name, before, after)
                for node, (before, after) in zip(self._nodes, usages, strict=True)
            ],
            **({"domain": self._domain} if self._domain else {}),
            "checks": {
                "calls": self._total("calls"),
                "failed": self._total("failed"),
                "lost": verdict.lost if self._workload.drains else 0,
                "doubled": verdict.doubled,
            },
            "figures": figures,
            "environment": environment(),
            "warnings": self._warnings,
            "started_at": _text(self._started_at),
            "ended_at": _text(datetime.now(UTC)),
        }

    def _warn(self, clients: dict[str, Any], figures: dict[str, float]) -> None:
        if clients["are_bottleneck"]:
            self._warnings.append(
                f"the clients may be the bottleneck: one of {clients['workers']} workers was busy for "
                f"{clients['busiest_cpu_ratio']:.0%} of the time; give more with clients.workers or clients.hosts"
            )
        dropped = sum(worker.outcome.get("dropped", 0) for worker in self._workers)
        if dropped:
            self._warnings.append(f"{dropped} calls of clients are missing in the traces: the disk was too slow")
        if not figures["calls_per_s"]:
            self._warnings.append("no call was answered in the measured time: make it longer")

    def _clients_share(self, window: tuple[int, int]) -> dict[str, Any]:
        ratios = [worker.busy_ratio(*window) for worker in self._workers]
        busiest, length_s = max(ratios), (window[1] - window[0]) / 1e6
        return {
            "count": self._workload.client_count,
            "workers": len(self._workers),
            "hosts": list(self._experiment.clients.hosts),
            "busiest_cpu_ratio": round(busiest, 3),
            "cpu_s": round(sum(ratios) * length_s, 3),
            "are_bottleneck": busiest > BOTTLENECK_RATIO,
        }


def _note(said: asyncio.Event, _: Event) -> None:
    said.set()


def _node_facts(name: str, before: Usage | None, after: Usage | None) -> dict[str, object]:
    if before is None or after is None:
        return {"name": name}
    return {
        "name": name,
        "cpu_s": round(after.cpu_s - before.cpu_s, 3),
        "store_cpu_s": round(after.store_cpu_s - before.store_cpu_s, 3),
        "peak_bytes": max(before.peak_bytes, after.peak_bytes),
    }


def environment() -> dict[str, object]:
    """Return the properties of this machine and its software."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "flyball": flyball.__version__,
    }


def _now_us() -> int:
    return time.time_ns() // 1000


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
