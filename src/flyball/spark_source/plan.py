"""Selects the messages of a batch and partitions them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

# Default number of messages per partition.
ROWS_PER_PARTITION = 50_000


@dataclass(frozen=True, slots=True)
class Range(InputPartition):
    """Messages of a queue between two ids; `count` of them when it was planned."""

    queue: str
    after_id: int
    up_to_id: int
    count: int


def shares(available: Mapping[str, int], most: int) -> dict[str, int]:
    """Divide `most` messages among queues evenly; the unused share of a short queue is divided among the others."""
    left = most
    given: dict[str, int] = {}
    for number, queue in enumerate(sorted(available, key=lambda queue: available[queue])):
        given[queue] = min(available[queue], math.ceil(left / (len(available) - number)))
        left -= given[queue]
    return given


def ranges(starts: Mapping[str, int], ids: Mapping[str, Sequence[int]], partitions: int | None) -> list[Range]:
    """Partition messages with these ascending ids into ranges of about equal size.

    As many as requested, but at least one per non-empty queue, and none is empty.
    """
    total = sum(len(of_queue) for of_queue in ids.values())
    wanted = partitions or math.ceil(total / ROWS_PER_PARTITION)
    found: list[Range] = []
    for queue, of_queue in ids.items():
        parts = min(len(of_queue), max(1, round(wanted * len(of_queue) / total))) if of_queue else 0
        after_id, begin = starts[queue], 0
        for part in range(parts):
            end = len(of_queue) * (part + 1) // parts
            found.append(Range(queue, after_id, of_queue[end - 1], end - begin))
            after_id, begin = of_queue[end - 1], end
    return found
