"""AMQP 0-9-1 at work: sessions and channels on the broker that all protocols share."""

from flyball.server.amqp.context import RABBITMQ_VERSION, AmqpContext, AmqpSettings
from flyball.server.amqp.session import AmqpSession

__all__ = ["RABBITMQ_VERSION", "AmqpContext", "AmqpSession", "AmqpSettings"]
