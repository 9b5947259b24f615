"""The pending puts and acks of a transaction, until its commit or rollback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.memory import CHARGE_STEP_BYTES
from flyball.broker.engine.consumer import Consumer
from flyball.broker.engine.queue import QueueState
from flyball.broker.protocols.amqp.connection import AmqpConnection
from flyball.broker.protocols.amqp.replies import refusal
from flyball.broker.wire import link
from flyball.broker.wire.amqp import Essentials, Publish, ReplyCode
from flyball.broker.wire.link import Settlement
from flyball.model import MESSAGE_OVERHEAD_BYTES, Message

# Maximum number of puts (one per queue) and acks of a transaction. Its commit is one batch, built in one turn of the
# event loop: 50,000 steps take a third of a second. Rejects may dead-letter, which takes ten times as long.
MAX_TRANSACTION_STEPS = 50_000
REJECTION_STEPS = 10

# A delivered message and its consumer; None for basic.get.
Lease = tuple[Consumer | None, Message]

# Acks or rejects of a transaction, by delivery tag.
Settling = tuple[Settlement, dict[int, Lease]]


@dataclass(slots=True, eq=False)
class Content:
    """A routed and checked message, ready to be put into its queues."""

    targets: Sequence[QueueState]
    elsewhere: Sequence[RemoteQueue]
    publish: Publish
    essentials: Essentials
    properties: bytes
    ttl_us: int | None
    # In a transaction: names of queues addressed through the default exchange, which may be declared before the
    # commit.
    names: Sequence[str] = ()

    def on_link(self) -> link.Content:
        """Return its content for an inter-node link, without queues."""
        return link.Content(
            self.publish.body,
            self.properties,
            self.publish.origin,
            self.essentials.persistent,
            self.essentials.priority,
            self.ttl_us,
            *(self.essentials.correlation or ()),
        )


class Transaction:
    """Puts and acks since `tx.select`, or since the last commit or rollback."""

    __slots__ = ("_copies", "_session", "_size_bytes", "_steps", "contents", "settling")

    def __init__(self, session: AmqpConnection) -> None:
        self._session = session
        self.contents: list[Content] = []
        self.settling: list[Settling] = []
        self._size_bytes = 0
        # Number of puts of its commit known so far.
        self._copies = 0
        self._steps = 0

    @property
    def acks(self) -> int:
        """Number of acks."""
        return sum([len(leases) for settlement, leases in self.settling if settlement is Settlement.ACK])

    def publish(self, content: Content) -> None:
        """Add a message. Raises AmqpError, which closes the channel, if the transaction becomes too large."""
        self.contents.append(content)
        # At the commit a copy is put into each of its queues, for all messages of a transaction at once.
        copies = max(1, len(content.targets))
        publish = content.publish
        size = len(publish.body) + len(content.properties) + len(publish.origin) + copies * MESSAGE_OVERHEAD_BYTES
        size += sum([len(name) for name in content.names])
        self._size_bytes += size
        self._copies += copies
        self._session.transaction_bytes += size
        if size > CHARGE_STEP_BYTES:
            # Charge now: the commit may be in the same read.
            self._session.charge_if_changed()
        self._check()

    def settle(self, settlement: Settlement, leases: dict[int, Lease]) -> None:
        """Add acks or rejects. Raises AmqpError if the transaction becomes too large."""
        self.settling.append((settlement, leases))
        self._steps += len(leases) * (REJECTION_STEPS if settlement is Settlement.REJECT else 1)
        self._check()

    def _check(self) -> None:
        if self._steps + self._copies > MAX_TRANSACTION_STEPS:
            raise refusal(
                ReplyCode.PRECONDITION_FAILED,
                f"a transaction may publish and settle {MAX_TRANSACTION_STEPS} messages in all queues:"
                " commit earlier",
            )

    def take_contents(self) -> tuple[list[Content], int]:
        """Return and clear the published messages, with their size.

        They stay charged to the session until the caller ends the charge.
        """
        contents, self.contents = self.contents, []
        charged_bytes, self._size_bytes = self._size_bytes, 0
        self._copies = self._steps = 0
        return contents, charged_bytes

    def drop_contents(self) -> None:
        """Discard the published messages."""
        _, charged_bytes = self.take_contents()
        self._session.transaction_bytes -= charged_bytes

    def take_settled(self) -> list[Settling]:
        """Return and clear the acks and rejects."""
        settling, self.settling = self.settling, []
        return settling
