"""Differences between two documents."""

from __future__ import annotations

from typing import Any

import pytest

from flyball.broker.models.differences import MAX_PARAMETERS, MAX_PATHS_LENGTH, differences
from flyball.errors import InvalidArgument


def changed(before: Any, after: Any) -> dict[str, tuple[Any, Any, float | None]]:
    return {one["path"]: (one["before"], one["after"], one["change_percent"]) for one in differences(before, after)}


def test_numbers_change_by_percent() -> None:
    assert changed({"law": {"kp": 0.2, "ki": 1}}, {"law": {"kp": 0.1, "ki": 1}}) == {"law.kp": (0.2, 0.1, -50.0)}
    assert changed({"a": -2.0}, {"a": -1.0}) == {"a": (-2.0, -1.0, 50.0)}


def test_what_has_no_percentage_is_shown_without_one() -> None:
    before = {"a": 0, "b": "x", "c": 1, "d": True, "e": None, "g": 10**400, "h": -1e308}
    after = {"a": 1, "b": "y", "c": None, "d": 1, "f": [], "g": 1.5, "h": 1e308}
    assert changed(before, after) == {
        "a": (0, 1, None),
        "b": ("x", "y", None),
        "c": (1, None, None),
        "d": (True, 1, None),
        "f": (None, [], None),
        "g": (10**400, 1.5, None),
        "h": (-1e308, 1e308, None),
        "e": (None, None, None),
    }


def test_entries_of_lists_are_compared_by_name_or_by_place() -> None:
    before = {"plants": [{"loop": "a", "b": 1}, {"loop": "b", "b": 2}], "poles": [1, 2]}
    after = {"plants": [{"loop": "b", "b": 3}, {"loop": "a", "b": 1}], "poles": [1, 2, 3]}
    assert changed(before, after) == {"plants[b].b": (2, 3, 50.0), "poles[2]": (None, 3, None)}
    assert changed([{"loop": "a"}, {"loop": "a"}], [{"loop": "a"}]) == {
        "[a].loop": (None, "a", None),
        "[0].loop": ("a", None, None),
        "[1].loop": ("a", None, None),
    }


def test_same_documents_do_not_differ() -> None:
    assert differences({"a": [1, {"b": 2.0}]}, {"a": [1, {"b": 2}]}) == []


def test_too_many_parameters_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="more than 20000 parameters"):
        differences({}, [0] * (MAX_PARAMETERS + 1))


def test_paths_that_repeat_a_long_name_are_refused() -> None:
    document = {"x" * 100_000: [0] * (MAX_PATHS_LENGTH // 100_000 + 1)}
    with pytest.raises(InvalidArgument, match="paths of a document's parameters are too long"):
        differences({}, document)
