"""Guarantees of the client about queues and messages, in all flavours, against real nodes."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flyball.broker.node.node import Node
from flyball.broker.wire import amqp
from flyball.client import (
    Client,
    ClientClosed,
    CommandRefused,
    ConnectionFailed,
    ConnectionLost,
    Draft,
    InvalidValue,
    MessageRefused,
    Order,
    RequestTimeout,
    sync,
)
from flyball.errors import InvalidBody, InvalidName, NotPermitted, QueueNotFound
from flyball.model import Permission
from tests.client.flavours import Connect
from tests.nodes import RunningNode

Unique = Callable[[str], str]


def disconnect_all(node: Node) -> None:
    for connection in node.hub.connections:
        connection.disconnect()


async def test_ping_returns_the_time_of_a_round_trip(connect: Connect, address: str) -> None:
    async with connect(address) as client:
        assert 0 < await client.ping() < 10


async def test_queue_is_created_found_listed_and_deleted(connect: Connect, any_address: str, unique: Unique) -> None:
    name = unique("orders")
    async with connect(any_address) as client:
        queue = await client.create_queue(name)
        assert await client.create_queue(name) == queue
        await client.put(queue, "one")
        found = await client.get_queue(queue)
        assert (found.name, found.messages, found.consumers) == (name, 1, 0)
        assert found in await client.get_queues()
        with pytest.raises(CommandRefused, match="x-max-length"):
            await client.create_queue(name, arguments={"x-max-length": 5})
        assert await client.delete_queue(name) == 1
        assert await client.delete_queue(name) == 0
        with pytest.raises(QueueNotFound) as missing:
            await client.get_queue(name)
        assert missing.value.queue == name


async def test_message_comes_back_as_it_was_put(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address) as client:
        queue = await client.create_queue(unique("orders"))
        fields = {"receiver": 5, "context": 2**60, "priority": 200, "properties": b"\x01p", "sender": 6}
        await client.put(queue, b"\xff\x00two coffees", ttl_s=3600, **fields)
        for message in (await client.peek(queue), await client.take(queue)):
            assert (message.queue, message.sender, message.receiver) == (queue.name, 6, 5)
            assert (message.body, message.properties) == (b"\xff\x00two coffees", b"\x01p")
            assert (message.context, message.priority) == (2**60, 200)
            assert (message.delivery_count, message.redelivered, message.persistent) == (0, False, True)
        assert await client.take(queue) is None


async def test_listed_message_says_when_it_arrived(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put(queue, "x", persistent=False)
        (message,) = await client.read_messages(queue)
        assert message.id > 0
        assert abs(datetime.now(UTC) - message.arrived) < timedelta(minutes=1)
        assert not message.persistent


async def test_order_decides_which_message_is_taken(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address) as client:
        queue = await client.create_queue(unique("orders"))
        for text, priority in (("first", 1), ("urgent", 9), ("second", 1), ("last", 1)):
            await client.put(queue, text, priority=priority)
        assert (await client.take(queue, order=Order.PRIORITY)).text == "urgent"
        assert (await client.peek(queue, order=Order.NEWEST)).text == "last"
        assert (await client.take(queue, order=Order.NEWEST)).text == "last"
        assert (await client.take(queue)).text == "first"
        assert (await client.take(queue, order=Order.OLDEST, wait_s=5)).text == "second"


async def test_messages_are_taken_by_what_they_say(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put(queue, "from 5", sender=5)
        await client.put(queue, "about 9", context=9)
        await client.put(queue, "to 7", receiver=7)
        assert (await client.peek(queue, context=9)).text == "about 9"
        assert (await client.take(queue, context=9)).text == "about 9"
        assert await client.take(queue, context=9) is None
        assert (await client.take(queue, sender=5)).text == "from 5"
        assert await client.take(queue, receiver=8) is None
        assert (await client.take(queue, receiver=7)).text == "to 7"


async def test_take_waits_for_a_message_that_fits(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address) as client, Client.connect(any_address) as other:
        queue = await client.create_queue(unique("orders"))
        assert await client.take(queue, wait_s=0.05) is None
        taking = asyncio.ensure_future(client.take(queue.name, context=3, wait_s=60))
        await other.put(queue.name, "other", context=4)
        await other.put(queue.name, "mine", context=3)
        assert (await taking).text == "mine"
        assert [message.text for message in await client.read_messages(queue)] == ["other"]


async def test_cancelled_take_leaves_its_message(address: str, unique: Unique) -> None:
    async with Client.connect(address) as client:
        queue = await client.create_queue(unique("orders"))
        for wait_s in (0.0, 60.0):
            taking = asyncio.ensure_future(client.take(queue, wait_s=wait_s))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await client.put(queue, "x")
            taking.cancel()
            found = await asyncio.gather(taking, return_exceptions=True)
            if isinstance(found[0], asyncio.CancelledError) or found[0] is None:
                assert (await client.take(queue, wait_s=20)) is not None


async def test_many_messages_are_put_and_taken_in_order(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address) as client:
        queue = await client.create_queue(unique("orders"))
        assert await client.put_many(queue, (str(number) for number in range(2500))) == 2500
        assert await client.put_many(queue, [Draft("last", priority=5), b"x" * 2_000_000]) == 2
        first = await client.take_many(queue, 2000)
        assert [message.text for message in first] == [str(number) for number in range(2000)]
        rest = await client.take_many(queue, 10_000)
        assert [len(message.body) for message in rest[-2:]] == [4, 2_000_000]
        assert len(rest) == 502
        assert await client.take_many(queue, 5) == []
        await client.put_many(queue, ["a", "b", "c"])
        assert {message.text for message in await client.take_many(queue, 2, order=Order.NEWEST, wait_s=5)} == {
            "c",
            "b",
        }
        assert [message.text for message in await client.take_many(queue, 5, wait_s=5)] == ["a"]


async def test_message_goes_into_several_queues(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address) as client:
        names = [unique("one"), unique("two"), unique("three")]
        for name in names:
            await client.create_queue(name)
        await client.put_to_queues(names, "both", context=5)
        assert [(await client.take(name, context=5)).text for name in names] == ["both"] * 3
        with pytest.raises(QueueNotFound):
            await client.put_to_queues([names[0], unique("none")], "x")
        assert await client.take(names[0]) is None
        with pytest.raises(InvalidValue):
            await client.put_to_queues([], "x")


async def test_queue_is_read_in_parts_and_removed_up_to_an_id(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    async with connect(any_address) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["1", "2", "3", "4"])
        ids = await client.list_ids(queue, most=3)
        assert len(ids) == 3
        page = await client.read_messages(queue, after_id=ids[0], most=2)
        assert [message.text for message in page] == ["2", "3"]
        assert [message.id for message in page] == ids[1:]
        assert await client.remove_messages(queue, up_to_id=ids[2]) == 3
        assert [message.text for message in await client.read_messages(queue)] == ["4"]
        assert await client.purge(queue) == 1


async def test_long_queue_is_iterated(address: str, unique: Unique) -> None:
    async with Client.connect(address) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, (str(number) for number in range(3000)))
        assert [message.text async for message in client.iterate_messages(queue)] == [str(n) for n in range(3000)]
        async for message in client.iterate_messages(queue):
            assert message.text == "0"
            break
    with sync.Client.connect(address) as threaded:
        assert len(list(threaded.iterate_messages(queue.name))) == 3000
        assert next(threaded.iterate_messages(queue.name)).text == "0"


async def test_request_gets_its_response(connect: Connect, any_address: str, unique: Unique) -> None:
    queue = unique("requests")

    async def serve(client: Any) -> None:
        requests = [await client.take(queue, wait_s=60) for _ in range(2)]
        for request in reversed(requests):
            await client.reply(request, request.text.upper())
        await client.reply(requests[0], "nobody waits any more")

    async with connect(any_address) as client, Client.connect(any_address) as server:
        await client.create_queue(queue)
        serving = asyncio.ensure_future(serve(server))
        responses = await asyncio.gather(
            client.send_request_response(queue, "one"), client.send_request_response(queue, "two")
        )
        assert [response.text for response in responses] == ["ONE", "TWO"]
        await serving
        with pytest.raises(RequestTimeout):
            await client.send_request_response(queue, "x", time_limit_s=0.1)
        with pytest.raises(QueueNotFound):
            await client.send_request_response(unique("none"), "x")
        with pytest.raises(InvalidValue):
            await client.reply(await _plain(client, queue), "y")


async def _plain(client: Any, queue: str) -> Any:
    """Return a message that is not a request."""
    await client.purge(queue)
    await client.put(queue, "x")
    return await client.take(queue)


async def test_queue_that_is_missing_is_told(connect: Connect, address: str, unique: Unique) -> None:
    name = unique("none")
    async with connect(address) as client:
        attempts: list[Callable[[], Any]] = [
            lambda: client.put(name, "x"),
            lambda: client.put_many(name, ["x", "y"]),
            lambda: client.take(name),
            lambda: client.take(name, wait_s=1),
            lambda: client.peek(name),
            lambda: client.read_messages(name),
            lambda: client.list_ids(name),
            lambda: client.remove_messages(name, up_to_id=1),
            lambda: client.purge(name),
            lambda: client.consume(name).__aenter__(),
        ]
        for attempt in attempts:
            with pytest.raises(QueueNotFound) as missing:
                await attempt()
            assert missing.value.queue == name
        await client.create_queue(name)
        await client.put(name, "now")
        assert (await client.take(name)).text == "now"


async def test_full_queue_refuses_a_message(connect: Connect, address: str, unique: Unique) -> None:
    async with connect(address) as client:
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        queue = await client.create_queue(unique("short"), arguments=arguments)
        await client.put(queue, "one")
        with pytest.raises(MessageRefused):
            await client.put(queue, "two")
        assert (await client.take(queue)).text == "one"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"body": 5}, InvalidBody),
        ({"body": "\ud800"}, InvalidBody),
        ({"body": "x", "priority": 256}, InvalidValue),
        ({"body": "x", "receiver": 0}, InvalidValue),
        ({"body": "x", "sender": 2**31}, InvalidValue),
        ({"body": "x", "context": 2**63}, InvalidValue),
        ({"body": "x", "ttl_s": 0}, InvalidValue),
        ({"body": "x", "ttl_s": float("nan")}, InvalidValue),
        ({"body": "x", "time_limit_s": -1}, InvalidValue),
    ],
)
async def test_mistakes_are_told_before_anything_is_sent(
    address: str, arguments: dict[str, Any], error: type[Exception]
) -> None:
    async with Client.connect(address) as client:
        with pytest.raises(error):
            await client.put("none", **arguments)


async def test_names_that_cannot_be_are_refused(address: str) -> None:
    async with Client.connect(address) as client:
        for name in ("\0", "x" * 256, "\ud800"):
            with pytest.raises(InvalidName):
                await client.put(name, "x")


@pytest.mark.parametrize(
    "text", ["nowhere", "host:0", "host:70000", "http://host", "amqp://user:secret@:5672", "amqp://host:secret"]
)
def test_address_that_cannot_be_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        Client.connect(text)
    assert "secret" not in str(refused.value)


async def test_users_are_let_in_and_held_to_their_permissions(
    memory_node: RunningNode, address: str, unique: Unique
) -> None:
    user, mine, other = unique("bob"), unique("mine"), unique("other")
    memory_node.run(lambda node: node.hub.authority.add_user(user, "secret"))
    with pytest.raises(NotPermitted):
        await Client.connect(address, user=user, password="wrong").open()
    with pytest.raises(NotPermitted):
        await Client.connect(f"amqp://{user}:secret@{address}/").open()
    memory_node.run(
        lambda node: node.hub.authority.set_permission(
            Permission(user, "/", f"^{mine}$", f"^({mine}|amq.default)$", mine)
        )
    )
    with pytest.raises(CommandRefused, match="vhost"):
        await Client.connect(address, user=user, password="secret", vhost="none").open()
    async with (
        Client.connect(address) as guest,
        Client.connect(f"amqp://{user}:secret@{address}/%2F") as client,
    ):
        await guest.create_queue(other)
        await client.create_queue(mine)
        await client.put(mine, "x")
        for message in (await client.peek(mine), await client.take(mine)):
            assert message is not None
            assert message.text == "x"
        for attempt in (client.create_queue(unique("third")), client.take(other), client.peek(other)):
            with pytest.raises(NotPermitted):
                await attempt


async def test_node_that_is_not_there_is_told(connect: Connect) -> None:
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1"):
        await connect("127.0.0.1:1").open()


async def test_closed_client_says_so(connect: Connect, address: str) -> None:
    client = connect(address)
    with pytest.raises(ClientClosed):
        await client.ping()
    async with client:
        await client.ping()
    with pytest.raises(ClientClosed):
        await client.ping()
    await client.close()


async def test_client_comes_back_after_a_lost_connection(
    memory_node: RunningNode, address: str, unique: Unique
) -> None:
    async with Client.connect(address) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put(queue, "before")
        memory_node.call(disconnect_all)
        assert (await client.get_queue(queue)).messages == 1
        await client.put(queue, "after")
        assert [message.text for message in await client.take_many(queue, 5)] == ["before", "after"]


async def test_put_whose_confirm_is_lost_is_unknown(
    memory_node: RunningNode, address: str, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client.connect(address) as client:
        queue = await client.create_queue(unique("orders"))
        memory_node.call(lambda node: monkeypatch.setattr(node.hub.broker.journal, "mark", lambda marker: None))
        putting = asyncio.ensure_future(client.put(queue, "x"))
        while not (await client.get_queue(queue)).messages:
            pass
        memory_node.call(disconnect_all)
        with pytest.raises(ConnectionLost):
            await putting


async def test_node_that_says_nothing_is_given_up() -> None:
    ended: list[asyncio.Event] = []
    has_come_back = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = asyncio.Event()
        ended.append(end)
        if len(ended) > 1:
            has_come_back.set()
        for method in (
            amqp.ConnectionStart(0, 0, 9, {}, b"PLAIN", b"en_US"),
            amqp.ConnectionTune(0, 100, 131_072, 60),
            amqp.ConnectionOpenOk(0),
        ):
            await reader.read(65_536)
            writer.write(method.encode())
        while await reader.read(65_536):
            pass
        writer.close()
        end.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, Client.connect(f"{host}:{port}", silence_limit_s=2) as client:
        with pytest.raises(ConnectionLost, match="no heartbeat for 2 s"):
            await client.purge("orders")
        await has_come_back.wait()
    for end in ended:
        await end.wait()


async def test_status_tells_about_the_node(connect: Connect, address: str) -> None:
    async with connect(address) as client:
        assert "version" in await client.status()


def test_sync_client_has_the_same_signatures() -> None:
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        if not name.startswith("_") and name != "iterate_messages":
            assert list(inspect.signature(method).parameters) == list(
                inspect.signature(getattr(sync.Client, name)).parameters
            )


def test_sync_client_is_what_the_script_writes() -> None:
    script = Path(__file__).parents[2] / "scripts" / "generate-sync-client"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0
