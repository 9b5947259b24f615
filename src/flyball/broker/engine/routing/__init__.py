"""Routing as AMQP does it: from an exchange, by its bindings, to the names of queues.

Knows neither queues nor messages, only their names, routing keys and headers.
"""

from flyball.broker.engine.routing.router import RESERVED_PREFIX, Removal, Router

__all__ = ["RESERVED_PREFIX", "Removal", "Router"]
