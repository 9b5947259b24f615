"""How batches are shared among queues and cut into partitions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.spark_source.plan import ROWS_PER_PARTITION, Range, ranges, shares


@pytest.mark.parametrize(
    ("available", "most", "expected"),
    [
        ({"a": 5, "b": 50}, 20, {"a": 5, "b": 15}),
        ({"a": 50, "b": 50}, 20, {"a": 10, "b": 10}),
        ({"a": 0, "b": 3}, 20, {"a": 0, "b": 3}),
        ({"a": 9, "b": 9, "c": 9}, 1, {"a": 1, "b": 0, "c": 0}),
    ],
)
def test_what_a_short_queue_leaves_goes_to_the_others(
    available: dict[str, int], most: int, expected: dict[str, int]
) -> None:
    assert shares(available, most) == expected


@given(st.dictionaries(st.text(), st.integers(0, 100), min_size=1), st.integers(1, 300))
def test_shares_use_up_what_there_is_or_what_is_allowed(available: dict[str, int], most: int) -> None:
    given_out = shares(available, most)
    assert all(given_out[queue] <= count for queue, count in available.items())
    assert sum(given_out.values()) == min(most, sum(available.values()))


def test_a_queue_is_cut_into_ranges_without_a_gap() -> None:
    assert ranges({"a": 3}, {"a": [5, 6, 9, 12, 20]}, 2) == [Range("a", 3, 6, 2), Range("a", 6, 20, 3)]


def test_no_range_is_empty() -> None:
    assert ranges({"a": 0, "b": 0}, {"a": [1, 2], "b": []}, 8) == [Range("a", 0, 1, 1), Range("a", 1, 2, 1)]
    assert ranges({"a": 0}, {"a": []}, None) == []


def test_unless_told_otherwise_each_partition_has_enough_to_do() -> None:
    few, many = range(1, 11), range(1, 2 * ROWS_PER_PARTITION + 1)
    assert len(ranges({"a": 0}, {"a": few}, None)) == 1
    assert [part.count for part in ranges({"a": 0}, {"a": many}, None)] == [ROWS_PER_PARTITION] * 2


@given(st.lists(st.lists(st.integers(1, 10_000), unique=True).map(sorted), min_size=1), st.integers(1, 20))
def test_every_message_is_in_one_range(queues: list[list[int]], partitions: int) -> None:
    ids: dict[str, Sequence[int]] = {f"{number}": of_queue for number, of_queue in enumerate(queues)}
    found = ranges(dict.fromkeys(ids, 0), ids, partitions)
    for queue, of_queue in ids.items():
        parts = [part for part in found if part.queue == queue]
        inside = [[i for i in of_queue if part.after_id < i <= part.up_to_id] for part in parts]
        assert list(chain.from_iterable(inside)) == of_queue
        assert [len(part) for part in inside] == [part.count for part in parts]
