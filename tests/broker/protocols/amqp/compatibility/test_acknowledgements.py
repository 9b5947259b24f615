"""Settling deliveries: which tags may be settled, how often, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika import spec

from tests.broker.protocols.amqp.compatibility.peer import Peer
from tests.broker.protocols.amqp.compatibility.queues import count, declare, publish, take, take_all, wait_for_count

Connect = Callable[..., Any]
SETTLINGS = {
    "ack": lambda tag, multiple: spec.Basic.Ack(delivery_tag=tag, multiple=multiple),
    "nack": lambda tag, multiple: spec.Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=False),
    "reject": lambda tag, multiple: spec.Basic.Reject(delivery_tag=tag, requeue=False),
}


@pytest.fixture
def queue(channel: Any) -> str:
    """A queue with the messages 0, 1, 2."""
    queue = declare(channel)
    publish(channel, queue, *"012")
    return queue


def get(peer: Peer, queue: str, times: int = 1, *, no_ack: bool = False) -> None:
    """Get a message this many times; the delivery tags count from 1."""
    for _ in range(times):
        peer.send(spec.Basic.Get(queue=queue, no_ack=no_ack))
        peer.expect_content(spec.Basic.GetOk)


def expect_unknown(peer: Peer, tag: int, caused_by: Any = spec.Basic.Ack) -> None:
    text = f"PRECONDITION_FAILED - unknown delivery tag {tag}"
    assert peer.expect_channel_close(406, text, caused_by) == text


def expect_fine(peer: Peer) -> None:
    peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)


@pytest.mark.parametrize("how", SETTLINGS)
def test_a_tag_that_was_never_given_closes_the_channel(peer: Peer, queue: str, how: str) -> None:
    settling = SETTLINGS[how](7, False)
    peer.send(settling)
    expect_unknown(peer, 7, type(settling))


@pytest.mark.parametrize("how", SETTLINGS)
def test_a_tag_can_be_settled_only_once(peer: Peer, queue: str, how: str) -> None:
    get(peer, queue)
    settling = SETTLINGS[how](1, False)
    peer.send(settling)
    peer.send(settling)
    expect_unknown(peer, 1, type(settling))


def test_what_was_given_back_cannot_be_acknowledged(peer: Peer, queue: str) -> None:
    get(peer, queue)
    peer.send(spec.Basic.Reject(delivery_tag=1, requeue=True))
    peer.send(spec.Basic.Ack(delivery_tag=1))
    expect_unknown(peer, 1)


def test_what_needs_no_acknowledgement_must_have_none(peer: Peer, queue: str) -> None:
    get(peer, queue, no_ack=True)
    peer.send(spec.Basic.Ack(delivery_tag=1))
    expect_unknown(peer, 1)


def test_a_delivery_can_be_settled_on_its_own_channel_only(
    new_peer: Callable[[], Peer], channel: Any, queue: str
) -> None:
    peer = new_peer().open(channels=2)
    get(peer, queue)
    peer.send(spec.Basic.Ack(delivery_tag=1), 2)
    text = "PRECONDITION_FAILED - unknown delivery tag 1"
    peer.expect_channel_close(406, text, spec.Basic.Ack, 2)
    peer.send(spec.Basic.Ack(delivery_tag=1), 1)
    expect_fine(peer)
    assert take_all(channel, queue) == ["1", "2"]


def test_multiple_settles_all_up_to_the_tag(connect: Connect, channel: Any, queue: str) -> None:
    other = connect().channel()
    tags = [take(other, queue).tag for _ in range(3)]
    other.basic_ack(tags[1], multiple=True)
    other.close()
    assert take_all(channel, queue) == ["2*"]


@pytest.mark.parametrize("how", ["ack", "nack"])
def test_multiple_with_tag_zero_settles_all(peer: Peer, channel: Any, queue: str, how: str) -> None:
    get(peer, queue, 2)
    peer.send(SETTLINGS[how](0, True))
    expect_fine(peer)
    peer.ask(spec.Channel.Close(0, "", 0, 0), spec.Channel.CloseOk)
    assert take_all(channel, queue) == ["2"]


@pytest.mark.parametrize("how", ["ack", "nack"])
def test_multiple_with_tag_zero_is_fine_when_there_is_nothing_to_settle(peer: Peer, how: str) -> None:
    peer.send(SETTLINGS[how](0, True))
    expect_fine(peer)


@pytest.mark.parametrize("how", SETTLINGS)
def test_tag_zero_alone_is_unknown(peer: Peer, queue: str, how: str) -> None:
    get(peer, queue)
    settling = SETTLINGS[how](0, False)
    peer.send(settling)
    expect_unknown(peer, 0, type(settling))


@pytest.mark.parametrize("tag", [2, 9])
def test_multiple_needs_a_tag_that_is_outstanding_itself(peer: Peer, channel: Any, queue: str, tag: int) -> None:
    get(peer, queue, 3)
    peer.send(spec.Basic.Ack(delivery_tag=2))
    peer.send(spec.Basic.Ack(delivery_tag=tag, multiple=True))
    expect_unknown(peer, tag)
    wait_for_count(channel, queue, 2)
    assert take_all(channel, queue) == ["0*", "2*"]


def test_after_the_channel_was_closed_for_an_error_its_deliveries_are_back(
    peer: Peer, channel: Any, queue: str
) -> None:
    get(peer, queue, 2)
    peer.send(spec.Basic.Ack(delivery_tag=99))
    expect_unknown(peer, 99)
    wait_for_count(channel, queue, 3)
    assert take_all(channel, queue) == ["0*", "1*", "2"]


def test_delivery_tags_count_per_channel_from_one(peer: Peer, channel: Any) -> None:
    first, second = declare(channel), declare(channel)
    publish(channel, first, "0", "1")
    publish(channel, second, "2")
    tags = []
    for queue in (first, second):
        peer.send(spec.Basic.Get(queue=queue))
        tags.append(peer.expect_content(spec.Basic.GetOk).method.delivery_tag)
    peer.ask(spec.Basic.Consume(queue=first), spec.Basic.ConsumeOk)
    tags.append(peer.expect_content(spec.Basic.Deliver).method.delivery_tag)
    assert tags == [1, 2, 3]


def test_unacknowledged_messages_are_not_ready(connect: Connect, channel: Any, queue: str) -> None:
    other = connect().channel()
    take(other, queue)
    assert count(channel, queue) == 2
    assert channel.queue_purge(queue).method.message_count == 2
    other.close()
    assert take_all(channel, queue) == ["0*"]


def test_a_queue_with_unacknowledged_messages_only_counts_as_empty(channel: Any) -> None:
    queue = declare(channel)
    publish(channel, queue, "0", "1")
    take(channel, queue)
    take(channel, queue)
    assert channel.queue_delete(queue, if_empty=True).method.message_count == 0
