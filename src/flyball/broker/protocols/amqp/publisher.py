"""The publishing side of a channel: routing, returns, confirms and transactions.

The fast path uses a cached route, cached properties, and a queue without limits. All other cases (copies, expiration,
direct reply) are handled off this path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.presentation import correlation_in
from flyball.broker.core.topology import Headers
from flyball.broker.engine.access import Action
from flyball.broker.engine.queue import QueueState
from flyball.broker.engine.traits import MAX_MS
from flyball.broker.protocols.amqp.caches import Route
from flyball.broker.protocols.amqp.channel_state import ChannelState
from flyball.broker.protocols.amqp.direct_replies import REPLY_TO
from flyball.broker.protocols.amqp.replies import refusal
from flyball.broker.protocols.amqp.transactions import Content, Transaction
from flyball.broker.store.pending_batch import OperationsRefused
from flyball.broker.wire.amqp import (
    DELIVERY_MODES,
    EMPTY_TABLE,
    BasicPublish,
    Essentials,
    Properties,
    Publish,
    ReplyCode,
    encode_ack,
    encode_nack,
    encode_return,
    essentials,
    join_table,
    read_origin,
    read_table,
    read_value,
    split_table,
)
from flyball.errors import FlyballError, ReservedName
from flyball.model import Receipt

NO_ROUTE = "NO_ROUTE"
_IDS = (BasicPublish.CLASS_ID, BasicPublish.METHOD_ID)
_NO_HEADERS: Mapping[str, Any] = {}

# A message for more queues than this uses up the publisher's turn.
MANY_TARGETS = 500


class Batch:
    """Waits for one commit on behalf of all messages that a channel published into it."""

    __slots__ = ("_publisher", "last")

    def __init__(self, publisher: Publisher, last: int) -> None:
        self._publisher = publisher
        # Number of the last message.
        self.last = last

    def committed(self) -> None:
        self._publisher.confirm_up_to(self.last)

    def failed(self, error: FlyballError) -> None:
        if isinstance(error, OperationsRefused):
            # Failed messages of the batch were already nacked through their receipts; the others are stored.
            self._publisher.confirm_up_to(self.last)
        else:
            self._publisher.refuse_up_to(self.last)


class Publisher:
    """Accepts the messages published on a channel."""

    __slots__ = (
        "_awaiting",
        "_awaiting_peers",
        "_batch",
        "_batch_number",
        "_channel",
        "_confirm_copy",
        "_confirm_one",
        "_confirmed",
        "_engine",
        "_essentials",
        "_has_looked",
        "_hub",
        "_intake",
        "_is_due",
        "_journal",
        "_meters",
        "_queues",
        "_refused",
        "_routes",
        "_topology",
        "_version",
        "_vhost",
        "confirmed",
        "is_confirming",
        "published",
        "returned",
        "taken",
        "transaction",
    )

    def __init__(self, channel: ChannelState) -> None:
        context = channel.session.context
        self._channel = channel
        self._hub = channel.session.hub
        self._topology = context.topology
        self._version = context.topology.version
        self._engine = context.topology.engine
        self._queues = context.queues
        self._intake = context.intake
        self._journal = channel.session.broker.journal
        self._meters = channel.session.broker.meters
        self._vhost = channel.session.vhost
        self._routes = channel.session.routes.entries
        self._essentials = channel.session.essentials.entries
        self.is_confirming = False
        # Messages published so far.
        self.taken = 0
        # Messages confirmed so far.
        self.confirmed = 0
        self.returned = 0
        # Messages published since confirm.select.
        self.published = 0
        # Numbers of messages waiting for the local commit, in order.
        self._awaiting: dict[int, None] = {}
        # Numbers of messages waiting for confirms of other nodes, in order.
        self._awaiting_peers: dict[int, None] = {}
        # Whether changes of peers were already applied for the current message.
        self._has_looked = False
        self._confirm_one = self._confirm
        self._confirm_copy = self._confirm_of_several
        self._confirmed: list[int] = []
        self._refused: list[int] = []
        self._is_due = False
        self._batch: Batch | None = None
        self._batch_number = -1
        # The channel's open transaction.
        self.transaction: Transaction | None = None

    @property
    def is_busy(self) -> bool:
        """Whether confirms are pending."""
        return bool(self._awaiting or self._awaiting_peers or self._confirmed or self._refused)

    @property
    def unconfirmed(self) -> int:
        """Number of unconfirmed messages."""
        return len(self._awaiting) + len(self._awaiting_peers) + len(self._confirmed) + len(self._refused)

    def publish(self, publish: Publish) -> None:
        """Accept a message. Raises AmqpError, or a RequestError that closes the channel."""
        route = self._routes.get(publish.origin)
        if route is None or route.version != self._version.number:
            route = self._find_route(publish.origin)
        properties = publish.properties
        found = self._essentials.get(properties)
        if found is None:
            found = self._read(properties)
        targets = route.targets
        elsewhere = route.elsewhere
        ttl_us: int | None = None
        if publish.immediate or not (route.is_fixed and found.is_plain):
            targets, elsewhere, properties, ttl_us = self._look_closer(publish, route, found)
        if not (targets or elsewhere) and self._looks_again(route, publish):
            return
        copies = len(targets)
        engine = self._engine
        if copies > engine.message_id_end - engine.next_message_id and self._waits_for_ids(publish, copies):
            return
        self.taken += 1
        route.meter.published += 1
        if self.transaction is not None:
            content = Content(targets, elsewhere, publish, found, properties, ttl_us)
            if not route.exchange:
                content.names = _keys_of(route, found)
            self.transaction.publish(content)
            return
        if elsewhere:
            self._publish_to_peers(Content(targets, elsewhere, publish, found, properties, ttl_us))
            return
        if not targets:
            self.miss(publish, properties)
        if copies > MANY_TARGETS:
            self._channel.session.end_turn()
        number = 0
        awaits = False
        receipt: Receipt | None = None
        if self.is_confirming:
            self.published = number = self.published + 1
            awaits = found.persistent and (targets[0].is_stored if copies == 1 else _any_stored(targets))
            if awaits:
                self._awaiting[number] = None
                receipt = (self._confirm_one if copies == 1 else self._confirm_copy, number)
        refused = self._intake.put(
            targets,
            publish.body,
            properties,
            publish.origin,
            found.persistent,
            found.priority,
            ttl_us,
            receipt,
            found.correlation,
        )
        if not number:
            return
        if refused:
            self._awaiting.pop(number, None)
            self._refused.append(number)
            self._make_due()
        elif not awaits:
            self._confirmed.append(number)
            self._make_due()
        elif self._batch is not None and self._batch_number == self._journal.batch_number:
            self._batch.last = number
        else:
            self._batch = Batch(self, number)
            self._batch_number = self._journal.batch_number
            self._journal.mark(self._batch)

    # Queues of other nodes

    def _publish_to_peers(self, content: Content) -> None:
        """Put a message into local and remote queues; it is confirmed when all have stored it."""
        session, sent = self._channel.session, content.on_link()
        done: Callable[[bool], None] | None = None
        if self.is_confirming:
            self.published += 1
            self._awaiting_peers[self.published] = None
            done = partial(self._confirm_of_peers, self.published)
        peering = self._queues.peering
        # With too many unconfirmed puts to these nodes, the message is charged to its publisher, which is paused.
        is_charged = peering.must_wait(content.elsewhere)
        if is_charged:
            session.forwarding_bytes += sent.size_bytes
            done = partial(self._forwarded, sent.size_bytes, done)
        self._queues.put(content.targets, content.elsewhere, sent, done, self._channel)
        if peering.must_wait(content.elsewhere):
            session.hold()
            peering.when_clear(content.elsewhere, session.release)
        if is_charged:
            session.charge_if_changed()

    def _forwarded(self, size_bytes: int, done: Callable[[bool], None] | None, is_refused: bool) -> None:
        """End the charge of a delayed message, which was confirmed, refused, or dropped with its publisher."""
        self._channel.session.forwarding_bytes -= size_bytes
        if done is not None:
            done(is_refused)

    def _confirm_of_peers(self, number: int, is_refused: bool) -> None:
        """Confirm a message that all nodes have stored, or nack one that a node has refused."""
        del self._awaiting_peers[number]
        (self._refused if is_refused else self._confirmed).append(number)
        self._make_due()

    def _looks_again(self, route: Route, publish: Publish) -> bool:
        """Delay a message until changes of peers are applied: one may just have created the queue of this name."""
        peering = self._queues.peering
        if self._has_looked or not peering.is_clustered or route.exchange or route.routing_key.startswith(REPLY_TO):
            return False

        async def look() -> Callable[[], None]:
            await peering.catch_up()
            return partial(self.publish_again, publish)

        self._channel.wait_for(_IDS, look())
        return True

    def _waits_for_ids(self, publish: Publish, count: int) -> bool:
        """Delay a message until ids for all its copies are reserved: one turn may need a million."""
        if self._engine.message_ids_left >= count:
            return False
        self._channel.wait_for(_IDS, self._publish_with_ids(publish, count))
        return True

    async def _publish_with_ids(self, publish: Publish, count: int) -> Callable[[], None]:
        await self._channel.session.broker.obtain_ids(count)
        return partial(self.publish_again, publish)

    def publish_again(self, publish: Publish) -> None:
        """Publish a delayed message."""
        self._has_looked = True
        try:
            self.publish(publish)
        finally:
            self._has_looked = False

    # Routes

    def _find_route(self, origin: bytes) -> Route:
        session = self._channel.session
        exchange_name, routing_key = read_origin(origin)
        router = self._topology.router(self._vhost)
        session.check(Action.WRITE, exchange_name, f"exchange '{exchange_name or 'amq.default'}'")
        exchange = router.get(exchange_name)
        if exchange.internal:
            raise ReservedName(f"cannot publish to internal exchange '{exchange_name}' in vhost '{self._vhost}'")
        is_fixed = router.is_plain(exchange_name) and not (not exchange_name and routing_key.startswith(REPLY_TO))
        targets: Sequence[QueueState] = ()
        elsewhere: Sequence[RemoteQueue] = ()
        if is_fixed:
            targets, elsewhere = self._route(exchange_name, [routing_key], lambda: _NO_HEADERS)
        meter = self._meters.exchange(self._vhost, exchange_name)
        route = Route(self._version.number, exchange_name, routing_key, targets, is_fixed, elsewhere, meter)
        # A route to thousands of queues is large, and each routing key has its own.
        session.routes.add(origin, route, len(origin) + 8 * (len(targets) + len(elsewhere)))
        return route

    def _route(
        self, exchange: str, routing_keys: Sequence[str], headers: Headers
    ) -> tuple[Sequence[QueueState], Sequence[RemoteQueue]]:
        session = self._channel.session
        found = self._queues.route(self._vhost, exchange, routing_keys, headers, session.homes)
        session.end_turn_if_over()
        return found

    def _read(self, properties: bytes) -> Essentials:
        found = essentials(properties)
        if found.headers is not None:
            found.correlation = correlation_in(split_table(found.headers))
        # Counted twice: the parsed values are copies.
        self._channel.session.essentials.add(properties, found, 2 * len(properties))
        return found

    def _look_closer(
        self, publish: Publish, route: Route, found: Essentials
    ) -> tuple[Sequence[QueueState], Sequence[RemoteQueue], bytes, int | None]:
        """Return local and remote targets, properties and TTL of a message that is not on the fast path."""
        if publish.immediate:
            raise refusal(ReplyCode.NOT_IMPLEMENTED, "immediate=true")
        self._check_user(found)
        ttl_us = _time_to_live_us(found.expiration)
        routing_keys = _keys_of(route, found)
        if found.delivery_mode not in DELIVERY_MODES:
            # Some clients cannot decode such a message: it would be redelivered to them endlessly.
            raise refusal(
                ReplyCode.PRECONDITION_FAILED, f"invalid message: {{delivery_mode_unknown,{found.delivery_mode}}}"
            )
        properties = publish.properties
        if found.reply_to == REPLY_TO:
            properties = self._with_reply_name(properties)
        if not route.exchange and route.routing_key.startswith(REPLY_TO):
            self._channel.session.context.replies.send(route.routing_key, publish.origin, properties, publish.body)
            return (), (), properties, ttl_us
        if found.headers is not None:
            headers = split_table(found.headers)
            if "BCC" in headers:
                properties = _without_header(properties, headers, "BCC")
        if route.is_fixed and len(routing_keys) == 1:
            return route.targets, route.elsewhere, properties, ttl_us
        table = found.headers or EMPTY_TABLE

        def decoded_headers() -> Mapping[str, Any]:
            return read_table(table, 0, len(table))[0]

        targets, elsewhere = self._route(route.exchange, routing_keys, decoded_headers)
        return targets, elsewhere, properties, ttl_us

    def _check_user(self, found: Essentials) -> None:
        user = self._channel.session.user
        if found.user_id is not None and found.user_id != user.name and "impersonator" not in user.tags:
            raise refusal(
                ReplyCode.PRECONDITION_FAILED,
                f"user_id property set to '{found.user_id}' but authenticated user was '{user.name}'",
            )

    def _with_reply_name(self, properties: bytes) -> bytes:
        name = self._channel.reply_name
        if name is None:
            raise refusal(ReplyCode.PRECONDITION_FAILED, "fast reply consumer does not exist")
        decoded = Properties.decode(properties)
        decoded.reply_to = name
        return decoded.encode()

    def miss(self, publish: Publish, properties: bytes) -> None:
        """Handle a message without a queue: count it, or send basic.return if it is mandatory."""
        channel = self._channel
        if not publish.mandatory:
            exchange, routing_key = read_origin(publish.origin)
            if exchange or not routing_key.startswith(REPLY_TO):
                self._meters.unroutable += 1
            return
        self._meters.returned += 1
        self.returned += 1
        frame_max = channel.session.frame_max
        channel.session.send(
            encode_return(
                channel.number, ReplyCode.NO_ROUTE, NO_ROUTE, publish.origin, properties, publish.body, frame_max
            )
        )

    # Confirms

    def confirm_up_to(self, last: int) -> None:
        """Confirm all messages up to the number, which are stored."""
        self._confirmed += self._take_up_to(last)
        self._make_due()

    def refuse_up_to(self, last: int) -> None:
        """Nack all messages up to the number, which the store refused permanently."""
        self._refused += self._take_up_to(last)
        self._make_due()

    def _confirm(self, number: int, is_refused: bool) -> None:
        """Confirm a message that its consumer acked before it was written, or nack one that the store refused."""
        if number in self._awaiting:
            del self._awaiting[number]
            (self._refused if is_refused else self._confirmed).append(number)
            self._make_due()

    def _confirm_of_several(self, number: int, is_refused: bool) -> None:
        """Nack a message if the store refused one copy.

        If one copy was acked before it was written, the others are still pending.
        """
        if is_refused:
            self._confirm(number, True)

    def _take_up_to(self, last: int) -> list[int]:
        numbers: list[int] = []
        for number in self._awaiting:
            if number > last:
                break
            numbers.append(number)
        for number in numbers:
            del self._awaiting[number]
        return numbers

    def _make_due(self) -> None:
        """Schedule confirms for the next write, to send several together."""
        if not self._is_due:
            self._is_due = True
            self._hub.confirm_soon(self)

    def send_confirms(self) -> None:
        """Send pending confirms, with `multiple` for everything before the first unconfirmed message."""
        self._is_due = False
        channel = self._channel
        confirmed, self._confirmed = self._confirmed, []
        refused, self._refused = self._refused, []
        if channel.is_closing:
            return
        session = channel.session
        for number in refused:
            session.send(encode_nack(channel.number, number, multiple=False))
        if not confirmed:
            return
        self.confirmed += len(confirmed)
        self._meters.confirmed += len(confirmed)
        if len(confirmed) == 1:
            session.send(encode_ack(channel.number, confirmed[0], multiple=False))
            return
        first_awaited = min(
            next(iter(self._awaiting), self.published + 1),
            next(iter(self._awaiting_peers), self.published + 1),
            *refused,
        )
        confirmed.sort()
        together = [number for number in confirmed if number < first_awaited]
        if together:
            session.send(encode_ack(channel.number, together[-1], multiple=len(together) > 1))
        for number in confirmed[len(together) :]:
            session.send(encode_ack(channel.number, number, multiple=False))

    def crash(self, error: BaseException) -> None:
        """Close the connection after an error while sending confirms."""
        self._channel.session.crash(error)


def _any_stored(targets: Sequence[QueueState]) -> bool:
    return any(state.is_stored for state in targets)


def _time_to_live_us(expiration: str | None) -> int | None:
    if expiration is None:
        return None
    # RabbitMQ parses the number as Erlang does.
    if expiration[:1] == "+" and expiration[1:2].isdecimal():
        expiration = expiration[1:]
    digits = len(expiration) - len(expiration.lstrip("0123456789"))
    if expiration[:1] == "-" and expiration[1:].isdecimal():
        problem = f"{{value_negative,{expiration}}}"
    elif not digits:
        problem = "no_integer"
    elif digits < len(expiration):
        problem = f'{{leftover_string,"{expiration[digits:]}"}}'
    elif len(expiration) > 20 or int(expiration) > MAX_MS:
        problem = f"{{value_too_large,{expiration}}}"
    else:
        return int(expiration) * 1000
    raise refusal(ReplyCode.PRECONDITION_FAILED, f"invalid expiration '{expiration}': {problem}")


def _keys_of(route: Route, found: Essentials) -> list[str]:
    """Return all routing keys of a message: its own, and those in CC and BCC."""
    routing_keys = [route.routing_key]
    if found.headers is not None:
        headers = split_table(found.headers)
        for name in ("CC", "BCC"):
            routing_keys += _keys_in(headers, name)
    return routing_keys


def _keys_in(headers: Mapping[str, bytes], name: str) -> list[str]:
    """Return the routing keys in a header."""
    raw = headers.get(name)
    if raw is None:
        return []
    if raw[:1] != b"A":
        kind = {b"S": "longstr", b"F": "table", b"t": "bool", b"V": "void"}.get(raw[:1], "signedint")
        raise refusal(
            ReplyCode.PRECONDITION_FAILED, f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}'
        )
    keys = read_value(raw)
    assert isinstance(keys, list), "an array was decoded"
    return [key for key in keys if isinstance(key, str)]


def _without_header(properties: bytes, headers: Mapping[str, bytes], name: str) -> bytes:
    decoded = Properties.decode(properties)
    decoded.headers = join_table({key: value for key, value in headers.items() if key != name})
    return decoded.encode()
