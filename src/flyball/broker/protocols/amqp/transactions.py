"""What a transaction has gathered: messages to publish, and what was settled, until its commit or rollback."""

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

# What one transaction may publish, with a copy for each queue, and settle: its commit is one batch, made in one turn
# of the loop, and 50,000 steps take a third of a second. A rejected message may be dead-lettered, which takes ten
# times as long.
MAX_TRANSACTION_STEPS = 50_000
REJECTION_STEPS = 10

# What was delivered and to whom; a message that was asked for with basic.get has no consumer.
Lease = tuple[Consumer | None, Message]

# What a transaction has settled, by delivery tag, and how.
Settling = tuple[Settlement, dict[int, Lease]]


@dataclass(slots=True, eq=False)
class Content:
    """A message that is routed and checked, ready to be put into its queues."""

    targets: Sequence[QueueState]
    elsewhere: Sequence[RemoteQueue]
    publish: Publish
    essentials: Essentials
    properties: bytes
    ttl_us: int | None
    # In a transaction: queues that the default exchange is asked for. They may be declared before the commit.
    names: Sequence[str] = ()

    def on_link(self) -> link.Content:
        """Return it as it goes over a link, without its queues."""
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
    """What a channel has published and settled since `tx.select`, or since its last commit or rollback."""

    __slots__ = ("_copies", "_session", "_size_bytes", "_steps", "contents", "settling")

    def __init__(self, session: AmqpConnection) -> None:
        self._session = session
        self.contents: list[Content] = []
        self.settling: list[Settling] = []
        self._size_bytes = 0
        # How many messages its commit puts into queues, as far as they are known by now.
        self._copies = 0
        self._steps = 0

    @property
    def acks(self) -> int:
        """How many deliveries it acks."""
        return sum([len(leases) for settlement, leases in self.settling if settlement is Settlement.ACK])

    def publish(self, content: Content) -> None:
        """Add a message. Raises AmqpError, and so ends the channel, if the transaction becomes too large."""
        self.contents.append(content)
        # Each of its queues gets a copy with the commit, and all copies of a transaction at once.
        copies = max(1, len(content.targets))
        publish = content.publish
        size = len(publish.body) + len(content.properties) + len(publish.origin) + copies * MESSAGE_OVERHEAD_BYTES
        size += sum([len(name) for name in content.names])
        self._size_bytes += size
        self._copies += copies
        self._session.transaction_bytes += size
        if size > CHARGE_STEP_BYTES:
            # Not only when all that has come is carried out: the commit may be among it.
            self._session.charge_if_changed()
        self._check()

    def settle(self, settlement: Settlement, leases: dict[int, Lease]) -> None:
        """Add what is settled with the commit. Raises AmqpError if the transaction becomes too large."""
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
        """Return what was published so far, and begin again.

        It stays charged to the session, with the bytes that are returned, until the caller has done with it.
        """
        contents, self.contents = self.contents, []
        charged_bytes, self._size_bytes = self._size_bytes, 0
        self._copies = self._steps = 0
        return contents, charged_bytes

    def drop_contents(self) -> None:
        """Forget what was published so far."""
        _, charged_bytes = self.take_contents()
        self._session.transaction_bytes -= charged_bytes

    def take_settled(self) -> list[Settling]:
        """Return what was settled so far, and begin again."""
        settling, self.settling = self.settling, []
        return settling
