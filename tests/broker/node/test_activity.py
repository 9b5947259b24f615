"""A node leaves its activity and the samples of its loops in its traces."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from pika import spec

from flyball.broker.core import flow, topology
from flyball.broker.node import activity as activity_module
from flyball.broker.node.activity import OTHERS, Activity
from flyball.broker.node.cpu import CpuClock
from flyball.broker.node.node import Node
from flyball.broker.store.interface import Batch
from flyball.broker.store.memory import MemoryStore
from tests.broker.peers import amqp
from tests.nodes import RunningNode

Row = dict[str, Any]


def rows(tmp_path: Path, table: str) -> list[Row]:
    """Return what a stopped node has written, in order."""
    paths = sorted((tmp_path / "data" / "traces").glob(f"{table}-*.parquet"))
    return [row for path in paths for row in parquet.read_table(path).to_pylist()]


def activity_of(node: Node) -> Activity:
    assert node.activity is not None
    return node.activity


def look(node: RunningNode) -> None:
    """Let the node record now."""
    node.run(lambda found: activity_of(found).look())


def total(found: list[Row], name: str) -> int:
    return sum(row[name] for row in found)


@pytest.fixture
def node(start_memory_node: Callable[..., RunningNode], monkeypatch: pytest.MonkeyPatch) -> RunningNode:
    """A node that records when the test says so, when it starts, and when it stops."""
    monkeypatch.setattr(activity_module, "PERIOD_S", 3600.0)
    return start_memory_node(trace="on", name="node-1")


def test_what_clients_do_is_in_the_seconds_of_node_and_queue(node: RunningNode, tmp_path: Path) -> None:
    client = amqp(node)
    client.declare("orders")
    for _ in range(20):
        client.put("orders", b"12345")
    look(node)
    client.consume("orders", prefetch=5)
    for _ in range(15):
        client.ack(client.next_delivery())
    node.wait_until(lambda found: found.hub.broker.engine.queues[0].acknowledged == 15)
    node.stop()
    nodes, queues = rows(tmp_path, "nodes"), rows(tmp_path, "queues")
    for found in (nodes, queues):
        assert total(found, "published") == 20
        assert total(found, "acked") == 15
        assert 15 <= total(found, "delivered") <= 20
        assert {row["node"] for row in found} == {"node-1"}
    assert {(row["vhost"], row["queue"]) for row in queues} == {("/", "orders")}
    assert 20 in {row["ready"] for row in queues}
    assert total(nodes, "confirmed") == 20
    assert total(nodes, "cpu_ns") > 0
    assert all(row["memory_bytes"] > 2**20 and row["elapsed_ns"] > 0 for row in nodes)
    assert max(row["connections"] for row in nodes) == 1
    assert [row["sequence"] for row in nodes] == list(range(len(nodes)))


def test_times_of_messages_are_measured(node: RunningNode, tmp_path: Path) -> None:
    """A message that waited, and was worked on, for as long as the test says: on the node's clock."""
    client = amqp(node)
    client.declare("orders")
    # In the first second the node learns which queues to time.
    client.put("orders", b"1")
    look(node)
    clock = {"now_us": 10**15}
    node.call(lambda found: setattr(found.hub.broker, "now_us", lambda: clock["now_us"]))
    node.call(lambda found: _set_clock(found, lambda: clock["now_us"]))
    client.put("orders", b"2")
    clock["now_us"] += 3_000_000
    client.consume("orders")
    deliveries = [client.next_delivery() for _ in range(2)]
    clock["now_us"] += 500_000
    client.ack(*deliveries)
    client.sync()
    node.stop()
    found = rows(tmp_path, "times")
    services = [row for row in found if row["metric"] == "service"]
    assert services
    assert all(row["from_us"] <= 500_000 < row["below_us"] for row in services)
    waits = [row for row in found if row["metric"] == "wait"]
    assert any(row["from_us"] <= 3_000_000 < row["below_us"] for row in waits)


def _set_clock(node: Node, now_us: Callable[[], int]) -> None:
    for state in node.hub.broker.engine.queues:
        if state.times is not None:
            state.times._now_us = now_us


