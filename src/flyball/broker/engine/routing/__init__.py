"""AMQP routing: from an exchange through its bindings to the names of queues.

Works only on names, routing keys and headers, not on queues and messages.
"""

from flyball.broker.engine.routing.router import RESERVED_PREFIX, Removal, Router

__all__ = ["RESERVED_PREFIX", "Removal", "Router"]
