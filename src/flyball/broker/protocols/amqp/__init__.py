"""AMQP 0-9-1 at work: sessions and channels on the broker that all protocols share."""

from flyball.broker.protocols.amqp.context import RABBITMQ_VERSION, AmqpContext, AmqpSettings, amqp_context
from flyball.broker.protocols.amqp.session import AmqpSession

__all__ = ["RABBITMQ_VERSION", "AmqpContext", "AmqpSession", "AmqpSettings", "amqp_context"]
