"""After a crash of the broker, of PostgreSQL or of both, every answer that was given is still true."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

from flyball.broker.settings import ServeSettings
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode
from tests.broker.browsing import browse
from tests.broker.chaos import Chaos, drain, frozen, postgres_processes
from tests.broker.held_reads import HeldReads
from tests.broker.peers import ThorBangPeer, amqp, telesto
from tests.nodes import ANSWER_LIMIT_S, RunningNode, ServeProcess

# Less than the usual limit, and more than a slow machine takes for what it has to do in that time.
TIME_LIMIT_S = 2.0


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "victim",
    [
        "broker",
        "postgres",
        "both",
        "nobody",
    ],
)
def test_every_answer_holds_when_its_giver_is_killed_under_load(victim: str, tmp_path: Path) -> None:
    tally = Chaos(tmp_path, seed=20260101, victims=(victim,)).run(rounds=3)
    assert tally.rounds == 3
    assert tally.puts > 50
    assert tally.pops > 25
    assert tally.confirmed > 50
    assert tally.acknowledged > 25
    assert tally.dead_letters > 10


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ServeProcess]:
    with ServeProcess(tmp_path, store="embedded", store_time_limit_s=TIME_LIMIT_S) as node:
        yield node


def test_requests_time_out_while_postgresql_hangs_and_then_recover(tmp_path: Path, node: ServeProcess) -> None:
    thorbang, writer, reader = (
        ThorBangPeer(node.connect("thorbang")),
        telesto(node, "writer"),
        telesto(node, "reader"),
    )
    client_id, queue_id = thorbang.set_up()
    before = f"MSG,-1,{client_id},{queue_id},1,0,before"
    assert thorbang.ask(before, before) == ["OK", "OK"]
    go_on = frozen(tmp_path)
    try:
        began = time.monotonic()
        writer.send(wire.PutMessage(1, wire.WireMessage(0, queue_id, 0, 0, 0, 0, 0, "refused"), []))
        reader.send(wire.ReadMessage(2, queue_id, 0, wire.ReadMode.PRIORITY))
        assert thorbang.ask(f"MSG,-1,{client_id},{queue_id},1,0,refused") == ["FAIL UNKNOWN -1"]
        answers = writer.receive(), reader.receive()
        took_s = time.monotonic() - began
    finally:
        go_on()
    for answer in answers:
        assert isinstance(answer, wire.Error)
        assert answer.code == ErrorCode.INTERNAL_ERROR
    assert TIME_LIMIT_S * 0.9 <= took_s < ServeSettings.model_fields["store_time_limit_s"].default
    put_until_it_works(thorbang, client_id, queue_id, "after")
    # The read that failed has taken nothing.
    assert drain(node, "queue") == ["before", "before", "after"]
    assert thorbang.ask(before) == ["OK"]
    code, complaints = node.stop()
    assert code == 0, complaints
    node.start()
    assert drain(node, "queue") == ["before"]


def test_requests_wait_for_a_postgresql_that_comes_back_in_time(tmp_path: Path, node: ServeProcess) -> None:
    thorbang = ThorBangPeer(node.connect("thorbang"))
    client_id, queue_id = thorbang.set_up()
    go_on = frozen(tmp_path)
    thorbang.send(f"MSG,-1,{client_id},{queue_id},1,0,patient")
    go_on()
    assert thorbang.receive() == "OK"
    assert drain(node, "queue") == ["patient"]


def test_a_killed_postgresql_is_brought_back_while_requests_wait_for_it(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, store="embedded") as node:
        thorbang = ThorBangPeer(node.connect("thorbang"))
        client_id, queue_id = thorbang.set_up()
        for number in range(3):
            postmaster, *backends = postgres_processes(tmp_path)
            postmaster.kill()
            # A backend that has not noticed yet may still commit, before there is another postmaster to kill.
            _, left = psutil.wait_procs(backends, timeout=ANSWER_LIMIT_S)
            assert left == []
            assert thorbang.ask(f"MSG,-1,{client_id},{queue_id},1,0,{number}", "CREATEQUEUE,more")[0] == "OK"
        assert drain(node, "queue") == ["0", "1", "2"]
        code, complaints = node.stop()
        assert code == 0, complaints


def test_a_queue_whose_creation_was_in_doubt_exists_once(tmp_path: Path, node: ServeProcess) -> None:
    thorbang, peer = ThorBangPeer(node.connect("thorbang")), telesto(node)
    go_on = frozen(tmp_path)
    try:
        assert peer.refusal(wire.CreateQueue(1, "doubtful")) == ErrorCode.INTERNAL_ERROR
    finally:
        go_on()
    thorbang.wait_for_the_store()
    # It was in progress and is done by now: a second attempt is refused, as the queue exists.
    assert peer.refusal(wire.CreateQueue(2, "doubtful")) == ErrorCode.QUEUE_NAME_NOT_UNIQUE
    assert node.stop()[0] == 0
    node.start()
    assert queue_names(node) == ["doubtful"]


def test_a_queue_deleted_while_the_store_was_away_does_not_come_back(tmp_path: Path, node: ServeProcess) -> None:
    thorbang, peer = ThorBangPeer(node.connect("thorbang")), telesto(node)
    client_id, queue_id = thorbang.set_up()
    put_until_it_works(thorbang, client_id, queue_id, "text")
    go_on = frozen(tmp_path)
    try:
        # The first one is on its way when the store hangs; what comes behind it was never sent.
        peer.put_text(queue_id, "refused")
        assert peer.refusal(wire.DeleteQueue(2, queue_id)) == ErrorCode.INTERNAL_ERROR
    finally:
        go_on()
    thorbang.wait_for_the_store()
    assert peer.create_queue("another") > queue_id
    assert node.stop()[0] == 0
    node.start()
    assert queue_names(node) == ["another"]


# After a graceful stop: what a new node finds is in the store, and nothing of it in memory


def stored(start_node: Callable[..., RunningNode], new_database: Callable[[], str], *bodies: bytes) -> str:
    """Return a database with these messages in the queue "queue", and no node."""
    database = new_database()
    node = start_node(store=database)
    peer = amqp(node)
    peer.put(peer.declare(), *bodies)
    node.stop()
    return database


def test_recovered_messages_are_listed_and_taken_with_later_ones(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str]
) -> None:
    database = stored(start_node, new_database, *[b"%d" % number for number in range(25)])
    node = start_node(store=database)
    peer = amqp(node)
    peer.put("queue", b"25", b"26")
    peer.put("queue", b"27", persistent=False)
    listed = [body for page in pages(node, limit=10) for body in page]
    assert listed == [b"%d" % number for number in range(28)]
    assert peer.peek("queue") == b"0"
    assert peer.take("queue", most=20) == listed[:20]
    assert peer.take("queue", most=20) == listed[20:]


def test_later_consumer_gets_messages_that_are_only_in_the_store(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str]
) -> None:
    database = stored(start_node, new_database, b"kept")
    reader = amqp(start_node(store=database))
    # In nine of ten slots such a consumer may hold nothing, so it is the clock that lets it ask the store.
    reader.consume("queue", {"x-prefetch": Decimal("0.1")})
    assert reader.next_delivery().body == b"kept"


def test_a_list_of_what_is_not_in_memory_stays_within_bounds(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = stored(start_node, new_database, *[b"x" * 1000] * 30)
    monkeypatch.setattr("flyball.broker.core.store_reader.LOAD_BYTES", 5000)
    node = start_node(store=database)
    amqp(node).put("queue", b"last")
    sizes = [len(page) for page in pages(node, limit=1000)]
    assert sum(sizes) == 31
    assert max(sizes) < 12


def pages(node: RunningNode, limit: int) -> list[list[bytes]]:
    """List the queue; return the bodies of each answer."""
    found: list[list[bytes]] = []
    after_id = 0
    while page := browse(node, after_id, limit):
        found.append([message.body for message in page])
        after_id = page[-1].id
    return found


def test_reader_that_disconnects_during_a_search_is_dropped(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = stored(start_node, new_database, b"other")
    reads = HeldReads(monkeypatch)
    node = start_node(store=database)
    reader, writer = amqp(node), amqp(node)
    reader.consume("queue", {"x-context": 7})
    reads.wait()
    reader.close()
    node.wait_until(lambda node: len(node.hub.connections) == 1)
    reads.allow(node)
    writer.put("queue", b"wanted", headers={"x-flyball-context": 7})
    writer.consume("queue", {"x-context": 7})
    assert writer.next_delivery().body == b"wanted"


def test_a_node_stops_even_if_the_store_never_answers_a_search(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = stored(start_node, new_database, b"other")
    reads = HeldReads(monkeypatch)
    node = start_node(store=database, store_time_limit_s=TIME_LIMIT_S)
    reader = amqp(node)
    reader.consume("queue", {"x-context": 7})
    reads.wait()
    node.stop()


def queue_names(node: ServeProcess) -> list[str]:
    peer = telesto(node, "observer")
    return [queue.name for queue in peer.get(wire.GetQueuesResponse, wire.GetQueues(3)).queues]


def put_until_it_works(peer: ThorBangPeer, client_id: int, queue_id: int, text: str) -> None:
    """A refused put was not carried out, and may be repeated."""
    for _ in range(20):
        if peer.ask(f"MSG,-1,{client_id},{queue_id},1,0,{text}") == ["OK"]:
            return
    raise AssertionError("the store does not come back")
