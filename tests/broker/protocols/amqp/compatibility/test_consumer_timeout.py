"""A consumer that never acknowledges loses its channel, on brokers that wait for a second only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pika import spec

from tests.broker.protocols.amqp.compatibility.brokers import Broker, flyball_broker, rabbitmq_broker
from tests.broker.protocols.amqp.compatibility.peer import Peer
from tests.broker.protocols.amqp.compatibility.queues import declare, publish, take_all, wait_for_count

TIMED_OUT = (
    "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1000 ms. "
    "This timeout value can be configured, see consumers doc guide to learn more"
)


@pytest.fixture(scope="module")
def rabbitmq_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("rabbitmq")
    # RabbitMQ looks once in each interval.
    settings = "[{rabbit, [{consumer_timeout, 1000}, {channel_tick_interval, 200}]}]."
    (folder / "advanced.config").write_text(settings)
    with rabbitmq_broker(folder) as broker:
        yield broker


@pytest.fixture(scope="module")
def flyball_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with flyball_broker(tmp_path_factory.mktemp("flyball"), "--amqp-consumer-timeout-s", "1") as broker:
        yield broker


@pytest.mark.parametrize("how", ["consume", "get"])
def test_a_delivery_that_is_not_acknowledged_in_time_closes_its_channel(peer: Peer, channel: Any, how: str) -> None:
    queue = declare(channel)
    publish(channel, queue, "0", "1")
    if how == "consume":
        peer.ask(spec.Basic.Qos(prefetch_count=1), spec.Basic.QosOk)
        peer.ask(spec.Basic.Consume(queue=queue), spec.Basic.ConsumeOk)
        peer.expect_content(spec.Basic.Deliver)
    else:
        peer.send(spec.Basic.Get(queue=queue))
        peer.expect_content(spec.Basic.GetOk)
    assert peer.expect_channel_close(406, TIMED_OUT) == TIMED_OUT
    wait_for_count(channel, queue, 2)
    assert take_all(channel, queue) == ["0*", "1"]
    # The connection goes on.
    peer.open_channel()


def test_a_consumer_that_acknowledges_or_needs_not_has_all_the_time(peer: Peer, channel: Any) -> None:
    queue, automatic, clock = declare(channel), declare(channel), declare(channel)
    publish(channel, queue, "acknowledged")
    publish(channel, automatic, "automatic")
    peer.ask(spec.Basic.Consume(queue=queue), spec.Basic.ConsumeOk)
    peer.send(spec.Basic.Ack(delivery_tag=peer.expect_content(spec.Basic.Deliver).method.delivery_tag))
    peer.ask(spec.Basic.Consume(queue=automatic, no_ack=True), spec.Basic.ConsumeOk)
    peer.expect_content(spec.Basic.Deliver)
    # Another channel that does not acknowledge shows how time goes by.
    peer.open_channel(2)
    publish(channel, clock, "held")
    peer.send(spec.Basic.Get(queue=clock), 2)
    peer.expect_content(spec.Basic.GetOk, 2)
    peer.expect_channel_close(406, TIMED_OUT.replace("channel 1", "channel 2"), channel=2)
    peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)
