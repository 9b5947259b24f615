"""Transactions: what is published and acknowledged takes effect with tx.commit, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika import BasicProperties

from tests.broker.protocols.amqp.compatibility.queues import (
    Consumer,
    channel_closed,
    count,
    declare,
    get,
    publish,
    take,
    take_all,
    texts,
    wait_for_count,
    wait_until,
)

Connect = Callable[..., Any]


@pytest.fixture
def queue(channel: Any) -> str:
    """A queue with the messages 0 to 4."""
    queue = declare(channel)
    publish(channel, queue, *"01234")
    return queue


@pytest.fixture
def tx(connect: Connect) -> Any:
    """A transactional channel of its own connection."""
    transactional = connect().channel()
    transactional.tx_select()
    return transactional


def test_ack_of_an_unknown_tag_fails_at_the_ack(tx: Any) -> None:
    with channel_closed(406, "PRECONDITION_FAILED - unknown delivery tag 7"):
        tx.basic_ack(7)
        tx.queue_declare("amq.direct", passive=True)


@pytest.mark.parametrize("settle", ["basic_ack", "basic_nack", "basic_reject"])
@pytest.mark.parametrize("again", ["basic_ack", "basic_nack", "basic_reject"])
def test_tag_is_settled_once_in_a_transaction(tx: Any, queue: str, settle: str, again: str) -> None:
    tag = take(tx, queue).tag
    getattr(tx, settle)(tag)
    with channel_closed(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}"):
        getattr(tx, again)(tag)
        tx.queue_declare(queue, passive=True)


def test_multiple_ack_takes_what_no_earlier_ack_has_taken(channel: Any, tx: Any, queue: str) -> None:
    tags = [take(tx, queue).tag for _ in range(4)]
    tx.basic_ack(tags[1])
    tx.basic_ack(tags[2], multiple=True)
    tx.basic_ack(0, multiple=True)
    tx.basic_ack(0, multiple=True)
    tx.tx_commit()
    tx.close()
    wait_for_count(channel, queue, 1)
    assert take_all(channel, queue) == ["4"]


def test_multiple_ack_up_to_a_settled_tag_fails(tx: Any, queue: str) -> None:
    tags = [take(tx, queue).tag for _ in range(3)]
    tx.basic_ack(tags[1])
    with channel_closed(406, f"PRECONDITION_FAILED - unknown delivery tag {tags[1]}"):
        tx.basic_ack(tags[1], multiple=True)
        tx.queue_declare(queue, passive=True)


def test_recover_leaves_what_is_acked_but_not_committed(tx: Any, queue: str) -> None:
    consumer = Consumer(tx, queue)
    consumer.wait_for(5)
    tx.basic_ack(consumer.deliveries[1].tag, multiple=True)
    tx.basic_recover(requeue=True)
    assert consumer.wait_for(8) == ["0", "1", "2", "3", "4", "2*", "3*", "4*"]
    tx.tx_commit()
    assert consumer.settle() == ["0", "1", "2", "3", "4", "2*", "3*", "4*"]


def test_rollback_makes_acked_tags_unacked_again(channel: Any, tx: Any, queue: str) -> None:
    first, second, third = (take(tx, queue) for _ in range(3))
    tx.basic_ack(second.tag)
    tx.basic_nack(third.tag, requeue=False)
    tx.tx_rollback()
    tx.basic_ack(third.tag, multiple=True)
    tx.tx_commit()
    tx.close()
    wait_for_count(channel, queue, 2)
    assert take_all(channel, queue) == ["3", "4"]
    assert first.text == "0"


def test_rolled_back_acks_are_requeued_by_recover(tx: Any, queue: str) -> None:
    consumer = Consumer(tx, queue)
    consumer.wait_for(5)
    tx.basic_ack(consumer.deliveries[2].tag, multiple=True)
    tx.tx_rollback()
    tx.basic_recover(requeue=True)
    assert sorted(consumer.wait_for(10)[5:]) == ["0*", "1*", "2*", "3*", "4*"]


def test_channel_that_closes_requeues_what_it_acked_but_did_not_commit(channel: Any, tx: Any, queue: str) -> None:
    for _ in range(3):
        tx.basic_ack(take(tx, queue).tag)
    tx.basic_nack(take(tx, queue).tag, requeue=False)
    tx.close()
    wait_for_count(channel, queue, 5)
    assert take_all(channel, queue) == ["0*", "1*", "2*", "3*", "4"]


def test_cancelled_consumer_acks_in_its_transaction(channel: Any, tx: Any, queue: str) -> None:
    consumer = Consumer(tx, queue)
    consumer.wait_for(5)
    tx.basic_ack(consumer.deliveries[3].tag, multiple=True)
    consumer.cancel()
    tx.tx_commit()
    tx.close()
    wait_for_count(channel, queue, 1)
    assert take_all(channel, queue) == ["4*"]


@pytest.mark.parametrize("global_qos", [False, True])
def test_ack_makes_room_in_the_window_with_its_commit(tx: Any, queue: str, global_qos: bool) -> None:
    tx.basic_qos(prefetch_count=1, global_qos=global_qos)
    consumer = Consumer(tx, queue)
    assert consumer.wait_for(1) == ["0"]
    tx.basic_ack(consumer.last.tag)
    assert consumer.settle() == ["0"]
    tx.tx_commit()
    assert consumer.wait_for(2) == ["0", "1"]
    tx.basic_ack(consumer.last.tag)
    tx.tx_rollback()
    assert consumer.settle() == ["0", "1"]
    tx.basic_reject(consumer.last.tag, requeue=False)
    assert consumer.settle() == ["0", "1"]
    tx.tx_commit()
    assert consumer.wait_for(3) == ["0", "1", "2"]


def test_nacks_take_effect_with_the_commit(channel: Any, tx: Any) -> None:
    dead = declare(channel)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = declare(channel, arguments)
    publish(channel, queue, *"012")
    tags = [take(tx, queue).tag for _ in range(3)]
    tx.basic_nack(tags[0], requeue=False)
    tx.basic_reject(tags[1], requeue=True)
    tx.basic_ack(tags[2])
    assert (count(tx, queue), count(tx, dead)) == (0, 0)
    tx.tx_commit()
    wait_for_count(channel, queue, 1)
    wait_for_count(channel, dead, 1)
    assert (take_all(channel, queue), take_all(channel, dead)) == (["1*"], ["0"])


def returned_on(channel: Any) -> list[str]:
    """Collect the bodies that come back to a channel."""
    returned: list[str] = []
    channel.add_on_return_callback(lambda _, method, properties, body: returned.append(body.decode()))
    return returned


def test_mandatory_message_of_a_deleted_queue_returns_with_the_commit(channel: Any, tx: Any) -> None:
    queue, returned = declare(channel), returned_on(tx)
    tx.basic_publish("", queue, b"mandatory", mandatory=True)
    tx.basic_publish("", queue, b"not mandatory")
    channel.queue_delete(queue)
    tx.queue_declare("", exclusive=True)
    assert returned == []
    tx.tx_commit()
    wait_until(tx, lambda: returned == ["mandatory"], lambda: f"returned {returned}")


def test_message_enters_the_queue_that_has_the_name_at_the_commit(channel: Any, tx: Any) -> None:
    queue = declare(channel)
    tx.basic_publish("", queue, b"kept", mandatory=True)
    channel.queue_delete(queue)
    channel.queue_declare(queue)
    tx.tx_commit()
    wait_for_count(channel, queue, 1)
    assert take_all(channel, queue) == ["kept"]


def test_commit_fails_if_a_full_queue_rejects_a_message(channel: Any, tx: Any, queue: str) -> None:
    full = declare(channel, {"x-max-length": 1, "x-overflow": "reject-publish"})
    other = declare(channel)
    tag = take(tx, queue).tag
    for body in (b"fits", b"rejected"):
        tx.basic_publish("", full, body)
    tx.basic_publish("", other, b"other")
    tx.basic_ack(tag)
    with channel_closed(406, "PRECONDITION_FAILED - partial tx completion"):
        tx.tx_commit()
    wait_for_count(channel, full, 1)
    wait_for_count(channel, other, 1)
    wait_for_count(channel, queue, 4)
    assert (take_all(channel, full), take_all(channel, other)) == (["fits"], ["other"])
    assert take_all(channel, queue) == ["1", "2", "3", "4"]


def test_rolled_back_messages_are_gone(channel: Any, tx: Any, queue: str) -> None:
    tx.basic_publish("", queue, b"gone")
    tx.tx_rollback()
    tx.basic_publish("", queue, b"5")
    tx.tx_commit()
    wait_for_count(channel, queue, 6)
    assert take_all(channel, queue) == list("012345")


@pytest.mark.parametrize("method", ["tx_commit", "tx_rollback"])
def test_only_a_transactional_channel_commits_or_rolls_back(channel: Any, method: str) -> None:
    with channel_closed(406, "PRECONDITION_FAILED - channel is not transactional"):
        getattr(channel, method)()


def test_got_message_that_is_acked_and_rolled_back_is_still_unacked(channel: Any, tx: Any, queue: str) -> None:
    delivery = get(tx, queue)
    assert delivery is not None
    tx.basic_ack(delivery.tag)
    tx.tx_rollback()
    tx.basic_reject(delivery.tag, requeue=True)
    tx.tx_commit()
    wait_for_count(channel, queue, 5)
    assert texts([take(channel, queue)]) == ["0*"]


@pytest.mark.parametrize("headers", [{}, {"CC": ["late"]}, {"BCC": ["late"]}])
def test_queue_that_is_declared_before_the_commit_gets_what_is_for_its_name(
    channel: Any, tx: Any, new_name: Callable[[], str], headers: dict[str, list[str]]
) -> None:
    late = new_name()
    for keys in headers.values():
        keys[:] = [late]
    tx.basic_publish("", new_name() if headers else late, b"m", BasicProperties(headers=headers))
    channel.queue_declare(late)
    tx.tx_commit()
    wait_for_count(channel, late, 1)
