"""How channels begin and end, and what an error on one does to it and to its connection."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from pika import spec

from tests.broker.protocols.amqp.compatibility.peer import BODY, HEADER, Peer, frame, method_frame


def closing() -> Any:
    return spec.Channel.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0)


def header(size: int, properties: bytes = b"\0\0", class_id: int = spec.Basic.INDEX) -> bytes:
    return frame(HEADER, 1, struct.pack(">HHQ", class_id, 0, size) + properties)


def publishing() -> bytes:
    return method_frame(spec.Basic.Publish(exchange="", routing_key="nobody"))


def missing(name: str) -> Any:
    """Return a method that fails, and closes the channel."""
    return spec.Queue.Declare(queue=name, passive=True)


def test_opening_a_channel_twice_ends_the_connection(peer: Peer) -> None:
    peer.send(spec.Channel.Open())

    peer.expect_connection_close(504, "CHANNEL_ERROR - second 'channel.open' seen", spec.Channel.Open)


@pytest.mark.parametrize(
    "method", [spec.Queue.Declare(queue="x"), closing(), spec.Channel.CloseOk()], ids=lambda method: str(method.NAME)
)
def test_a_method_on_a_channel_that_is_not_open_ends_the_connection(peer: Peer, method: Any) -> None:
    peer.send(method, 3)

    peer.expect_connection_close(504, "CHANNEL_ERROR - expected 'channel.open'", type(method))


def test_a_closed_channel_can_be_opened_again(peer: Peer) -> None:
    peer.ask(closing(), spec.Channel.CloseOk)

    peer.open_channel(1)

    peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)


def test_a_reopened_channel_has_forgotten_its_former_life(peer: Peer, name: str) -> None:
    peer.ask(spec.Queue.Declare(queue=name, exclusive=True), spec.Queue.DeclareOk)
    peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
    peer.ask(closing(), spec.Channel.CloseOk)
    peer.open_channel(1)

    peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
    peer.send(spec.Queue.Purge(queue=""))

    peer.expect_channel_close(404, "NOT_FOUND - no previously declared queue", spec.Queue.Purge)


def test_a_soft_error_closes_its_channel_only(new_peer: Callable[[], Peer], name: str) -> None:
    peer = new_peer().open(channels=2)

    peer.send(missing(name), 1)

    peer.expect_channel_close(404, f"NOT_FOUND - no queue '{name}' in vhost '/'", spec.Queue.Declare)
    peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk, 2)
    peer.open_channel(1)


def test_what_comes_after_the_broker_has_closed_a_channel_is_ignored(peer: Peer, name: str) -> None:
    peer.send_bytes(
        method_frame(missing(name))
        + method_frame(missing(name))
        + method_frame(spec.Confirm.Select())
        + publishing()
        + header(1)
        + frame(BODY, 1, b"x")
    )

    peer.expect_channel_close(404, "NOT_FOUND", spec.Queue.Declare)
    peer.open_channel(1)


def test_a_channel_that_the_broker_has_closed_cannot_be_used_until_it_is_opened(peer: Peer, name: str) -> None:
    peer.send(missing(name))
    peer.expect_channel_close(404, "NOT_FOUND", spec.Queue.Declare)

    peer.send(spec.Confirm.Select())

    peer.expect_connection_close(504, "CHANNEL_ERROR - expected 'channel.open'", spec.Confirm.Select)


def test_both_sides_may_close_a_channel_at_the_same_time(peer: Peer, name: str) -> None:
    peer.send(missing(name))
    peer.send(closing())

    peer.expect(spec.Channel.Close)
    peer.expect(spec.Channel.CloseOk)
    peer.send(spec.Channel.CloseOk())
    peer.open_channel(1)


def test_opening_a_channel_that_the_broker_is_closing_ends_the_connection(peer: Peer, name: str) -> None:
    peer.send(missing(name))
    peer.expect(spec.Channel.Close)

    peer.send(spec.Channel.Open())

    peer.expect_connection_close(504, "CHANNEL_ERROR - second 'channel.open' seen", spec.Channel.Open)


def test_an_unasked_close_ok_ends_the_connection(peer: Peer) -> None:
    peer.send(spec.Channel.CloseOk())

    peer.expect_connection_close(503, "COMMAND_INVALID - unimplemented method", spec.Channel.CloseOk)


def test_flow_can_be_left_on_but_not_turned_off(peer: Peer) -> None:
    assert peer.ask(spec.Channel.Flow(active=True), spec.Channel.FlowOk).active is True

    peer.send(spec.Channel.Flow(active=False))

    peer.expect_connection_close(540, "NOT_IMPLEMENTED - active=false", spec.Channel.Flow)


def test_many_channels_work_side_by_side(new_peer: Callable[[], Peer], name: str) -> None:
    peer = new_peer().open(channels=100)
    peer.ask(spec.Queue.Declare(queue=name, exclusive=True), spec.Queue.DeclareOk)
    # Contents of different channels may be interleaved, frame by frame.
    for channel in range(1, 101):
        peer.send(spec.Basic.Publish(routing_key=name), channel)
    for channel in range(1, 101):
        peer.send_frame(HEADER, channel, struct.pack(">HHQ", spec.Basic.INDEX, 0, 2) + b"\0\0")
    for channel in range(100, 0, -1):
        peer.send_frame(BODY, channel, struct.pack(">H", channel))
        peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk, channel)

    bodies = []
    for _ in range(100):
        peer.send(spec.Basic.Get(queue=name, no_ack=True))
        bodies.append(peer.expect_content(spec.Basic.GetOk).body)

    assert sorted(bodies) == [struct.pack(">H", channel) for channel in range(1, 101)]


NO_METHOD = "UNEXPECTED_FRAME - expected method frame, got non method frame instead"
NO_HEADER = "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead"
OTHER_CLASS = "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead"
NO_BODY = "UNEXPECTED_FRAME - expected content body, got non content body frame instead"


@pytest.mark.parametrize(
    ("sent", "code", "text", "caused_by"),
    [
        (header(3), 505, NO_METHOD, None),
        (frame(BODY, 1, b"xx"), 505, NO_METHOD, None),
        (publishing() + method_frame(spec.Confirm.Select()), 505, NO_HEADER, spec.Basic.Publish),
        (publishing() + frame(BODY, 1, b"xx"), 505, NO_HEADER, spec.Basic.Publish),
        (publishing() + header(3, class_id=spec.Queue.INDEX), 505, OTHER_CLASS, spec.Basic.Publish),
        (publishing() + header(3) + method_frame(spec.Confirm.Select()), 505, NO_BODY, spec.Basic.Publish),
        (publishing() + header(3) + header(3), 505, NO_BODY, spec.Basic.Publish),
        (publishing() + frame(HEADER, 1, b"\0\x3c"), 501, "FRAME_ERROR - ", None),
    ],
    ids=[
        "header first",
        "body first",
        "method instead of a header",
        "body instead of a header",
        "header of another class",
        "method instead of a body",
        "two headers",
        "header cut short",
    ],
)
def test_a_message_whose_frames_are_out_of_order_ends_the_connection(
    peer: Peer, sent: bytes, code: int, text: str, caused_by: Any
) -> None:
    peer.send_bytes(sent)

    peer.expect_connection_close(code, text, caused_by)


def test_empty_frames_in_a_body_are_skipped(peer: Peer, name: str) -> None:
    peer.ask(spec.Queue.Declare(queue=name, exclusive=True), spec.Queue.DeclareOk)
    peer.publish_bytes(spec.Basic.Publish(routing_key=name), b"\0\0", [b"", b"ab", b"", b"c"])

    peer.send(spec.Basic.Get(queue=name))

    assert peer.expect_content(spec.Basic.GetOk).body == b"abc"


def test_access_tickets_of_older_clients_are_still_given(peer: Peer) -> None:
    assert peer.ask(spec.Access.Request(), spec.Access.RequestOk).ticket == 1
