"""aio-pika: its robust connection, confirms, transactions, questions and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage, AbstractRobustChannel, AbstractRobustConnection, DeliveryMode
from aio_pika.exceptions import ChannelClosed, DeliveryError, QueueEmpty
from aio_pika.patterns import RPC

from tests.broker.protocols.amqp.compatibility.brokers import Broker

Result = TypeVar("Result")
Scenario = Callable[[AbstractRobustConnection], Awaitable[Result]]
LIMIT_S = 60.0


def run(broker: Broker, scenario: Scenario[Result]) -> Result:
    """Run a scenario with a robust connection to the broker, within a time limit."""

    async def connected() -> Result:
        async with asyncio.timeout(LIMIT_S):
            connection = await aio_pika.connect_robust(broker.url(), reconnect_interval=0.2)
            async with connection:
                return await scenario(connection)

    return asyncio.run(connected())


def test_messages_are_consumed_with_all_they_carry(broker: Broker, name: str) -> None:
    async def scenario(connection: AbstractRobustConnection) -> None:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, auto_delete=True)
        queue = await channel.declare_queue(name, auto_delete=True)
        await queue.bind(exchange, "a.#")
        sent = aio_pika.Message(
            b"body",
            headers={"text": "grüße", "number": 2**40, "nested": {"list": [1, "two", None, True, 2.5]}},
            content_type="text/plain",
            delivery_mode=DeliveryMode.PERSISTENT,
            priority=4,
            message_id="7",
        )
        await exchange.publish(sent, "a.b.c")
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    break
        assert (message.body, message.routing_key, message.exchange) == (b"body", "a.b.c", name)
        assert (message.headers, message.message_id, message.priority) == (sent.headers, "7", 4)

    run(broker, scenario)


def test_many_messages_are_confirmed_and_arrive_in_order(broker: Broker, name: str) -> None:
    async def scenario(connection: AbstractRobustConnection) -> None:
        channel = await connection.channel(publisher_confirms=True)
        queue = await channel.declare_queue(name, durable=True)
        async with asyncio.TaskGroup() as publishing:
            for number in range(200):
                message = aio_pika.Message(str(number).encode(), delivery_mode=DeliveryMode.PERSISTENT)
                publishing.create_task(confirm(channel.default_exchange.publish(message, name)))
        got: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        await queue.consume(got.put)
        messages = [await got.get() for _ in range(200)]
        await messages[-1].ack(multiple=True)
        assert [int(message.body) for message in messages] == list(range(200))
        assert await queue.delete(if_unused=False, if_empty=True)

    async def confirm(publishing: Awaitable[object]) -> None:
        assert await publishing is not None

    run(broker, scenario)


def test_a_message_without_a_route_is_returned(broker: Broker, name: str) -> None:
    async def scenario(connection: AbstractRobustConnection) -> None:
        channel = await connection.channel(on_return_raises=True)
        with pytest.raises(DeliveryError):
            await channel.default_exchange.publish(aio_pika.Message(b"body"), name)

    run(broker, scenario)


def test_a_transaction_publishes_all_or_nothing(broker: Broker, name: str) -> None:
    async def scenario(connection: AbstractRobustConnection) -> list[bytes]:
        channel = await connection.channel(publisher_confirms=False)
        assert isinstance(channel, AbstractRobustChannel)
        queue = await channel.declare_queue(name, auto_delete=True)

        async def publish(body: bytes) -> None:
            await channel.default_exchange.publish(aio_pika.Message(body), name)

        async with channel.transaction():
            await publish(b"committed")
        transaction = channel.transaction()
        await transaction.select()
        await publish(b"rolled back")
        await transaction.rollback()
        with pytest.raises(ZeroDivisionError):
            await fail_in_a_transaction(channel, publish)
        async with channel.transaction():
            await publish(b"also committed")
        got = []
        while (message := await queue.get(fail=False, no_ack=True)) is not None:
            got.append(message.body)
        return got

    assert run(broker, scenario) == [b"committed", b"also committed"]


async def fail_in_a_transaction(channel: AbstractRobustChannel, publish: Callable[[bytes], Awaitable[None]]) -> None:
    async with channel.transaction():
        await publish(b"failed")
        raise ZeroDivisionError


def test_questions_are_answered(broker: Broker, name: str) -> None:
    async def multiply(*, first: int, second: int) -> int:
        return first * second

    async def scenario(connection: AbstractRobustConnection) -> list[object]:
        server = await RPC.create(await connection.channel())
        await server.register(name, multiply, auto_delete=True)
        client = await RPC.create(await connection.channel())
        answers = await asyncio.gather(
            *(client.call(name, kwargs={"first": number, "second": 2}) for number in range(10))
        )
        await client.close()
        await server.close()
        return list(answers)

    assert run(broker, scenario) == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]


def test_an_answer_may_come_without_a_queue(broker: Broker, name: str) -> None:
    async def scenario(connection: AbstractRobustConnection) -> bytes:
        channel = await connection.channel(publisher_confirms=False)
        service = await channel.declare_queue(name, auto_delete=True)
        replies = await channel.get_queue("amq.rabbitmq.reply-to", ensure=False)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def serve(question: AbstractIncomingMessage) -> None:
            assert question.reply_to is not None
            reply = aio_pika.Message(question.body.upper(), correlation_id=question.correlation_id)
            await channel.default_exchange.publish(reply, question.reply_to)

        async def listen(reply: AbstractIncomingMessage) -> None:
            answer.set_result(reply.body)

        await replies.consume(listen, no_ack=True)
        await service.consume(serve, no_ack=True)
        question = aio_pika.Message(b"question", reply_to="amq.rabbitmq.reply-to", correlation_id="1")
        await channel.default_exchange.publish(question, name)
        return await answer

    assert run(broker, scenario) == b"QUESTION"


def test_a_rejected_message_comes_back_and_a_processed_one_does_not(broker: Broker, name: str) -> None:
    async def scenario(connection: AbstractRobustConnection) -> None:
        channel = await connection.channel()
        queue = await channel.declare_queue(name, auto_delete=True)
        await channel.default_exchange.publish(aio_pika.Message(b"body"), name)
        message = await queue.get()
        with pytest.raises(ZeroDivisionError):
            async with message.process(requeue=True):
                raise ZeroDivisionError
        message = await queue.get()
        assert message.redelivered
        async with message.process():
            pass
        with pytest.raises(QueueEmpty):
            await queue.get()

    run(broker, scenario)


def test_an_error_closes_the_channel_and_not_the_connection(broker: Broker, name: str) -> None:
    async def scenario(connection: AbstractRobustConnection) -> None:
        channel = await connection.channel()
        with pytest.raises(ChannelClosed, match=f"NOT_FOUND - no queue '{name}' in vhost '/'"):
            await channel.declare_queue(name, passive=True)
        other = await connection.channel()
        await other.declare_queue(name, exclusive=True)

    run(broker, scenario)


def test_a_robust_connection_restores_what_it_had(broker: Broker, name: str) -> None:
    async def scenario(connection: AbstractRobustConnection) -> bytes:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.FANOUT, auto_delete=True)
        queue = await channel.declare_queue(name, exclusive=True)
        await queue.bind(exchange)
        got: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        await queue.consume(got.put, no_ack=True)
        restored = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_: restored.set())
        assert connection.transport is not None
        await connection.transport.connection.close(ConnectionResetError("lost on purpose"))
        await restored.wait()
        await exchange.publish(aio_pika.Message(b"after"), "")
        return (await got.get()).body

    assert run(broker, scenario) == b"after"
