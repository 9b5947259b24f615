"""Monotonic counters of message events, incremented on the path of every message."""

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
    """Counts events of the messages of one queue, or of many."""

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
        # Pushed to a consumer that acknowledges.
        self.delivered = 0
        self.delivered_no_ack = 0
        # Fetched with basic.get or an equivalent, to be acknowledged.
        self.got = 0
        # Fetched without acknowledgement.
        self.got_no_ack = 0
        # Redelivered or fetched again.
        self.redelivered = 0
        self.acknowledged = 0
        self.requeued = 0
        # Removed undelivered: expired, rejected, over the delivery limit or the length limit. Some are dead-lettered.
        self.dropped = 0
        # Moved to another member of a clustered queue.
        self.handed_over = 0
        self._seen = -1
        self._changed_s = 0.0

    def add(self, other: Counts) -> None:
        """Add the counts of `other`."""
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
        """Return the time of the last change, with the interval between calls as its resolution."""
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
    """Counts messages published to an exchange."""

    __slots__ = ("published",)

    def __init__(self) -> None:
        self.published = 0


class Meters:
    """Counts events on a node since its start, except those that its queues count."""

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
        # Published to exchanges that have been deleted.
        self._published = 0
        # Messages put directly into queues, by the research protocols.
        self.put = 0
        self.confirmed = 0
        # Unroutable messages returned to their publishers (mandatory).
        self.returned = 0
        # Unroutable messages dropped.
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
        """Number of messages that clients have published, routable or not."""
        return self.put + self._published + sum([meter.published for meter in self._exchanges.values()])

    @property
    def exchanges(self) -> dict[tuple[str, str], int]:
        """Messages published by virtual host and exchange; exchanges without any are missing."""
        return {place: meter.published for place, meter in self._exchanges.items() if meter.published}

    def exchange(self, vhost: str, name: str) -> ExchangeMeter:
        """Return the meter of an exchange, until `forget_exchange` drops it."""
        meter = self._exchanges.get((vhost, name))
        if meter is None:
            meter = self._exchanges[vhost, name] = ExchangeMeter()
        return meter

    def forget_exchange(self, vhost: str, name: str) -> None:
        """Drop the meter of a deleted exchange; its messages still count for the node."""
        meter = self._exchanges.pop((vhost, name), None)
        if meter is not None:
            self._published += meter.published
