"""Publishing to topics and subscribing to them. Creating and deleting them is the client's business."""

from __future__ import annotations

from flyball.broker.wire import telesto as wire
from tests.telesto_client.link import Link, expect
from tests.telesto_client.messages import wire_draft

ALL = "#"
"""The pattern that every key fits."""


class Topic:
    """Where messages are published for all who have subscribed, also to the topic's ancestors."""

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
        time_limit_s: float | None = None,
    ) -> int:
        """Publish a message; on return it is committed for every subscriber. Return how many there are.

        The `key` is what patterns of subscribers are about: words with dots between them. Raises TopicNotFound.
        """
        self._link.require_extension("publish")
        draft = wire_draft(body, None, context, priority, ttl_s, persistent, b"")
        async with self._link.time_limit("publish", time_limit_s):
            answer = await self._link.exchange(wire.Publish(0, self.name, key, [draft]), "publish")
            return expect(answer, wire.Count, self.name).count


async def subscribe(link: Link, topic: str, subscription: str, pattern: str) -> int:
    """Subscribe and return the id of the queue to consume. Without a name, the subscription is the connection's."""
    answer = await link.exchange(wire.Subscribe(0, topic, subscription, pattern), "subscribe", repeatable=True)
    return expect(answer, wire.Subscribed, topic).queue_id
