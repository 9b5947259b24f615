"""Which messages make up a batch, and how they are cut into partitions. Knows no connection."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

# Unless told otherwise there is a partition for so many messages.
ROWS_PER_PARTITION = 50_000


@dataclass(frozen=True, slots=True)
class Range(InputPartition):
    """The messages of a queue above one id and up to another; `count` of them when it was planned."""

    queue: str
    after_id: int
    up_to_id: int
    count: int


def shares(available: Mapping[str, int], most: int) -> dict[str, int]:
    """Divide `most` messages among queues: each the same, and what a short one leaves to the others."""
    left = most
    given: dict[str, int] = {}
    for number, queue in enumerate(sorted(available, key=lambda queue: available[queue])):
        given[queue] = min(available[queue], math.ceil(left / (len(available) - number)))
        left -= given[queue]
    return given


def ranges(starts: Mapping[str, int], ids: Mapping[str, Sequence[int]], partitions: int | None) -> list[Range]:
    """Cut the messages with these ids, which count up and lie above their queue's start, into about equal ranges.

    There are as many as asked for, but at least one for each queue that has messages, and none is empty.
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
