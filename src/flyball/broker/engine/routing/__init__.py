"""AMQP routing: from an exchange, by its bindings, to the names of queues.

Works on names, routing keys and headers only, not on queues and messages.
"""

from flyball.broker.engine.routing.router import RESERVED_PREFIX, Removal, Router

__all__ = ["RESERVED_PREFIX", "Removal", "Router"]
