"""What AMQP clients find again after a restart or a crash, and that it behaves as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.amqp.queues import count, publish, take_all, wait_for_count
from tests.nodes import RunningNode

OpenChannel = Callable[..., Any]


class Node:
    """A node on one database, which can be started again."""

    def __init__(self, start: Callable[..., RunningNode], database: str, open_channel: OpenChannel) -> None:
        self._start = start
        self._database = database
        self._open_channel = open_channel
        self._flags: dict[str, object] = {}
        self.now: RunningNode

    def start(self, **flags: object) -> Any:
        """Start it, with these flags of `flyball serve` from now on; return a channel."""
        self._flags |= flags
        self.now = self._start(store=self._database, **self._flags)
        return self._open_channel(self.now)

    def restart(self) -> Any:
        """Stop it in good order and start it again; return a channel."""
        self.now.stop()
        return self.start()


@pytest.fixture
def node(start_node: Callable[..., RunningNode], new_database: Callable[[], str], open_channel: OpenChannel) -> Node:
    return Node(start_node, new_database(), open_channel)


def keep(channel: Any, queue: str, *bodies: str, **properties: Any) -> None:
    """Publish persistent messages; they are in the store on return."""
    publish(channel, queue, *bodies, delivery_mode=2, **properties)


# Limits


def test_messages_become_dead_letters_on_time_though_nobody_reads_their_queue_after_a_restart(node: Node) -> None:
    channel = node.start()
    channel.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("delay", durable=True, arguments={**arguments, "x-message-ttl": 300})
    channel.queue_declare("late", durable=True, arguments=arguments)
    keep(channel, "delay", "0", "1")
    keep(channel, "late", "2", expiration="300")

    channel = node.restart()

    wait_for_count(channel, "dead", 3)
    assert sorted(take_all(channel, "dead")) == ["0", "1", "2"]
    assert count(channel, "delay") == count(channel, "late") == 0
