"""What a Python client puts without waiting for answers keeps its order, whichever node comes to serve the queue."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from flyball.broker.protocols.telesto import relay
from flyball.broker.wire import telesto as wire
from flyball.errors import StoreUnavailable
from flyball.model import Queue
from tests.broker.cluster.simulation.stage import Stage, on_stage
from tests.broker.cluster.simulation.world import SimulatedNode
from tests.telesto_client import Client
from tests.telesto_client.connection import Connection, ServerAddress

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


async def new_queue(owner: SimulatedNode, name: str = "plain") -> Queue:
    async with Client.connect(address_of(owner), name="somebody") as client:
        return await client.create_queue(name)


async def taken(client: Client, name: str = "plain") -> list[int]:
    found: list[int] = []
    while (message := await client.take(name, wait_s=1.0)) is not None:
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


async def put_while_they_part(
    owner: SimulatedNode, heir: SimulatedNode, entry: SimulatedNode, moved_name: str
) -> None:
    queues = [await new_queue(owner, "plain"), await new_queue(owner, "other")]
    (moved,) = (queue for queue in queues if queue.name == moved_name)
    async with Client.connect(address_of(entry), name="alice") as client:
        puts: list[asyncio.Task[object]] = []
        moving: asyncio.Task[None] | None = None
        for number in range(PUTS):
            # Those to one of the two go between those to both.
            to = queues if number % 3 else queues[number % 2 :][:1]
            puts.append(asyncio.ensure_future(client.put_to_queues(to, str(number))))
            await asyncio.sleep(0.0005)
            if number == MOVED_AFTER:
                moving = move(moved.id, owner, heir)
        assert moving is not None
        await asyncio.gather(*puts, moving)
        assert await taken(client, "plain") == [number for number in range(PUTS) if number % 3 or not number % 2]
        assert await taken(client, "other") == [number for number in range(PUTS) if number % 3 or number % 2]


@pytest.mark.parametrize("moved_name", ["plain", "other"])
def test_puts_to_two_queues_reach_both_in_order_when_one_of_them_moves(moved_name: str) -> None:
    @on_stage("a", "b", "c")
    async def elsewhere(stage: Stage) -> None:
        owner, heir = stage.following
        await stage.world.user.start(put_while_they_part(owner, heir, stage.leading, moved_name))

    @on_stage("a", "b", "c")
    async def here(stage: Stage) -> None:
        owner, heir = stage.following
        await stage.world.user.start(put_while_they_part(owner, heir, heir, moved_name))

    elsewhere()
    here()


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
            peering = entry.node.hub.peering
            with mock.patch.object(relay, "GIVE_UP_S", 0.5), mock.patch.object(peering, "address_of", nowhere):
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

        nonce = await connection.request(wire.AskNonce(0), "ask")
        assert isinstance(nonce, wire.Nonce)
        assert heir.node is not None
        assert await ask(wire.Prove(0, wire.proof_of(heir.node.hub.owner_keys[-1], nonce.data))) is wire.Success
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
