"""A disk that becomes full: publishers are blocked before it is, and a node starts where nothing is left."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pika import spec

from flyball.broker.core.flow import NO_DISK
from flyball.broker.node.disk import BALLAST_BYTES, BALLAST_NAME, DiskReserve
from flyball.broker.node.node import Node
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode
from tests.broker.peers import telesto, thorbang
from tests.broker.protocols.amqp.compatibility.peer import METHOD, Peer
from tests.nodes import ANSWER_LIMIT_S, RunningNode, ServeProcess

MIB = 2**20
BODY_BYTES = 120_000
PERSISTENT = spec.BasicProperties(delivery_mode=2)


# The reserve


def test_space_is_low_below_the_limit_and_not_at_once_above_it(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    reserve = DiskReserve(tmp_path, limit_bytes=free + 2**30)
    reserve.check()
    assert reserve.is_low
    reserve.limit_bytes = int(free * 0.97)
    reserve.check()
    assert reserve.is_low, "not enough more than the limit is free"
    reserve.limit_bytes = free // 2
    reserve.check()
    assert not reserve.is_low


def test_volume_is_looked_at_more_often_near_the_limit(tmp_path: Path) -> None:
    reserve = DiskReserve(tmp_path, 1000 * MIB)
    intervals: list[float] = []
    for free_bytes in (5000 * MIB, 1200 * MIB, 1100 * MIB, 1000 * MIB):
        reserve.free_bytes = free_bytes
        intervals.append(reserve.check_interval_s)
    assert intervals == sorted(intervals, reverse=True)
    assert (intervals[0], intervals[-1]) == (1.0, 0.05)
    reserve.is_low = True
    assert reserve.check_interval_s == 1.0


def test_default_limit_is_small_on_small_volumes(tmp_path: Path) -> None:
    total = shutil.disk_usage(tmp_path).total
    assert DiskReserve(tmp_path / "not" / "made").limit_bytes == min(2**31, max(64 * MIB, int(total * 0.05)))


def test_wal_takes_half_of_the_limit(tmp_path: Path) -> None:
    sizes = {limit: DiskReserve(tmp_path, limit * MIB).wal_bytes // MIB for limit in (0, 1, 512, 2048, 10_000)}
    assert sizes == {0: 1024, 1: 64, 512: 256, 2048: 1024, 10_000: 1024}


def test_ballast_takes_real_space_and_only_where_there_is_enough(tmp_path: Path) -> None:
    reserve = DiskReserve(tmp_path, limit_bytes=64 * MIB)
    reserve.check()
    found = (tmp_path / BALLAST_NAME).stat()
    assert found.st_blocks * 512 >= BALLAST_BYTES
    assert found.st_mode & 0o777 == 0o600
    scarce = DiskReserve(tmp_path / "..", limit_bytes=shutil.disk_usage(tmp_path).free)
    scarce.hold()
    assert not (tmp_path / ".." / BALLAST_NAME).exists()


def test_traces_and_old_logs_go_before_the_ballast(tmp_path: Path) -> None:
    reserve = DiskReserve(tmp_path, limit_bytes=64 * MIB)
    reserve.check()
    kept = [tmp_path / "postgresql.log", tmp_path / "traces" / ".trace-a-20260101T000000000000Z-000002.parquet"]
    dropped = [tmp_path / "postgresql.log.1", tmp_path / "traces" / "trace-a-20260101T000000000000Z-000001.parquet"]
    (tmp_path / "traces").mkdir()
    for path in (*kept, *dropped):
        path.write_text("x")
    reserve.limit_bytes = 2**60
    assert not reserve.make_room("something else is wrong")
    assert reserve.make_room("FATAL:  could not write: No space left on device")
    assert not any(path.exists() for path in dropped)
    assert (tmp_path / BALLAST_NAME).exists()
    assert reserve.make_room("FATAL:  could not write: No space left on device")
    assert not (tmp_path / BALLAST_NAME).exists()
    assert not reserve.make_room("FATAL:  could not write: No space left on device")
    assert all(path.exists() for path in kept)


def test_oldest_traces_are_dropped_and_no_more_than_needed(tmp_path: Path) -> None:
    reserve = DiskReserve(tmp_path, limit_bytes=1)
    traces = tmp_path / "traces"
    traces.mkdir()
    for table, second in (("trace", 2), ("samples", 1), ("trace", 3)):
        with (traces / f"{table}-a-2026010{second}T000000000000Z-000001.parquet").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 256 * MIB)
    free = shutil.disk_usage(tmp_path).free
    reserve.limit_bytes = int((free + 128 * MIB) / 1.05)
    reserve.is_low = True
    reserve.check()
    assert sorted(path.name[:5] for path in traces.iterdir()) == ["trace", "trace"]


# What clients meet


def low_on_disk(node: RunningNode, is_low: bool = True) -> None:
    def note(node: Node) -> None:
        # Otherwise the node would reset the flag every second.
        node.membership.on_nodes.clear()
        node.hub.broker.is_low_on_disk = is_low

    node.call(note)


def test_research_protocols_are_refused_puts_and_may_read(memory_node: RunningNode) -> None:
    thor, plain = thorbang(memory_node), telesto(memory_node)
    client_id, queue_id = thor.set_up()
    assert thor.ask(f"MSG,{client_id},{client_id},{queue_id},1,0,kept") == ["OK"]
    low_on_disk(memory_node)
    assert thor.ask(f"MSG,{client_id},{client_id},{queue_id},1,0,refused") == ["FAIL UNKNOWN -1"]
    refused = plain.put_text(queue_id, "refused")
    assert isinstance(refused, wire.Error)
    assert refused.code == ErrorCode.INTERNAL_ERROR
    assert thor.ask(f"POPQ,{client_id},{queue_id},1")[0].endswith("kept")
    low_on_disk(memory_node, False)
    assert thor.ask(f"MSG,{client_id},{client_id},{queue_id},1,0,later") == ["OK"]


def test_disk_that_is_full_at_one_node_is_full_for_all_of_the_domain(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str]
) -> None:
    store = new_database()
    one, other = start_node(store=store, name="one"), start_node(store=store, name="other")
    for is_low in (True, False):

        def report(node: Node, is_low: bool = is_low) -> None:
            node.membership.report_with(lambda: {"low_on_disk": is_low})

        one.call(report)
        other.wait_until(lambda node, is_low=is_low: node.hub.broker.is_low_on_disk == is_low)  # type: ignore[misc]


# A real volume


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 300 MiB."""
    folder = tmp_path / "volume"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m,mode=0755", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def in_a_namespace_of_its_own(request: pytest.FixtureRequest) -> bool:
    """Run the test as root of a user namespace, which may mount, unless this is root; return whether it did."""
    if os.geteuid() == 0:
        return False
    apart = ["unshare", "--user", "--map-root-user", "--mount"]
    subprocess.run([*apart, sys.executable, "-m", "pytest", "-q", request.node.nodeid], check=True)
    return True


