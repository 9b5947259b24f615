"""Lost connections: what is repeated, what is not, and how a client comes back. And time limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flyball.broker.wire import telesto as wire
from flyball.errors import ClientNotFound
from tests.client.telesto.flavours import Connect
from tests.client.telesto.servers import Proxy, proxy, scripted, welcome
from tests.telesto_client import (
    Backoff,
    Client,
    ClientClosed,
    ClientMode,
    ConnectionFailed,
    ConnectionLost,
    RequestTimeout,
)

Unique = Callable[[str], str]
QUICK = Backoff(first_s=0.001, max_s=0.01)


async def lose_the_answer(through: Proxy, request: asyncio.Future[object]) -> None:
    """Let a request reach the node, and break the connection instead of answering it."""
    await through.requested.wait()
    assert not request.done()
    through.swallows_answers = False
    through.cut()


async def test_a_client_reconnects_as_the_same_client(connect: Connect, address: str, unique: Unique) -> None:
    async with proxy(address) as through, connect(through.address, name=unique("a"), backoff=QUICK) as client:
        before = client.id
        for _ in range(3):
            through.cut()
            await client.ping()
            assert client.id == before
        assert through.accepted == 4


async def test_reconnecting_goes_on_while_there_is_no_server(address: str, unique: Unique) -> None:
    async with proxy(address) as through, Client.connect(through.address, name=unique("a"), backoff=QUICK) as client:
        through.refuses = True
        through.cut()
        ping = asyncio.ensure_future(client.ping())
        for _ in range(3):
            through.refused.clear()
            await through.refused.wait()
        assert not ping.done()
        through.refuses = False
        assert await ping > 0


@pytest.mark.parametrize(
    "read",
    [
        lambda client, queue: client.ping(),
        lambda client, queue: client.status(),
        lambda client, queue: client.get_queues(),
        lambda client, queue: client.get_clients(),
        lambda client, queue: client.get_queue_by_name(queue.name),
        lambda client, queue: client.get_queue_by_id(queue.id),
        lambda client, queue: client.peek(queue),
        lambda client, queue: client.read_messages(queue),
    ],
)
async def test_reads_under_way_are_repeated_on_the_next_connection(
    read: Callable[..., asyncio.Future[object]], address: str, unique: Unique
) -> None:
    async with proxy(address) as through, Client.connect(through.address, name=unique("a"), backoff=QUICK) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put(queue, "x")
        through.swallows_answers = True
        through.requested.clear()
        request = asyncio.ensure_future(read(client, queue))
        await lose_the_answer(through, request)
        assert await request
        assert through.accepted == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda client, queue: client.put(queue, "x"),
        lambda client, queue: client.put_many(queue, ["x"]),
        lambda client, queue: client.take(queue),
        lambda client, queue: client.take(queue, wait_s=30),
        lambda client, queue: client.purge(queue),
        lambda client, queue: client.delete_queue(queue),
        lambda client, queue: client.create_queue(queue.name + " again"),
    ],
)
async def test_the_outcome_of_a_change_under_way_is_unknown(
    change: Callable[..., asyncio.Future[object]], address: str, unique: Unique
) -> None:
    async with proxy(address) as through, Client.connect(through.address, name=unique("a"), backoff=QUICK) as client:
        queue = await client.create_queue(unique("orders"))
        through.swallows_answers = True
        through.requested.clear()
        request = asyncio.ensure_future(change(client, queue))
        await lose_the_answer(through, request)
        with pytest.raises(ConnectionLost, match="whether it was carried out is unknown"):
            await request
        await client.ping()


async def test_a_request_waits_for_its_response_across_connections(address: str, unique: Unique) -> None:
    async with (
        proxy(address) as through,
        Client.connect(through.address, name=unique("asker"), backoff=QUICK) as asker,
        Client.connect(address, name=unique("server")) as server,
    ):
        queue = await server.create_queue(unique("service"))
        async with asyncio.TaskGroup() as tasks:
            response = tasks.create_task(asker.send_request_response(queue, "question"))
            request = await server.take(queue, wait_s=30)
            assert request is not None
            through.cut()
            await asker.ping()
            await server.reply(request, "answer")
        assert response.result().text == "answer"


async def test_a_client_that_was_removed_is_told_so_by_every_call(address: str, unique: Unique) -> None:
    async with Client.connect(address, name=unique("a")) as other, Client.connect(address) as administrator:
        client_id = other.id
        assert client_id is not None
        async with proxy(address) as through:
            client = Client.connect(through.address, client_id=client_id, backoff=QUICK)
            await client.open()
            await administrator.remove_client(client_id)
            through.cut()
            for _ in range(2):
                with pytest.raises(ClientNotFound):
                    await client.ping()
            await client.close()


async def test_a_client_connected_by_name_is_registered_again_if_the_node_forgot_it(
    address: str, unique: Unique
) -> None:
    async with (
        proxy(address) as through,
        Client.connect(through.address, name=unique("a"), mode=ClientMode.READ_ONLY, backoff=QUICK) as client,
        Client.connect(address) as administrator,
    ):
        before = client.id
        assert before is not None
        await administrator.remove_client(before)
        through.cut()
        await client.ping()
        assert client.id != before
        assert client.mode == ClientMode.READ_ONLY


async def test_another_kind_of_server_is_not_accepted_after_a_loss(address: str, unique: Unique) -> None:
    async with proxy(address) as through, Client.connect(through.address, name=unique("a"), backoff=QUICK) as client:
        through.is_original = True
        through.cut()
        with pytest.raises(RequestTimeout):
            await client.ping(time_limit_s=0.1)
        through.is_original = False
        await client.ping()


async def opened(connect: Connect, address: str, time_limit_s: float) -> Any:
    """Return a client with so little time, which it may need to connect as well: so it tries again and again."""
    client = connect(address, name="a", time_limit_s=time_limit_s)
    while True:
        try:
            await client.open()
        except RequestTimeout:
            continue
        return client


async def test_a_server_that_never_answers_is_given_up_after_the_time_limit(connect: Connect) -> None:
    async with scripted(welcome) as address, await opened(connect, address, time_limit_s=0.05) as client:
        with pytest.raises(RequestTimeout) as caught:
            await client.ping()
        assert (caught.value.operation, caught.value.time_limit_s) == ("ping", 0.05)
        with pytest.raises(RequestTimeout, match=r"put: no answer within 0\.01 s"):
            await client.put(1, "x", time_limit_s=0.01)
        with pytest.raises(RequestTimeout):
            await client.take(1, wait_s=0.01)
        with pytest.raises(RequestTimeout):
            await client.send_request_response(1, "x")


async def test_a_response_that_does_not_come_is_a_timeout(connect: Connect, address: str, unique: Unique) -> None:
    async with connect(address, name=unique("a")) as client:
        queue = await client.create_queue(unique("service"))
        with pytest.raises(RequestTimeout) as caught:
            await client.send_request_response(queue, "x", time_limit_s=0.05)
        assert caught.value.operation == "send_request_response"


async def test_connecting_has_a_time_limit_too(connect: Connect) -> None:
    async with scripted(lambda packet: []) as address:
        with pytest.raises(RequestTimeout, match="connect"):
            await connect(address, time_limit_s=0.05).open()


async def test_requests_without_an_answer_are_bounded_and_do_not_stop_the_others() -> None:
    unanswered: list[int] = []

    def answer(packet: wire.Packet) -> list[wire.Packet]:
        if isinstance(packet, wire.Ping):
            unanswered.append(packet.packet_id)
            return []
        return welcome(packet)

    async with scripted(answer) as address, Client.connect(address, name="a", max_pending=3) as client:
        for _ in range(5):
            with pytest.raises(RequestTimeout):
                await client.ping(time_limit_s=0.02)
        assert len(unanswered) == 3


async def test_closing_ends_what_is_under_way(address: str, unique: Unique) -> None:
    client = Client.connect(address, name=unique("a"))
    await client.open()
    queue = await client.create_queue(unique("orders"))
    waiting = asyncio.ensure_future(client.take(queue, wait_s=30))
    await client.ping()
    await client.close()
    with pytest.raises(ConnectionLost, match="the client was closed"):
        await waiting


async def test_closing_while_there_is_no_connection_ends_the_attempts(address: str, unique: Unique) -> None:
    async with proxy(address) as through:
        client = Client.connect(through.address, name=unique("a"), backoff=QUICK)
        await client.open()
        through.refuses = True
        through.cut()
        await through.refused.wait()
        ping = asyncio.ensure_future(client.ping())
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ClientClosed):
            await ping


async def test_a_client_that_could_not_connect_may_try_again(address: str) -> None:
    async with proxy(address) as through:
        client = Client.connect(through.address)
        through.refuses = True
        with pytest.raises(ConnectionFailed):
            await client.open()
        through.refuses = False
        await client.open()
        await client.open()
        await client.ping()
        await client.close()
        with pytest.raises(ClientClosed):
            await client.open()
