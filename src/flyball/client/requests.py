"""Request/response over AMQP's direct reply-to, with one channel for all requests of a connection."""

from __future__ import annotations

import asyncio
import itertools

from flyball.broker.wire import amqp
from flyball.client.amqp import Channel, Connection
from flyball.client.errors import ConnectionLost
from flyball.client.messages import Draft, ReceivedMessage, content_of, received

REPLY_TO = "amq.rabbitmq.reply-to"

_TAG = "replies"


class Requests:
    """Pending requests of one connection. The sink of its channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}

    @classmethod
    async def on(cls, connection: Connection) -> Requests:
        """Start receiving responses."""
        channel = await connection.channel(confirms=True)
        requests = cls(channel)
        channel.sinks[_TAG] = requests
        method = amqp.BasicConsume(channel.number, REPLY_TO, _TAG, False, True, False, False, {})
        await channel.call(method, amqp.BasicConsumeOk)
        return requests

    @property
    def is_over(self) -> bool:
        return self._channel.failure is not None

    async def ask(self, queue: str, draft: Draft) -> ReceivedMessage:
        """Put a request and return its response. Raises QueueNotFound, and ConnectionLost."""
        correlation_id = str(next(self._numbers))
        response: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = response
        try:
            content = content_of(draft, reply_to=REPLY_TO, correlation_id=correlation_id)
            await self._channel.publish("", queue, [content])
            return await response
        finally:
            del self._waiting[correlation_id]

    def delivered(self, delivery: amqp.BasicDeliver) -> None:
        message = received("", delivery.properties, delivery.body, delivery.redelivered)
        response = self._waiting.get(message.correlation_id or "")
        if response is not None and not response.done():
            response.set_result(message)

    def lost(self) -> None:
        for response in self._waiting.values():
            if not response.done():
                response.set_exception(ConnectionLost("send_request_response", str(self._channel.failure)))
                # Mark as retrieved: the put may have failed first, and then the response is never awaited.
                response.exception()
