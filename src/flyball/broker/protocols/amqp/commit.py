"""tx.commit: puts and acks on this node and on others."""

from __future__ import annotations

import asyncio

from flyball.broker.core.pending import Done, PendingMark, outcome
from flyball.broker.engine.queue import QueueState
from flyball.broker.protocols.amqp.channel_state import ChannelState
from flyball.broker.protocols.amqp.consumers import Deliveries, is_void
from flyball.broker.protocols.amqp.publisher import Publisher
from flyball.broker.protocols.amqp.replies import refusal
from flyball.broker.protocols.amqp.transactions import Content, Lease, Transaction
from flyball.broker.store.pending_batch import Group
from flyball.broker.wire.amqp import ReplyCode
from flyball.broker.wire.link import PutOutcome, Settlement
from flyball.errors import ClusterError, FlyballError


class Commit:
    """One `tx.commit`, until it is durable.

    On this node puts and acks are one batch of the journal, and thus atomic. Across nodes the commit is not atomic;
    its order ensures that no message is lost: first other nodes store their puts, then this node commits its puts and
    acks, and last the acks are sent to other nodes. Until acks are applied the channel owns the deliveries, and
    requeues them if it closes.
    """

    def __init__(
        self, channel: ChannelState, transaction: Transaction, publisher: Publisher, deliveries: Deliveries
    ) -> None:
        self._channel = channel
        self._transaction = transaction
        self._publisher = publisher
        self._deliveries = deliveries
        self._broker = channel.session.broker
        self._intake = channel.session.context.intake
        self._queues = channel.session.context.queues
        self._contents, self._charged_bytes = transaction.take_contents()
        self._is_abandoned = False
        # Messages for queues on other nodes.
        self._forwarded: list[Content] = []
        # Resolved when other nodes have stored their puts.
        self._puts: asyncio.Future[None] | None = None
        # Messages stored by another node, which are not returned as unroutable.
        self._arrived: set[Content] = set()
        # Whether a full queue rejected a message.
        self._is_partial = False

    def begin(self, done: Done) -> None:
        """Start the commit; call `done` when all of it is durable. Raises FlyballError if it fails without effect."""
        session = self._channel.session
        try:
            self._find_queues()
            if self._has_remote_puts or self._has_remote_acks or not self._broker.has_ids_for(self._copies):
                session.hub.spawn(self._run(done), session)
                return
            self._check_leases()
            group = self._apply_here()
        except Exception:
            self._end()
            raise
        # From here on the contents are messages of queues, charged as such.
        self._end()
        self._broker.journal.mark(PendingMark(lambda error: done(error or self._problem), group=group))

    def abandon(self) -> None:
        """Drop messages not put yet, since the channel has closed. Puts already sent to other nodes may be stored."""
        self._is_abandoned = True
        self._end()
        if self._puts is not None and not self._puts.done():
            self._puts.set_result(None)

    def _end(self) -> None:
        """Stop charging the messages to the session."""
        self._channel.session.transaction_bytes -= self._charged_bytes
        self._charged_bytes = 0
        self._contents = []
        self._forwarded = []

    @property
    def _copies(self) -> int:
        """Number of message copies stored on this node."""
        return sum([len(content.targets) for content in self._contents])

    async def _run(self, done: Done) -> None:
        try:
            while self._has_remote_puts or not self._broker.has_ids_for(self._copies):
                if self._has_remote_puts:
                    await self._put_elsewhere()
                await self._broker.obtain_ids(self._copies)
                # Queues may have moved in the meantime.
                self._find_queues()
            # If the channel has closed, no reply is needed, and its deliveries are requeued.
            if not self._is_over:
                self._check_leases()
                group = self._apply_here()
                self._contents = []
                await outcome(lambda stored: self._broker.journal.mark(PendingMark(stored, group=group)))
            if not self._is_over:
                await self._settle_elsewhere()
        except FlyballError as error:
            self._end()
            done(None if self._is_abandoned else error)
        else:
            self._end()
            done(None if self._is_abandoned else self._problem)

    @property
    def _is_over(self) -> bool:
        return self._is_abandoned or self._channel.is_closing

    @property
    def _problem(self) -> FlyballError | None:
        # As in RabbitMQ, the messages that were not rejected are still committed.
        return refusal(ReplyCode.PRECONDITION_FAILED, "partial tx completion") if self._is_partial else None

    # Queues

    def _find_queues(self) -> None:
        for content in self._contents:
            self._find_again(content)

    def _find_again(self, content: Content) -> None:
        """Resolve the targets of a routed message again by name.

        After routing, queues may have been deleted, redeclared or moved to another node. As in RabbitMQ, queues named
        through the default exchange may have been declared.
        """
        engine, session = self._broker.engine, self._channel.session
        known = {state.queue.name for state in content.targets}
        known |= {remote.queue.name for remote in content.elsewhere}
        missing = [name for name in dict.fromkeys(content.names) if name not in known]
        # Only once: the second resolution, after other nodes have stored their puts, must not add targets.
        content.names = ()
        if not missing and all(engine.find_queue_by_id(state.queue.id) is state for state in content.targets):
            return
        here: list[QueueState] = []
        elsewhere = list(content.elsewhere)
        for name in (*(state.queue.name for state in content.targets), *missing):
            found = self._queues.locate(session.vhost, name, session.homes)
            if isinstance(found, QueueState):
                here.append(found)
            elif found is not None:
                elsewhere.append(found)
        content.targets, content.elsewhere = here, elsewhere

    @property
    def _has_remote_puts(self) -> bool:
        return any(content.elsewhere for content in self._contents)

    @property
    def _has_remote_acks(self) -> bool:
        settling = self._transaction.settling
        return any(self._is_remote(lease) for _, leases in settling for lease in leases.values())

    # Steps

    async def _put_elsewhere(self) -> None:
        """Put messages on other nodes; return when they are stored. Raises ClusterError if the outcome is unknown.

        Messages that wait for room in a link stay charged to the session.
        """
        contents = self._forwarded = [content for content in self._contents if content.elsewhere]
        left = len(contents)
        puts = self._puts = asyncio.get_running_loop().create_future()

        def answered(token: int, outcome: int) -> None:
            nonlocal left
            left -= 1
            if puts.done():
                return
            if outcome == PutOutcome.UNKNOWN:
                puts.set_exception(
                    ClusterError("another node failed during the commit: its part may not have been committed")
                )
                return
            self._is_partial |= outcome == PutOutcome.FULL
            if outcome != PutOutcome.NOT_FOUND:
                self._arrived.add(self._forwarded[token])
            if left == 0:
                puts.set_result(None)

        for token, content in enumerate(contents):
            elsewhere, content.elsewhere = content.elsewhere, ()
            self._queues.peering.put(elsewhere, content.on_link(), answered, token, owner=self._channel)
        await puts

    def _check_leases(self) -> None:
        """Raise ClusterError if an acked message will be redelivered: a confirm would hide the duplicate."""
        for settlement, leases in self._transaction.settling:
            if settlement is Settlement.ACK and any(self._is_lost(lease) for lease in leases.values()):
                raise ClusterError(
                    "a queue has moved to another node since the delivery: acked messages will be redelivered"
                )

    def _apply_here(self) -> Group:
        """Put and ack on this node, in one batch."""
        with self._broker.journal.together() as group:
            for content in self._contents:
                if content.targets:
                    self._is_partial |= (
                        self._intake.put_content(content.targets, content.on_link()) is PutOutcome.FULL
                    )
                elif content not in self._arrived:
                    self._publisher.miss(content.publish, content.properties)
            for settlement, leases in self._transaction.take_settled():
                remote = {tag: lease for tag, lease in leases.items() if self._is_remote(lease)}
                if remote:
                    self._transaction.settling.append((settlement, remote))
                self._deliveries.settle_committed(
                    settlement, [lease for lease in leases.values() if not self._is_remote(lease)]
                )
        return group

    def _is_lost(self, lease: Lease) -> bool:
        return is_void(lease) or self._queues.is_lost(lease[1])

    def _is_remote(self, lease: Lease) -> bool:
        return self._queues.is_remote(lease[1]) and not is_void(lease)

    async def _settle_elsewhere(self) -> None:
        """Send acks to other nodes; return when they are durable there.

        Raises ClusterError if an acked message no longer belongs to its node: it will be redelivered.
        """
        peering = self._queues.peering
        peering.take_settled()
        for settlement, leases in self._transaction.take_settled():
            self._deliveries.settle_committed(settlement, list(leases.values()))
        await peering.take_settled().flush()