def test_parked_message_is_timed_no_longer(node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may stay for days, and the number of messages timed at once is limited."""
    # An earlier version has let pass a routing key that is too long for a dead letter.
    monkeypatch.setattr(topology, "check_declaration", lambda queue: None)
    client = amqp(node)
    client.declare("orders", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k" * 300})
    client.put("orders", b"1")
    look(node)
    client.consume("orders")
    delivery = client.next_delivery()
    assert node.call(lambda found: len(found.hub.broker.engine.queues[0].begun)) == 1
    client.send(spec.Basic.Reject(delivery_tag=delivery.method.delivery_tag, requeue=False))
    client.sync()
    counts = node.call(
        lambda found: [(len(state.parked), len(state.begun)) for state in found.hub.broker.engine.queues]
    )
    assert counts == [(1, 0)]


def test_queues_beyond_the_maximum_are_recorded_together(
    node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_module, "MAX_QUEUES", 2)
    client = amqp(node)
    for number in range(5):
        client.declare(f"queue-{number}")
        client.put(f"queue-{number}", *[b"x"] * (number + 1))
    look(node)
    assert node.call(lambda found: len(activity_of(found)._timed)) == 2
    node.stop()
    found = [(row["vhost"], row["queue"], row["published"], row["ready"]) for row in rows(tmp_path, "queues")]
    assert found == [("/", "queue-4", 5, 5), ("/", "queue-3", 4, 4), ("", OTHERS, 6, 6)]


def test_an_idle_node_leaves_a_row_after_a_long_time(
    node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(node)
    look(node)
    monkeypatch.setattr(activity_module, "IDLE_S", 0.0)
    look(node)
    monkeypatch.setattr(activity_module, "IDLE_S", 600.0)
    look(node)
    node.stop()
    # It stands for the time since the node began, another one for the rest.
    found = rows(tmp_path, "nodes")
    assert len(found) == 2
    assert found[1]["at_us"] - found[0]["at_us"] == pytest.approx(found[1]["elapsed_ns"] / 1000, abs=1000)
    assert rows(tmp_path, "queues") == rows(tmp_path, "times") == rows(tmp_path, "samples") == []


def test_time_before_activity_is_a_row_of_its_own(node: RunningNode, tmp_path: Path) -> None:
    """Rates of a second are not smeared over the idle minute before it."""
    look(node)
    client = amqp(node)
    client.declare("orders")
    client.put("orders", b"x")
    look(node)
    node.stop()
    idle, busy = rows(tmp_path, "nodes")[:2]
    assert (idle["published"], busy["published"]) == (0, 1)
    assert busy["at_us"] - idle["at_us"] == pytest.approx(busy["elapsed_ns"] / 1000, abs=1000)


def test_traces_that_are_off_stay_off(start_memory_node: Callable[..., RunningNode], tmp_path: Path) -> None:
    node = start_memory_node(trace="off")
    assert node.call(lambda found: found.activity) is None
    node.stop()
    assert not (tmp_path / "data" / "traces").exists()


def test_a_queue_that_is_deleted_is_not_kept(node: RunningNode) -> None:
    client = amqp(node)
    client.declare("orders")
    client.put("orders", b"x")
    look(node)
    client.ask(spec.Queue.Delete(queue="orders"), spec.Queue.DeleteOk)
    look(node)
    assert node.call(lambda found: len(activity_of(found)._timed)) == 0


def test_cpu_of_the_embedded_server_is_counted(tmp_path: Path) -> None:
    """A running process stands for the server: this one, which just used more than a tick."""
    folder = tmp_path / "postgresql"
    folder.mkdir()
    (folder / "postmaster.pid").write_text(f"{os.getpid()}\n{folder}\n")
    clock = CpuClock(tmp_path, has_server=True)
    used = 0
    while not used:
        sum(range(10**5))
        own_ns, used = clock.read()
        assert own_ns > 0
    (folder / "postmaster.pid").unlink()
    assert clock.read()[1] == 0


def test_flow_control_leaves_samples_of_its_loop(
    start_memory_node: Callable[..., RunningNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishers are faster than a store that takes its time: the loop runs, and its plant can be seen."""
    monkeypatch.setattr(flow, "CONGESTED_BYTES", 64 * 1024)
    commit = MemoryStore.commit

    async def slow_commit(store: MemoryStore, batch: Batch, *, again: bool = False) -> None:
        await asyncio.sleep(0.005 + len(batch.appended) * 0.0005)
        await commit(store, batch, again=again)

    monkeypatch.setattr(MemoryStore, "commit", slow_commit)
    node = start_memory_node(trace="on", name="node-1")
    amqp(node).declare("orders")

    def flood() -> None:
        client = amqp(node)
        for _ in range(5):
            client.put("orders", *[b"x" * 200] * 200)

    publishers = [threading.Thread(target=flood) for _ in range(6)]
    for publisher in publishers:
        publisher.start()
    for publisher in publishers:
        publisher.join()
    node.stop()
    found = [row for row in rows(tmp_path, "samples") if row["loop"] == "node-1.commit_queue"]
    assert len(found) > 20
    assert {row["mode"] for row in found} == {"active"}
    assert {row["setpoint"] for row in found} == {64 * 1024}
    assert {(row["lowest"], row["process"], row["sample_time_s"]) for row in found} == {(0.0, "node-1", 0.1)}
    assert len({row["fingerprint"] for row in found}) == 1
    pairs = [(one, two) for one, two in pairwise(found) if two["sequence"] == one["sequence"] + 1]
    assert len(pairs) > 10
    # What came in less what went out is what the level grew by: the outflow follows.
    outflow = [
        one["action"] - (two["measurement"] - one["measurement"]) / ((two["at_us"] - one["at_us"]) / 1e6)
        for one, two in pairs
    ]
    assert min(outflow) >= -1.0
    assert max(outflow) > 0
