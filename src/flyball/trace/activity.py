"""Records a node's activity per second: node totals, busy queues, and histograms of message times.

Three tables with a writer each. At most some thousand rows per second. Independent of brokers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flyball.trace.buffer import Columns, Layout, Texts
from flyball.trace.files import NODES, QUEUES, TIMES, TraceFiles
from flyball.trace.schema import Metric, names_of
from flyball.trace.writer import RecordWriter

# A file for each minute: small files cost a Parquet footer each.
ROTATE_S = 60.0

# Distinct queue names per buffer; the next one starts a new buffer.
MOST_NAMES = 2**12

# Buckets per doubling of a time: a percentile computed from them is off by a tenth at most.
BUCKETS_PER_DOUBLING = 4

# The largest number of a column: a clock that was wrong makes waits of decades, each for thousands of messages.
MAX_SUM_US = 2**63 - 1


def _derived(columns: Columns, epoch_ns: int) -> Columns:
    return {"at_us": (columns["at_ns"] + epoch_ns) // 1000}


@dataclass(frozen=True, slots=True)
class NodeSecond:
    """The activity of a node since its previous record; see `docs/reference/traces.md`."""

    # By `time.perf_counter_ns`.
    at_ns: int
    elapsed_ns: int
    cpu_ns: int
    store_cpu_ns: int
    memory_bytes: int
    held_bytes: int
    connections: int
    channels: int
    consumers: int
    queues: int
    ready: int
    unacked: int
    published: int
    delivered: int
    acked: int
    confirmed: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class QueueSecond:
    """The activity of a queue in the same second."""

    vhost: str
    queue: str
    ready: int
    unacked: int
    consumers: int
    published: int
    delivered: int
    acked: int


@dataclass(frozen=True, slots=True)
class Timed:
    """The time of one sampled message, which represents `weight` messages."""

    metric: Metric
    took_us: int
    weight: int


_NODE = Layout(NODES, (("q", (*NodeSecond.__slots__, "started_us")),), "node", derived=_derived)
_QUEUE = Layout(
    QUEUES,
    (("i", ("vhost", "queue")), ("q", ("at_ns", "elapsed_ns", *QueueSecond.__slots__[2:]))),
    "node",
    derived=_derived,
)
_TIME = Layout(
    TIMES,
    (
        ("h", ("vhost", "queue", "metric", "padding")),
        ("q", ("at_ns", "from_us", "below_us", "timed", "messages", "sum_us")),
    ),
    "node",
    {"metric": names_of(Metric)},
    _derived,
)


class NodeWriter(RecordWriter):
    """Writes the seconds of a node."""

    __slots__ = ("_started_us",)

    def __init__(self, folder: Path, node: str, keep_bytes: int, rotate_s: float = ROTATE_S) -> None:
        self._started_us = time.time_ns() // 1000
        files = TraceFiles(folder, node, 1.0, _rotate_bytes(keep_bytes), keep_bytes, NODES)
        super().__init__(files, node, _NODE, rotate_s, 2, 256)

    def record(self, second: NodeSecond) -> None:
        """Record a second. Never blocks."""
        self._put(*(getattr(second, name) for name in NodeSecond.__slots__), self._started_us)


class QueueWriter(RecordWriter):
    """Writes the seconds of queues."""

    __slots__ = ()

    def __init__(self, folder: Path, node: str, keep_bytes: int, rotate_s: float = ROTATE_S) -> None:
        files = TraceFiles(folder, node, 1.0, _rotate_bytes(keep_bytes), keep_bytes, QUEUES)
        super().__init__(files, node, _QUEUE, rotate_s, 4, 2048, _names())

    def record(self, at_ns: int, elapsed_ns: int, second: QueueSecond) -> None:
        """Record a second of a queue. Never blocks."""
        codes = self._codes(vhost=second.vhost, queue=second.queue)
        if codes is not None:
            numbers = (getattr(second, name) for name in QueueSecond.__slots__[2:])
            self._put(*codes, at_ns, elapsed_ns, *numbers)


class TimeWriter(RecordWriter):
    """Writes histograms of the times of messages."""

    __slots__ = ()

    def __init__(self, folder: Path, node: str, keep_bytes: int, rotate_s: float = ROTATE_S) -> None:
        files = TraceFiles(folder, node, 1.0, _rotate_bytes(keep_bytes), keep_bytes, TIMES)
        super().__init__(files, node, _TIME, rotate_s, 4, 2048, _names())

    def record(self, at_ns: int, vhost: str, queue: str, times: Sequence[Timed]) -> None:
        """Record the times of a queue's messages in a second, as buckets. Never blocks."""
        buckets: dict[tuple[Metric, int, int], tuple[int, int, int]] = {}
        for each in times:
            key = (each.metric, *bucket_of(each.took_us))
            timed, messages, sum_us = buckets.get(key, (0, 0, 0))
            buckets[key] = (timed + 1, messages + each.weight, sum_us + each.took_us * each.weight)
        for (metric, from_us, below_us), counts in buckets.items():
            codes = self._codes(vhost=vhost, queue=queue)
            if codes is not None:
                timed, messages, sum_us = counts
                self._put(*codes, metric, 0, at_ns, from_us, below_us, timed, messages, min(sum_us, MAX_SUM_US))


def bucket_of(took_us: int) -> tuple[int, int]:
    """Return the bounds of a time's bucket: the first inclusive, the second exclusive."""
    if took_us < BUCKETS_PER_DOUBLING:
        return took_us, took_us + 1
    shift = took_us.bit_length() - BUCKETS_PER_DOUBLING.bit_length()
    first = took_us >> shift << shift
    return first, first + (1 << shift)


def _names() -> dict[str, Texts]:
    return {"vhost": Texts(most=MOST_NAMES - 1), "queue": Texts(most=MOST_NAMES - 1)}


def _rotate_bytes(keep_bytes: int) -> int:
    # Pruning removes whole files: with 8 of them, one removal frees an eighth of the limit.
    return max(2**16, min(2**26, keep_bytes // 8))
