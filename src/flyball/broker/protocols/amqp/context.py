"""What all AMQP connections of a node share: its virtual hosts, its flow, its limits, and who waits for replies."""

from __future__ import annotations

import base64
import logging
import platform
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import flyball
from flyball.broker.core.dead_letters import DeadLetters
from flyball.broker.core.flow import Flow
from flyball.broker.core.intake import Intake
from flyball.broker.core.queues import Queues
from flyball.broker.wire.amqp import Value, delivery_prefix, encode_delivery
from flyball.broker.wire.link import Content

if TYPE_CHECKING:
    from flyball.broker.protocols.amqp.channel import Channel

log = logging.getLogger("flyball.server")

# A client that leaves so much unread gets no further direct replies: they are dropped, as if it had gone. RabbitMQ
# would keep them all in memory. Whoever replies is not slowed, since it serves others as well.
MOST_UNREAD_REPLIES_BYTES = 4 * 1024 * 1024

# The RabbitMQ whose behaviour and HTTP API these are: clients and tools look what they may ask for.
RABBITMQ_VERSION = "3.10.8"

REPLY_TO = "amq.rabbitmq.reply-to"
"""Stands for the channel itself where a client asks for direct replies; the names that it gets begin so."""


@dataclass(slots=True, frozen=True)
class AmqpSettings:
    """What AMQP connections are told and held to."""

    channel_max: int
    frame_max_bytes: int
    heartbeat_s: int
    max_message_bytes: int
    consumer_timeout_s: float
    memory_bytes: int
    max_channels: int = 100_000


class AmqpContext:
    """One for a node."""

    def __init__(self, queues: Queues, settings: AmqpSettings) -> None:
        topology = self.topology = queues.topology
        self.queues = queues
        self.settings = settings
        self.intake = Intake(topology.broker)
        self.flow = Flow(topology.broker, settings.memory_bytes)
        self.replies: dict[str, Channel] = {}
        """The channels that wait for direct replies, by the name that stands for each."""
        self.dropped_replies = 0
        """Direct replies to clients that did not read."""
        self.dead_letters = DeadLetters(queues, self.intake)
        topology.broker.dead_lettering.publisher = self.dead_letters
        self.server_properties = server_properties()

    def new_reply_name(self, channel: Channel) -> str:
        """Return a name for direct replies to the channel, which nobody can guess."""
        token = base64.urlsafe_b64encode(secrets.token_bytes(24)).decode().rstrip("=")
        name = f"{REPLY_TO}.{self.queues.peering.node_id}.{token}"
        self.replies[name] = channel
        return name

    def has_reply_queue(self, name: str) -> bool:
        """Whether somebody waits for replies of that name, as far as this node knows."""
        return name in self.replies or self._node_of_reply(name) is not None

    def _node_of_reply(self, name: str) -> int | None:
        """Return the other node whose channel waits for direct replies of that name."""
        node_id = name.removeprefix(REPLY_TO + ".").partition(".")[0]
        return int(node_id) if node_id.isdecimal() and self.queues.peering.can_reach(int(node_id)) else None

    def reply(self, name: str, origin: bytes, properties: bytes, body: bytes) -> None:
        """Hand a direct reply to the channel that waits for it, if it still does."""
        channel = self.replies.get(name)
        if channel is None:
            node_id = self._node_of_reply(name)
            if node_id is not None:
                self.queues.peering.reply(node_id, name, Content(body, properties, origin))
            return
        if channel.is_closing:
            return
        session = channel.session
        if session.unread_bytes > MOST_UNREAD_REPLIES_BYTES:
            self.dropped_replies += 1
            if not session.has_lost_replies:
                session.has_lost_replies = True
                log.warning("dropped direct replies to %s: it does not read them", session.peer)
            return
        channel.deliveries.last_tag += 1
        session.send_delivery(
            encode_delivery(
                channel.number,
                delivery_prefix(channel.reply_tag),
                channel.deliveries.last_tag,
                False,
                origin,
                properties,
                body,
                session.frame_max,
            )
        )


_CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)


def server_properties() -> dict[str, Value]:
    """Return what a node tells of itself when a connection begins.

    Clients choose what they do by product and version: kombu, and so Celery, use a global prefetch only with RabbitMQ
    3.3 to 3.x. Who wants to know what is really there finds `flyball_version`.
    """
    return {
        "product": "RabbitMQ",
        "version": RABBITMQ_VERSION,
        "platform": f"Flyball {flyball.__version__}, Python {platform.python_version()}",
        "information": "Flyball, a message broker that governs itself, with the behaviour of RabbitMQ",
        "flyball_version": flyball.__version__,
        "capabilities": dict.fromkeys(_CAPABILITIES, True),
    }
