"""Whatever clients do with queues of another node, both nodes stay within their limits of memory.

As in `test_memory`, on two nodes of one domain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.nodes import ServeProcess
from tests.server.peers import ThorBangPeer
from tests.server.test_memory import (
    ALLOWED_BYTES,
    MEMORY_BYTES,
    MIB,
    RESIDENT_BYTES,
    peak_rss_bytes,
    status,
    wide_peer,
)

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
            log_level="error",
        )

    with node("a") as first, node("b") as second:
        yield first, second


def put_when_known(peer: ThorBangPeer, client_id: int, queue_id: int) -> None:
    """Put a message as soon as the node knows of the queue, and of the node that serves it."""
    while peer.ask(f"MSG,-1,{client_id},{queue_id},1,0,x") != ["OK"]:
        # Nothing tells when a node knows of another one.
        time.sleep(0.02)


def test_copies_of_one_message_for_a_remote_queue_are_sent_once(nodes: Pair) -> None:
    client_id, queue_id = ThorBangPeer(nodes[0].connect("thorbang")).set_up()
    peer = ThorBangPeer(nodes[1].connect("thorbang"))
    put_when_known(peer, client_id, queue_id)
    queue_ids = ";".join([str(queue_id)] * 500)
    assert peer.ask(f"MSG,-1,{client_id},{queue_ids},1,0," + "x" * MIB) == ["OK"]
    (queue,) = status(wide_peer(nodes[0]))["queues"]
    assert queue["ready"] == 501
    assert max(map(peak_rss_bytes, nodes)) < ALLOWED_BYTES
