"""Numbers are written so that a reader can trust and read them."""

from __future__ import annotations

import math

import pytest

from flyball.pipeline.report import formatting


def test_intervals_are_in_the_notation_of_the_papers() -> None:
    assert formatting.student(10, 5) == "10.0 ± 5.0"
    assert formatting.quantiles(10, -3, 5) == "10.0 ± [-3.0, 5.0]"


def test_a_mean_without_an_interval_stands_alone() -> None:
    assert formatting.student(10, math.nan) == "10.0"
    assert formatting.quantiles(10, None, None) == "10.0"


def test_what_is_not_known_is_a_dash() -> None:
    assert (
        formatting.amount(math.nan)
        == formatting.amount(None)
        == formatting.whole(math.nan)
        == formatting.percent(None)
        == "–"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.0"),
        (0.01234, "0.0123"),
        (0.5, "0.500"),
        (12.34, "12.3"),
        (12345.6, "12,345.6"),
        (1234567.8, "1,234,568"),
    ],
)
def test_amounts_show_three_digits_that_count(value: float, text: str) -> None:
    assert formatting.amount(value) == text


def test_mean_and_interval_have_the_same_decimals() -> None:
    assert formatting.student(0.2, 0.0123) == "0.200 ± 0.012"


def test_two_factors_of_the_same_last_name_keep_their_whole_names() -> None:
    names = formatting.factor_names(["workload.clients", "target.nodes", "noise.nodes"])
    assert names == {"workload.clients": "clients", "target.nodes": "target.nodes", "noise.nodes": "noise.nodes"}


def test_a_unit_in_a_factors_name_stands_in_brackets_on_an_axis() -> None:
    assert formatting.axis_name("body bytes") == "body [bytes]"
    assert formatting.axis_name("clients") == "clients"


@pytest.mark.parametrize(("seconds", "text"), [(3.21, "3.2 s"), (75, "1 min 15 s"), (3720, "1 h 2 min")])
def test_durations_show_their_two_largest_units(seconds: float, text: str) -> None:
    assert formatting.duration(seconds) == text


def test_cell_name_has_units_after_numbers_and_proper_names_of_brokers() -> None:
    factors = {"workload.handler_time_s": 0.01, "target.kind": "rabbitmq", "clients": 5}
    assert (
        formatting.cell_name(factors, formatting.factor_names(factors)) == "handler time 0.01 s, RabbitMQ, clients 5"
    )
