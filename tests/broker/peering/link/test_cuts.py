"""Links that break at any time: confirmed messages are delivered, and unsettled ones are redelivered."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tests.broker.peering.link.domains import DomainNode, HandMadeDomain, client, domain, run, until

COUNT = 300


class Traffic:
    """Producers and consumers of the queue `orders`, and what they know."""

    def __init__(self) -> None:
        self.confirmed: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.seen: Counter[bytes] = Counter()
        # How often each came without having been delivered before.
        self.fresh: Counter[bytes] = Counter()

    async def produce(self, channel: AbstractChannel, name: str) -> None:
        async def publish(number: int) -> None:
            body = f"{name} {number}".encode()
            try:
                await channel.default_exchange.publish(aio_pika.Message(body, delivery_mode=2), "orders")
            except aio_pika.exceptions.DeliveryError:
                self.refused.add(body)
            else:
                self.confirmed.add(body)

        for first in range(0, COUNT, 20):
            await asyncio.gather(*[publish(number) for number in range(first, first + 20)])

    async def take(self, message: AbstractIncomingMessage) -> None:
        self.seen[message.body] += 1
        self.fresh[message.body] += not message.redelivered
        await message.ack()


async def cut(made: HandMadeDomain, chance: random.Random, is_over: asyncio.Event) -> None:
    """Break a link now and then, from one side or the other."""
    while not is_over.is_set():
        for _ in range(chance.randrange(200)):
            await asyncio.sleep(0)
        first, second = chance.sample(made.nodes, 2)
        if chance.random() < 0.5:
            first.peers.drop(second.id, "was cut by the test")
        elif second.id in first.peers.sessions:
            first.peers.sessions[second.id].abort()


@pytest.mark.parametrize("seed", range(5))
def test_confirmed_messages_survive_broken_links(seed: int) -> None:
    async def test() -> None:
        chance = random.Random(seed)
        traffic = Traffic()
        is_over = asyncio.Event()
        async with domain(3) as made:
            owner: DomainNode = made.nodes[2]
            owner.topology.create_queue("orders", lambda error: None)
            made.send_all()
            async with client(made.nodes[0]) as one, client(made.nodes[1]) as other, asyncio.TaskGroup() as tasks:
                cutting = tasks.create_task(cut(made, chance, is_over))
                for connection in (one, other):
                    consuming = await connection.channel()
                    await consuming.set_qos(10)
                    await (await consuming.get_queue("orders", ensure=False)).consume(traffic.take)
                producing = [
                    asyncio.ensure_future(traffic.produce(await connection.channel(), name))
                    for name, connection in (("one", one), ("other", other))
                ]
                await asyncio.gather(*producing)
                is_over.set()
                await cutting
                state = owner.broker.engine.find_queue("orders")
                assert state is not None
                await until(lambda: not len(state) and not state.unacked)
                await until(lambda: traffic.confirmed <= traffic.seen.keys())
        assert len(traffic.confirmed) + len(traffic.refused) == 2 * COUNT
        # Only a body that was put twice could come twice as new, and no producer puts one twice.
        assert max(traffic.fresh.values()) == 1

    run(test())
