"""The client at servers that speak plain Telesto: what works the same, and what is not supported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flyball.errors import ClientNameTaken, InvalidBody, NotIdentified, QueueNotFound
from tests.client.telesto.flavours import Connect
from tests.client.telesto.servers import proxy
from tests.telesto_client import Backoff, ClientMode, Draft, InvalidValue, NotSupported, Order

Unique = Callable[[str], str]
Plain = Callable[..., Any]


@pytest.fixture(params=["asked for", "met"])
def plainly(request: pytest.FixtureRequest, connect: Connect, address: str) -> Plain:
    """Connect without the extension: because it is not wanted, and because the server answers Error 5."""

    @asynccontextmanager
    async def open_plainly(**arguments: Any) -> AsyncIterator[Any]:
        if request.param == "asked for":
            async with connect(address, extension=False, **arguments) as client:
                yield client
        else:
            async with proxy(address) as through:
                through.is_original = True
                async with connect(through.address, **arguments) as client:
                    yield client

    return open_plainly


async def test_queues_and_messages_work_as_with_the_extension(plainly: Plain, unique: Unique) -> None:
    name = unique("alice")
    async with plainly(name=name, mode=ClientMode.FULL) as client:
        assert (client.has_extension, client.name, client.mode) == (False, name, ClientMode.FULL)
        assert await client.ping() > 0
        queue = await client.create_queue(unique("orders"))
        assert await client.get_queue_by_name(queue.name) == queue
        assert await client.get_queue_by_id(queue.id) == queue
        assert queue in await client.get_queues()
        assert await client.put(queue.name, "é" * 2000, priority=5, context=7, receiver=client.id) is None
        assert queue in await client.get_active_queues()
        (listed,) = await client.read_messages(queue)
        message = await client.take(queue.name)
        assert message == listed
        assert (message.text, message.priority, message.context) == ("é" * 2000, 5, 7)
        assert (message.sender, message.receiver) == (client.id, client.id)
        assert await client.take(queue) is None
        assert await client.read_messages(queue) == []
        await client.delete_queue(queue)
        with pytest.raises(QueueNotFound):
            await client.put(queue, "x")
        await client.remove_client(client.id)


async def test_reads_have_the_orders_and_filters_of_telesto(plainly: Plain, unique: Unique) -> None:
    async with plainly(name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, [Draft("low", priority=1), Draft("high", priority=9), Draft("new", priority=1)])
        assert (await client.take(queue)).text == "high"
        assert (await client.take(queue, order=Order.NEWEST)).text == "new"
        assert (await client.take(queue, order=Order.PRIORITY, sender=client.id)).text == "low"
        await client.put_to_queues([queue, queue.id], "twice")
        assert [message.text for message in await client.take_many(queue, 5)] == ["twice", "twice"]
        await client.put(queue, "for me", receiver=client.id, context=3)
        assert (await client.take(queue, context=3, only_addressed=True)).text == "for me"


async def test_a_take_that_waits_asks_again_and_again(plainly: Plain, connect: Connect, unique: Unique) -> None:
    async with plainly(name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(client.take(queue, wait_s=30))
            await client.ping()
            await client.put(queue, "x")
        assert waiting.result().text == "x"
        assert await client.take(queue, wait_s=0.1) is None


async def test_requests_get_responses(plainly: Plain, connect: Connect, address: str, unique: Unique) -> None:
    async with plainly(name=unique("asker")) as asker, connect(address, name=unique("server")) as server:
        queue = await asker.create_queue(unique("service"))
        async with asyncio.TaskGroup() as tasks:
            response = tasks.create_task(asker.send_request_response(queue, "x"))
            request = await server.take(queue, wait_s=30)
            await server.reply(request, "y")
        assert response.result().text == "y"


async def test_a_name_in_use_is_refused_and_an_id_is_accepted(plainly: Plain, unique: Unique) -> None:
    name = unique("alice")
    async with plainly(name=name) as client:
        with pytest.raises(ClientNameTaken):
            async with plainly(name=name):
                pass
        async with plainly(client_id=client.id) as same:
            assert (same.id, same.name) == (client.id, name)


async def test_without_an_identity_there_is_only_ping(plainly: Plain) -> None:
    async with plainly() as client:
        await client.ping()
        with pytest.raises(NotIdentified):
            await client.get_queues()


async def test_what_telesto_lacks_is_not_supported_and_named(plainly: Plain, unique: Unique) -> None:
    async with plainly(name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        for attempt, feature in (
            (client.peek(queue), "peek"),
            (client.purge(queue), "purge"),
            (client.read_page(queue), "read_page"),
            (client.list_ids(queue), "list_ids"),
            (client.remove_messages(queue, up_to_id=1), "remove_messages"),
            (client.status(), "status"),
            (client.manage("user.list"), "manage"),
            (client.get_clients(), "get_clients"),
            (client.remove_client(999_999), "removing another client"),
            (client.take(queue, order=Order.OLDEST), "reading the oldest message first"),
            (client.take(queue, only_addressed=True), "reading only what is addressed"),
            (client.take(queue, context=1), "reading by context"),
            (client.put(queue, b"\xff"), "not UTF-8"),
            (client.put(queue, "x", ttl_s=1), "time to live"),
            (client.put(queue, "x", persistent=False), "not persistent"),
            (client.put(queue, "x", properties=b"p"), "properties"),
        ):
            with pytest.raises(NotSupported, match=feature):
                await attempt
        with pytest.raises(NotSupported) as caught:
            client.consume(queue)
        assert caught.value.feature == "consume"
        assert await client.take(queue) is None


async def test_the_narrower_limits_of_telesto_are_checked_before_sending(plainly: Plain, unique: Unique) -> None:
    async with plainly(name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        for body in ("x" * 2001, "zero \0"):
            with pytest.raises(InvalidBody):
                await client.put(queue, body)
        for fields in ({"priority": 128}, {"context": 2**31}):
            with pytest.raises(InvalidValue):
                await client.put(queue, "x", **fields)


async def test_a_plain_client_reconnects_as_itself(connect: Connect, address: str, unique: Unique) -> None:
    async with proxy(address) as through:
        through.is_original = True
        quick = Backoff(first_s=0.001, max_s=0.01)
        async with connect(through.address, name=unique("alice"), backoff=quick) as client:
            before = client.id
            through.cut()
            await client.get_queues()
            assert client.id == before
