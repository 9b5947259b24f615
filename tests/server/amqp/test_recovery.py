"""What AMQP clients find again after a restart or a crash, and that it behaves as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika.exceptions import NackError

from flyball.client.sync import Client
from tests.amqp.queues import count, get, publish, take_all, wait_for_count
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

    def manage(self, command: str, **arguments: Any) -> Any:
        with Client.connect(str(self.now.address("telesto"))) as client:
            return client.manage(command, **arguments)


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


def test_a_limit_on_bytes_counts_what_was_there_before_a_restart(node: Node) -> None:
    channel = node.start()
    channel.queue_declare("drops", durable=True, arguments={"x-max-length-bytes": 10})
    refusing = {"x-max-length-bytes": 10, "x-overflow": "reject-publish"}
    channel.queue_declare("refuses", durable=True, arguments=refusing)
    for queue in ("drops", "refuses"):
        keep(channel, queue, "0000", "1111")

    channel = node.restart()

    keep(channel, "drops", "2222")
    assert take_all(channel, "drops") == ["1111", "2222"]
    with pytest.raises(NackError):
        keep(channel, "refuses", "2222")
    assert get(channel, "refuses", auto_ack=True) is not None
    keep(channel, "refuses", "2222")
    assert take_all(channel, "refuses") == ["1111", "2222"]
    keep(channel, "drops", "3333", "4444", "5555")
    assert take_all(channel, "drops") == ["4444", "5555"]


def test_a_new_limit_on_bytes_counts_what_was_there_before_a_restart(node: Node) -> None:
    channel = node.start()
    channel.queue_declare("queue", durable=True)
    keep(channel, "queue", "0000", "1111", "2222", "3333")
    channel = node.restart()
    assert get(channel, "queue", auto_ack=True) is not None
    publish(channel, "queue", "4444")

    node.manage("policy.set", name="short", pattern="", definition={"max-length-bytes": 10})

    wait_for_count(channel, "queue", 2)
    assert take_all(channel, "queue") == ["3333", "4444"]


def test_a_limit_on_length_counts_what_was_there_before_a_restart(node: Node) -> None:
    channel = node.start()
    channel.queue_declare("queue", durable=True, arguments={"x-max-length": 2})
    keep(channel, "queue", "0", "1", "2")

    channel = node.restart()

    keep(channel, "queue", "3")
    assert take_all(channel, "queue") == ["2", "3"]


def test_the_highest_priority_comes_first_of_what_came_before_and_after_a_restart(node: Node) -> None:
    channel = node.start()
    channel.queue_declare("queue", durable=True, arguments={"x-max-priority": 5})
    for priority in (1, 5, 3):
        keep(channel, "queue", f"{priority} before", priority=priority)

    channel = node.restart()

    for priority in (3, 9, 0):
        keep(channel, "queue", f"{priority} after", priority=priority)
    assert take_all(channel, "queue") == ["5 before", "9 after", "3 before", "3 after", "1 before", "0 after"]
