"""An AMQP link's answers to a broker's frames, without a broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import uvloop

from flyball.broker.wire import amqp as wire
from flyball.errors import LabError
from flyball.lab.drivers.amqp import CHANNEL, AmqpLink


class Recording:
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


def with_link(dialogue: Callable[[AmqpLink], Awaitable[None]]) -> None:
    async def main() -> None:
        link = AmqpLink()
        link.connection_made(Recording())  # type: ignore[arg-type]
        await dialogue(link)

    uvloop.run(main())


def publish(link: AmqpLink, count: int) -> list[int]:
    """Publish some messages; return a list that will hold the numbers of those that were confirmed."""
    confirmed: list[int] = []

    def noting(number: int) -> Callable[[int], None]:
        return lambda now_ns: confirmed.append(number)

    for number in range(1, count + 1):
        link.publish("orders", wire.NO_PROPERTIES, b"x", noting(number))
    return confirmed


def test_a_blocked_connection_holds_publishers_up_until_it_is_unblocked() -> None:
    async def dialogue(link: AmqpLink) -> None:
        link.data_received(wire.ConnectionBlocked(0, "low on memory").encode())
        assert link.is_held_up
        link.data_received(wire.ConnectionUnblocked(0).encode())
        assert not link.is_held_up
        link.pause_writing()
        assert link.is_held_up
        link.resume_writing()
        assert not link.is_held_up

    with_link(dialogue)


def test_confirms_may_come_in_any_order_and_for_many_at_once() -> None:
    async def dialogue(link: AmqpLink) -> None:
        confirmed = publish(link, 6)
        link.data_received(wire.encode_ack(CHANNEL, 2, multiple=False))
        link.data_received(wire.encode_ack(CHANNEL, 4, multiple=True))
        assert confirmed == [2, 1, 3, 4]
        assert list(link.in_flight) == [5, 6]
        link.data_received(wire.encode_ack(CHANNEL, 6, multiple=True))
        assert not link.in_flight

    with_link(dialogue)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (wire.encode_nack(CHANNEL, 1, multiple=False), "the broker refused message 1"),
        (wire.encode_ack(CHANNEL, 9, multiple=False), "confirmed message 9, which is not in flight"),
        (wire.BasicCancel(CHANNEL, "c", True).encode(), "the broker cancelled the consumer"),
        (wire.ChannelClose(CHANNEL, 404, "NOT_FOUND", 0, 0).encode(), "the broker closed with 404 NOT_FOUND"),
        (wire.BasicGetEmpty(CHANNEL).encode(), "the broker spoke unasked"),
        (b"BAD REQUEST\0", "not AMQP"),
    ],
)
def test_what_should_not_be_ends_the_link(said: bytes, complaint: str) -> None:
    async def dialogue(link: AmqpLink) -> None:
        publish(link, 1)
        link.data_received(said)
        with pytest.raises(LabError, match=complaint):
            await link.news()
        with pytest.raises(LabError, match=complaint):
            publish(link, 1)

    with_link(dialogue)
