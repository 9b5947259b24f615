"""The traces of requests: one row each, with phases that add up to at most the time that the client saw."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from flyball.broker.wire import telesto as wire
from tests.broker.peers import amqp, telesto, thorbang
from tests.nodes import Gate, RunningNode

Row = dict[str, Any]

PHASES = ("wait_ns", "parse_ns", "engine_ns", "store_ns", "emit_ns")


@pytest.fixture
def node(start_memory_node: Callable[..., RunningNode]) -> RunningNode:
    return start_memory_node(trace="on")


def rows(node: RunningNode, tmp_path: Path) -> list[Row]:
    """Stop the node and return what it has written, in order."""
    node.stop()
    found: list[Row] = []
    for path in sorted((tmp_path / "data" / "traces").glob("trace-*.parquet")):
        found += parquet.read_table(path).to_pylist()
    assert [row["sequence"] for row in found] == list(range(len(found)))
    return found


def phases_ns(row: Row) -> int:
    assert all(row[phase] >= 0 for phase in PHASES), row
    return sum(row[phase] for phase in PHASES)


class Stopwatch:
    """Asks one thing after the other, and notes how long each answer took."""

    def __init__(self) -> None:
        self.took_ns: list[int] = []

    def time(self, ask: Callable[[], object]) -> None:
        began_ns = time.perf_counter_ns()
        ask()
        self.took_ns.append(time.perf_counter_ns() - began_ns)


def test_every_request_is_one_row_whose_phases_fit_into_what_the_client_saw(
    start_node: Callable[..., RunningNode], tmp_path: Path
) -> None:
    node = start_node(trace="on")
    watch = Stopwatch()
    peer = thorbang(node)
    for request in (
        "HELLO",
        "CREATECLIENT,client",
        "CREATEQUEUE,queue",
        "MSG,1,1,1,1,0,12345",
        "PEEKQ,1,1,1",
        "POPQ,1,1,1",
        "POPQ,1,1,1",
        "MSG,1,1,9,1,0,12345",
        "REMOVEQUEUE,1",
        "nonsense",
    ):
        watch.time(lambda request=request: peer.ask(request))  # type: ignore[misc]
    found = rows(node, tmp_path)
    assert [
        (row["kind"], row["result"], row["queue_id"], row["size_bytes"], row["message_count"]) for row in found
    ] == [
        ("ping", "ok", 0, 0, 0),
        ("register", "ok", 0, 0, 0),
        ("create_queue", "ok", 1, 0, 0),
        ("put", "ok", 1, 5, 1),
        ("peek", "ok", 1, 5, 1),
        ("take", "ok", 1, 5, 1),
        ("take", "empty", 1, 0, 0),
        ("put", "refused", 0, 5, 0),
        ("delete_queue", "ok", 1, 0, 0),
        ("other", "refused", 0, 0, 0),
    ]
    assert {row["protocol"] for row in found} == {"thorbang"}
    for row, took_ns in zip(found, watch.took_ns, strict=True):
        assert 0 < phases_ns(row) <= took_ns
        waits_for_the_store = row["kind"] in ("register", "create_queue", "put", "take", "delete_queue")
        assert (row["store_ns"] > 0) == (waits_for_the_store and row["message_count"] + (row["result"] == "ok") > 0)
    assert all(abs(row["received_us"] - time.time_ns() // 1000) < 60_000_000 for row in found)


def test_telesto_requests_and_amqp_deliveries_are_traced_by_client(node: RunningNode, tmp_path: Path) -> None:
    plain, consumer = telesto(node, "plain"), amqp(node)
    queue_id = plain.create_queue()
    plain.put_text(queue_id, "12345")
    consumer.consume("queue")
    consumer.ack(consumer.next_delivery())
    consumer.sync()
    assert plain.read_text(queue_id) is None
    found = rows(node, tmp_path)
    told = [(row["kind"], row["result"], row["client_id"], row["message_count"]) for row in found]
    assert [each for row, each in zip(found, told, strict=True) if row["protocol"] == "telesto"] == [
        ("register", "ok", 1, 0),
        ("create_queue", "ok", 1, 0),
        ("put", "ok", 1, 1),
        ("take", "empty", 1, 0),
    ]
    # Among them are the steps of a handshake.
    of_amqp = [each for row, each in zip(found, told, strict=True) if row["protocol"] == "amqp"]
    assert {("consume", "ok", 0, 0), ("deliver", "ok", 0, 1), ("settle", "ok", 0, 0)} <= {*of_amqp}
    (put,) = [row for row in found if row["kind"] == "put"]
    assert put["size_bytes"] == 5
    assert all(phases_ns(row) > 0 for row in found)


def test_request_behind_one_that_waits_for_the_store_has_its_own_time(
    gate: Gate, node: RunningNode, tmp_path: Path
) -> None:
    peer = thorbang(node)
    client_id, queue_id = peer.set_up()
    gate.close(node)
    peer.send(f"MSG,{client_id},{client_id},{queue_id},1,0,text", "HELLO")
    node.wait_until(lambda node: sum(connection.in_flight for connection in node.hub.connections) == 2)
    held = Stopwatch()
    held.time(lambda: node.wait_until(lambda node: node.hub.broker.journal.pending_count == 1))
    gate.open(node)
    assert [peer.receive(), peer.receive()] == ["OK", "OK"]
    message, hello = rows(node, tmp_path)[-2:]
    assert (message["kind"], hello["kind"]) == ("put", "ping")
    assert message["store_ns"] > 0
    assert hello["store_ns"] == 0
    assert hello["emit_ns"] >= held.took_ns[0]


def test_what_the_store_does_not_answer_is_traced_as_failed(
    gate: Gate, start_memory_node: Callable[..., RunningNode], tmp_path: Path
) -> None:
    node = start_memory_node(trace="on")
    peer = telesto(node)
    queue_id = peer.create_queue()
    gate.close(node, time_limit_s=0.1)
    refused = peer.put_text(queue_id, "body")
    assert isinstance(refused, wire.Error)
    assert refused.code == wire.ErrorCode.INTERNAL_ERROR
    gate.open(node)
    (put,) = [row for row in rows(node, tmp_path) if row["kind"] == "put"]
    assert put["result"] == "failed"
    assert put["store_ns"] > 50_000_000
