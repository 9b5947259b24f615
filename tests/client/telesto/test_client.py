"""What the client promises about queues, clients and messages, in both flavours, against real nodes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from flyball.broker.wire import telesto as wire
from flyball.errors import (
    ClientNameTaken,
    ClientNotFound,
    InvalidBody,
    InvalidName,
    NotIdentified,
    NotPermitted,
    QueueNameTaken,
    QueueNotFound,
)
from tests.client.telesto.flavours import Connect
from tests.client.telesto.servers import scripted, welcome
from tests.nodes import RunningNode
from tests.telesto_client import (
    Client,
    ClientClosed,
    ClientMode,
    CommandRefused,
    ConnectionFailed,
    Consumer,
    Delivery,
    Draft,
    InvalidValue,
    LimitExceeded,
    Order,
    ServerError,
    sync,
)

Unique = Callable[[str], str]


async def test_a_ping_returns_the_time_of_a_round_trip(connect: Connect, address: str) -> None:
    async with connect(address) as client:
        assert 0 < await client.ping() < 10


async def test_a_client_of_a_new_name_is_registered_with_its_mode(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    name = unique("alice")
    async with connect(any_address, name=name, mode=ClientMode.READ_ONLY) as client:
        assert (client.name, client.mode) == (name, ClientMode.READ_ONLY)
        assert client.has_extension
        async with connect(any_address, client_id=client.id) as same:
            assert (same.id, same.name, same.mode) == (client.id, name, ClientMode.READ_ONLY)


async def test_a_name_in_use_means_that_client_unless_it_is_to_be_new(
    connect: Connect, address: str, unique: Unique
) -> None:
    name = unique("alice")
    async with connect(address, name=name) as first, connect(address, name=name, mode=ClientMode.READ_ONLY) as second:
        assert (second.id, second.mode) == (first.id, ClientMode.FULL)
    with pytest.raises(ClientNameTaken) as caught:
        await connect(address, name=name, existing_ok=False).open()
    assert caught.value.client_name == name


async def test_an_unknown_client_id_is_refused(connect: Connect, address: str) -> None:
    with pytest.raises(ClientNotFound) as caught:
        await connect(address, client_id=999_999).open()
    assert caught.value.client == 999_999


async def test_queues_are_created_found_listed_and_deleted(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    name = unique("orders")
    async with connect(any_address) as client:
        queue = await client.create_queue(name)
        assert await client.get_queue_by_name(name) == queue
        assert await client.get_queue_by_id(queue.id) == queue
        assert queue in await client.get_queues()
        with pytest.raises(QueueNameTaken) as taken:
            await client.create_queue(name)
        assert taken.value.queue_name == name
        await client.delete_queue(name)
        assert queue not in await client.get_queues()
        for attempt in (client.get_queue_by_name(name), client.delete_queue(queue)):
            with pytest.raises(QueueNotFound) as missing:
                await attempt
            assert missing.value.queue == name
        with pytest.raises(QueueNotFound) as missing:
            await client.get_queue_by_id(queue.id)
        assert missing.value.queue == queue.id


async def test_a_message_comes_back_as_it_was_put(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address, name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        message_id = await client.put(
            queue,
            b"\xff\x00two coffees",
            receiver=client.id,
            context=2**60,
            priority=-70_000,
            properties=b"\x01p",
            ttl_s=3600,
        )
        message = await client.take(queue)
        assert message.id == message_id
        assert (message.queue_id, message.sender, message.receiver) == (queue.id, client.id, client.id)
        assert (message.body, message.properties) == (b"\xff\x00two coffees", b"\x01p")
        assert (message.context, message.priority) == (2**60, -70_000)
        assert (message.delivery_count, message.redelivered, message.persistent) == (0, False, True)
        assert abs(datetime.now(UTC) - message.arrived) < timedelta(minutes=1)
        assert await client.take(queue) is None


async def test_queues_may_be_given_by_name_by_id_and_as_objects(
    connect: Connect, address: str, unique: Unique
) -> None:
    async with connect(address, name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        for reference in (queue, queue.id, queue.name):
            await client.put(reference, "é")
            assert (await client.peek(reference)).text == "é"
            assert len(await client.read_messages(reference)) == 1
            assert (await client.take(reference)).text == "é"


async def test_the_order_decides_which_message_is_taken(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address, name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        for text, priority in (("first", 1), ("urgent", 9), ("second", 1), ("last", 1)):
            await client.put(queue, text, priority=priority)
        assert (await client.take(queue, order=Order.PRIORITY)).text == "urgent"
        assert (await client.take(queue, order=Order.NEWEST)).text == "last"
        assert (await client.peek(queue)).text == "first"
        assert (await client.take(queue)).text == "first"


async def test_messages_are_selected_by_sender_receiver_and_context(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    async with connect(any_address, name=unique("alice")) as alice, connect(any_address, name=unique("bob")) as bob:
        queue = await alice.create_queue(unique("orders"))
        await alice.put(queue, "to bob", receiver=bob.id)
        await alice.put(queue, "from alice", context=5)
        await bob.put(queue, "from bob")
        assert (await alice.take(queue, sender=bob.id)).text == "from bob"
        assert (await bob.peek(queue, only_addressed=True)).text == "to bob"
        assert await alice.take(queue, only_addressed=True) is None
        assert (await bob.take(queue, context=5)).text == "from alice"
        assert [message.text for message in await alice.read_messages(queue)] == ["to bob"]


async def test_a_message_is_put_into_several_queues_or_into_none(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    async with connect(any_address, name=unique("alice")) as client:
        first, second = [await client.create_queue(unique("orders")) for _ in range(2)]
        ids = await client.put_to_queues([first, second.name], "copy")
        taken = [await client.take(queue) for queue in (first, second)]
        assert [message.id for message in taken] == ids
        for missing in ("no such queue", 999_999):
            with pytest.raises(QueueNotFound) as caught:
                await client.put_to_queues([first, missing], "copy")
            assert caught.value.queue == missing
        assert await client.take(first) is None
        with pytest.raises(InvalidValue):
            await client.put_to_queues([], "copy")


async def test_batches_keep_their_order_and_may_be_longer_than_a_request(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    async with connect(any_address, name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        ids = await client.put_many(queue, [f"{number}" for number in range(2500)])
        assert ids == sorted(set(ids))
        assert [message.id for message in await client.read_messages(queue)] == ids
        assert [message.id for message in await client.read_messages(queue, most=3)] == ids[:3]
        first = await client.take_many(queue, 2000)
        second = await client.take_many(queue, 2000)
        assert [message.id for message in first + second] == ids
        assert await client.put_many(queue, []) == []
        await client.put_many(queue, (Draft("x", priority=number) for number in range(2)))
        assert [message.priority for message in await client.take_many(queue, 10)] == [0, 1]


async def test_batches_larger_than_a_frame_are_split(connect: Connect, address: str, unique: Unique) -> None:
    async with connect(address, name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        body = bytes(5 * 2**20)
        assert len(await client.put_many(queue, [body] * 7)) == 7
        found = []
        while messages := await client.take_many(queue, 100):
            found += messages
        assert [len(message.body) for message in found] == [len(body)] * 7


async def test_a_take_waits_at_the_server_for_a_message(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address, name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(client.take(queue, wait_s=30))
            await client.ping()
            await client.put(queue, "here it is")
        assert waiting.result().text == "here it is"
        assert await client.take(queue, wait_s=0.01) is None


async def test_a_request_gets_its_response(connect: Connect, any_address: str, unique: Unique) -> None:
    async def serve(server: Client, queue: str) -> None:
        for _ in range(2):
            request = await server.take(queue, wait_s=30)
            assert request is not None
            await server.reply(request, request.text.upper())

    async with (
        connect(any_address, name=unique("asker")) as asker,
        connect(any_address, name=unique("server")) as server,
    ):
        queue = await asker.create_queue(unique("service"))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(server, queue.name))
            response = await asker.send_request_response(queue, "to anyone", priority=3)
            assert (response.text, response.priority, response.sender) == ("TO ANYONE", 3, server.id)
            response = await asker.send_request_response(queue, "to the server", receiver=server.id)
            assert response.text == "TO THE SERVER"


async def test_only_a_message_with_a_sender_can_be_replied_to(connect: Connect, address: str, unique: Unique) -> None:
    async with connect(address, name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put(queue, "x")
        message = await client.take(queue)
        message.sender = None
        with pytest.raises(InvalidValue, match="no sender"):
            await client.reply(message, "y")


async def test_active_queues_are_those_with_messages_for_this_client(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    async with connect(any_address, name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        assert queue not in await client.get_active_queues()
        await client.put_many(queue, ["a", "b"])
        assert (await client.get_active_queues()).count(queue) == 1
        await client.purge(queue)
        await client.put(queue, "a", receiver=999_999)
        assert queue not in await client.get_active_queues()


async def test_a_purge_tells_how_many_messages_went(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address, name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["x"] * 5)
        assert await client.purge(queue.name) == 5
        assert await client.purge(queue) == 0


async def test_pages_and_ids_begin_where_one_asks_and_a_removal_ends_there(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    async with connect(any_address, name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        ids = await client.put_many(queue, [f"{number}" for number in range(25)])
        assert await client.list_ids(queue) == ids
        assert await client.list_ids(queue.name, after_id=ids[20], most=3) == ids[21:24]
        page = await client.read_page(queue, after_id=ids[9], most=10)
        assert [message.text for message in page] == [f"{number}" for number in range(10, 20)]
        assert await client.read_page(queue, after_id=ids[-1]) == []
        assert await client.remove_messages(queue, up_to_id=ids[19]) == 20
        assert await client.remove_messages(queue, up_to_id=ids[19]) == 0
        assert await client.list_ids(queue) == ids[20:]


async def test_a_removal_of_more_than_one_request_holds_is_several(address: str, unique: Unique) -> None:
    async with Client.connect(address, name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        ids = await client.put_many(queue, ["x"] * 20_001)
        assert await client.remove_messages(queue, up_to_id=ids[-2]) == 20_000
        assert await client.list_ids(queue) == ids[-1:]


async def test_clients_are_listed_and_removed_by_id_and_by_name(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    names = [unique("alice"), unique("bob")]
    ids = []
    for name in names:
        async with connect(any_address, name=name) as client:
            ids.append(client.id)
    async with connect(any_address) as client:
        known = {known.id: known.name for known in await client.get_clients()}
        assert [known[client_id] for client_id in ids] == names
        await client.remove_client(ids[0])
        await client.remove_client(names[1])
        assert not set(ids) & {known.id for known in await client.get_clients()}
        with pytest.raises(ClientNotFound):
            await client.remove_client(names[1])
        with pytest.raises(ClientNotFound):
            await client.remove_client(ids[0])


async def test_the_status_tells_about_the_queues(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address, name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put(queue, "x")
        (found,) = [entry for entry in (await client.status())["queues"] if entry["name"] == queue.name]
        assert (found["id"], found["ready"], found["leased"]) == (queue.id, 1, 0)


async def test_commands_of_the_administration_return_what_the_node_answers(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    name = unique("usér")
    async with connect(any_address) as client:
        assert await client.manage("user.add", name=name, password="secret", tags=["monitoring"]) is None
        users = await client.manage("user.list", time_limit_s=10)
        assert {"name": name, "tags": ["monitoring"], "has_password": True} in users
        with pytest.raises(CommandRefused, match="there is already a user"):
            await client.manage("user.add", name=name)
        with pytest.raises(CommandRefused, match="there is no command"):
            await client.manage("user.sing")
        assert await client.manage("user.delete", name=name) is None


async def test_without_an_identity_messages_cannot_be_put_or_read(
    connect: Connect, address: str, unique: Unique
) -> None:
    async with connect(address) as client:
        assert (client.id, client.name, client.mode) == (None, None, None)
        queue = await client.create_queue(unique("orders"))
        for attempt in (client.put(queue, "x"), client.take(queue), client.peek(queue)):
            with pytest.raises(NotIdentified):
                await attempt


async def test_a_read_only_client_cannot_put(connect: Connect, address: str, unique: Unique) -> None:
    async with connect(address, name=unique("reader"), mode=ClientMode.READ_ONLY) as client:
        queue = await client.create_queue(unique("orders"))
        with pytest.raises(NotPermitted):
            await client.put(queue, "x")


async def test_a_queue_made_anew_under_its_old_name_is_found(connect: Connect, address: str, unique: Unique) -> None:
    name = unique("orders")
    async with connect(address, name=unique("alice")) as client, connect(address) as other:
        await client.create_queue(name)
        await client.put(name, "old")
        await other.delete_queue(name)
        queue = await other.create_queue(name)
        await client.put(name, "new")
        assert (await client.take(queue)).text == "new"
        await other.delete_queue(name)
        with pytest.raises(QueueNotFound) as caught:
            await client.take(name)
        assert caught.value.queue == name


async def test_a_missing_queue_is_an_error_for_every_operation(
    connect: Connect, address: str, unique: Unique
) -> None:
    async with connect(address, name=unique("alice")) as client:
        for missing in ("no such queue", 999_999):
            for attempt in (
                client.put(missing, "x"),
                client.put_many(missing, ["x"]),
                client.take(missing),
                client.take(missing, wait_s=5),
                client.peek(missing),
                client.read_messages(missing),
                client.purge(missing),
                client.read_page(missing),
                client.list_ids(missing),
                client.remove_messages(missing, up_to_id=1),
                client.delete_queue(missing),
                client.consume(missing).__aenter__(),
            ):
                with pytest.raises(QueueNotFound) as caught:
                    await attempt
                assert caught.value.queue == missing


async def test_bad_arguments_are_refused_before_anything_is_sent(
    connect: Connect, address: str, unique: Unique
) -> None:
    async with connect(address, name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        for attempt in (
            client.put(queue, "x", priority=2**31),
            client.put(queue, "x", context=2**63),
            client.put(queue, "x", context=0),
            client.put(queue, "x", receiver=0),
            client.put(queue, "x", receiver="alice"),
            client.put(queue, "x", ttl_s=0),
            client.put(queue, "x", ttl_s=float("nan")),
            client.put(2**31, "x"),
            client.put(queue, "x", time_limit_s=0),
            client.take(queue, wait_s=-1),
            client.take(queue, wait_s=1e9),
            client.take_many(queue, 0),
            client.take_many(queue, 10_001),
            client.take(queue, sender=2**31),
            client.read_messages(queue, most=-1),
        ):
            with pytest.raises(InvalidValue):
                await attempt
        for attempt in (
            client.put(queue, "half \ud83d"),
            client.put(queue, bytes(17 * 2**20)),
            client.put_many(queue, [bytes(17 * 2**20)]),
            client.put(queue, 5),
        ):
            with pytest.raises(InvalidBody):
                await attempt
        for name in ("x" * 256, "zero \0", "half \ud83d"):
            with pytest.raises(InvalidName):
                await client.create_queue(name)
        for prefetch in (-1, float("nan"), float("inf"), "many"):
            with pytest.raises(InvalidValue):
                client.consume(queue, prefetch=prefetch)
        assert await client.take(queue) is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"address": "nowhere"},
        {"address": "localhost:0"},
        {"address": "localhost:70000"},
        {"name": "a", "client_id": 1},
        {"client_id": 0},
        {"time_limit_s": 0},
        {"max_pending": 1},
    ],
)
def test_bad_arguments_of_connect_are_refused(connect: Connect, arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        connect(**arguments)


async def test_a_client_that_is_not_open_says_so(connect: Connect, address: str) -> None:
    client = connect(address, name="alice")
    with pytest.raises(ClientClosed):
        await client.ping()
    await client.open()
    await client.ping()
    await client.close()
    await client.close()
    with pytest.raises(ClientClosed):
        await client.ping()


async def test_an_address_without_a_server_is_told_with_its_reason(connect: Connect) -> None:
    with pytest.raises(ConnectionFailed, match=r"no connection to 127\.0\.0\.1:1: Connection refused"):
        await connect("127.0.0.1:1").open()


async def test_many_calls_share_one_connection(memory_node: RunningNode, unique: Unique) -> None:
    address = str(memory_node.address("telesto"))
    async with Client.connect(address, name=unique("alice"), max_pending=10) as client:
        queue = await client.create_queue(unique("orders"))
        async with asyncio.TaskGroup() as tasks:
            for number in range(500):
                tasks.create_task(client.put(queue, f"{number}"))
        texts = {message.text for message in await client.take_many(queue, 1000)}
        assert texts == {f"{number}" for number in range(500)}


async def test_waiting_takes_leave_room_for_other_requests(address: str, unique: Unique) -> None:
    async with Client.connect(address, name=unique("alice"), max_pending=4) as client:
        queue = await client.create_queue(unique("orders"))
        async with asyncio.TaskGroup() as tasks:
            takes = [tasks.create_task(client.take(queue, wait_s=30)) for _ in range(20)]
            await client.ping()
            await client.put_many(queue, ["x"] * 20)
        assert all(take.result() for take in takes)


async def test_a_cancelled_take_loses_no_message(address: str, unique: Unique) -> None:
    async with Client.connect(address, name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(client.take(queue, wait_s=30))
            # The ping is behind the take on the wire: when it is answered, the take waits at the server.
            await asyncio.sleep(0)
            await client.ping()
            waiting.cancel()
        await client.put(queue, "for the one that was cancelled")
        found = await client.take(queue, wait_s=30)
        assert found is not None
        assert found.text == "for the one that was cancelled"
        await client.put(queue, "next")
        found = await client.take(queue)
        assert found is not None
        assert found.text == "next"


async def test_the_wait_of_a_take_is_its_own_even_if_it_goes_on_with_a_cancelled_one(
    address: str, unique: Unique
) -> None:
    async with Client.connect(address, name=unique("alice")) as client:
        queue = await client.create_queue(unique("orders"))
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(client.take(queue, wait_s=0.2))
            await asyncio.sleep(0)
            waiting.cancel()
        # Shorter than the cancelled one, then longer.
        assert await client.take(queue, wait_s=0.01) is None
        assert await client.take(queue, wait_s=0.3) is None
        await client.put(queue, "x")
        assert await client.take(queue) is not None


async def test_errors_of_the_server_without_a_name_keep_their_code() -> None:
    def answer(packet: wire.Packet) -> list[wire.Packet]:
        if isinstance(packet, wire.Ping):
            return [wire.Error(packet.packet_id, 0, "it broke")]
        if isinstance(packet, wire.Status):
            return [wire.Error(packet.packet_id, wire.ErrorCode.LIMIT_EXCEEDED, "too much")]
        return welcome(packet)

    async with scripted(answer) as address, Client.connect(address, name="a") as client:
        with pytest.raises(ServerError, match="it broke") as caught:
            await client.ping()
        assert caught.value.code == 0
        with pytest.raises(LimitExceeded, match="too much"):
            await client.status()


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    for asynchronous_class, synchronous_class in (
        (Client, sync.Client),
        (Consumer, sync.Consumer),
        (Delivery, sync.Delivery),
    ):
        public = [name for name in vars(asynchronous_class) if not name.startswith("_")]
        assert sorted(public) == sorted(name for name in vars(synchronous_class) if not name.startswith("_"))
        for name in public:
            if not inspect.isfunction(vars(asynchronous_class)[name]):
                continue
            wanted = inspect.signature(getattr(asynchronous_class, name)).parameters
            assert inspect.signature(getattr(synchronous_class, name)).parameters == wanted, name