def test_publishers_are_blocked_before_the_disk_is_full_and_consumers_go_on(request: pytest.FixtureRequest) -> None:
    if in_a_namespace_of_its_own(request):
        return
    volume: Path = request.getfixturevalue("volume")
    limit = 100 * MIB
    with ServeProcess(volume / "data", store="embedded", http="127.0.0.1:0", disk_free_bytes=limit) as node:
        with Peer(*node.address("amqp")).open() as publisher, Peer(*node.address("amqp")).open() as consumer:
            publisher.ask(spec.Queue.Declare(queue="q", durable=True), spec.Queue.DeclareOk)
            count = publish_until_blocked(publisher)
            assert shutil.disk_usage(volume).free > limit // 2
            document = node_document(node)
            assert document["disk_free_alarm"]
            assert document["disk_free_limit"] == limit
            consume(consumer, count)
            # The node gives the space back by itself.
            assert publisher.expect(spec.Connection.Unblocked, 0)
            publisher.expect(spec.Basic.Ack)
            assert len(consumer.expect_content(spec.Basic.Deliver).body) == BODY_BYTES, "the one that waited"
        assert not node_document(node)["disk_free_alarm"]
        code, complaints = node.stop()
    assert code == 0
    assert complaints.count("low on disk; publishers blocked") == 1
    assert "Traceback" not in complaints


def test_node_starts_on_a_full_disk_and_its_messages_can_be_consumed(request: pytest.FixtureRequest) -> None:
    if in_a_namespace_of_its_own(request):
        return
    volume: Path = request.getfixturevalue("volume")
    bodies = [str(number).encode() * 1000 for number in range(50)]
    with ServeProcess(volume / "data", store="embedded", disk_free_bytes=64 * MIB) as node:
        with Peer(*node.address("amqp")).open() as peer:
            peer.ask(spec.Queue.Declare(queue="q", durable=True), spec.Queue.DeclareOk)
            peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
            for body in bodies:
                peer.publish(body, routing_key="q", properties=PERSISTENT)
            confirmed = 0
            while confirmed < len(bodies):
                confirmed = peer.expect(spec.Basic.Ack).delivery_tag
        node.kill()
        fill(volume / "of somebody else")
        assert shutil.disk_usage(volume).free == 0
        node.start()
        assert not (volume / "data" / BALLAST_NAME).exists()
        with Peer(*node.address("amqp")).open() as peer, Peer(*node.address("amqp")).open() as publisher:
            publisher.publish(b"later", routing_key="q", properties=PERSISTENT)
            assert publisher.expect(spec.Connection.Blocked, 0).reason == NO_DISK
            peer.ask(spec.Basic.Consume(queue="q"), spec.Basic.ConsumeOk)
            for body in bodies:
                content = peer.expect_content(spec.Basic.Deliver)
                assert content.body == body
                peer.send(spec.Basic.Ack(delivery_tag=content.method.delivery_tag))
            (volume / "of somebody else").unlink()
            publisher.expect(spec.Connection.Unblocked, 0)
            assert peer.expect_content(spec.Basic.Deliver).body == b"later"
        wait_for(volume / "data" / BALLAST_NAME)
        assert node.stop()[0] == 0


def publish_until_blocked(publisher: Peer) -> int:
    """Publish with confirms, one message after the other, until the node says why it waits; return how many."""
    publisher.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
    count = 0
    while True:
        publisher.publish(os.urandom(BODY_BYTES), routing_key="q", properties=PERSISTENT)
        count += 1
        found = publisher.read_frame()
        assert found.kind == METHOD
        if isinstance(found.method, spec.Connection.Blocked):
            assert found.method.reason == NO_DISK
            return count - 1
        assert isinstance(found.method, spec.Basic.Ack)


def consume(consumer: Peer, count: int) -> None:
    consumer.ask(spec.Basic.Qos(prefetch_count=10), spec.Basic.QosOk)
    consumer.ask(spec.Basic.Consume(queue="q"), spec.Basic.ConsumeOk)
    for _ in range(count):
        content = consumer.expect_content(spec.Basic.Deliver)
        consumer.send(spec.Basic.Ack(delivery_tag=content.method.delivery_tag))


def fill(path: Path) -> None:
    """Take all the space that is left."""
    with path.open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + ANSWER_LIMIT_S
    while not path.exists():
        assert time.monotonic() < deadline


def node_document(node: ServeProcess) -> Any:
    host, port = node.address("http")
    request = urllib.request.Request(f"http://{host}:{port}/api/nodes")
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S) as answer:
        return json.loads(answer.read())[0]
