"""After a crash of the broker, of PostgreSQL or of both, every answer that was given is still true."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flyball.broker.core.broker import Wait
from flyball.broker.node.node import Node
from flyball.broker.protocols.telesto.session import TelestoSession
from flyball.broker.settings import ServeSettings
from flyball.broker.store.postgres.store import PostgresStore
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode
from tests.broker.chaos import Chaos, drain, frozen, postgres_processes
from tests.broker.peers import TelestoPeer, ThorBangPeer, wide_peer
from tests.nodes import ANSWER_LIMIT_S, RunningNode, ServeProcess

TIME_LIMIT_S = 2.0
"""Less than the usual limit, and more than a slow machine takes for what it has to do in that time."""


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


def test_requests_fail_in_time_while_postgresql_hangs_and_work_again_by_themselves(
    tmp_path: Path, node: ServeProcess
) -> None:
    thorbang, telesto, wide = peers(node)
    client_id, queue_id = thorbang.set_up()
    before = f"MSG,-1,{client_id},{queue_id},1,0,before"
    assert thorbang.ask(before, before) == ["OK", "OK"]
    go_on = frozen(tmp_path)
    try:
        began = time.monotonic()
        wide.send(wire.Put(1, [queue_id], [wire.WireDraft(b"refused")]))
        telesto.send(wire.ReadMessage(2, queue_id, 0, wire.ReadMode.PRIORITY))
        assert thorbang.ask(f"MSG,-1,{client_id},{queue_id},1,0,refused") == ["FAIL UNKNOWN -1"]
        refused, unread = wide.receive(), telesto.receive()
        took_s = time.monotonic() - began
    finally:
        go_on()
    assert isinstance(refused, wire.Error)
    assert refused.code == ErrorCode.STORE_UNAVAILABLE
    assert isinstance(unread, wire.Error)
    assert unread.code == ErrorCode.INTERNAL_ERROR
    assert TIME_LIMIT_S * 0.9 <= took_s < ServeSettings.model_fields["store_time_limit_s"].default
    put_until_it_works(thorbang, client_id, queue_id, "after")
    # The read that failed has taken nothing.
    assert drain(node, queue_id) == ["before", "before", "after"]
    assert thorbang.ask(before) == ["OK"]
    code, complaints = node.stop()
    assert code == 0, complaints
    node.start()
    assert drain(node, queue_id) == ["before"]


def test_requests_wait_for_a_postgresql_that_comes_back_in_time(tmp_path: Path, node: ServeProcess) -> None:
    thorbang, _, _ = peers(node)
    client_id, queue_id = thorbang.set_up()
    go_on = frozen(tmp_path)
    thorbang.send(f"MSG,-1,{client_id},{queue_id},1,0,patient")
    go_on()
    assert thorbang.receive() == "OK"
    assert drain(node, queue_id) == ["patient"]


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
        assert drain(node, queue_id) == ["0", "1", "2"]
        code, complaints = node.stop()
        assert code == 0, complaints


def test_a_queue_whose_creation_was_in_doubt_exists_once(tmp_path: Path, node: ServeProcess) -> None:
    thorbang, _, wide = peers(node)
    go_on = frozen(tmp_path)
    try:
        assert wide.refusal(wire.CreateQueue(1, "doubtful")) == ErrorCode.STORE_UNAVAILABLE
    finally:
        go_on()
    thorbang.wait_for_the_store()
    # It was on its way and is done by now: whoever tries again is told that it is there.
    assert wide.refusal(wire.CreateQueue(2, "doubtful")) == ErrorCode.QUEUE_NAME_NOT_UNIQUE
    assert node.stop()[0] == 0
    node.start()
    peer = TelestoPeer(node.connect("telesto"))
    peer.widen()
    names = [queue.name for queue in peer.get(wire.GetQueuesResponse, wire.GetQueues(3)).queues]
    assert names == ["doubtful"]


def test_a_queue_deleted_while_the_store_was_away_does_not_come_back(tmp_path: Path, node: ServeProcess) -> None:
    thorbang, _, wide = peers(node)
    client_id, queue_id = thorbang.set_up()
    put_until_it_works(thorbang, client_id, queue_id, "text")
    go_on = frozen(tmp_path)
    try:
        # The first one is on its way when the store hangs; what comes behind it was never sent.
        wide.send(wire.Put(1, [queue_id], [wire.WireDraft(b"refused")]))
        assert wide.receive().packet_id == 1
        assert wide.refusal(wire.DeleteQueue(2, queue_id)) == ErrorCode.STORE_UNAVAILABLE
    finally:
        go_on()
    thorbang.wait_for_the_store()
    assert wide.create_queue("another") > queue_id
    assert node.stop()[0] == 0
    node.start()
    peer = TelestoPeer(node.connect("telesto"))
    peer.widen()
    queues = peer.get(wire.GetQueuesResponse, wire.GetQueues(3)).queues
    assert [queue.name for queue in queues] == ["another"]


# In good order: what a new node finds is in the store, and nothing of it in memory


def test_what_a_new_node_finds_is_listed_and_taken_together_with_what_comes_later(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str]
) -> None:
    database = new_database()
    first = start_node(store=database)
    peer = wide_peer(first, "client")
    queue_id = peer.create_queue()
    peer.put(queue_id, *[b"%d" % number for number in range(25)])
    first.stop()
    peer = wide_peer(start_node(store=database), "client")
    peer.put(queue_id, b"25", b"26")
    peer.put(queue_id, b"27", persistent=False)
    listed: list[bytes] = []
    after_id = 0
    while page := peer.list(queue_id, after_id, most=10):
        listed += [record.body for record in page]
        after_id = page[-1].message_id
    assert listed == [b"%d" % number for number in range(28)]
    assert peer.peek(queue_id) == [b"0"]
    assert peer.take(queue_id, most=20) == listed[:20]
    assert peer.take(queue_id, most=20) == listed[20:]


def test_a_consumer_whose_turn_comes_later_gets_what_a_new_node_has_not_in_memory(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str]
) -> None:
    database = new_database()
    before = start_node(store=database)
    writer = wide_peer(before, "client")
    queue_id = writer.create_queue()
    writer.put(queue_id, b"kept")
    before.stop()
    reader = wide_peer(start_node(store=database), "client")
    # In nine of ten slots such a consumer may hold nothing, so it is the clock that lets it ask the store.
    reader.consume(queue_id, prefetch=0.1)
    assert reader.next_delivery().record.body == b"kept"


def test_a_list_of_what_is_not_in_memory_stays_within_bounds(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = new_database()
    first = start_node(store=database)
    peer = wide_peer(first, "client")
    queue_id = peer.create_queue()
    peer.put(queue_id, *[b"x" * 1000] * 30)
    first.stop()
    monkeypatch.setattr("flyball.broker.core.reading.LOAD_BYTES", 5000)
    peer = wide_peer(start_node(store=database), "client")
    peer.put(queue_id, b"last")
    sizes: list[int] = []
    after_id = 0
    while page := peer.list(queue_id, after_id, most=1000):
        sizes.append(len(page))
        after_id = page[-1].message_id
    assert sum(sizes) == 31
    assert max(sizes) < 12


def test_a_reader_that_leaves_while_the_store_is_searched_for_it_does_not_wait_on(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = new_database()
    first = start_node(store=database)
    writer = wide_peer(first, "writer")
    queue_id = writer.create_queue()
    writer.put(queue_id, b"other")
    first.stop()
    may_search = asyncio.Event()
    is_searching = threading.Event()
    search = PostgresStore.index

    async def search_when_allowed(self: PostgresStore, *arguments: Any) -> AsyncIterator[Any]:
        is_searching.set()
        await may_search.wait()
        async for piece in search(self, *arguments):
            yield piece

    monkeypatch.setattr(PostgresStore, "index", search_when_allowed)
    node = start_node(store=database)
    reader, writer = wide_peer(node, "reader"), wide_peer(node, "writer")
    selector = wire.WireSelector(context=7)
    reader.send(wire.Take(1, queue_id, selector, 1, 60_000))
    assert is_searching.wait(ANSWER_LIMIT_S)
    reader.close()
    node.wait_until(lambda node: all(wait.is_over for wait in waits(node)))
    node.call(lambda _: may_search.set())
    wanted = wire.WireDraft(b"wanted", context=7)
    writer.get(wire.PutDone, wire.Put(2, [queue_id], [wanted]))
    assert writer.take(queue_id, selector=selector) == [b"wanted"]


def test_a_node_stops_even_if_the_store_never_answers_a_search(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = new_database()
    first = start_node(store=database)
    writer = wide_peer(first, "writer")
    queue_id = writer.create_queue()
    writer.put(queue_id, b"other")
    first.stop()
    is_searching = threading.Event()

    async def search_for_ever(self: PostgresStore, *arguments: Any) -> AsyncIterator[Any]:
        is_searching.set()
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(PostgresStore, "index", search_for_ever)
    node = start_node(store=database, store_time_limit_s=TIME_LIMIT_S)
    reader = wide_peer(node, "reader")
    reader.send(wire.Take(1, queue_id, wire.WireSelector(context=7), 1, 0))
    assert is_searching.wait(ANSWER_LIMIT_S)
    node.stop()


def waits(node: Node) -> list[Wait]:
    sessions = [connection for connection in node.hub.connections if isinstance(connection, TelestoSession)]
    return [wait for session in sessions for wait in session.waits.values()]


def peers(node: ServeProcess) -> tuple[ThorBangPeer, TelestoPeer, TelestoPeer]:
    """One client of each kind."""
    plain, wide = TelestoPeer(node.connect("telesto")), TelestoPeer(node.connect("telesto"))
    plain.register("plain")
    wide.widen()
    wide.prove()
    wide.join("wide")
    return ThorBangPeer(node.connect("thorbang")), plain, wide


def put_until_it_works(peer: ThorBangPeer, client_id: int, queue_id: int, text: str) -> None:
    """A refused put was not carried out, and may be repeated."""
    for _ in range(20):
        if peer.ask(f"MSG,-1,{client_id},{queue_id},1,0,{text}") == ["OK"]:
            return
    raise AssertionError("the store does not come back")
