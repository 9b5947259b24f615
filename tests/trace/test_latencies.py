"""Histograms of what requests take, made of the records of the trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball.trace.latencies import BOUNDS_NS, BUCKETS, PHASES, Latencies, percentile_ns
from flyball.trace.recorder import Recorder
from flyball.trace.schema import Kind
from flyball.trace.span import Span

# How long each phase of a request takes here.
TIMES_US = (1, 3, 7, 100, 50)


def a_span(kind: Kind = Kind.PUT, weight: int = 1) -> Span:
    span = Span()
    span.kind = kind
    span.weight = weight
    at_ns = span.received_ns = 10**12
    for name, took_us in zip(("started", "parsed", "submitted", "answered"), TIMES_US, strict=False):
        at_ns += took_us * 1000
        setattr(span, f"{name}_ns", at_ns)
    return span


def record(recorder: Recorder, span: Span) -> None:
    recorder.record(span, span.answered_ns + TIMES_US[-1] * 1000)


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """One that is never started: its records stay where they are."""
    return Recorder(tmp_path, "n1", buffer_records=4, max_buffers=3)


def test_each_phase_is_in_the_bucket_of_its_length(recorder: Recorder) -> None:
    record(recorder, a_span())
    told = recorder.latencies.summary()
    assert set(told) == {"put"}
    assert told["put"]["count"] == 1
    for phase, took_us in zip(PHASES, (*TIMES_US, sum(TIMES_US)), strict=True):
        place = told["put"]["buckets"][phase].index(1)
        assert told["put"]["sum_ns"][phase] == took_us * 1000
        # What took exactly a bound is not above it, as Prometheus means it.
        assert (0, *BOUNDS_NS)[place] < took_us * 1000 <= BOUNDS_NS[place]
        assert len(told["put"]["buckets"][phase]) == BUCKETS


def test_a_record_counts_as_often_as_it_stands_for_requests(recorder: Recorder) -> None:
    record(recorder, a_span(weight=64))
    assert recorder.latencies.requests(Kind.PUT) == 64
    assert recorder.latencies.mean_ns(Kind.PUT, "store") == 100_000


def test_records_are_counted_once_across_buffers(recorder: Recorder) -> None:
    for number in range(30):
        record(recorder, a_span(Kind.TAKE))
        if number % 5 == 0:
            assert recorder.latencies.requests(Kind.TAKE) <= number + 1
    # Three buffers of four; what came then was dropped.
    assert recorder.latencies.requests(Kind.TAKE) == 12
    assert recorder.dropped == 18


def test_what_was_counted_between_two_looks_can_be_told(recorder: Recorder) -> None:
    record(recorder, a_span())
    before = recorder.latencies.copy()
    record(recorder, a_span())
    record(recorder, a_span(Kind.TAKE))
    recent = recorder.latencies.since(before)
    assert (recent.requests(Kind.PUT), recent.requests(Kind.TAKE)) == (1, 1)
    assert before.requests(Kind.TAKE) == 0


def test_what_takes_longer_than_all_bounds_is_in_the_last_bucket(recorder: Recorder) -> None:
    span = a_span()
    span.answered_ns += 10 * BOUNDS_NS[-1]
    record(recorder, span)
    assert recorder.latencies.buckets(Kind.PUT, "store")[-1] == 1


@pytest.mark.parametrize(("ratio", "least_us", "most_us"), [(0.5, 4, 8), (0.9, 4, 8), (0.99, 512, 1024)])
def test_a_percentile_lies_in_the_bucket_that_reaches_it(ratio: float, least_us: float, most_us: float) -> None:
    buckets = [0] * BUCKETS
    buckets[3] = 95
    buckets[10] = 5
    assert least_us * 1000 <= percentile_ns(buckets, ratio) <= most_us * 1000


def test_without_requests_all_is_zero() -> None:
    empty = Latencies()
    assert empty.summary() == {}
    assert empty.mean_ns(Kind.PUT, "total") == 0.0
    assert percentile_ns(empty.buckets(Kind.PUT, "total"), 0.99) == 0.0
