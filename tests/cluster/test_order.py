"""What a Python client puts without waiting for answers keeps its order, whichever node comes to serve the queue."""

from __future__ import annotations

import asyncio
from unittest import mock

from flyball.client import Client
from flyball.client.connection import Connection, ServerAddress
from flyball.errors import StoreUnavailable
from flyball.model import Queue
from flyball.server.telesto import relay
from flyball.wire import telesto as wire
from tests.cluster.simulation.stage import Stage, on_stage
from tests.cluster.simulation.world import SimulatedNode

PUTS = 600
MOVED_AFTER = 100


def address_of(node: SimulatedNode) -> str:
    assert node.node is not None
    return str(node.node.addresses["telesto"])


def nowhere(node_id: int, protocol: str) -> str | None:
    return None


def move(queue_id: int, owner: SimulatedNode, heir: SimulatedNode) -> asyncio.Task[None]:
    assert owner.agent is not None
    assert heir.node is not None
    return owner.process.start(owner.agent.members.release(queue_id, heir.node.membership.node_id))


async def new_queue(owner: SimulatedNode) -> Queue:
    async with Client.connect(address_of(owner), name="somebody") as client:
        return await client.create_queue("plain")


async def taken(client: Client) -> list[int]:
    found: list[int] = []
    while (message := await client.take("plain", wait_s=1.0)) is not None:
        found.append(int(message.text))
    return found


async def put_while_it_moves(owner: SimulatedNode, heir: SimulatedNode, entry: SimulatedNode) -> None:
    queue = await new_queue(owner)
    async with Client.connect(address_of(entry), name="alice") as client:
        puts: list[asyncio.Task[object]] = []
        moving: asyncio.Task[None] | None = None
        for number in range(PUTS):
            puts.append(asyncio.ensure_future(client.put(queue, str(number))))
            await asyncio.sleep(0.0005)
            if number == MOVED_AFTER:
                moving = move(queue.id, owner, heir)
        assert moving is not None
        await asyncio.gather(*puts, moving)
        assert await taken(client) == list(range(PUTS))


@on_stage("a", "b", "c")
async def test_nothing_is_overtaken_while_a_queue_moves_from_one_other_node_to_another(stage: Stage) -> None:
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
        queue = await new_queue(owner)
        async with Client.connect(address_of(entry), name="alice") as client:
            puts: list[asyncio.Task[object]] = []
            for number in range(PUTS):
                puts.append(asyncio.ensure_future(client.put(queue, str(number))))
                await asyncio.sleep(0.01)
                if number == MOVED_AFTER:
                    owner.kill()
            results = await asyncio.gather(*puts, return_exceptions=True)
            confirmed = [number for number, result in enumerate(results) if not isinstance(result, BaseException)]
            assert len(confirmed) > PUTS - MOVED_AFTER
            found = await taken(client)
            assert found == sorted(found)
            assert set(found) >= set(confirmed)

    await stage.world.user.start(scenario())


@on_stage("a", "b")
async def test_all_that_wait_for_a_node_are_answered_when_it_does_not_come(stage: Stage) -> None:
    entry, (owner,) = stage.leading, stage.following

    async def scenario() -> None:
        assert entry.node is not None
        queue = await new_queue(owner)
        async with Client.connect(address_of(entry), name="alice") as client:
            company = entry.node.hub.company
            with mock.patch.object(relay, "GIVE_UP_S", 0.5), mock.patch.object(company, "address_of", nowhere):
                results = await asyncio.gather(*(client.put(queue, "a") for _ in range(5)), return_exceptions=True)
            assert [type(result) for result in results] == [StoreUnavailable] * 5
            await client.put(queue, "b")

    await stage.world.user.start(scenario())


@on_stage("a", "b")
async def test_what_comes_behind_something_that_was_refused_is_refused_until_the_sender_begins_anew(
    stage: Stage,
) -> None:
    owner, (heir,) = stage.leading, stage.following

    async def scenario() -> None:
        queue = await new_queue(owner)
        address = ServerAddress.parse(address_of(heir))
        connection = await Connection.open(address, extension=True, max_pending=10, on_lost=lambda lost: None)

        async def ask(packet: wire.Packet) -> type[wire.Packet]:
            return type(await connection.request(packet, "ask"))

        await ask(wire.RegisterClient(0, "another node", 1))
        assert await ask(wire.Forwarded(0)) is wire.Success
        draft = wire.WireDraft(b"a")
        assert await ask(wire.Put(0, [queue.id], [draft])) is wire.Error
        await move(queue.id, owner, heir)
        assert await ask(wire.Put(0, [queue.id], [draft])) is wire.Error
        assert await ask(wire.Put(0, [queue.id], [])) is wire.PutDone
        assert await ask(wire.Put(0, [queue.id], [draft])) is wire.PutDone
        await connection.close()

    await stage.world.user.start(scenario())
