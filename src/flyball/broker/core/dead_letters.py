"""Publishes dead letters to the dead-letter exchange of a queue. The headers are RabbitMQ's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from flyball.backoff import Backoff, Retries
from flyball.broker.core.dead_lettering import DeadLetterResult
from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.intake import Intake
from flyball.broker.core.presentation import PERSISTENT, present
from flyball.broker.core.queues import Queues
from flyball.broker.engine.queue import QueueState
from flyball.broker.engine.traits import MAX_SHORTSTR_BYTES, described
from flyball.broker.wire.amqp import (
    EMPTY_TABLE,
    Properties,
    Value,
    join_array,
    join_table,
    read_origin,
    read_table,
    read_value,
    split_array,
    split_table,
    write_origin,
    write_value,
)
from flyball.broker.wire.link import Content, PutOutcome
from flyball.errors import InvalidArgument
from flyball.model import Message, Queue

X_DEATH = "x-death"

# Backoff of dead letters that another node does not confirm.
PUT_AGAIN = Backoff(first_s=0.5, max_s=30.0, jitter_ratio=0.0)

# Maximum count in x-death, a signed field of 64 bits.
MAX_COUNT = (1 << 63) - 1


class DeadLetters:
    """Publishes messages to the dead-letter exchange of their queue, if it has one."""

    def __init__(self, queues: Queues, intake: Intake) -> None:
        self._queues = queues
        self._topology = queues.topology
        self._intake = intake

    def publish(self, state: QueueState, message: Message, reason: str) -> DeadLetterResult:
        """Publish the dead letter of a message, if its exchange exists and routes it to a queue.

        Raises InvalidArgument if the queue's dead-letter routing key is too long, which was not always checked.
        """
        traits = state.traits
        exchange = traits.dead_letter_exchange
        if exchange is None:
            return DeadLetterResult.NO_SUCCESSOR
        queue = state.queue
        if self._topology.router(queue.vhost).find(exchange) is None:
            return DeadLetterResult.NO_SUCCESSOR
        origin, encoded = message.origin, message.properties
        if not origin:
            origin, encoded = present(message, queue.name)
        source, routing_key = read_origin(origin)
        properties = Properties.decode(encoded)
        headers = split_table(properties.headers or EMPTY_TABLE)
        routing_keys = [routing_key, *_copies(headers)]
        now = datetime.fromtimestamp(self._topology.broker.now_us() // 1_000_000, UTC)
        deaths = _with_death(headers, queue.name, reason, now, source, routing_keys, properties.expiration)
        properties.expiration = None
        headers.pop("x-delivery-count", None)
        if traits.dead_letter_routing_key is not None:
            _check_routing_key(traits.dead_letter_routing_key, queue)
            headers.pop("CC", None)
            routing_keys = [traits.dead_letter_routing_key]
        properties.headers = join_table(headers)
        table = properties.headers

        def decoded_headers() -> dict[str, Any]:
            return dict(read_table(table, 0, len(table))[0])

        here, remotes = self._queues.route(queue.vhost, exchange, routing_keys, decoded_headers)
        targets = [target for target in here if not _is_cycle(target.queue.name, reason, deaths)]
        elsewhere = [remote for remote in remotes if not _is_cycle(remote.queue.name, reason, deaths)]
        content = Content(
            message.body,
            properties.encode(),
            write_origin(exchange, routing_keys[0]),
            properties.delivery_mode == PERSISTENT,
            properties.priority or 0,
            None,
            message.sender,
            message.receiver,
            message.context,
        )
        self._intake.put_content(targets, content)
        if elsewhere:
            # The message stays until another node has confirmed the dead letter.
            self._send(elsewhere, content, reason)
            return DeadLetterResult.LATER
        return DeadLetterResult.SUCCEEDED if targets else DeadLetterResult.NO_SUCCESSOR

    def _send(self, remotes: Sequence[RemoteQueue], content: Content, reason: str) -> None:
        """Put a dead letter into remote queues, and remove the dead-lettered message when their nodes confirm it.

        While the outcome is unknown the put is retried: delivery is at least once.
        """
        broker, peering = self._topology.broker, self._queues.peering
        held = broker.dead_lettering.held
        assert held is not None
        held.hold()
        retries = Retries(PUT_AGAIN)

        def answered(_: int, outcome: int) -> None:
            if not held.is_unacked:
                return
            if outcome == PutOutcome.UNKNOWN and broker.engine.has_queue(held.message.queue_id):
                asyncio.get_running_loop().call_later(retries.next_delay_s(), put_again)
            elif held.release():
                # Copies in local queues may have inserts that are not written yet.
                broker.settle_written(held.message)

        def put_again() -> None:
            if held.message.id not in held.state.unacked:
                return
            try:
                peering.put(remotes, content, answered, 0)
            except Exception as error:
                broker.dead_lettering.park(held.state, held.message, reason, error)

        peering.put(remotes, content, answered, 0)


def _check_routing_key(routing_key: str, queue: Queue) -> None:
    size = len(_octets(routing_key))
    if size > MAX_SHORTSTR_BYTES:
        raise InvalidArgument(
            f"the x-dead-letter-routing-key of {described(queue.name, queue.vhost)} has {size} bytes, more than"
            f" {MAX_SHORTSTR_BYTES}: delete and redeclare the queue"
        )


def _copies(headers: dict[str, bytes]) -> list[str]:
    raw = headers.get("CC")
    copies = None if raw is None else read_value(raw)
    return [key for key in copies if isinstance(key, str)] if isinstance(copies, list) else []


# The raw fields of an entry of x-death.
Death = dict[str, bytes]


def _with_death(
    headers: dict[str, bytes],
    queue_name: str,
    reason: str,
    now: datetime,
    exchange: str,
    routing_keys: list[str],
    expiration: str | None,
) -> list[Death]:
    """Record a death in the headers: one entry per queue and reason, the latest first.

    Clients can also write x-death. Their entries are copied byte for byte, except for one count, since this node may
    not be able to encode their values.
    """
    raw = headers.get(X_DEATH)
    is_array = raw is not None and raw[:1] == b"A"
    elements = split_array(raw) if raw is not None and is_array else []
    entries = _merged([split_table(element[1:]) for element in elements if element[:1] == b"F"])
    # Elements that are not tables have no meaning and are moved to the end. RabbitMQ loses messages with them.
    others = [element for element in elements if element[:1] != b"F"]
    own = (_octets(queue_name), reason.encode())
    known = next((entry for entry in entries if _key_of(entry) == own), None)
    if known is not None:
        entries.remove(known)
        known["count"] = write_value(_one_more(known.get("count")))
    else:
        fields: dict[str, Value] = {
            "count": 1,
            "reason": reason,
            "queue": queue_name,
            "time": now,
            "exchange": exchange,
            "routing-keys": [*routing_keys],
        }
        if expiration is not None:
            fields["original-expiration"] = expiration
        known = {name: write_value(value) for name, value in fields.items()}
    entries.insert(0, known)
    if raw is None:
        for name, value in (("exchange", exchange), ("queue", queue_name), ("reason", reason)):
            headers[f"x-first-death-{name}"] = write_value(value)
    headers[X_DEATH] = join_array([*(b"F" + join_table(entry) for entry in entries), *others])
    return entries


def _merged(entries: list[Death]) -> list[Death]:
    """Merge entries of the same queue and reason, as RabbitMQ does for those of versions that did not count.

    The first one is kept; if it has no count, its count becomes the number of merged entries. As in RabbitMQ, the
    order of the result is reversed, and a single entry is not changed.
    """
    if len(entries) == 1:
        return entries
    first: dict[tuple[bytes | None, bytes | None], Death] = {}
    times: dict[tuple[bytes | None, bytes | None], int] = {}
    for entry in entries:
        key = _key_of(entry)
        first.setdefault(key, entry)
        times[key] = times.get(key, 0) + 1
    for key, entry in first.items():
        if "count" not in entry:
            entry["count"] = write_value(times[key])
    return list(reversed(first.values()))


def _key_of(entry: Death) -> tuple[bytes | None, bytes | None]:
    return _content(entry.get("queue")), _content(entry.get("reason"))


def _content(raw: bytes | None) -> bytes | None:
    """Return the bytes of a string or of binary data without type and length; any other field unchanged."""
    return raw if raw is None or raw[:1] not in (b"S", b"x") else raw[5:]


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _one_more(raw: bytes | None) -> int:
    """Return the count plus one, at most `MAX_COUNT`; in RabbitMQ it would become negative."""
    count = None if raw is None else read_value(raw)
    return min(count + 1, MAX_COUNT) if isinstance(count, int) and not isinstance(count, bool) else 1


def _is_cycle(queue_name: str, reason: str, deaths: list[Death]) -> bool:
    """Whether the message was in the queue before, without a rejection since: such a cycle is dropped."""
    if reason == "rejected":
        return False
    name = _octets(queue_name)
    for entry in deaths:
        queue, why = _key_of(entry)
        if why == b"rejected":
            return False
        if queue == name:
            return True
    return False
