"""How one connection treats servers that break the rules, and more requests than it may send."""

from __future__ import annotations

import asyncio

import pytest

from flyball.broker.wire import telesto as wire
from flyball.errors import InvalidBody
from tests.client.telesto.servers import scripted, welcome
from tests.telesto_client.connection import Connection, ServerAddress
from tests.telesto_client.errors import ConnectionFailed, ConnectionLost, InvalidValue, NotSent


async def connect(address: str, *, extension: bool = True, max_pending: int = 10) -> Connection:
    return await Connection.open(
        ServerAddress.parse(address), extension=extension, max_pending=max_pending, on_lost=lambda connection: None
    )


@pytest.mark.parametrize(
    ("text", "address"), [("localhost:9001", ("localhost", 9001)), ("[::1]:1", ("::1", 1)), ("10.0.0.1:65535", None)]
)
def test_addresses_are_read_and_shown_alike(text: str, address: tuple[str, int] | None) -> None:
    assert str(ServerAddress.parse(text)) == text
    assert address is None or ServerAddress.parse(text) == address


@pytest.mark.parametrize("text", ["", "localhost", ":9001", "::1:9001", "host:0", "host:65536", "host:x", "a b:1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        ServerAddress.parse(text)


async def test_a_server_that_speaks_another_protocol_is_told_apart() -> None:
    async with scripted(lambda packet: [b"HTTP/1.1 400 Bad Request\r\n\r\n"]) as address:
        with pytest.raises(ConnectionFailed, match="broke the protocol"):
            await connect(address)


async def test_a_server_with_a_strange_answer_to_the_greeting_is_told_apart() -> None:
    async with scripted(lambda packet: [wire.Pong(packet.packet_id)]) as address:
        with pytest.raises(ConnectionFailed, match="answered with Pong"):
            await connect(address)


@pytest.mark.parametrize("greeting", [(2, 65536), (1, 100), (1, -1)])
async def test_a_welcome_of_another_version_or_without_room_is_refused(greeting: tuple[int, int]) -> None:
    async with scripted(lambda packet: [wire.Welcome(packet.packet_id, *greeting, "x")]) as address:
        with pytest.raises(ConnectionFailed, match="Welcome"):
            await connect(address)


async def test_a_frame_above_the_agreed_size_ends_the_connection() -> None:
    def answer(packet: wire.Packet) -> list[wire.Packet]:
        if isinstance(packet, wire.Status):
            return [wire.StatusReport(packet.packet_id, bytes(70_000))]
        return welcome(packet)

    async with scripted(answer) as address:
        connection = await connect(address)
        with pytest.raises(ConnectionLost, match="broke the protocol"):
            await connection.request(wire.Status(0), "status")
        assert connection.is_lost
        with pytest.raises(NotSent):
            await connection.request(wire.Status(0), "status")
        await connection.close()


async def test_answers_are_matched_by_packet_id_whatever_their_order() -> None:
    waiting: list[wire.GetQueueName] = []

    def answer(packet: wire.Packet) -> list[wire.Packet]:
        if not isinstance(packet, wire.GetQueueName):
            return welcome(packet)
        waiting.append(packet)
        if len(waiting) < 3:
            return []
        return [wire.GetQueueNameResponse(p.packet_id, f"queue {p.queue_id}") for p in reversed(waiting)]

    async with scripted(answer) as address:
        connection = await connect(address)
        answers = await asyncio.gather(
            *[connection.request(wire.GetQueueName(0, number), "get_queue_by_id") for number in range(3)]
        )
        assert [a.queue_name for a in answers if isinstance(a, wire.GetQueueNameResponse)] == [
            "queue 0",
            "queue 1",
            "queue 2",
        ]
        await connection.close()


async def test_answers_that_nobody_asked_for_are_ignored() -> None:
    def answer(packet: wire.Packet) -> list[wire.Packet]:
        if isinstance(packet, wire.Ping):
            return [wire.Pong(12345), wire.Pong(packet.packet_id), wire.Pong(packet.packet_id)]
        return welcome(packet)

    async with scripted(answer) as address:
        connection = await connect(address)
        for _ in range(3):
            assert isinstance(await connection.request(wire.Ping(0), "ping"), wire.Pong)
        await connection.close()


async def test_requests_beyond_the_limit_wait_for_their_turn_in_order() -> None:
    seen: list[int] = []
    held = asyncio.Event()

    def answer(packet: wire.Packet) -> list[wire.Packet]:
        if isinstance(packet, wire.Purge):
            seen.append(packet.queue_id)
            if packet.queue_id < 2:
                if packet.queue_id == 1:
                    held.set()
                return []
            return [wire.Count(packet.packet_id, 0)]
        if isinstance(packet, wire.Ping):
            return [wire.Pong(packet.packet_id)]
        return welcome(packet)

    async with scripted(answer) as address:
        connection = await connect(address, max_pending=2)
        async with asyncio.TaskGroup() as tasks:
            stuck = [tasks.create_task(connection.request(wire.Purge(0, n), "purge")) for n in range(2)]
            await held.wait()
            waiting = [tasks.create_task(connection.request(wire.Purge(0, n), "purge")) for n in range(2, 6)]
            await asyncio.sleep(0)
            waiting.pop(1).cancel()
            # Only what is in line is sent by force here; it is answered, and the line moves on.
            await connection.start_now(wire.Ping(0), "ping")
            assert seen == [0, 1]
            for task in stuck:
                task.cancel()
            connection._answered(wire.Count(connection._last_id - 1, 0))
            await asyncio.wait(waiting)
        assert seen == [0, 1, 2, 4, 5]
        await connection.close()


async def test_whoever_waits_for_room_is_not_overtaken_by_who_comes_later() -> None:
    seen: list[int] = []

    def answer(packet: wire.Packet) -> list[wire.Packet | bytes]:
        if isinstance(packet, wire.Purge):
            seen.append(packet.queue_id)
            return [wire.Count(packet.packet_id, 0)]
        return [*welcome(packet)]

    async with scripted(answer) as address:
        connection = await connect(address, max_pending=2)
        requests = []
        for number in range(300):
            requests.append(asyncio.ensure_future(connection.request(wire.Purge(0, number), "purge")))
            await asyncio.sleep(0)
        await asyncio.gather(*requests)
        assert seen == list(range(300))
        await connection.close()


async def test_a_lost_connection_fails_what_is_under_way_and_what_waits() -> None:
    asked = asyncio.Event()

    def answer(packet: wire.Packet) -> list[wire.Packet | bytes]:
        if isinstance(packet, wire.Ping):
            asked.set()
            return []
        return [*welcome(packet)]

    async with scripted(answer) as address:
        connection = await connect(address, max_pending=2)
        tasks = [asyncio.ensure_future(connection.request(wire.Ping(0), "ping")) for _ in range(4)]
        await asked.wait()
        connection.abort()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionLost, ConnectionLost, NotSent, NotSent]
        await connection.close()


async def test_a_request_too_large_for_the_server_is_not_sent() -> None:
    async with scripted(lambda packet: welcome(packet, frame_max=2000)) as address:
        connection = await connect(address)
        with pytest.raises(InvalidBody, match="exceeds"):
            await connection.request(wire.Put(0, [1], [wire.WireDraft(bytes(2000))]), "put")
        await connection.close()
    async with scripted(lambda packet: []) as address:
        connection = await connect(address, extension=False)
        with pytest.raises(InvalidBody, match="exceeds"):
            await connection.request(wire.GetQueueId(0, "x" * 40_000), "get_queue_by_name")
        await connection.close()


async def test_closing_does_not_wait_for_a_server_that_reads_nothing() -> None:
    never = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await never.wait()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    connection = await connect(f"{host}:{port}", extension=False)
    connection.frame_max = 2**30
    connection._encode = wire.encode_wide
    connection.send(wire.Put(0, [1], [wire.WireDraft(bytes(64 * 2**20))]))
    await connection.close()
    never.set()
    server.close()
    await server.wait_closed()
    # The handler's task ends in the next turns of the loop.
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
