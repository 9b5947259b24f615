"""The text format of Prometheus, checked with Prometheus' own library."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flyball.broker.management.metrics.exposition import COUNTER, GAUGE, Family, labels, number


def test_what_is_written_is_read_again() -> None:
    family = Family("messages_total", COUNTER, "All messages")
    odd = 'a "quoted" \\ name\nwith two lines, {braces} and ünicode'
    text = family.text([(labels(queue=odd, class_="1"), 3), (labels(queue="", class_="2"), 4.5)])
    [read] = text_string_to_metric_families(text)
    assert (read.name, read.type, read.documentation) == ("messages", "counter", "All messages")
    assert [(sample.labels, sample.value) for sample in read.samples] == [
        ({"queue": odd, "class": "1"}, 3.0),
        ({"queue": "", "class": "2"}, 4.5),
    ]


def test_what_has_no_value_is_left_out() -> None:
    family = Family("depth", GAUGE, "Of a queue")
    assert family.text([("", None)]) == ""
    assert family.lines([('{a="1"}', None), ('{a="2"}', 0)]) == 'depth{a="2"} 0\n'


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "1"), (0, "0"), (2**60, str(2**60)), (0.25, "0.25"), (math.inf, "+Inf"), (-math.inf, "-Inf")],
)
def test_numbers_are_written_exactly(value: float, text: str) -> None:
    assert number(value) == text


def test_what_is_no_number_says_so() -> None:
    assert number(math.nan) == "NaN"
