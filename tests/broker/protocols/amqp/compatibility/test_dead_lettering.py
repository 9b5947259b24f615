"""Messages that expired, were rejected, or found no room: where they go and what they then carry."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pika
import pytest

from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.broker.protocols.amqp.compatibility.queues import (
    Delivery,
    channel_closed,
    declare,
    declare_dead_letters,
    get,
    publish,
    reject,
    take,
    take_all,
    texts,
    wait_for_count,
)

Names = Callable[[], str]


def deaths(delivery: Delivery) -> list[tuple[str, str, int]]:
    """Return queue, reason and count of each entry of x-death."""
    return [(entry["queue"], entry["reason"], entry["count"]) for entry in delivery.headers["x-death"]]


def test_an_expired_message_tells_where_and_when_it_died(channel: Any) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange})
    publish(channel, queue, "late", expiration="10", message_id="7", headers={"mine": "kept"})
    letter = take(channel, dead)
    (entry,) = letter.headers["x-death"]
    died = entry.pop("time")
    assert abs(datetime.now(UTC) - died) < timedelta(minutes=1)
    assert entry == {
        "count": 1,
        "reason": "expired",
        "queue": queue,
        "exchange": "",
        "routing-keys": [queue],
        "original-expiration": "10",
    }
    assert letter.headers["mine"] == "kept"
    assert letter.properties.message_id == "7"
    assert letter.text == "late"


def test_a_dead_letter_does_not_expire_again(channel: Any) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange})
    publish(channel, queue, "expired", expiration="10")
    letters = [take(channel, dead)]
    publish(channel, queue, "rejected", expiration="60000")
    reject(channel, queue)
    letters.append(take(channel, dead))
    assert [letter.properties.expiration for letter in letters] == [None, None]
    assert [letter.headers["x-death"][0]["original-expiration"] for letter in letters] == ["10", "60000"]


def test_the_first_death_is_remembered(channel: Any) -> None:
    exchange, dead = declare_dead_letters(channel)
    second = declare(channel, {"x-dead-letter-exchange": exchange, "x-message-ttl": 10})
    first = declare(channel, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": second})
    publish(channel, first, "twice dead")
    reject(channel, first)
    letter = take(channel, dead)
    assert {name: value for name, value in letter.headers.items() if name != "x-death"} == {
        "x-first-death-exchange": "",
        "x-first-death-queue": first,
        "x-first-death-reason": "rejected",
    }
    assert deaths(letter) == [(second, "expired", 1), (first, "rejected", 1)]


@pytest.mark.parametrize("how", ["reject", "nack"])
def test_a_refused_message_is_a_dead_letter_with_reason_rejected(channel: Any, how: str) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange})
    publish(channel, queue, "no")
    refuse = channel.basic_reject if how == "reject" else channel.basic_nack
    refuse(take(channel, queue).tag, requeue=False)
    letter = take(channel, dead)
    assert deaths(letter) == [(queue, "rejected", 1)]
    assert "original-expiration" not in letter.headers["x-death"][0]
    assert not letter.method.redelivered


def test_a_message_that_was_pushed_out_is_a_dead_letter_with_reason_maxlen(channel: Any) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange, "x-max-length": 1})
    publish(channel, queue, "old", "new")
    letter = take(channel, dead)
    assert letter.text == "old"
    assert deaths(letter) == [(queue, "maxlen", 1)]


def test_a_dead_letter_keeps_its_properties(channel: Any) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange, "x-message-ttl": 5})
    given = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "priority": 3,
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "timestamp": 123,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
    }
    publish(channel, queue, "body", **given)
    letter = take(channel, dead)
    assert {name: getattr(letter.properties, name) for name in given} == given


def test_dead_letter_keeps_its_routing_key_and_cc_by_default(channel: Any, new_name: Names) -> None:
    exchange = new_name()
    channel.exchange_declare(exchange, "topic")
    dead = declare(channel)
    channel.queue_bind(dead, exchange, "copy")
    queue = declare(channel, {"x-dead-letter-exchange": exchange})
    publish(channel, queue, "body", expiration="5", headers={"CC": ["copy"]})
    letter = take(channel, dead)
    assert (letter.method.exchange, letter.method.routing_key) == (exchange, queue)
    assert letter.headers["CC"] == ["copy"]
    assert letter.headers["x-death"][0]["routing-keys"] == [queue, "copy"]


def test_the_routing_key_of_the_queue_replaces_all_of_the_message(channel: Any, new_name: Names) -> None:
    exchange = new_name()
    channel.exchange_declare(exchange, "topic")
    dead, copies = declare(channel), declare(channel)
    channel.queue_bind(dead, exchange, "dead")
    channel.queue_bind(copies, exchange, "copy")
    queue = declare(channel, {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "dead"})
    publish(channel, queue, "body", expiration="5", headers={"CC": ["copy"]})
    letter = take(channel, dead)
    assert letter.method.routing_key == "dead"
    assert "CC" not in letter.headers
    assert letter.headers["x-death"][0]["routing-keys"] == [queue, "copy"]
    assert take_all(channel, copies) == []


def test_keys_of_bcc_are_forgotten(channel: Any, new_name: Names) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange, "x-message-ttl": 5})
    headers = {"BCC": [queue]}
    channel.basic_publish("", "nowhere", b"body", pika.BasicProperties(headers=headers))
    letter = take(channel, dead)
    assert letter.method.routing_key == "nowhere"
    assert letter.headers["x-death"][0]["routing-keys"] == ["nowhere"]
    assert "BCC" not in letter.headers


def test_the_exchange_that_the_message_was_published_to_is_named(channel: Any, name: str) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange, "x-message-ttl": 5})
    channel.exchange_declare(name, "direct")
    channel.queue_bind(queue, name, "key")
    channel.basic_publish(name, "key", b"body")
    letter = take(channel, dead)
    assert letter.headers["x-death"][0]["exchange"] == name
    assert letter.headers["x-first-death-exchange"] == name
    assert letter.method.exchange == exchange


def test_dying_again_in_the_same_way_counts_up(channel: Any, new_name: Names) -> None:
    retry, work = new_name(), new_name()
    channel.queue_declare(
        retry,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work, "x-message-ttl": 10},
    )
    channel.queue_declare(work, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": retry})
    publish(channel, work, "again")
    seen = []
    for _ in range(3):
        letter = take(channel, work)
        seen.append(deaths(letter) if "x-death" in letter.headers else [])
        channel.basic_reject(letter.tag, requeue=False)
    assert seen == [
        [],
        [(retry, "expired", 1), (work, "rejected", 1)],
        [(retry, "expired", 2), (work, "rejected", 2)],
    ]


def test_a_death_that_repeats_keeps_what_the_first_one_said(channel: Any, name: str) -> None:
    dead = declare(channel)
    queue = declare(channel, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    told = {"queue": queue, "reason": "rejected", "count": 5, "exchange": "elsewhere", "routing-keys": ["other"]}
    publish(channel, queue, "body", headers={"x-death": [told]})
    reject(channel, queue)
    assert take(channel, dead).headers == {"x-death": [{**told, "count": 6}]}


def test_the_latest_death_comes_first(channel: Any) -> None:
    dead = declare(channel)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-max-length": 1}
    queue = declare(channel, arguments)
    publish(channel, queue, "body")
    reject(channel, queue)
    letter = take(channel, dead)
    publish(channel, queue, "body", headers=letter.headers)
    publish(channel, queue, "next")
    letter = take(channel, dead)
    assert deaths(letter) == [(queue, "maxlen", 1), (queue, "rejected", 1)]
    publish(channel, queue, "body", headers=letter.headers)
    assert take(channel, dead).text == "next"
    reject(channel, queue)
    assert deaths(take(channel, dead)) == [(queue, "rejected", 2), (queue, "maxlen", 1)]


def test_dead_letters_keep_their_order(channel: Any) -> None:
    dead = declare(channel)
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    pushed_out = declare(channel, {**to_dead, "x-max-length": 2})
    publish(channel, pushed_out, "0", "1", "2", "3", "4")
    assert texts(take(channel, dead) for _ in range(3)) == ["0", "1", "2"]
    refused = declare(channel, to_dead)
    publish(channel, refused, "0", "1", "2", "3")
    tags = [take(channel, refused).tag for _ in range(4)]
    channel.basic_nack(tags[2], multiple=True, requeue=False)
    assert texts(take(channel, dead) for _ in range(3)) == ["0", "1", "2"]
    expired = declare(channel, {**to_dead, "x-message-ttl": 30})
    publish(channel, expired, "0", "1", "2")
    assert texts(take(channel, dead) for _ in range(3)) == ["0", "1", "2"]


def test_a_message_that_expired_back_into_its_queue_is_dropped(channel: Any) -> None:
    exchange, witness = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange, "x-message-ttl": 10})
    channel.queue_bind(queue, exchange)
    publish(channel, queue, "round")
    # The other queue of the exchange gets its copy all the same.
    assert take(channel, witness).text == "round"
    assert take_all(channel, queue) == []
    publish(channel, queue, "next")
    assert take(channel, witness).text == "next"
    assert get(channel, witness) is None


def test_a_circle_of_queues_in_which_messages_only_expire_is_cut(channel: Any, new_name: Names) -> None:
    exchange, witness = declare_dead_letters(channel)
    second, first = new_name(), new_name()
    channel.queue_declare(
        first,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": second, "x-message-ttl": 10},
    )
    channel.queue_declare(
        second,
        arguments={"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "", "x-message-ttl": 10},
    )
    channel.queue_bind(first, exchange)
    publish(channel, first, "round", "and round")
    assert texts([take(channel, witness), take(channel, witness)]) == ["round", "and round"]
    wait_for_count(channel, first, 0)
    wait_for_count(channel, second, 0)
    assert get(channel, witness) is None


def test_a_rejected_message_may_come_back_to_its_queue(channel: Any, name: str) -> None:
    channel.queue_declare(name, arguments={"x-dead-letter-exchange": ""})
    publish(channel, name, "back")
    reject(channel, name)
    letter = take(channel, name)
    assert (letter.text, deaths(letter)) == ("back", [(name, "rejected", 1)])


def test_a_circle_with_a_rejection_goes_on(channel: Any, new_name: Names) -> None:
    waiting, work = new_name(), new_name()
    channel.queue_declare(
        waiting,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work, "x-message-ttl": 10},
    )
    channel.queue_declare(work, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": waiting})
    publish(channel, waiting, "on")
    counts = []
    for _ in range(3):
        letter = take(channel, work)
        counts.append(deaths(letter)[0])
        channel.basic_reject(letter.tag, requeue=False)
    assert counts == [(waiting, "expired", 1), (waiting, "expired", 2), (waiting, "expired", 3)]


def test_without_the_exchange_dead_letters_are_lost_until_it_is_declared(channel: Any, name: str) -> None:
    queue = declare(channel, {"x-dead-letter-exchange": name, "x-max-length": 0})
    publish(channel, queue, "lost")
    dead = declare(channel)
    channel.exchange_declare(name, "fanout")
    channel.queue_bind(dead, name)
    publish(channel, queue, "kept")
    assert take(channel, dead).text == "kept"


def test_purging_and_deleting_a_queue_makes_no_dead_letters(channel: Any) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange})
    publish(channel, queue, "purged")
    channel.queue_purge(queue)
    publish(channel, queue, "deleted")
    channel.queue_delete(queue)
    other = declare(channel, {"x-dead-letter-exchange": exchange})
    publish(channel, other, "rejected")
    reject(channel, other)
    assert take(channel, dead).text == "rejected"


def test_a_policy_names_the_exchange_unless_the_queue_does(channel: Any, broker: Broker, name: str) -> None:
    by_policy, of_policy = declare_dead_letters(channel)
    by_argument, of_argument = declare_dead_letters(channel)
    plain, own = f"{name}-plain", f"{name}-own"
    channel.queue_declare(plain)
    channel.queue_declare(own, arguments={"x-dead-letter-exchange": by_argument})
    broker.set_policy(name, f"^{name}", {"dead-letter-exchange": by_policy}, apply_to="queues")
    publish(channel, plain, "plain")
    publish(channel, own, "own")
    reject(channel, plain)
    reject(channel, own)
    assert take(channel, of_policy).text == "plain"
    assert take(channel, of_argument).text == "own"
    broker.clear_policy(name)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            {"x-dead-letter-routing-key": "key"},
            "invalid arg 'x-dead-letter-routing-key' for queue '{}' in vhost '/': routing_key_but_no_dlx_defined",
        ),
        (
            {"x-dead-letter-exchange": 5},
            "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue '{}' in vhost '/'",
        ),
        (
            {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": 5},
            "invalid arg 'x-dead-letter-routing-key' for queue '{}' in vhost '/': {{unacceptable_type,signedint}}",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    channel: Any, name: str, arguments: dict[str, Any], complaint: str
) -> None:
    with channel_closed(406, "PRECONDITION_FAILED - " + complaint.format(name)):
        channel.queue_declare(name, arguments=arguments)


# What clients have written into x-death


def entry(queue: str, reason: str, **fields: Any) -> dict[str, Any]:
    return {"queue": queue, "reason": reason, **fields}


def rejected_with(channel: Any, deaths_before: Any) -> tuple[str, Delivery]:
    """Reject a message that says it had died before; return its queue and its dead letter."""
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange})
    written = deaths_before(queue) if callable(deaths_before) else deaths_before
    publish(channel, queue, "again", headers={"x-death": written})
    reject(channel, queue)
    return queue, take(channel, dead)


def test_entries_of_one_queue_and_reason_are_merged(channel: Any) -> None:
    before = [entry(f"q{number % 5}", "expired", number=number) for number in range(23)]
    _, letter = rejected_with(channel, before)
    # RabbitMQ reverses their order.
    found = [(death["queue"], death["count"], death.get("number")) for death in letter.headers["x-death"][1:]]
    assert found == [("q4", 4, 4), ("q3", 4, 3), ("q2", 5, 2), ("q1", 5, 1), ("q0", 5, 0)]


def test_a_merged_entry_keeps_the_count_that_it_has(channel: Any) -> None:
    before = [entry("a", "expired", count=7), entry("b", "maxlen", count=1), entry("a", "expired", count=11)]
    queue, letter = rejected_with(channel, before)
    assert deaths(letter) == [(queue, "rejected", 1), ("b", "maxlen", 1), ("a", "expired", 7)]


def test_own_entries_without_a_count_are_counted_when_merged(channel: Any) -> None:
    def before(queue: str) -> list[Any]:
        return [entry(queue, "rejected"), entry("a", "expired"), entry(queue, "rejected")]

    queue, letter = rejected_with(channel, before)
    assert deaths(letter) == [(queue, "rejected", 3), ("a", "expired", 1)]


def test_a_single_own_entry_without_a_count_begins_with_one(channel: Any) -> None:
    queue, letter = rejected_with(channel, lambda queue: [entry(queue, "rejected")])
    assert deaths(letter) == [(queue, "rejected", 1)]


@pytest.mark.parametrize("count", [-5, 0, 2**31, -(2**63)])
def test_any_count_that_a_client_has_written_goes_up_by_one(channel: Any, count: int) -> None:
    queue, letter = rejected_with(channel, lambda queue: [entry(queue, "rejected", count=count)])
    assert deaths(letter) == [(queue, "rejected", count + 1)]


def test_the_highest_count_stays(broker: Broker, channel: Any) -> None:
    queue, letter = rejected_with(channel, lambda queue: [entry(queue, "rejected", count=2**63 - 1)])
    # RabbitMQ's wraps around, surely by mistake.
    expected = 2**63 - 1 if broker.name == "flyball" else -(2**63)
    assert deaths(letter) == [(queue, "rejected", expected)]


@pytest.mark.parametrize("written", ["text", {"queue": "a"}, None, [], 5])
def test_what_is_no_list_of_deaths_is_replaced(channel: Any, written: Any) -> None:
    queue, letter = rejected_with(channel, written)
    assert deaths(letter) == [(queue, "rejected", 1)]
    assert "x-first-death-queue" not in letter.headers


def test_entries_without_a_queue_or_reason_stay(channel: Any) -> None:
    _, letter = rejected_with(channel, [{"reason": "rejected", "count": 3}, {"queue": "a"}, {}])
    assert letter.headers["x-death"][1:] == [
        {"count": 1},
        {"queue": "a", "count": 1},
        {"reason": "rejected", "count": 3},
    ]


def test_first_death_is_told_by_the_broker_and_not_by_the_publisher(channel: Any) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange})
    publish(channel, queue, "m", headers={"x-first-death-queue": "zz"})
    channel.basic_reject(take(channel, queue).tag, requeue=False)
    assert take(channel, dead).headers["x-first-death-queue"] == queue
