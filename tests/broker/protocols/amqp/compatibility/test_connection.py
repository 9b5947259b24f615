"""How a connection begins, what it agrees on, and how it ends."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from pika import data, spec

from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.broker.protocols.amqp.compatibility.peer import (
    BODY,
    CAPABILITIES,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    Peer,
    frame,
    method_bytes,
    method_frame,
    start_ok,
)

NewPeer = Callable[[], Peer]


def closing() -> Any:
    return spec.Connection.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0)


def table(values: dict[str, Any]) -> bytes:
    """Return a field table without its length, as AMQPLAIN wants it."""
    pieces: list[bytes] = []
    data.encode_table(pieces, values)
    return b"".join(pieces)[4:]


# Beginning


@pytest.mark.parametrize(
    "header",
    [b"AMQP\x00\x00\x09\x00", b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"HTTP/1.1"],
    ids=["older revision", "1.0", "1.0 with SASL", "other protocol"],
)
def test_a_protocol_that_is_not_spoken_is_answered_with_the_one_that_is(new_peer: NewPeer, header: bytes) -> None:
    peer = new_peer()
    peer.send_bytes(header)

    assert peer.read_bytes(8) == PROTOCOL_HEADER
    peer.expect_end()


def test_the_broker_introduces_itself(new_peer: NewPeer) -> None:
    start = new_peer().start()

    assert (start.version_major, start.version_minor) == (0, 9)
    assert {b"PLAIN", b"AMQPLAIN"} <= set(start.mechanisms.split())
    assert b"en_US" in start.locales.split()
    assert {"platform", "information", "capabilities"} <= set(start.server_properties)
    # Clients choose what they do by these.
    assert start.server_properties["product"] == "RabbitMQ"
    assert start.server_properties["version"].startswith("3.10.")
    assert {
        **CAPABILITIES,
        "consumer_priorities": True,
        "per_consumer_qos": True,
        "direct_reply_to": True,
    }.items() <= (start.server_properties["capabilities"].items())


def test_a_header_that_comes_in_pieces_is_understood(new_peer: NewPeer) -> None:
    peer = new_peer()
    for i in range(len(PROTOCOL_HEADER)):
        peer.send_bytes(PROTOCOL_HEADER[i : i + 1])

    peer.expect(spec.Connection.Start, 0)


def test_amqplain_is_accepted_for_logging_in(new_peer: NewPeer) -> None:
    peer = new_peer()
    peer.log_in(mechanism="AMQPLAIN", response=table({"LOGIN": "guest", "PASSWORD": "guest"}))

    peer.tune()
    peer.ask(spec.Connection.Open(virtual_host="/"), spec.Connection.OpenOk, 0)


def test_names_and_passwords_are_utf_8(broker: Broker, new_peer: NewPeer, name: str) -> None:
    user, password, vhost = f"{name}-Zoë", "pässwörd: /?", f"{name}/ü"
    broker.add_user(user, password)
    broker.add_vhost(vhost)
    broker.set_permission(user, vhost)

    new_peer().open(user, password, vhost)


@pytest.mark.parametrize("user", ["guest", "nobody-of-this-name"])
def test_a_failed_login_is_told_to_a_client_that_can_hear_it(new_peer: NewPeer, user: str) -> None:
    peer = new_peer()
    peer.log_in(user, "wrong")

    peer.expect_connection_close(403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN.")


def test_a_failed_login_with_amqplain_is_told_too(new_peer: NewPeer) -> None:
    peer = new_peer()
    peer.log_in(mechanism="AMQPLAIN", response=table({"LOGIN": "guest", "PASSWORD": "wrong"}))

    peer.expect_connection_close(403, "ACCESS_REFUSED - Login was refused using authentication mechanism AMQPLAIN.")


def logged_in(**options: Any) -> Callable[[Peer], None]:
    return lambda peer: peer.log_in(**options)


def tuned(**options: Any) -> Callable[[Peer], None]:
    def act(peer: Peer) -> None:
        peer.log_in()
        peer.tune(**options)
        peer.send(spec.Connection.Open(virtual_host="/"), 0)

    return act


def untuned(sent: bytes) -> Callable[[Peer], None]:
    def act(peer: Peer) -> None:
        peer.log_in()
        peer.expect(spec.Connection.Tune, 0)
        peer.send_bytes(sent)

    return act


def greeted(sent: bytes) -> Callable[[Peer], None]:
    def act(peer: Peer) -> None:
        peer.start()
        peer.send_bytes(sent)

    return act


def long_start_ok(size: int) -> bytes:
    """Return a start-ok whose payload has this size in octets."""
    padding = size - len(method_bytes(start_ok({"padding": ""}, "PLAIN", b"\0guest\0guest")))
    return method_frame(start_ok({"padding": "x" * padding}, "PLAIN", b"\0guest\0guest"), 0)


BROKEN_HANDSHAKES: dict[str, Callable[[Peer], None]] = {
    "wrong password, cannot hear of it": logged_in(password="wrong", properties={}),
    "unknown mechanism": logged_in(mechanism="NOTHING"),
    "mechanism in small letters": logged_in(mechanism="plain"),
    "PLAIN without its zeros": logged_in(response=b"guest"),
    "PLAIN on behalf of somebody": logged_in(response=b"other\0guest\0guest"),
    "AMQPLAIN without a password": logged_in(mechanism="AMQPLAIN", response=table({"LOGIN": "guest"})),
    "AMQPLAIN that is no table": logged_in(mechanism="AMQPLAIN", response=b"xx"),
    "channel_max 0": tuned(channel_max=0),
    "channel_max above the proposal": tuned(channel_max=4000),
    "frame_max 0": tuned(frame_max=0),
    "frame_max above the proposal": tuned(frame_max=131073),
    "frame_max below the least": tuned(frame_max=4095),
    "tune-ok instead of start-ok": greeted(method_frame(spec.Connection.TuneOk(), 0)),
    "channel before start-ok": greeted(method_frame(spec.Channel.Open(), 1)),
    "large frame before start-ok": greeted(struct.pack(">BHI", METHOD, 0, 5000)),
    "start-ok of 4097 octets": greeted(long_start_ok(4097)),
    "channel before tune-ok": untuned(method_frame(spec.Channel.Open(), 1)),
    "open before tune-ok": untuned(method_frame(spec.Connection.Open(virtual_host="/"), 0)),
    "close before tune-ok": untuned(method_frame(closing(), 0)),
}


def test_whoever_breaks_the_handshake_is_cut_off_without_a_word(new_peer: NewPeer) -> None:
    peers: dict[str, Peer] = {}
    for case, act in BROKEN_HANDSHAKES.items():
        # A peer that waits too long before it says something is cut off as well.
        peers[case] = new_peer()
        act(peers[case])

    said = {case: frames for case, peer in peers.items() if (frames := peer.read_to_end())}
    assert said == {}


def test_frame_of_4096_octets_is_taken_before_tuning(new_peer: NewPeer) -> None:
    peer = new_peer()
    greeted(long_start_ok(4096))(peer)
    peer.expect(spec.Connection.Tune, 0)


# What is agreed on


def test_the_broker_proposes_its_limits(new_peer: NewPeer) -> None:
    peer = new_peer()
    peer.log_in()

    proposal = peer.tune()

    assert (proposal.channel_max, proposal.frame_max, proposal.heartbeat) == (2047, 131072, 60)


@pytest.mark.parametrize("agreed", [{"channel_max": 1}, {"frame_max": 4096}, {"heartbeat": 7}, {"heartbeat": 600}])
def test_a_client_may_ask_for_less_and_for_any_heartbeat(new_peer: NewPeer, agreed: dict[str, int]) -> None:
    new_peer().open(**agreed, channels=1)  # type: ignore[arg-type]


def test_the_locale_does_not_matter(new_peer: NewPeer) -> None:
    peer = new_peer()
    peer.start()
    peer.send(start_ok({}, "PLAIN", b"\0guest\0guest", locale="de_DE"), 0)

    peer.expect(spec.Connection.Tune, 0)


def test_channel_max_limits_how_many_channels_there_are_not_their_numbers(new_peer: NewPeer) -> None:
    peer = new_peer().open(channel_max=3, channels=0)
    for channel in (7, 2, 2047):
        peer.open_channel(channel)

    peer.send(spec.Channel.Open(), 1)

    peer.expect_connection_close(
        530, "NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max (3)"
    )


def test_a_closed_channel_makes_room_for_another(new_peer: NewPeer) -> None:
    peer = new_peer().open(channel_max=1, channels=1)

    peer.ask(closing_channel(), spec.Channel.CloseOk)

    peer.open_channel(2)


def closing_channel() -> Any:
    return spec.Channel.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0)


def test_the_broker_sends_no_frame_above_frame_max(new_peer: NewPeer, name: str) -> None:
    peer = new_peer().open(frame_max=4096)
    peer.ask(spec.Queue.Declare(queue=name, exclusive=True), spec.Queue.DeclareOk)
    parts = [b"x" * 4088, b"y" * 4088, b"z"]
    peer.publish_bytes(spec.Basic.Publish(routing_key=name), b"\0\0", parts)

    peer.ask(spec.Basic.Get(queue=name, no_ack=True), spec.Basic.GetOk)

    assert peer.read_frame().kind == HEADER
    assert [peer.read_frame().payload for _ in parts] == parts


@pytest.mark.parametrize("frame_max", [4096, 131072])
def test_a_frame_above_frame_max_is_refused_by_its_header_alone(new_peer: NewPeer, frame_max: int) -> None:
    peer = new_peer().open(frame_max=frame_max)

    peer.send_bytes(struct.pack(">BHI", BODY, 1, frame_max + 1))

    peer.expect_connection_close(501, "FRAME_ERROR - ")


def test_bytes_may_come_one_at_a_time(peer: Peer, name: str) -> None:
    sent = method_frame(spec.Queue.Declare(queue=name, exclusive=True))
    for i in range(len(sent)):
        peer.send_bytes(sent[i : i + 1])

    assert peer.expect(spec.Queue.DeclareOk).queue == name


def test_pipelined_methods_are_answered_in_order(new_peer: NewPeer, name: str) -> None:
    peer = new_peer().open(channels=0)
    questions = [
        spec.Channel.Open(),
        spec.Queue.Declare(queue=name, exclusive=True),
        spec.Queue.Bind(queue=name, exchange="amq.direct", routing_key=name),
        spec.Exchange.Declare(exchange="amq.direct", passive=True),
        spec.Basic.Get(queue=name),
        spec.Queue.Purge(queue=name),
        spec.Confirm.Select(),
        spec.Basic.Recover(requeue=True),
        spec.Queue.Delete(queue=name),
        closing_channel(),
    ]
    answers = [
        spec.Channel.OpenOk,
        spec.Queue.DeclareOk,
        spec.Queue.BindOk,
        spec.Exchange.DeclareOk,
        spec.Basic.GetEmpty,
        spec.Queue.PurgeOk,
        spec.Confirm.SelectOk,
        spec.Basic.RecoverOk,
        spec.Queue.DeleteOk,
        spec.Channel.CloseOk,
    ]

    peer.send_bytes(b"".join(method_frame(question) for question in questions))

    assert [type(peer.read_frame().method) for _ in answers] == answers


def test_what_is_reserved_is_ignored(new_peer: NewPeer, name: str) -> None:
    peer = new_peer()
    peer.log_in()
    peer.tune()
    opening = spec.Connection.Open(virtual_host="/", capabilities="anything", insist=True)
    peer.ask(opening, spec.Connection.OpenOk, 0)
    peer.ask(spec.Channel.Open(out_of_band="anything"), spec.Channel.OpenOk)

    peer.ask(spec.Queue.Declare(ticket=77, queue=name, exclusive=True), spec.Queue.DeclareOk)


# Virtual hosts


def log_in_and_open(peer: Peer, vhost: str, user: str = "guest", password: str = "guest") -> None:
    peer.log_in(user, password)
    peer.tune()
    peer.send(spec.Connection.Open(virtual_host=vhost), 0)


def test_an_unknown_vhost_is_refused(new_peer: NewPeer, name: str) -> None:
    peer = new_peer()

    log_in_and_open(peer, name)

    peer.expect_connection_close(530, f"NOT_ALLOWED - vhost {name} not found", spec.Connection.Open)


def test_a_vhost_needs_a_permission(broker: Broker, new_peer: NewPeer, name: str) -> None:
    broker.add_user(name, "secret")
    broker.add_vhost(name)
    stranger = new_peer()

    log_in_and_open(stranger, name, name, "secret")

    refusal = f"NOT_ALLOWED - access to vhost '{name}' refused for user '{name}'"
    stranger.expect_connection_close(530, refusal, spec.Connection.Open)
    broker.set_permission(name, name, configure="", write="", read="")
    new_peer().open(name, "secret", name)


def test_vhosts_do_not_see_each_other(
    broker: Broker, new_peer: NewPeer, new_name: Callable[[], str], peer: Peer
) -> None:
    vhost, queue = new_name(), new_name()
    broker.add_vhost(vhost)
    broker.set_permission("guest", vhost)
    peer.ask(spec.Queue.Declare(queue=queue, exclusive=True), spec.Queue.DeclareOk)

    elsewhere = new_peer().open(vhost=vhost)
    elsewhere.send(spec.Queue.Declare(queue=queue, passive=True))

    elsewhere.expect_channel_close(404, f"NOT_FOUND - no queue '{queue}' in vhost '{vhost}'", spec.Queue.Declare)


def test_a_new_vhost_has_the_standard_exchanges(broker: Broker, new_peer: NewPeer, name: str) -> None:
    broker.add_vhost(name)
    broker.set_permission("guest", name)
    peer = new_peer().open(vhost=name)

    for exchange in ("amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"):
        peer.ask(spec.Exchange.Declare(exchange=exchange, passive=True), spec.Exchange.DeclareOk)


# Heartbeats


def test_the_broker_beats_and_cuts_off_a_client_that_does_not(new_peer: NewPeer) -> None:
    peer = new_peer().open(heartbeat=1)

    beat = peer.read_frame()

    assert (beat.kind, beat.channel, beat.payload) == (HEARTBEAT, 0, b"")
    peer.expect_end()


def test_a_client_that_beats_stays(new_peer: NewPeer) -> None:
    peer = new_peer().open(heartbeat=1)
    for _ in range(8):
        assert peer.read_frame().kind == HEARTBEAT
        peer.send_frame(HEARTBEAT, 0, b"")

    peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)


# Ending


def test_a_client_that_closes_is_answered(peer: Peer) -> None:
    peer.ask(closing(), spec.Connection.CloseOk, 0)


def test_what_comes_after_the_broker_has_closed_is_ignored(peer: Peer) -> None:
    peer.send(spec.Queue.Declare(), 0)
    peer.send(spec.Confirm.Select(), 1)
    peer.send(spec.Channel.Open(), 2)

    peer.expect_connection_close(504, "CHANNEL_ERROR", spec.Queue.Declare)


def test_both_sides_may_close_at_the_same_time(peer: Peer) -> None:
    peer.send(spec.Queue.Declare(), 0)
    peer.send(closing(), 0)

    peer.expect(spec.Connection.Close, 0)
    peer.expect(spec.Connection.CloseOk, 0)


UNEXPECTED = "CHANNEL_ERROR - unexpected method in connection state running"
UNIMPLEMENTED = "COMMAND_INVALID - unimplemented method"


@pytest.mark.parametrize(
    ("method", "channel", "code", "text"),
    [
        (spec.Connection.Open(virtual_host="/"), 0, 504, UNEXPECTED),
        (spec.Connection.CloseOk(), 0, 504, UNEXPECTED),
        (spec.Connection.Blocked(reason="no"), 0, 504, UNEXPECTED),
        (spec.Queue.Declare(queue="x"), 0, 504, UNEXPECTED),
        (spec.Channel.Open(), 0, 504, UNEXPECTED),
        (spec.Connection.Open(virtual_host="/"), 1, 503, UNIMPLEMENTED),
        (closing(), 1, 503, UNIMPLEMENTED),
        (spec.Queue.DeclareOk(queue="x", message_count=0, consumer_count=0), 1, 503, UNIMPLEMENTED),
    ],
    ids=lambda value: f"{value.NAME}" if hasattr(value, "NAME") else str(value).partition(" ")[0],
)
def test_a_method_where_it_does_not_belong_ends_the_connection(
    peer: Peer, method: Any, channel: int, code: int, text: str
) -> None:
    peer.send(method, channel)

    peer.expect_connection_close(code, text, type(method))


@pytest.mark.parametrize(
    ("sent", "code", "text"),
    [
        (frame(METHOD, 1, b"\0\x14\0\x28\1")[:-1] + b"\0", 501, "FRAME_ERROR - "),
        (frame(9, 1, b""), 501, "FRAME_ERROR - "),
        (frame(4, 0, b"xxxx"), 501, "FRAME_ERROR - "),
        (frame(METHOD, 1, b"\0"), 501, "FRAME_ERROR - "),
        (frame(HEARTBEAT, 0, b"abc"), 501, "FRAME_ERROR - "),
        (frame(HEARTBEAT, 1, b""), 505, "UNEXPECTED_FRAME - "),
        (frame(HEADER, 0, b"\0" * 14), 505, "UNEXPECTED_FRAME - "),
        (frame(BODY, 0, b"abc"), 505, "UNEXPECTED_FRAME - "),
        (frame(METHOD, 1, b"\0\x32\0\x0a\0\0\x02\xff\xfe\0\0\0\0\0"), 501, "FRAME_ERROR - "),
    ],
    ids=[
        "bad end",
        "unknown type",
        "type 4",
        "no method id",
        "heartbeat with content",
        "heartbeat on a channel",
        "header on channel 0",
        "body on channel 0",
        "name that is not UTF-8",
    ],
)
def test_a_frame_that_makes_no_sense_ends_the_connection(peer: Peer, sent: bytes, code: int, text: str) -> None:
    peer.send_bytes(sent)

    peer.expect_connection_close(code, text)


@pytest.mark.parametrize(
    "payload",
    [b"\0\x32\0\x0a\0", method_bytes(spec.Confirm.Select()) + b"zz"],
    ids=["too short", "too long"],
)
def test_arguments_that_do_not_fit_the_method_end_the_connection(peer: Peer, payload: bytes) -> None:
    (number,) = struct.unpack_from(">I", payload)
    peer.send_frame(METHOD, 1, payload)

    peer.expect_connection_close(501, "FRAME_ERROR - cannot decode", spec.methods[number])


@pytest.mark.parametrize("method", [b"\0\xc8\0\x0a", b"\0\x32\0\xc8"], ids=["class", "method"])
def test_an_unknown_class_or_method_ends_the_connection(peer: Peer, method: bytes) -> None:
    peer.send_frame(METHOD, 1, method)

    peer.read_to_end()


def test_a_channel_cannot_be_used_before_the_connection_is_open(new_peer: NewPeer) -> None:
    peer = new_peer()
    peer.log_in()
    peer.tune()
    peer.send(spec.Channel.Open(), 1)

    peer.expect_connection_close(505, "UNEXPECTED_FRAME - ")


def test_a_new_secret_is_accepted(peer: Peer) -> None:
    peer.ask(
        spec.Connection.UpdateSecret(new_secret="guest", reason="renewed"), spec.Connection.UpdateSecretOk, channel=0
    )
    peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
