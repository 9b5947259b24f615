"""Members and queues of a node while other nodes, or the store, fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from flyball.broker.cluster.members import Members
from flyball.broker.cluster.names import cluster_key
from flyball.broker.engine.consumer import QUEUE_MOVES, SLOW_PEER, Consumer
from flyball.broker.store.memory import MemoryStore
from flyball.errors import ClusterError, FlyballError, StoreUnavailable
from flyball.model import Draft, Message, Queue, Selector
from tests.broker.core.test_broker import in_a_loop, running


def message(message_id: int) -> Message:
    return Message(message_id, 1, b"tea", persistent=False)


class OneQueue:
    """A node, or what members use of it, with queue 1; queue 2 is another node's."""

    def __init__(self, *ready: Message | FlyballError) -> None:
        self.ready = list(ready)
        self.unacked: dict[int, Message] = {}
        self.handed: list[Message] = []
        state = SimpleNamespace(consumers={}, unacked={}, traits=SimpleNamespace(selector=None))
        engine = SimpleNamespace(find_queue_by_id=lambda queue_id: state, settle=lambda message: True)
        broker = SimpleNamespace(
            engine=engine, take_out=self._take_out, requeue_undelivered=self._requeue_undelivered
        )
        self.hub = SimpleNamespace(broker=broker)
        remote = SimpleNamespace(queue=Queue(2, "orders", member=True), owner=2)
        self.topology = SimpleNamespace(
            directory=SimpleNamespace(get=lambda queue_id: remote), lifecycle=SimpleNamespace(release=self._release)
        )
        self.definitions = SimpleNamespace(of=lambda kind: {cluster_key("/", "orders"): {}})
        self.remotes = SimpleNamespace(hand=self._hand)

    def _take_out(self, queue_id: int, selector: object, done: Callable[..., None]) -> None:
        found = self.ready.pop(0)
        if isinstance(found, Message):
            self.unacked[found.id] = found
            done(found, None)
        else:
            done(None, found)

    def _requeue_undelivered(self, message: Message) -> None:
        del self.unacked[message.id]

    def _release(self, queue_id: int, owner: int, done: Callable[..., None]) -> list[Message]:
        done(None)
        return [found for found in self.ready if isinstance(found, Message)]

    def _hand(self, remote: object, messages: Sequence[Message], done: Callable[[bool], None]) -> None:
        self.handed += messages
        done(True)


async def nobody(*arguments: object, **named: object) -> None:
    raise ClusterError("node 2 does not answer")


def test_store_failure_in_a_transfer_leaves_all_messages_in_place() -> None:
    node: Any = OneQueue(message(1), message(2), StoreUnavailable("the store is away"))
    with pytest.raises(StoreUnavailable):
        asyncio.run(Members(node, nobody).give(1, 2, most=3))
    assert node.unacked == {}
    assert node.handed == []


def test_passing_messages_go_to_a_new_owner_that_cannot_be_told_of_them() -> None:
    node: Any = OneQueue(message(1), message(2))
    asyncio.run(Members(node, nobody).release(1, 2))
    assert [found.id for found in node.handed] == [1, 2]


class Receiving:
    """Takes whatever a consumer is sent."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def deliver(self, consumer: Consumer, message: Message) -> None:
        self.bodies.append(message.body)


def refuse(queue_id: int, owner: int, done: Callable[..., None]) -> list[Message]:
    done(StoreUnavailable("the store is away"))
    return []


def never_answer(queue_id: int, owner: int, done: Callable[..., None]) -> list[Message]:
    return []


@pytest.mark.parametrize("release", [refuse, never_answer])
def test_consumers_go_on_when_their_queue_could_not_be_released(
    release: Callable[..., list[Message]],
) -> None:
    async def test() -> None:
        async with running(MemoryStore()) as broker:
            queue_id = broker.engine.create_queue("orders").id
            consumers: list[Consumer] = []
            fast, slow = Receiving(), Receiving()
            for receiver in (fast, slow):
                broker.consume(queue_id, Selector(), 1.0, receiver, consumers.append)  # type: ignore[arg-type]
            broker.pause(consumers[1], SLOW_PEER)
            topology = SimpleNamespace(lifecycle=SimpleNamespace(release=release))
            node: Any = SimpleNamespace(hub=SimpleNamespace(broker=broker), topology=topology)
            with pytest.raises((StoreUnavailable, TimeoutError)):
                async with asyncio.timeout(0.1):
                    await Members(node, nobody).release(queue_id, 2)
            broker.put(Draft(b"tea"), [queue_id], lambda messages, error: None)
            assert (fast.bodies, slow.bodies) == ([b"tea"], [])
            assert [consumer.paused_for for consumer in consumers] == [0, SLOW_PEER]

    in_a_loop(test)()


def test_consumer_whose_peer_reads_again_gets_nothing_of_a_queue_that_moves() -> None:
    async def test() -> None:
        async with running(MemoryStore()) as broker:
            queue_id = broker.engine.create_queue("orders").id
            consumers: list[Consumer] = []
            receiver = Receiving()
            broker.consume(queue_id, Selector(), 1.0, receiver, consumers.append)  # type: ignore[arg-type]
            for reason in (QUEUE_MOVES, SLOW_PEER):
                broker.pause(consumers[0], reason)
            broker.resume(consumers[0], SLOW_PEER)
            broker.put(Draft(b"tea"), [queue_id], lambda messages, error: None)
            assert receiver.bodies == []
            broker.resume(consumers[0], QUEUE_MOVES)
            assert receiver.bodies == [b"tea"]

    in_a_loop(test)()
