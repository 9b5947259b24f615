"""AMQP 0-9-1: sessions and channels on top of the broker."""

from flyball.broker.protocols.amqp.context import RABBITMQ_VERSION, AmqpContext, AmqpSettings, amqp_context
from flyball.broker.protocols.amqp.session import AmqpSession

__all__ = ["RABBITMQ_VERSION", "AmqpContext", "AmqpSession", "AmqpSettings", "amqp_context"]
