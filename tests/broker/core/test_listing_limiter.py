"""Listings of long queues: complete, in pages, and only while the node has time for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from flyball.broker.core.listing_limiter import ListingLimiter
from flyball.errors import StoreUnavailable
from tests.broker.browsing import browse
from tests.broker.peers import amqp
from tests.nodes import RunningNode

MESSAGES = 2500


@pytest.fixture
def found_node(start_node: Callable[..., RunningNode], new_database: Callable[[], str]) -> RunningNode:
    """A node that has found a long queue in its store, none of it in memory."""
    database = new_database()
    before = start_node(store=database)
    writer = amqp(before)
    writer.put(writer.declare(), *[b"%d" % number for number in range(MESSAGES)])
    before.stop()
    return start_node(store=database)


@pytest.fixture
def short_node(memory_node: RunningNode) -> RunningNode:
    """A node with two messages, in memory."""
    writer = amqp(memory_node)
    writer.put(writer.declare(), b"one", b"two")
    return memory_node


def listed(node: RunningNode, limit: int) -> list[bytes]:
    return [message.body for message in browse(node, 0, limit)]


def test_a_long_listing_is_read_in_pages_and_complete(
    found_node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = found_node.node.hub.broker.store
    page = store.page
    limits: list[int] = []

    async def noted(queue_id: int, after_id: int, limit: int, max_bytes: int) -> object:
        limits.append(limit)
        return await page(queue_id, after_id, limit, max_bytes)

    monkeypatch.setattr(store, "page", noted)
    assert listed(found_node, MESSAGES) == [b"%d" % number for number in range(MESSAGES)]
    assert limits == [1000, 1000, 500]


def test_pages_of_a_listing_are_counted_by_the_nodes_admission_control(found_node: RunningNode) -> None:
    listed(found_node, MESSAGES)
    admission = found_node.node.hub.broker.listing_limiter.admission
    assert sum(counts.served for counts in found_node.call(lambda _: admission.counts)) == 3


def test_a_short_listing_of_what_is_in_memory_waits_for_nobody(short_node: RunningNode) -> None:
    short_node.call(lambda node: node.hub.broker.listing_limiter.stop())
    assert listed(short_node, 100) == [b"one", b"two"]
    assert short_node.node.hub.broker.listing_limiter.admission.counts[0].arrived == 0


def test_a_long_listing_of_what_is_in_memory_takes_its_turn(short_node: RunningNode) -> None:
    assert listed(short_node, 101) == [b"one", b"two"]
    assert short_node.node.hub.broker.listing_limiter.admission.counts[0].served == 1


def test_a_listing_for_which_there_is_no_time_is_refused_and_says_why() -> None:
    async def run() -> None:
        limiter = ListingLimiter(time_limit_s=0.01)
        async with limiter.turn(1000):
            pass
        limiter.admission.gate.hold(True)
        with pytest.raises(StoreUnavailable, match="too busy for listings"):
            async with limiter.turn(1000):
                pass
        limiter.stop()

    asyncio.run(run())


def test_those_who_wait_when_the_node_stops_are_told() -> None:
    async def run() -> None:
        limiter = ListingLimiter(time_limit_s=60)
        limiter.admission.start()
        limiter.admission.gate.hold(True)
        # The turn is asked for before the timer of the same loop runs.
        asyncio.get_running_loop().call_soon(limiter.stop)
        with pytest.raises(StoreUnavailable):
            async with limiter.turn(1000):
                pass

    asyncio.run(run())
