"""The publishing side of a channel: routes, returns, confirms and transactions.

The path of most messages is short: a route and properties that were seen before, and a queue without limits. What
a message may ask for beyond that (copies, an expiration, a direct reply) is looked at apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.memory import CHARGE_STEP_BYTES
from flyball.broker.core.presentation import correlation_in
from flyball.broker.core.topology import Headers
from flyball.broker.engine.access import Action
from flyball.broker.engine.counts import ExchangeMeter
from flyball.broker.engine.queue import WorkingQueue
from flyball.broker.engine.traits import MAX_MS
from flyball.broker.protocols.amqp.context import REPLY_TO
from flyball.broker.protocols.amqp.replies import refusal
from flyball.broker.store.gathering import OperationsRefused
from flyball.broker.wire import link
from flyball.broker.wire.amqp import (
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
from flyball.model import MESSAGE_OVERHEAD_BYTES, Receipt

if TYPE_CHECKING:
    from flyball.broker.protocols.amqp.channel import Channel

NO_ROUTE = "NO_ROUTE"
_IDS = (BasicPublish.CLASS_ID, BasicPublish.METHOD_ID)
_NO_HEADERS: Mapping[str, Any] = {}

# What a connection remembers of routes, and of properties, in bytes; with more it begins again with nothing. What
# would take more than a part of it is not remembered.
REMEMBERED_BYTES = 512 * 1024
_LARGEST_REMEMBERED_BYTES = REMEMBERED_BYTES // 8
# What an entry takes beside the bytes that it is found by.
_ENTRY_BYTES = 500

MANY_TARGETS = 500
"""A message for more queues than this counts as all that a publisher may send in a turn."""


class Route:
    """Where messages of an origin go, as long as `version` is the present one."""

    __slots__ = ("elsewhere", "exchange", "is_fixed", "meter", "routing_key", "targets", "version")

    def __init__(
        self,
        version: int,
        exchange: str,
        routing_key: str,
        targets: Sequence[WorkingQueue],
        is_fixed: bool,
        elsewhere: Sequence[RemoteQueue],
        meter: ExchangeMeter,
    ) -> None:
        self.version = version
        self.exchange = exchange
        self.routing_key = routing_key
        self.targets = targets
        self.elsewhere = elsewhere
        """The queues of other nodes that get them, too."""
        self.is_fixed = is_fixed
        """Whether nothing but the routing key decides."""
        self.meter = meter


class Content:
    """A message that is routed and checked, ready to be put into its queues."""

    __slots__ = (
        "body",
        "correlation",
        "elsewhere",
        "mandatory",
        "names",
        "origin",
        "persistent",
        "priority",
        "properties",
        "targets",
        "ttl_us",
    )

    def __init__(
        self,
        targets: Sequence[WorkingQueue],
        publish: Publish,
        found: Essentials,
        properties: bytes,
        ttl_us: int | None,
        elsewhere: Sequence[RemoteQueue] = (),
    ) -> None:
        self.targets = targets
        self.elsewhere = elsewhere
        # In a transaction: the queues that the default exchange is asked for. They may be declared before the commit.
        self.names: Sequence[str] = ()
        self.body = publish.body
        self.properties = properties
        self.origin = publish.origin
        self.mandatory = publish.mandatory
        self.persistent = found.persistent
        self.priority = found.priority
        self.correlation = found.correlation
        self.ttl_us = ttl_us

    def on_link(self) -> link.Content:
        """Return it as it goes over a link, without its queues."""
        return link.Content(
            self.body,
            self.properties,
            self.origin,
            self.persistent,
            self.priority,
            self.ttl_us,
            *(self.correlation or ()),
        )


class Batch:
    """Waits for one commit on behalf of all messages that a channel has put into it."""

    __slots__ = ("_publisher", "last")

    def __init__(self, publisher: Publisher, last: int) -> None:
        self._publisher = publisher
        self.last = last
        """The number of the last message."""

    def committed(self) -> None:
        self._publisher.confirm_up_to(self.last)

    def failed(self, error: FlyballError) -> None:
        if isinstance(error, OperationsRefused):
            # Each of ours that is among them was refused by its receipt: the rest is stored.
            self._publisher.confirm_up_to(self.last)
        else:
            self._publisher.refuse_up_to(self.last)


class Publisher:
    """Takes what a channel publishes."""

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
        "transaction_bytes",
        "transaction_copies",
    )

    def __init__(self, channel: Channel) -> None:
        context = channel.session.context
        self._channel = channel
        self._topology = context.topology
        self._version = context.topology.version
        self._engine = context.topology.engine
        self._queues = context.queues
        self._intake = context.intake
        self._journal = channel.session.broker.journal
        self._meters = channel.session.broker.meters
        self._vhost = channel.session.vhost
        self._routes = channel.session.routes
        self._essentials = channel.session.essentials
        self.is_confirming = False
        self.taken = 0
        """How many messages the peer has published."""
        self.confirmed = 0
        """How many it was told to be safe."""
        self.returned = 0
        self.published = 0
        """How many messages were published since confirms were asked for."""
        self._awaiting: dict[int, None] = {}
        """The numbers of messages whose commit is awaited, in their order."""
        self._awaiting_peers: dict[int, None] = {}
        """The numbers of messages that other nodes have to confirm, in their order."""
        self._has_looked = False
        """Whether other nodes have been asked for what the message at hand names."""
        self._confirm_one = self._confirm
        self._confirm_copy = self._confirm_of_several
        self._confirmed: list[int] = []
        self._refused: list[int] = []
        self._is_due = False
        self._batch: Batch | None = None
        self._batch_number = -1
        self.transaction: list[Content] | None = None
        self.transaction_bytes = 0
        self.transaction_copies = 0
        """How many messages its commit puts into queues, as far as they are known by now."""

    @property
    def is_busy(self) -> bool:
        """Whether confirms are owed."""
        return bool(self._awaiting or self._awaiting_peers or self._confirmed or self._refused)

    @property
    def unconfirmed(self) -> int:
        """How many messages the peer waits to be confirmed."""
        return len(self._awaiting) + len(self._awaiting_peers) + len(self._confirmed) + len(self._refused)

    def end(self) -> None:
        """The channel is over: forget what it has not committed."""
        if self.transaction is not None:
            self.drop_transaction()

    def publish(self, publish: Publish) -> None:
        """Take a message. Raises AmqpError or a RequestError that ends the channel."""
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
            content = Content(targets, publish, found, properties, ttl_us, elsewhere)
            if not route.exchange:
                content.names = _keys_of(route, found)
            self._add_to_transaction(content)
            return
        if elsewhere:
            self._publish_to_peers(Content(targets, publish, found, properties, ttl_us, elsewhere))
            return
        if not targets:
            self._miss(publish.mandatory, publish.origin, properties, publish.body)
        if copies > MANY_TARGETS:
            self._channel.session.end_turn()
        if not self.is_confirming:
            self._intake.put(
                targets,
                publish.body,
                properties,
                publish.origin,
                found.persistent,
                found.priority,
                ttl_us,
                None,
                found.correlation,
            )
            return
        self.published = number = self.published + 1
        receipt: Receipt | None = None
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
        """Put a message into queues here and on other nodes; it is confirmed when all have it."""
        session, sent = self._channel.session, content.on_link()
        done: Callable[[bool], None] | None = None
        if self.is_confirming:
            self.published += 1
            self._awaiting_peers[self.published] = None
            done = partial(self._confirm_of_peers, self.published)
        peering = self._queues.peering
        # While other nodes owe too many answers the message is its publisher's, which takes no further one meanwhile.
        is_charged = peering.must_wait
        if is_charged:
            session.forwarding_bytes += sent.size_bytes
            done = partial(self._forwarded, sent.size_bytes, done)
        self._queues.put(content.targets, content.elsewhere, sent, done, self._channel)
        if peering.must_wait:
            session.hold()
            peering.when_clear(session.release)
        if is_charged:
            session.charge_if_changed()

    def _forwarded(self, size_bytes: int, done: Callable[[bool], None] | None, is_refused: bool) -> None:
        """A message that had to wait is answered, or dropped since the publisher has gone."""
        self._channel.session.forwarding_bytes -= size_bytes
        if done is not None:
            done(is_refused)

    def _confirm_of_peers(self, number: int, is_refused: bool) -> None:
        """All nodes have the message, or one of them has not."""
        del self._awaiting_peers[number]
        (self._refused if is_refused else self._confirmed).append(number)
        self._make_due()

    def _looks_again(self, route: Route, publish: Publish) -> bool:
        """Put a message off until it is known whether another node has just made the queue that it names."""
        peering = self._queues.peering
        if self._has_looked or not peering.is_clustered or route.exchange or route.routing_key.startswith(REPLY_TO):
            return False

        async def look() -> Callable[[], None]:
            await peering.catch_up()
            return partial(self.publish_again, publish)

        self._channel.session.wait_for(self._channel.number, _IDS, look())
        return True

    def _waits_for_ids(self, publish: Publish, count: int) -> bool:
        """Put a message off until each of its copies can have an id: what is sent in one go may need a million."""
        session = self._channel.session
        if self._engine.message_ids_left >= count:
            return False
        session.wait_for(self._channel.number, _IDS, self._publish_with_ids(publish, count))
        return True

    async def _publish_with_ids(self, publish: Publish, count: int) -> Callable[[], None]:
        await self._channel.session.broker.obtain_ids(count)
        return partial(self.publish_again, publish)

    def publish_again(self, publish: Publish) -> None:
        """Take a message that was put off."""
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
        targets: Sequence[WorkingQueue] = ()
        elsewhere: Sequence[RemoteQueue] = ()
        if is_fixed:
            targets, elsewhere = self._route(exchange_name, [routing_key], lambda: _NO_HEADERS)
        meter = self._meters.exchange(self._vhost, exchange_name)
        route = Route(self._version.number, exchange_name, routing_key, targets, is_fixed, elsewhere, meter)
        # A route to thousands of queues is long, and every routing key has one.
        cost_bytes = _ENTRY_BYTES + len(origin) + 8 * (len(targets) + len(elsewhere))
        if cost_bytes <= _LARGEST_REMEMBERED_BYTES:
            if session.routes_bytes + cost_bytes > REMEMBERED_BYTES:
                session.forget_routes()
            session.routes_bytes += cost_bytes
            self._routes[origin] = route
        return route

    def _route(
        self, exchange: str, routing_keys: Sequence[str], headers: Headers
    ) -> tuple[Sequence[WorkingQueue], Sequence[RemoteQueue]]:
        session = self._channel.session
        found = self._queues.route(self._vhost, exchange, routing_keys, headers, session.homes)
        session.end_turn_if_over()
        return found

    def _read(self, properties: bytes) -> Essentials:
        found = essentials(properties)
        if found.headers is not None:
            found.correlation = correlation_in(split_table(found.headers))
        # Twice: what it says is copied from them.
        cost_bytes = _ENTRY_BYTES + 2 * len(properties)
        if cost_bytes <= _LARGEST_REMEMBERED_BYTES:
            session = self._channel.session
            if session.essentials_bytes + cost_bytes > REMEMBERED_BYTES:
                session.forget_essentials()
            session.essentials_bytes += cost_bytes
            self._essentials[properties] = found
        return found

    def _look_closer(
        self, publish: Publish, route: Route, found: Essentials
    ) -> tuple[Sequence[WorkingQueue], Sequence[RemoteQueue], bytes, int | None]:
        """Return targets here and elsewhere, properties and time to live of a message that asks for more."""
        if publish.immediate:
            raise refusal(ReplyCode.NOT_IMPLEMENTED, "immediate=true")
        self._check_user(found)
        ttl_us = _time_to_live_us(found.expiration)
        properties = publish.properties
        if found.reply_to == REPLY_TO:
            properties = self._with_reply_name(properties)
        if not route.exchange and route.routing_key.startswith(REPLY_TO):
            self._channel.session.context.reply(route.routing_key, publish.origin, properties, publish.body)
            return (), (), properties, ttl_us
        routing_keys = _keys_of(route, found)
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

    def _miss(self, mandatory: bool, origin: bytes, properties: bytes, body: bytes) -> None:
        """No queue gets a message: its publisher may want to know. A direct reply needs no queue."""
        session = self._channel.session
        if not mandatory:
            exchange, routing_key = read_origin(origin)
            if exchange or not routing_key.startswith(REPLY_TO):
                self._meters.unroutable += 1
            return
        self._meters.returned += 1
        self.returned += 1
        session.send(
            encode_return(
                self._channel.number, ReplyCode.NO_ROUTE, NO_ROUTE, origin, properties, body, session.frame_max
            )
        )

    # Confirms

    def confirm_up_to(self, last: int) -> None:
        """Everything up to that number is in the store."""
        self._confirmed += self._take_up_to(last)
        self._make_due()

    def refuse_up_to(self, last: int) -> None:
        """The store has refused what came up to that number, for good."""
        self._refused += self._take_up_to(last)
        self._make_due()

    def _confirm(self, number: int, is_refused: bool) -> None:
        """A message has been acked before it was written, or the store refuses it."""
        if number in self._awaiting:
            del self._awaiting[number]
            (self._refused if is_refused else self._confirmed).append(number)
            self._make_due()

    def _confirm_of_several(self, number: int, is_refused: bool) -> None:
        """One copy of a message has been acked before it was written, which says nothing of others, or is refused."""
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
        """Confirm with the next write: by then there may be more."""
        if not self._is_due:
            self._is_due = True
            self._channel.session.confirm_soon(self)

    def send_confirms(self) -> None:
        """Tell the peer what is confirmed: in one go what lies before all that is not."""
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

    # Transactions

    def _add_to_transaction(self, content: Content) -> None:
        assert self.transaction is not None
        self.transaction.append(content)
        # Each of its queues gets a copy with the commit, and all copies of a transaction at once.
        copies = max(1, len(content.targets))
        size = len(content.body) + len(content.properties) + len(content.origin) + copies * MESSAGE_OVERHEAD_BYTES
        size += sum([len(name) for name in content.names])
        session = self._channel.session
        self.transaction_bytes += size
        self.transaction_copies += copies
        session.transaction_bytes += size
        if size > CHARGE_STEP_BYTES:
            # Not only when all that has come is carried out: the commit may be among it.
            session.charge_if_changed()
        self._channel.check_transaction()

    def take_transaction(self) -> tuple[list[Content], int]:
        """Return what the transaction has published so far, and begin another one.

        It stays charged to the session, with the bytes that are returned, until whoever takes it has done with it.
        """
        assert self.transaction is not None
        contents, self.transaction = self.transaction, []
        charged_bytes, self.transaction_bytes = self.transaction_bytes, 0
        self.transaction_copies = 0
        return contents, charged_bytes

    def drop_transaction(self) -> None:
        """Forget what the transaction has published so far, and begin another one."""
        _, charged_bytes = self.take_transaction()
        self._channel.session.transaction_bytes -= charged_bytes

    def find_again(self, content: Content) -> None:
        """Let a message that was routed before go to the queues that have the names of its targets now.

        Since then they may have been deleted, declared anew or moved to another node. Those that the default exchange
        is asked for by name may have been declared for the first time, as in RabbitMQ.
        """
        engine = self._topology.engine
        known = {working.queue.name for working in content.targets}
        known |= {remote.queue.name for remote in content.elsewhere}
        missing = [name for name in dict.fromkeys(content.names) if name not in known]
        # Once: a commit looks again after other nodes have stored what was for them, and then leaves them out.
        content.names = ()
        if not missing and all(engine.find_working(working.queue.id) is working for working in content.targets):
            return
        session = self._channel.session
        here: list[WorkingQueue] = []
        elsewhere = list(content.elsewhere)
        for name in (*(working.queue.name for working in content.targets), *missing):
            found = self._queues.locate(self._vhost, name, session.homes)
            if isinstance(found, WorkingQueue):
                here.append(found)
            elif found is not None:
                elsewhere.append(found)
        content.targets, content.elsewhere = here, elsewhere

    def put_committed(self, content: Content) -> bool:
        """Put a message of a transaction into its queues; tell whether one of them is full and rejects it."""
        return self._intake.put_content(content.targets, content.on_link()) is link.Outcome.FULL

    def miss(self, content: Content) -> None:
        """No queue gets a message of a transaction."""
        self._miss(content.mandatory, content.origin, content.properties, content.body)


def _any_stored(targets: Sequence[WorkingQueue]) -> bool:
    return any(working.is_stored for working in targets)


def _time_to_live_us(expiration: str | None) -> int | None:
    if expiration is None:
        return None
    # RabbitMQ reads the number as Erlang does.
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
    """Return all routing keys of a message: its own, and those that its headers list."""
    routing_keys = [route.routing_key]
    if found.headers is not None:
        headers = split_table(found.headers)
        for name in ("CC", "BCC"):
            routing_keys += _keys_in(headers, name)
    return routing_keys


def _keys_in(headers: Mapping[str, bytes], name: str) -> list[str]:
    """Return the routing keys that a header lists."""
    raw = headers.get(name)
    if raw is None:
        return []
    if raw[:1] != b"A":
        kind = {b"S": "longstr", b"F": "table", b"t": "bool", b"V": "void"}.get(raw[:1], "signedint")
        raise refusal(
            ReplyCode.PRECONDITION_FAILED, f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}'
        )
    keys = read_value(raw)
    assert isinstance(keys, list), "an array was read"
    return [key for key in keys if isinstance(key, str)]


def _without_header(properties: bytes, headers: Mapping[str, bytes], name: str) -> bytes:
    decoded = Properties.decode(properties)
    decoded.headers = join_table({key: value for key, value in headers.items() if key != name})
    return decoded.encode()
