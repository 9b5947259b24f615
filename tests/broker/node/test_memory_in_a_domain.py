"""Whatever clients do with queues of another node, both nodes stay within their limits of memory.

As in `test_memory`, on two nodes of one domain.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.node.test_memory import (
    ALLOWED_BYTES,
    MEMORY_BYTES,
    MIB,
    RESIDENT_BYTES,
    peak_rss_bytes,
    status,
    wait_until,
)
from tests.broker.peers import ThorBangPeer
from tests.nodes import ServeProcess

Pair = tuple[ServeProcess, ServeProcess]


@pytest.fixture
def nodes(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[Pair]:
    url = new_database()

    def node(name: str) -> ServeProcess:
        return ServeProcess(
            tmp_path / name,
            name=name,
            store=url,
            memory_bytes=MEMORY_BYTES,
            resident_bytes=RESIDENT_BYTES,
            # Longer than any test: a node that is stopped meanwhile keeps its queues.
            lease_s=60,
            http="127.0.0.1:0",
            log_level="error",
        )

    with node("a") as first, node("b") as second:
        yield first, second


def put_when_known(peer: ThorBangPeer, client_id: int, queue_id: int) -> None:
    """Put a message as soon as the node knows of the queue, and of the node that serves it."""
    wait_until(lambda: peer.ask(f"MSG,-1,{client_id},{queue_id},1,0,x") == ["OK"])


@contextlib.contextmanager
def stopped(node: ServeProcess) -> Iterator[None]:
    """Let the process do nothing meanwhile: it does not even read."""
    os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.pid, signal.SIGCONT)


class Stream:
    """Requests that are sent as far as the node reads them."""

    # How long a node that reads may take to read on.
    STALLED_S = 2.0

    def __init__(self, peer: ThorBangPeer, requests: list[bytes]) -> None:
        self._peer = peer
        self._left = [memoryview(request) for request in requests]

    def send(self) -> bool:
        """Send on; return whether all is sent. A node that has closed the connection takes nothing more."""
        connection = self._peer.socket
        limit_s = connection.gettimeout()
        connection.settimeout(self.STALLED_S)
        try:
            while self._left:
                sent = connection.send(self._left[0])
                self._left[0] = self._left[0][sent:]
                if not self._left[0]:
                    del self._left[0]
        except OSError:
            return False
        finally:
            connection.settimeout(limit_s)
        return True


def test_copies_of_one_message_for_a_remote_queue_are_sent_once(nodes: Pair) -> None:
    client_id, queue_id = ThorBangPeer(nodes[0].connect("thorbang")).set_up()
    peer = ThorBangPeer(nodes[1].connect("thorbang"))
    put_when_known(peer, client_id, queue_id)
    queue_ids = ";".join([str(queue_id)] * 500)
    assert peer.ask(f"MSG,-1,{client_id},{queue_ids},1,0," + "x" * MIB) == ["OK"]
    (queue,) = status(nodes[0])["queues"]
    assert queue["ready"] == 501
    assert max(map(peak_rss_bytes, nodes)) < ALLOWED_BYTES


def large_put(client_id: int, queue_id: int) -> bytes:
    return f"MSG,-1,{client_id},{queue_id},1,0,".encode() + b"x" * 10 * MIB + b"\0"


def test_puts_wait_while_the_node_of_their_queue_does_not_read(nodes: Pair) -> None:
    client_id, queue_id = ThorBangPeer(nodes[0].connect("thorbang")).set_up()
    peer = ThorBangPeer(nodes[1].connect("thorbang"))
    put_when_known(peer, client_id, queue_id)
    puts = Stream(peer, [large_put(client_id, queue_id) for _ in range(30)])
    with stopped(nodes[0]):
        assert not puts.send()
        assert peak_rss_bytes(nodes[1]) < ALLOWED_BYTES
    assert puts.send()
    assert all(peer.receive() == "OK" for _ in range(30))
    assert max(map(peak_rss_bytes, nodes)) < ALLOWED_BYTES


def test_many_clients_whose_puts_wait_for_another_node_are_refused(nodes: Pair) -> None:
    client_id, queue_id = ThorBangPeer(nodes[0].connect("thorbang")).set_up()
    peers = [ThorBangPeer(nodes[1].connect("thorbang")) for _ in range(30)]
    put_when_known(peers[0], client_id, queue_id)
    with stopped(nodes[0]):
        for peer in peers:
            Stream(peer, [large_put(client_id, queue_id)]).send()
        wait_until(lambda: status(nodes[1])["ledger"]["connections_bytes"] < MEMORY_BYTES / 2)
        assert status(nodes[1])["ledger"]["refused_connections"] > 0
        assert peak_rss_bytes(nodes[1]) < ALLOWED_BYTES
