"""Patterns of names: what fits, what is refused, and that none takes long."""

from __future__ import annotations

import pytest

from flyball.broker.engine.patterns import MAX_PATTERN_LENGTH, check_name, compile_pattern, never_fits
from flyball.errors import InvalidName, InvalidPattern


# A backtracking engine needs 2^60 steps and more for these; the tests' own time limit is the assertion.
@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "(a|aa)+$", "(.*a){20}$", "^(a|b)*a(a|b){60}$"])
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    compiled = compile_pattern(pattern)
    assert not any(compiled.fits("a" * length + "!") for length in range(60, 255))


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a(?=b)", "no lookaround"),
        ("(?<!a)b", "no lookaround"),
        (r"(a)\1", "no backreferences"),
        ("(?>a)b", "no lookaround"),
        ("a++", "bad repetition"),
        ("x{1001}", "repetition size"),
        ("((a{30}){30}){30}", "repetition size"),
        (r"(\pL\pN){60}", "too large"),
        ("(", "missing"),
        ("a\0", "null character"),
        ("x" * (MAX_PATTERN_LENGTH + 1), "exceed 1024"),
    ],
)
def test_pattern_that_cannot_be_matched_in_linear_time_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(InvalidPattern, match=reason):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("", "anything", True),
        (".*", "", True),
        (".*", "\n", True),
        ("^$", "", True),
        ("^$", "\n", False),
        ("orders$", "orders\n", False),
        ("ord", "my-orders", True),
        ("^ord", "my-orders", False),
        ("^[[:alpha:]]+$", "orders", True),
        (r"^\d+$", "\u0663", False),
        ("(?i)ORD", "orders", True),
        ("^.$", "\u00e9", True),
        ("^.$", "\udce9", True),
        ("\u00e9" * MAX_PATTERN_LENGTH, "\u00e9" * MAX_PATTERN_LENGTH, True),
    ],
)
def test_pattern_fits(pattern: str, name: str, fits: bool) -> None:
    assert compile_pattern(pattern).fits(name) is fits


def test_case_is_ignored_where_asked_for() -> None:
    assert compile_pattern("ORD", ignores_case=True).fits("orders")
    assert not compile_pattern("ORD").fits("orders")


def test_pattern_that_stands_for_a_refused_one_fits_no_name() -> None:
    assert not never_fits().fits("")
    assert not never_fits().fits("orders")


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0", "\ud800"])
def test_name_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        check_name("user", name)
