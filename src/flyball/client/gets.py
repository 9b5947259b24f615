"""Takes ready messages: with basic.get, or with a short-lived consumer.

Messages are requeued on cancellation, or if the connection is lost before the ack.
"""

from __future__ import annotations

import asyncio

from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import Method
from flyball.client.amqp import Connection
from flyball.client.consumer import Consumer, Delivery, queue_named
from flyball.client.link import Link
from flyball.client.messages import ReceivedMessage, received
from flyball.client.values import MAX_PREFETCH

# Pipelined requests.
_GETS_AT_ONCE = 100


async def get_messages(connection: Connection, queue: str, most: int) -> list[ReceivedMessage]:
    """Get messages one by one, and ack them."""
    channel = await connection.channel_for(("get", queue))
    number = channel.number

    def give_back(answer: Method) -> None:
        if isinstance(answer, amqp.BasicGetOk):
            channel.send(amqp.BasicReject(number, answer.delivery_tag, True).encode())

    found: list[amqp.BasicGetOk] = []
    answers: list[asyncio.Future[Method]] = []
    try:
        while len(found) < most:
            # One first: most queues are empty when asked.
            count = min(most - len(found), _GETS_AT_ONCE if found else 1)
            answers = [channel.start(amqp.BasicGet(number, queue, False), give_back) for _ in range(count)]
            got = [answer for answer in await asyncio.gather(*answers) if isinstance(answer, amqp.BasicGetOk)]
            answers = []
            found += got
            if len(got) < count:
                break
    except BaseException:
        for answer in answers:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                give_back(answer.result())
        for message in found:
            give_back(message)
        raise
    channel.send(b"".join([amqp.encode_ack(number, message.delivery_tag, False) for message in found]))
    return [received(queue, message.properties, message.body, message.redelivered) for message in found]


async def consume_ready(link: Link, connection: Connection, queue: str, most: int) -> list[ReceivedMessage]:
    """Take the messages that a consumer receives at once. Acks are sent last, as the call may be cancelled."""
    consumers: list[Consumer] = []
    found: list[Delivery] = []
    try:
        while len(found) < most:
            consumer = Consumer(link, queue_named(queue), {}, min(most - len(found), MAX_PREFETCH))
            consumers.append(consumer)
            await consumer._subscribe_on(connection)
            came = await consumer._stop_sending()
            if not came:
                break
            found += came
        for consumer in consumers:
            consumer._acknowledge_all()
        return [delivery.message for delivery in found]
    finally:
        for consumer in consumers:
            consumer._abandon()


async def consume_until(
    link: Link, connection: Connection, queue: str, most: int, wanted: dict[str, int | str], give_up_at: float
) -> list[ReceivedMessage]:
    """Consume until a message arrives, or until the deadline."""
    consumer = Consumer(link, queue_named(queue), wanted, most)
    try:
        await consumer._subscribe_on(connection)
        left_s = give_up_at - asyncio.get_running_loop().time()
        first = await consumer.next(left_s) if left_s > 0 else None
        found = [*([] if first is None else [first]), *await consumer._stop_sending()]
        consumer._acknowledge_all()
        return [delivery.message for delivery in found]
    finally:
        consumer._abandon()
