"""Services and settings shared by all AMQP connections of a node."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field

import flyball
from flyball.broker.core.dead_letters import DeadLetters
from flyball.broker.core.flow import Flow
from flyball.broker.core.intake import Intake
from flyball.broker.core.queues import Queues
from flyball.broker.core.topology import Topology
from flyball.broker.protocols.amqp.direct_replies import DirectReplies
from flyball.broker.wire.amqp import Value

# The RabbitMQ version whose behaviour and HTTP API are implemented; clients and tools derive features from it.
RABBITMQ_VERSION = "3.10.8"


@dataclass(slots=True, frozen=True)
class AmqpSettings:
    """Settings of AMQP connections."""

    channel_max: int
    frame_max_bytes: int
    heartbeat_s: int
    max_message_bytes: int
    consumer_timeout_s: float
    memory_bytes: int
    max_channels: int = 100_000


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
    """Return the server properties for connection.start.

    Clients choose features by product and version: kombu, and therefore Celery, uses a global prefetch only with
    RabbitMQ 3.3 to 3.x. `flyball_version` identifies the actual broker.
    """
    return {
        "product": "RabbitMQ",
        "version": RABBITMQ_VERSION,
        "platform": f"Flyball {flyball.__version__}, Python {platform.python_version()}",
        "information": "Flyball, a self-regulating message broker, compatible with RabbitMQ",
        "flyball_version": flyball.__version__,
        "capabilities": dict.fromkeys(_CAPABILITIES, True),
    }


@dataclass(slots=True, frozen=True)
class AmqpContext:
    """The services of AMQP sessions; one instance per node."""

    queues: Queues
    topology: Topology
    settings: AmqpSettings
    intake: Intake
    flow: Flow
    replies: DirectReplies
    server_properties: dict[str, Value] = field(default_factory=server_properties)


def amqp_context(queues: Queues, settings: AmqpSettings) -> AmqpContext:
    """Build the services of AMQP sessions, and route dead letters through exchanges."""
    broker = queues.topology.broker
    intake = Intake(broker)
    broker.dead_lettering.publisher = DeadLetters(queues, intake)
    flow = Flow(broker, settings.memory_bytes)
    return AmqpContext(queues, queues.topology, settings, intake, flow, DirectReplies(queues))
