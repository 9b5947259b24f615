"""How messages of other protocols look to AMQP clients."""

from __future__ import annotations

import pytest

from flyball.broker.core.presentation import present
from flyball.broker.wire.amqp import read_origin
from flyball.model import Message


@pytest.mark.parametrize("name", ["orders", "ä" * 127, "ä" * 255, "x" * 254 + "ä"])
def test_the_routing_key_is_as_much_of_the_queue_name_as_fits(name: str) -> None:
    origin, _ = present(Message(1, 1, b"body"), name)
    exchange, routing_key = read_origin(origin)
    assert exchange == ""
    assert name.startswith(routing_key)
    assert len(routing_key.encode()) >= min(len(name.encode()), 254)
