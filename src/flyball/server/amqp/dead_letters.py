"""Dead letters: what becomes of a message that a queue will not deliver. The headers are RabbitMQ's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from flyball.engine.queue import WorkingQueue
from flyball.model import Message
from flyball.server.amqp.intake import Intake
from flyball.server.amqp.presentation import PERSISTENT, present
from flyball.server.broker import Burial
from flyball.server.topology import Topology
from flyball.wire.amqp import (
    EMPTY_TABLE,
    Properties,
    Value,
    join_table,
    read_origin,
    read_table,
    read_value,
    split_table,
    write_origin,
    write_value,
)
from flyball.wire.link import Content

if TYPE_CHECKING:
    from flyball.server.amqp.afar import Afar

X_DEATH = "x-death"


class DeadLetters:
    """Publishes dead messages to the exchange that their queue names for them, if it names one."""

    def __init__(self, topology: Topology, intake: Intake) -> None:
        self._topology = topology
        self._intake = intake
        self.afar: Afar | None = None

    def publish(self, working: WorkingQueue, message: Message, reason: str) -> Burial:
        """Publish a message that its queue gives up, if there is an exchange and a route for it."""
        traits = working.traits
        exchange = traits.dead_letter_exchange
        if exchange is None:
            return Burial.NO_SUCCESSOR
        queue = working.queue
        if self._topology.router(queue.vhost).find(exchange) is None:
            return Burial.NO_SUCCESSOR
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
            headers.pop("CC", None)
            routing_keys = [traits.dead_letter_routing_key]
        properties.headers = join_table(headers)
        table = properties.headers

        def decoded_headers() -> dict[str, Any]:
            return dict(read_table(table, 0, len(table))[0])

        found = self._topology.route(queue.vhost, exchange, routing_keys, decoded_headers)
        targets = [target for target in found if not _is_cycle(target.queue.name, reason, deaths)]
        content = Content(
            message.body,
            properties.encode(),
            write_origin(exchange, routing_keys[0]),
            properties.delivery_mode == PERSISTENT,
            properties.priority or 0,
        )
        self._intake.put_content(targets, content)
        if self.afar is not None:
            remotes = self.afar.dead_letter_targets(queue.vhost, exchange, routing_keys, decoded_headers)
            elsewhere = [remote for remote in remotes if not _is_cycle(remote.queue.name, reason, deaths)]
            if elsewhere:
                # Until another node has its successor it stays where it is.
                self.afar.send_dead_letter(elsewhere, content, working, message)
                return Burial.LATER
        return Burial.SUCCEEDED if targets else Burial.NO_SUCCESSOR


def _copies(headers: dict[str, bytes]) -> list[str]:
    raw = headers.get("CC")
    copies = None if raw is None else read_value(raw)
    return [key for key in copies if isinstance(key, str)] if isinstance(copies, list) else []


def _with_death(
    headers: dict[str, bytes],
    queue_name: str,
    reason: str,
    now: datetime,
    exchange: str,
    routing_keys: list[str],
    expiration: str | None,
) -> list[Value]:
    """Note a death in the headers: a queue and a reason have one entry, the latest is the first."""
    raw = headers.get(X_DEATH)
    found = None if raw is None else read_value(raw)
    deaths: list[Value] = list(found) if isinstance(found, list) else []
    known = next(
        (
            entry
            for entry in deaths
            if isinstance(entry, dict) and entry.get("queue") == queue_name and entry.get("reason") == reason
        ),
        None,
    )
    if known is not None:
        deaths.remove(known)
        count = known.get("count")
        known["count"] = (count if isinstance(count, int) else 0) + 1
    else:
        known = {
            "count": 1,
            "reason": reason,
            "queue": queue_name,
            "time": now,
            "exchange": exchange,
            "routing-keys": list(routing_keys),
        }
        if expiration is not None:
            known["original-expiration"] = expiration
    deaths.insert(0, known)
    if raw is None:
        for name, value in (("exchange", exchange), ("queue", queue_name), ("reason", reason)):
            headers.setdefault(f"x-first-death-{name}", write_value(value))
    headers[X_DEATH] = write_value(deaths)
    return deaths


def _is_cycle(queue_name: str, reason: str, deaths: list[Value]) -> bool:
    """Whether the message was in that queue before, and nobody has rejected it since: it would go round for ever."""
    if reason == "rejected":
        return False
    for entry in deaths:
        if not isinstance(entry, dict) or entry.get("reason") == "rejected":
            return False
        if entry.get("queue") == queue_name:
            return True
    return False
