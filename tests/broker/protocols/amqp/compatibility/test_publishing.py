"""Publishing: what is refused, returned and confirmed, transactions, and that messages arrive as they were sent."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from pika import spec

from tests.broker.protocols.amqp.compatibility.peer import BODY, HEADER, Content, Peer

NewName = Callable[[], str]
NewPeer = Callable[[], Peer]
FRAME_PAYLOAD = 131072 - 8
LARGEST = 128 * 1024 * 1024


def declare(peer: Peer, name: str, **arguments: Any) -> None:
    peer.ask(spec.Queue.Declare(queue=name, exclusive=True, arguments=arguments or None), spec.Queue.DeclareOk)


def get(peer: Peer, name: str) -> Content:
    peer.send(spec.Basic.Get(queue=name, no_ack=True))
    return peer.expect_content(spec.Basic.GetOk)


def get_empty(peer: Peer, name: str) -> None:
    peer.ask(spec.Basic.Get(queue=name, no_ack=True), spec.Basic.GetEmpty)


def confirm(peer: Peer) -> None:
    peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)


def outcomes(peer: Peer, count: int) -> dict[int, type]:
    """Read confirms until `count` messages have theirs; return what became of each, by its number."""
    result: dict[int, type] = {}
    while len(result) < count:
        answer = peer.read_frame().method
        last = answer.delivery_tag
        confirmed = [tag for tag in range(1, last + 1) if tag not in result] if answer.multiple else [last]
        assert confirmed, f"{answer} confirms nothing"
        for tag in confirmed:
            assert tag not in result, f"{tag} is confirmed twice"
            result[tag] = type(answer)
    return result


# Refusals


def test_publishing_to_a_missing_exchange_closes_the_channel(peer: Peer, name: str) -> None:
    peer.publish(b"x", name, "key")

    peer.expect_channel_close(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'", spec.Basic.Publish)


def test_what_was_published_before_an_error_is_kept(
    peer: Peer, new_peer: NewPeer, name: str, new_name: NewName
) -> None:
    declare(peer, name)
    peer.publish(b"before", "", name)
    peer.publish(b"wrong", new_name(), name)
    peer.publish(b"after", "", name)

    peer.expect_channel_close(404, "NOT_FOUND", spec.Basic.Publish)
    peer.open_channel()

    assert get(peer, name).body == b"before"
    get_empty(peer, name)


def test_a_missing_exchange_is_an_error_and_no_negative_confirm(peer: Peer, name: str) -> None:
    confirm(peer)

    peer.publish(b"x", name, "key")

    peer.expect_channel_close(404, "NOT_FOUND", spec.Basic.Publish)


def test_immediate_is_not_supported(peer: Peer) -> None:
    peer.publish(b"x", "", "key", immediate=True)

    peer.expect_connection_close(540, "NOT_IMPLEMENTED - immediate=true", spec.Basic.Publish)


def test_nobody_can_publish_as_somebody_else(peer: Peer, name: str) -> None:
    declare(peer, name)
    peer.publish(b"mine", "", name, spec.BasicProperties(user_id="guest"))
    assert get(peer, name).properties.user_id == "guest"

    peer.publish(b"x", "", name, spec.BasicProperties(user_id="other"))

    text = "PRECONDITION_FAILED - user_id property set to 'other' but authenticated user was 'guest'"
    peer.expect_channel_close(406, text, spec.Basic.Publish)


@pytest.mark.parametrize("expiration", ["abc", "-1", "1.5", "", " 5", "99999999999999"])
def test_an_expiration_has_to_be_a_number_of_milliseconds(peer: Peer, name: str, expiration: str) -> None:
    declare(peer, name)
    peer.publish(b"x", "", name, spec.BasicProperties(expiration=expiration))

    text = f"PRECONDITION_FAILED - invalid expiration '{expiration}': "
    peer.expect_channel_close(406, text, spec.Basic.Publish)


# Returns


def test_a_mandatory_message_that_leads_nowhere_comes_back_as_it_was(peer: Peer, name: str) -> None:
    properties = spec.BasicProperties(content_type="text/plain", headers={"a": 1}, delivery_mode=2)
    peer.publish(b"nobody wants me", "amq.direct", name, properties, mandatory=True)

    returned = peer.expect_content(spec.Basic.Return)

    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.exchange, returned.method.routing_key) == ("amq.direct", name)
    assert returned.body == b"nobody wants me"
    assert returned.property_bytes == b"".join(properties.encode())


def test_a_mandatory_message_that_is_routed_does_not_come_back(peer: Peer, name: str) -> None:
    declare(peer, name)
    peer.publish(b"x", "", name, mandatory=True)

    assert get(peer, name).body == b"x"


def test_a_message_that_leads_nowhere_is_returned_before_it_is_confirmed(peer: Peer, name: str) -> None:
    confirm(peer)
    for tag in (1, 2, 3):
        peer.publish(b"%d" % tag, "", name, mandatory=True)

        assert peer.expect_content(spec.Basic.Return).body == b"%d" % tag
        ack = peer.expect(spec.Basic.Ack)
        assert (ack.delivery_tag, ack.multiple) == (tag, False)


# Confirms


def test_a_message_that_leads_nowhere_is_confirmed(peer: Peer, name: str) -> None:
    confirm(peer)

    peer.publish(b"x", "", name)

    assert peer.expect(spec.Basic.Ack).delivery_tag == 1


@pytest.mark.parametrize("mode", [1, 2], ids=["transient", "persistent"])
def test_every_message_is_confirmed_once(peer: Peer, name: str, mode: int) -> None:
    peer.ask(spec.Queue.Declare(queue=name, durable=True), spec.Queue.DeclareOk)
    peer.publish(b"before", "", name)
    confirm(peer)
    confirm(peer)
    for number in range(300):
        peer.publish(b"%d" % number, "", name, spec.BasicProperties(delivery_mode=mode))

    assert outcomes(peer, 300) == dict.fromkeys(range(1, 301), spec.Basic.Ack)
    deleted = peer.ask(spec.Queue.Delete(queue=name), spec.Queue.DeleteOk)
    assert deleted.message_count == 301


def test_each_channel_counts_its_own_confirms(new_peer: NewPeer, name: str) -> None:
    peer = new_peer().open(channels=2)
    declare(peer, name)
    for channel in (1, 2):
        peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk, channel)
        peer.publish(b"x", "", name, channel=channel)
        assert peer.expect(spec.Basic.Ack, channel).delivery_tag == 1


def test_a_full_queue_that_rejects_answers_with_a_nack(peer: Peer, name: str) -> None:
    declare(peer, name, **{"x-max-length": 2, "x-overflow": "reject-publish"})
    confirm(peer)
    for number in range(4):
        peer.publish(b"%d" % number, "", name)

    expected = {1: spec.Basic.Ack, 2: spec.Basic.Ack, 3: spec.Basic.Nack, 4: spec.Basic.Nack}
    assert outcomes(peer, 4) == expected
    assert [get(peer, name).body for _ in range(2)] == [b"0", b"1"]
    peer.publish(b"4", "", name)
    assert peer.expect(spec.Basic.Ack).delivery_tag == 5


def test_one_queue_that_rejects_is_enough_for_a_nack(peer: Peer, new_name: NewName) -> None:
    full, roomy, exchange = new_name(), new_name(), new_name()
    peer.ask(spec.Exchange.Declare(exchange=exchange, type="fanout", auto_delete=True), spec.Exchange.DeclareOk)
    declare(peer, full, **{"x-max-length": 0, "x-overflow": "reject-publish"})
    declare(peer, roomy)
    for queue in (full, roomy):
        peer.ask(spec.Queue.Bind(queue=queue, exchange=exchange), spec.Queue.BindOk)
    confirm(peer)

    peer.publish(b"x", exchange)

    assert peer.expect(spec.Basic.Nack).delivery_tag == 1
    assert get(peer, roomy).body == b"x"


def test_a_full_queue_drops_its_oldest_message_unless_told_otherwise(peer: Peer, name: str) -> None:
    declare(peer, name, **{"x-max-length": 2})
    confirm(peer)
    for number in range(4):
        peer.publish(b"%d" % number, "", name)

    assert outcomes(peer, 4) == dict.fromkeys(range(1, 5), spec.Basic.Ack)
    assert [get(peer, name).body for _ in range(2)] == [b"2", b"3"]
    get_empty(peer, name)


def test_no_answer_comes_where_none_is_wanted(peer: Peer, name: str) -> None:
    peer.send(spec.Confirm.Select(nowait=True))
    peer.publish(b"x", "", name)

    assert peer.expect(spec.Basic.Ack).delivery_tag == 1


# Transactions


def test_a_transaction_publishes_when_it_is_committed(peer: Peer, name: str) -> None:
    declare(peer, name)
    peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
    peer.publish(b"a", "", name)
    peer.publish(b"b", "", name)
    get_empty(peer, name)

    peer.ask(spec.Tx.Commit(), spec.Tx.CommitOk)

    assert [get(peer, name).body for _ in range(2)] == [b"a", b"b"]


def test_a_transaction_that_is_rolled_back_publishes_nothing(peer: Peer, name: str) -> None:
    declare(peer, name)
    peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
    peer.publish(b"a", "", name)
    peer.ask(spec.Tx.Rollback(), spec.Tx.RollbackOk)
    peer.publish(b"b", "", name)
    peer.ask(spec.Tx.Commit(), spec.Tx.CommitOk)

    assert get(peer, name).body == b"b"
    get_empty(peer, name)


def test_an_acknowledgement_that_is_rolled_back_can_be_given_again(new_peer: NewPeer, name: str) -> None:
    peer = new_peer().open(channels=2)
    declare(peer, name)
    peer.publish(b"a", "", name)
    peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
    peer.send(spec.Basic.Get(queue=name))
    tag = peer.expect_content(spec.Basic.GetOk).method.delivery_tag

    peer.send(spec.Basic.Ack(delivery_tag=tag))
    peer.ask(spec.Tx.Rollback(), spec.Tx.RollbackOk)
    peer.send(spec.Basic.Ack(delivery_tag=tag))
    peer.ask(spec.Tx.Commit(), spec.Tx.CommitOk)
    peer.ask(spec.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0), spec.Channel.CloseOk)

    peer.ask(spec.Basic.Get(queue=name), spec.Basic.GetEmpty, 2)


def test_uncommitted_ack_is_dropped_with_the_channel(new_peer: NewPeer, name: str) -> None:
    peer = new_peer().open(channels=2)
    declare(peer, name)
    peer.publish(b"a", "", name)
    peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
    peer.send(spec.Basic.Get(queue=name))
    tag = peer.expect_content(spec.Basic.GetOk).method.delivery_tag
    peer.send(spec.Basic.Ack(delivery_tag=tag))

    peer.ask(spec.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0), spec.Channel.CloseOk)

    peer.ask(spec.Basic.Consume(queue=name), spec.Basic.ConsumeOk, 2)
    assert peer.expect_content(spec.Basic.Deliver, 2).method.redelivered is True


def test_a_transaction_returns_messages_when_it_is_committed(peer: Peer, name: str) -> None:
    peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
    peer.publish(b"x", "", name, mandatory=True)
    peer.ask(spec.Basic.Qos(prefetch_count=1), spec.Basic.QosOk)

    peer.send(spec.Tx.Commit())

    assert peer.expect_content(spec.Basic.Return).body == b"x"
    peer.expect(spec.Tx.CommitOk)


@pytest.mark.parametrize("method", [spec.Tx.Commit(), spec.Tx.Rollback()], ids=lambda method: str(method.NAME))
def test_a_transaction_has_to_be_begun(peer: Peer, method: Any) -> None:
    peer.send(method)

    peer.expect_channel_close(406, "PRECONDITION_FAILED - channel is not transactional", type(method))


def test_a_channel_confirms_or_has_transactions_but_not_both(peer: Peer) -> None:
    peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
    peer.send(spec.Confirm.Select())
    text = "PRECONDITION_FAILED - cannot switch from tx to confirm mode"
    peer.expect_channel_close(406, text, spec.Confirm.Select)

    peer.open_channel()
    confirm(peer)
    peer.send(spec.Tx.Select())
    peer.expect_channel_close(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode", spec.Tx.Select)


def test_a_transaction_notices_a_missing_exchange_at_once(peer: Peer, name: str) -> None:
    peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)

    peer.publish(b"x", name)

    peer.expect_channel_close(404, "NOT_FOUND", spec.Basic.Publish)


# Further recipients


def test_carbon_copies_are_routed_by_their_own_keys(peer: Peer, new_name: NewName) -> None:
    first, second, third = new_name(), new_name(), new_name()
    for name in (first, second, third):
        declare(peer, name)
    headers = {"CC": [second, first, second], "BCC": [third], "other": 1}

    peer.publish(b"x", "", first, spec.BasicProperties(headers=headers))

    for name in (first, second, third):
        message = get(peer, name)
        assert message.method.routing_key == first
        assert message.properties.headers == {"CC": [second, first, second], "other": 1}
        get_empty(peer, name)


@pytest.mark.parametrize(("header", "value", "type"), [("CC", "x", "longstr"), ("BCC", 1, "signedint")])
def test_carbon_copies_have_to_be_a_list(peer: Peer, name: str, header: str, value: object, type: str) -> None:
    peer.publish(b"x", "", name, spec.BasicProperties(headers={header: value}))

    text = f'PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,"{header}",{type}}}'
    peer.expect_channel_close(406, text, spec.Basic.Publish)


@pytest.mark.parametrize(
    "further", [{}, {"priority": 1}, {"headers": {"a": 1}}], ids=["alone", "priority", "headers"]
)
@pytest.mark.parametrize("mode", [0, 3, 255])
def test_delivery_mode_is_one_or_two(peer: Peer, name: str, mode: int, further: dict[str, Any]) -> None:
    declare(peer, name)
    peer.publish(b"x", "", name, spec.BasicProperties(delivery_mode=mode, **further))

    text = f"PRECONDITION_FAILED - invalid message: {{delivery_mode_unknown,{mode}}}"
    peer.expect_channel_close(406, text, spec.Basic.Publish)
    peer.open_channel()
    get_empty(peer, name)


def test_delivery_mode_is_checked_in_a_transaction(peer: Peer, name: str) -> None:
    peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
    peer.publish(b"x", "", name, spec.BasicProperties(delivery_mode=3))

    peer.expect_channel_close(406, "PRECONDITION_FAILED - invalid message", spec.Basic.Publish)


# Contents


FIELDS = {
    "bool": b"t\x01",
    "int8": b"b\xff",
    "uint8": b"B\xff",
    "int16": b"s\x80\x00",
    "uint16": b"u\xff\xff",
    "int32": b"I\x80\x00\x00\x00",
    "uint32": b"i\xff\xff\xff\xff",
    "int64": b"l\x80\x00\x00\x00\x00\x00\x00\x00",
    "float": b"f\x3f\x80\x00\x00",
    "double": b"d\x3f\xf0\x00\x00\x00\x00\x00\x00",
    "decimal": b"D\x02\x00\x00\x01\x3a",
    "string": b"S\x00\x00\x00\x03\xc3\xa4x",
    "bytes in a string": b"S\x00\x00\x00\x02\xff\x00",
    "array": b"A\x00\x00\x00\x07t\x00I\x00\x00\x00\x01",
    "empty array": b"A\x00\x00\x00\x00",
    "timestamp": b"T\x00\x00\x00\x00\x5f\x00\x00\x00",
    "table": b"F\x00\x00\x00\x04\x01at\x01",
    "empty table": b"F\x00\x00\x00\x00",
    "void": b"V",
    "bytes": b"x\x00\x00\x00\x02\x00\xff",
}


def field_table(*fields: bytes) -> bytes:
    named = b"".join(b"\x02" + b"%02d" % number + field for number, field in enumerate(fields))
    return struct.pack(">I", len(named)) + named


def arrives_unchanged(peer: Peer, name: str, properties: bytes) -> None:
    declare(peer, name)
    peer.publish_bytes(spec.Basic.Publish(routing_key=name), properties, [b"body"])
    assert get(peer, name).property_bytes == properties


@pytest.mark.parametrize("type", FIELDS)
def test_a_header_of_any_type_arrives_byte_for_byte(peer: Peer, name: str, type: str) -> None:
    arrives_unchanged(peer, name, b"\x20\x00" + field_table(FIELDS[type]))


def test_all_properties_arrive_byte_for_byte(peer: Peer, name: str) -> None:
    properties = b"".join(
        [
            b"\xff\xfc",
            b"\x0atext/plain",
            b"\x04gzip",
            field_table(*FIELDS.values()),
            b"\x02",
            b"\x05",
            b"\x03cid",
            b"\x05reply",
            b"\x0560000",
            b"\x03mid",
            b"\x00\x00\x00\x00\x5f\x00\x00\x00",
            b"\x04type",
            b"\x05guest",
            b"\x03app",
            b"\x02cl",
        ]
    )

    arrives_unchanged(peer, name, properties)


def test_a_message_without_properties_stays_without(peer: Peer, name: str) -> None:
    arrives_unchanged(peer, name, b"\x00\x00")


def test_an_empty_header_table_is_not_the_same_as_none(peer: Peer, name: str) -> None:
    arrives_unchanged(peer, name, b"\x20\x00" + field_table())


@pytest.mark.parametrize("size", [0, 1, FRAME_PAYLOAD, FRAME_PAYLOAD + 1, 3 * 1024 * 1024 + 7])
def test_bodies_of_any_size_arrive_as_they_were(peer: Peer, name: str, size: int) -> None:
    body = (bytes(range(251)) * (size // 251 + 1))[:size]
    declare(peer, name)
    parts = [body[start : start + FRAME_PAYLOAD] for start in range(0, size, FRAME_PAYLOAD)]
    peer.publish_bytes(spec.Basic.Publish(routing_key=name), b"\0\0", parts)

    assert get(peer, name).body == body


def send_large(peer: Peer, name: str, size: int) -> None:
    """Publish a body of `size` zeros, which need not be in memory at once."""
    peer.send(spec.Basic.Publish(routing_key=name))
    peer.send_frame(HEADER, 1, struct.pack(">HHQ", spec.Basic.INDEX, 0, size) + b"\0\0")
    whole, rest = divmod(size, FRAME_PAYLOAD)
    for length in [FRAME_PAYLOAD] * whole + [rest]:
        peer.send_frame(BODY, 1, bytes(length))


def test_a_body_may_have_128_mib(peer: Peer, name: str) -> None:
    declare(peer, name)
    send_large(peer, name, LARGEST)

    assert get(peer, name).body == bytes(LARGEST)


def test_a_larger_body_is_refused(peer: Peer, name: str) -> None:
    send_large(peer, name, LARGEST + 1)

    text = f"PRECONDITION_FAILED - message size {LARGEST + 1} is larger than configured max size {LARGEST}"
    peer.expect_channel_close(406, text, spec.Basic.Publish)


def test_a_body_may_be_cut_anywhere(peer: Peer, name: str) -> None:
    declare(peer, name)
    peer.publish_bytes(spec.Basic.Publish(routing_key=name), b"\0\0", [b"a", b"bc", b"def", b"g"])

    assert get(peer, name).body == b"abcdefg"


def test_messages_keep_their_order(peer: Peer, name: str) -> None:
    declare(peer, name)
    for number in range(500):
        peer.publish(b"%d" % number, "", name)
    peer.ask(spec.Basic.Consume(queue=name, no_ack=True), spec.Basic.ConsumeOk)

    bodies = [peer.expect_content(spec.Basic.Deliver).body for _ in range(500)]

    assert bodies == [b"%d" % number for number in range(500)]


def test_a_delivery_tells_where_the_message_came_from(peer: Peer, name: str) -> None:
    declare(peer, name)
    peer.ask(spec.Queue.Bind(queue=name, exchange="amq.topic", routing_key=f"{name}.#"), spec.Queue.BindOk)
    peer.publish(b"x", "amq.topic", f"{name}.a.b")
    peer.ask(spec.Basic.Consume(queue=name, consumer_tag="me"), spec.Basic.ConsumeOk)

    delivery = peer.expect_content(spec.Basic.Deliver).method

    assert (delivery.consumer_tag, delivery.delivery_tag, delivery.redelivered) == ("me", 1, False)
    assert (delivery.exchange, delivery.routing_key) == ("amq.topic", f"{name}.a.b")
