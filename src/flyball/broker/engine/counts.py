"""Counters of what happened to messages. They only count up, and are on the path of every message."""

from __future__ import annotations

COUNTED = (
    "arrived",
    "delivered",
    "delivered_no_ack",
    "got",
    "got_no_ack",
    "redelivered",
    "acknowledged",
    "requeued",
    "dropped",
    "handed_over",
)


class Counts:
    """What happened to the messages of a queue, or of many."""

    __slots__ = (
        "_changed_s",
        "_seen",
        "acknowledged",
        "arrived",
        "delivered",
        "delivered_no_ack",
        "dropped",
        "got",
        "got_no_ack",
        "handed_over",
        "redelivered",
        "requeued",
    )

    def __init__(self) -> None:
        self.arrived = 0
        # Sent to a consumer that acknowledges.
        self.delivered = 0
        self.delivered_no_ack = 0
        # Asked for one by one, to be acknowledged.
        self.got = 0
        # Asked for one by one and gone with that.
        self.got_no_ack = 0
        # Sent, or asked for, once more.
        self.redelivered = 0
        self.acknowledged = 0
        # Came back from those who had them.
        self.requeued = 0
        # Nobody gets them: expired, rejected, delivered too often, or too many. They may live on elsewhere.
        self.dropped = 0
        # Went to another member of a clustered queue.
        self.handed_over = 0
        self._seen = -1
        self._changed_s = 0.0

    def add(self, other: Counts) -> None:
        """Count what the other has counted as well."""
        self.arrived += other.arrived
        self.delivered += other.delivered
        self.delivered_no_ack += other.delivered_no_ack
        self.got += other.got
        self.got_no_ack += other.got_no_ack
        self.redelivered += other.redelivered
        self.acknowledged += other.acknowledged
        self.requeued += other.requeued
        self.dropped += other.dropped
        self.handed_over += other.handed_over

    def idle_since_s(self, now_s: float) -> float:
        """Return since when nothing has happened, as far as those can tell who ask now and then."""
        counted = (
            self.arrived
            + self.delivered
            + self.delivered_no_ack
            + self.got
            + self.got_no_ack
            + self.acknowledged
            + self.requeued
            + self.dropped
        )
        if counted != self._seen:
            self._seen = counted
            self._changed_s = now_s
        return self._changed_s


class ExchangeMeter:
    """Counts what is published to an exchange."""

    __slots__ = ("published",)

    def __init__(self) -> None:
        self.published = 0


class Meters:
    """What happened on a node since it started, beyond what its queues count."""

    __slots__ = (
        "_exchanges",
        "_published",
        "channels_closed",
        "channels_opened",
        "confirmed",
        "connections_closed",
        "connections_opened",
        "get_empty",
        "put",
        "queues_declared",
        "read_bytes",
        "returned",
        "unroutable",
        "written_bytes",
    )

    def __init__(self) -> None:
        self._exchanges: dict[tuple[str, str], ExchangeMeter] = {}
        # To exchanges that are gone.
        self._published = 0
        # Messages that did not come by an exchange.
        self.put = 0
        self.confirmed = 0
        # Messages that no queue got, and whose publishers were told.
        self.returned = 0
        # Messages that no queue got, and nobody asked.
        self.unroutable = 0
        self.get_empty = 0
        self.connections_opened = 0
        self.connections_closed = 0
        self.channels_opened = 0
        self.channels_closed = 0
        self.queues_declared = 0
        self.read_bytes = 0
        self.written_bytes = 0

    @property
    def published(self) -> int:
        """How many messages clients have published, whatever became of them."""
        return self.put + self._published + sum([meter.published for meter in self._exchanges.values()])

    @property
    def exchanges(self) -> dict[tuple[str, str], int]:
        """How many were published to each exchange, by virtual host and name; those without any are missing."""
        return {place: meter.published for place, meter in self._exchanges.items() if meter.published}

    def exchange(self, vhost: str, name: str) -> ExchangeMeter:
        """Return what counts for an exchange, until `forget_exchange`."""
        meter = self._exchanges.get((vhost, name))
        if meter is None:
            meter = self._exchanges[vhost, name] = ExchangeMeter()
        return meter

    def forget_exchange(self, vhost: str, name: str) -> None:
        """The exchange is gone: its messages still count for the node."""
        meter = self._exchanges.pop((vhost, name), None)
        if meter is not None:
            self._published += meter.published
