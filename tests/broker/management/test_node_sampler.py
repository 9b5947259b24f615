"""Rates follow from what is counted once a second, and from which of them are viewed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from flyball.broker.management import node_sampler
from flyball.broker.management.node_sampler import KEPT, Sampler
from flyball.broker.management.totals import Totals, totals
from flyball.broker.node.node import Node
from flyball.model import Draft
from flyball.trace.schema import Kind
from tests.broker.peers import ThorBangPeer
from tests.nodes import RunningNode


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with RunningNode(tmp_path, store="memory", trace="on") as node:
        yield node


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sampler(node: RunningNode, clock: Clock) -> Sampler:
    return Sampler(node.node, clock)


def sample_each_second(node: RunningNode, sampler: Sampler, clock: Clock, puts: list[int]) -> None:
    """Put these numbers of messages, one for each second, and take a sample at the end of each."""
    queue = node.call(lambda found: found.topology.create_queue("orders", lambda error: None))

    def put(count: int, found: Node) -> None:
        for _ in range(count):
            found.hub.broker.put(Draft(b"x"), [queue.id], lambda messages, error: None)

    node.run(lambda _: sampler.sample())
    for count in puts:
        node.call(partial(put, count))
        clock.now_s += 1.0
        node.run(lambda _: sampler.sample())


def test_the_rate_of_a_counter_is_its_average_over_the_time_asked_for(
    node: RunningNode, sampler: Sampler, clock: Clock
) -> None:
    sample_each_second(node, sampler, clock, [100, 0, 0, 0, 10, 20])
    assert sampler.rate("published", over_s=1.0) == 20
    assert sampler.rate("published", over_s=2.0) == 15
    assert sampler.rate("published") == 6
    assert sampler.rate("published", over_s=300.0) == pytest.approx(130 / 6)
    assert sampler.rates()["routed"] == 6
    assert sampler.latest.published == 130


def test_without_two_samples_there_is_no_rate(node: RunningNode, sampler: Sampler) -> None:
    assert sampler.rate("published") == 0.0
    node.run(lambda _: sampler.sample())
    assert sampler.rate("published") == 0.0


def test_only_the_last_five_minutes_are_kept(node: RunningNode, sampler: Sampler, clock: Clock) -> None:
    sample_each_second(node, sampler, clock, [0] * (KEPT + 5))
    assert len(sampler.history) == KEPT


def test_whoever_waits_for_samples_is_told(node: RunningNode, sampler: Sampler) -> None:
    told: list[int] = []
    sampler.on_sample.append(lambda: told.append(len(sampler.history)))
    node.run(lambda _: sampler.sample())
    assert told == [1]
    assert node.node.resources.memory_bytes > 10_000_000


def test_a_disk_that_does_not_answer_holds_up_no_samples(
    node: RunningNode, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_sampler, "SAMPLE_S", 0.0)
    answers = threading.Event()
    monkeypatch.setattr(node.node.resources, "read_files_and_disk", answers.wait)

    async def scenario() -> None:
        heard = asyncio.Event()
        sampler.on_sample.append(heard.set)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(sampler.run())
            for _ in range(3):
                await heard.wait()
                heard.clear()
            running.cancel()

    node.run(lambda _: scenario())
    answers.set()


def test_the_disk_is_looked_at_again_and_again(
    node: RunningNode, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_sampler, "LOOK_AROUND_S", 0.0)
    looks = threading.Semaphore(0)
    monkeypatch.setattr(node.node.resources, "read_files_and_disk", looks.release)

    async def scenario() -> None:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(sampler.run())
            for _ in range(3):
                assert await asyncio.to_thread(looks.acquire, timeout=10)
            running.cancel()

    node.run(lambda _: scenario())


def test_an_object_has_rates_from_the_second_look_on(sampler: Sampler, clock: Clock) -> None:
    assert sampler.rates_of("queue", 1, {"published": 10}) == {"published": 0.0}
    clock.now_s += 2.0
    assert sampler.rates_of("queue", 1, {"published": 30}) == {"published": 10.0}
    clock.now_s += 0.1
    # Another viewer reads at the same moment.
    assert sampler.rates_of("queue", 1, {"published": 31}) == {"published": 10.0}
    assert sampler.rates_of("queue", 2, {"published": 31}) == {"published": 0.0}
    clock.now_s += 11.0
    assert sampler.rates_of("queue", 1, {"published": 1000}) == {"published": 0.0}


def test_an_object_that_counts_from_the_beginning_again_has_no_negative_rate(sampler: Sampler, clock: Clock) -> None:
    sampler.rates_of("queue", 1, {"published": 10})
    clock.now_s += 1.0
    assert sampler.rates_of("queue", 1, {"published": 3}) == {"published": 0.0}


def test_a_length_that_falls_has_a_negative_rate(sampler: Sampler, clock: Clock) -> None:
    sampler.rates_of("queue", 1, {"ready": 5000, "acknowledged": 0})
    clock.now_s += 2.0
    assert sampler.rates_of("queue", 1, {"ready": 3000, "acknowledged": 2000}) == {
        "ready": -1000.0,
        "acknowledged": 1000.0,
    }


def test_objects_that_nobody_looks_at_are_forgotten(node: RunningNode, sampler: Sampler, clock: Clock) -> None:
    sampler.rates_of("queue", 1, {"published": 10})
    clock.now_s += 61.0
    node.run(lambda _: sampler.sample())
    assert sampler._looks == {}


def test_latencies_are_those_of_the_last_seconds(node: RunningNode, sampler: Sampler, clock: Clock) -> None:
    assert sampler.latency_ms(Kind.PUT)["count"] == 0
    node.run(lambda _: sampler.sample())
    peer = ThorBangPeer(node.connect("thorbang"))
    client, orders = peer.set_up()
    peer.ask(*[f"MSG,{client},{client},{orders},1,0,hello"] * 10)
    clock.now_s += 1.0
    node.run(lambda _: sampler.sample())
    told = sampler.latency_ms(Kind.PUT)
    assert told["count"] == 10
    assert 0 < told["p50"] <= told["p99"]
    phases = sum(told[phase] for phase in ("wait", "parse", "engine", "store", "emit"))
    assert told["total"] == pytest.approx(phases, rel=1e-3)
    for _ in range(8):
        clock.now_s += 1.0
        node.run(lambda _: sampler.sample())
    assert sampler.latency_ms(Kind.PUT)["count"] == 0


def test_failing_listener_stops_neither_sampling_nor_others(
    node: RunningNode, sampler: Sampler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_sampler, "SAMPLE_S", 0.0)
    heard = asyncio.Event()

    def fail() -> None:
        raise OSError("too many open files")

    def hear() -> None:
        if len(sampler.history) == 3:
            heard.set()

    sampler.on_sample += [fail, hear]

    node.run(lambda _: sampling_until(sampler, heard))
    assert "too many open files" in caplog.text


def test_a_sample_that_cannot_be_taken_is_left_out(
    node: RunningNode, sampler: Sampler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_sampler, "SAMPLE_S", 0.0)
    tries: list[Node] = []

    async def fail_once(node: Node) -> Totals:
        tries.append(node)
        if len(tries) == 1:
            raise OSError("too many open files")
        return await totals(node)

    monkeypatch.setattr(node_sampler, "totals", fail_once)

    heard = asyncio.Event()
    sampler.on_sample.append(heard.set)
    node.run(lambda _: sampling_until(sampler, heard))
    assert "too many open files" in caplog.text


async def sampling_until(sampler: Sampler, heard: asyncio.Event) -> None:
    """Take samples until the event is set."""
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sampler.run())
        await heard.wait()
        running.cancel()
