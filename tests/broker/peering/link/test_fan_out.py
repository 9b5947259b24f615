"""One message for many queues of another node: it is sent once, and where it has to be sent again, in measure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.peering import puts as puts_module
from flyball.broker.peering.link import Link
from flyball.broker.wire.link import Content, PutOutcome
from tests.broker.peering.link.domains import DomainNode, HandMadeDomain, domain, run, until

BODY_BYTES = 4_000


def queues_of(made: HandMadeDomain, count: int) -> list[RemoteQueue]:
    """Create queues at the second node and return them as the first one knows them."""
    first, second = made.nodes
    for number in range(count):
        second.broker.engine.create_queue(f"queue {number}")
    made.tell(first)
    return sorted(first.directory.of_node(second.id), key=lambda remote: remote.queue.id)


def bodies(node: DomainNode, remote: RemoteQueue) -> list[bytes]:
    return [message.body for message in node.broker.engine.queue(remote.queue.id).oldest(0, 1000)]


class Puts:
    """Puts messages, and notes what became of each and which queues were gone."""

    def __init__(self, node: DomainNode) -> None:
        self._node = node
        self.outcomes: dict[int, int] = {}
        self.missing: list[int] = []

    def put(self, number: int, remotes: list[RemoteQueue]) -> None:
        # With a sender, as ThorBangMQ's: those may name a queue more than once.
        content = Content(b"%d" % number * BODY_BYTES, sender=1)
        self._node.remotes.puts.put(remotes, content, self.outcomes.__setitem__, number, missing=self.missing)


def largest_backlog(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that returns the maximum number of bytes of unanswered puts."""
    sizes = [0]
    put = Link.put

    def put_and_note(link: Link, *arguments: Any) -> None:
        put(link, *arguments)
        sizes.append(link.unanswered_bytes)

    monkeypatch.setattr(Link, "put", put_and_note)
    return lambda: max(sizes)


def test_message_goes_to_a_node_once_with_all_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = largest_backlog(monkeypatch)

    async def test() -> None:
        async with domain() as made:
            one, other = queues_of(made, 2)
            puts = Puts(made.nodes[0])
            puts.put(1, [one, other, one, one])
            await until(lambda: bool(puts.outcomes))
            assert puts.outcomes == {1: PutOutcome.STORED}
            assert [len(bodies(made.nodes[1], remote)) for remote in (one, other)] == [3, 1]

    run(test())
    assert largest() < 2 * BODY_BYTES


def test_copies_for_a_queue_that_is_gone_are_counted_as_missing() -> None:
    async def test() -> None:
        async with domain() as made:
            one, other = queues_of(made, 2)
            made.nodes[1].broker.engine.delete_queue(other.queue.id)
            puts = Puts(made.nodes[0])
            puts.put(1, [other, other])
            await until(lambda: len(puts.outcomes) == 1)
            assert puts.missing == [other.queue.id]
            puts.put(2, [one, one])
            await until(lambda: len(puts.outcomes) == 2)
            assert puts.outcomes == {1: PutOutcome.NOT_FOUND, 2: PutOutcome.STORED}
            assert len(bodies(made.nodes[1], one)) == 2

    run(test())


def test_parts_of_a_message_wait_for_room_and_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puts_module, "CONGESTED_BYTES", 3 * BODY_BYTES)
    largest = largest_backlog(monkeypatch)

    async def test() -> None:
        async with domain() as made:
            first, second = made.nodes
            gone, *left = queues_of(made, 40)
            second.broker.engine.delete_queue(gone.queue.id)
            puts = Puts(first)
            # Its node has not all of these queues: each is asked for by itself.
            puts.put(1, [gone, *left, left[0]])
            await until(lambda: bool(first.remotes.puts._crowded))
            puts.put(2, [left[-1]])
            async with asyncio.timeout(20):
                await until(lambda: len(puts.outcomes) == 2)
            assert puts.outcomes == {1: PutOutcome.STORED, 2: PutOutcome.STORED}
            assert puts.missing == [gone.queue.id]
            assert [body[:1] for body in bodies(second, left[0])] == [b"1", b"1"]
            assert all([body[:1] for body in bodies(second, remote)] == [b"1"] for remote in left[1:-1])
            assert [body[:1] for body in bodies(second, left[-1])] == [b"1", b"2"]
            assert (first.remotes.puts._ways, first.remotes.puts._parked, first.remotes.puts._crowded) == ({}, {}, {})

    run(test())
    assert largest() < 6 * BODY_BYTES
