"""Puts of a Python client that do not wait for answers keep their order, whichever node comes to serve the queue."""

from __future__ import annotations

import asyncio

from flyball.client import Client
from tests.broker.cluster.simulation.stage import Stage, on_stage
from tests.broker.cluster.simulation.world import SimulatedNode

QUEUE = "plain"
PUTS = 600
MOVED_AFTER = 100


def address_of(node: SimulatedNode) -> str:
    assert node.node is not None
    return str(node.node.addresses["amqp"])


def move(owner: SimulatedNode, heir: SimulatedNode) -> asyncio.Task[None]:
    assert owner.agent is not None
    assert owner.node is not None
    assert heir.node is not None
    state = owner.node.hub.broker.engine.find_queue(QUEUE)
    assert state is not None
    return owner.process.start(owner.agent.members.release(state.queue.id, heir.node.membership.node_id))


async def create_queue(owner: SimulatedNode) -> None:
    async with Client.connect(address_of(owner)) as client:
        await client.create_queue(QUEUE)


async def taken(client: Client) -> list[int]:
    found: list[int] = []
    while (message := await client.take(QUEUE, wait_s=1.0)) is not None:
        found.append(int(message.text))
    return found


async def put_while_it_moves(owner: SimulatedNode, heir: SimulatedNode, entry: SimulatedNode) -> None:
    await create_queue(owner)
    async with Client.connect(address_of(entry)) as client:
        # The first one opens the channel of the others.
        await client.put(QUEUE, "0")
        puts: list[asyncio.Task[None]] = []
        moving: asyncio.Task[None] | None = None
        for number in range(1, PUTS):
            puts.append(asyncio.ensure_future(client.put(QUEUE, str(number))))
            await asyncio.sleep(0.0005)
            if number == MOVED_AFTER:
                moving = move(owner, heir)
        assert moving is not None
        await asyncio.gather(*puts, moving)
        assert await taken(client) == list(range(PUTS))


@on_stage("a", "b", "c")
async def test_order_is_kept_while_a_remote_queue_moves(stage: Stage) -> None:
    owner, heir = stage.following
    await stage.world.user.start(put_while_it_moves(owner, heir, stage.leading))


@on_stage("a", "b", "c")
async def test_nothing_is_overtaken_while_a_queue_comes_to_the_node_of_its_producer(stage: Stage) -> None:
    owner, heir = stage.following
    await stage.world.user.start(put_while_it_moves(owner, heir, heir))


@on_stage("a", "b", "c")
async def test_what_is_confirmed_keeps_its_order_while_a_queue_is_taken_over(stage: Stage) -> None:
    owner, entry = stage.following

    async def scenario() -> None:
        await create_queue(owner)
        async with Client.connect(address_of(entry)) as client:
            await client.put(QUEUE, "0")
            puts: list[asyncio.Task[None]] = []
            for number in range(1, PUTS):
                puts.append(asyncio.ensure_future(client.put(QUEUE, str(number))))
                await asyncio.sleep(0.01)
                if number == MOVED_AFTER:
                    owner.kill()
            results = await asyncio.gather(*puts, return_exceptions=True)
            confirmed = [number for number, result in enumerate(results, 1) if not isinstance(result, BaseException)]
            assert len(confirmed) > PUTS - MOVED_AFTER
            found = await taken(client)
            assert found == sorted(found)
            assert set(found) >= set(confirmed)

    await stage.world.user.start(scenario())
