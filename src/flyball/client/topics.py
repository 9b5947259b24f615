"""Publish to topics and subscribe to them. They are created and deleted by the client."""

from __future__ import annotations

import secrets

from flyball.broker.wire import amqp
from flyball.client.amqp import Channel, Connection
from flyball.client.link import Link
from flyball.client.messages import Draft, content_of
from flyball.errors import ExchangeNotFound, QueueNotFound, TopicNotFound

# The pattern that matches every key.
ALL = "#"


class Topic:
    """A topic: messages published to it reach its subscribers and those of its ancestors."""

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self.name = name

    async def publish(
        self,
        body: bytes | str,
        *,
        key: str = "",
        context: int | None = None,
        priority: int = 0,
        ttl_s: float | None = None,
        persistent: bool = True,
        properties: bytes = b"",
        time_limit_s: float | None = None,
    ) -> bool:
        """Publish a message; on return it is committed for every subscriber. Return whether there is one.

        Subscribers match patterns against the `key`: words separated by dots. Raises TopicNotFound.
        """
        content = content_of(Draft(body, None, context, priority, ttl_s, persistent, properties))

        async def publish(connection: Connection) -> None:
            channel = await connection.channel_for(("topic", self.name), confirms=True)
            await connection.room()
            await channel.publish(self.name, key, [content])

        async with self._link.time_limit("publish", time_limit_s):
            try:
                await self._link.run(publish)
            except QueueNotFound:
                return False
            except ExchangeNotFound:
                raise TopicNotFound(self.name) from None
        return True


async def subscribe(channel: Channel, topic: str, subscription: str, pattern: str) -> str:
    """Declare and bind the queue of a subscription and return its name. An unnamed one ends with the connection."""
    number = channel.number
    is_durable = bool(subscription)
    queue = f"{topic}/{subscription or '~' + secrets.token_hex(8)}"
    declare = amqp.QueueDeclare(number, queue, False, is_durable, not is_durable, not is_durable, False, {})
    await channel.call(declare, amqp.QueueDeclareOk)
    try:
        await channel.call(amqp.QueueBind(number, queue, topic, pattern, False, {}), amqp.QueueBindOk)
    except ExchangeNotFound:
        raise TopicNotFound(topic) from None
    return queue
