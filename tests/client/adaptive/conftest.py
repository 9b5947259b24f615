"""Both brokers for the adaptive consumer's tests, and pika to look at them from outside."""

from __future__ import annotations

from tests.amqp.conftest import broker, channel, connect, flyball_node, name, new_name

__all__ = ["broker", "channel", "connect", "flyball_node", "name", "new_name"]
