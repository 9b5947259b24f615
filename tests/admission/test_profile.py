"""Profiles are read from files as the pipeline writes them; what is wrong with a file is said in one line."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from flyball.admission.classes import CostClass
from flyball.admission.profile import KeyProfile, Profile, load_profile, profile_from, profile_of
from flyball.errors import AdmissionError

DOCUMENT: dict[str, Any] = {
    "version": 1,
    "kind": "profile",
    "unit": "ms",
    "cost": "busy",
    "rows": 100,
    "requests": 100,
    "left_out": {},
    "class_count": 2,
    "silhouettes": {"2": 0.995},
    "reason": None,
    "bounds": [7.1],
    "classes": [
        {
            "class": 0,
            "centre": 0.9,
            "mean": 1.0,
            "below": 7.1,
            "requests": 75,
            "request_ratio": 0.75,
            "cost_ratio": 0.1,
        },
        {
            "class": 1,
            "centre": 49.6,
            "mean": 50.0,
            "below": None,
            "requests": 25,
            "request_ratio": 0.25,
            "cost_ratio": 0.9,
        },
    ],
    "keys": {
        "GET /": {"rows": 75, "requests": 75, "mean": 1.0, "sd": 0.2, "p50": 1.0, "class": 0, "class_ratio": 1.0},
        "GET /search": {
            "rows": 25,
            "requests": 25,
            "mean": 50.0,
            "sd": 9.0,
            "p50": 49.0,
            "class": 1,
            "class_ratio": 1.0,
        },
    },
}


def test_a_file_of_the_pipeline_is_read(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(DOCUMENT), encoding="utf-8")
    assert load_profile(path) == Profile(
        "ms",
        (CostClass(0, 1.0, 7.1), CostClass(1, 50.0, None)),
        {"GET /": KeyProfile(75, 1.0, 0.2, 0), "GET /search": KeyProfile(25, 50.0, 9.0, 1)},
    )


def test_a_profile_that_was_written_is_read_as_it_was() -> None:
    profile = profile_of([("a", 1.0), ("a", 1.1), ("b", 80.0)] * 10, "connections")
    assert profile_from(json.loads(json.dumps(profile.to_json(), allow_nan=False))) == profile


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        (("kind",), "plant", "is not a profile"),
        (("version",), 2, "has version 2, not 1"),
        (("unit",), ..., "lacks 'unit'"),
        (("keys", "GET /", "mean"), ..., "lacks 'mean'"),
        (("keys", "GET /", "mean"), "dear", "is malformed"),
        (("keys", "GET /", "mean"), -1.0, "has a cost that is not a number of at least 0"),
        (("keys", "GET /", "mean"), float("nan"), "has a cost that is not a number of at least 0"),
        (("keys", "GET /", "class"), 2, "assigns 'GET /' to class 2, which does not exist"),
        (("keys",), [], "is malformed"),
        (("keys",), {}, "has no keys"),
        (("classes",), [], "has no classes numbered from 0"),
        (("classes", 1, "class"), 0, "has no classes numbered from 0"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(
    tmp_path: Path, place: tuple[Any, ...], value: object, problem: str
) -> None:
    document = copy.deepcopy(DOCUMENT)
    part: Any = document
    for name in place[:-1]:
        part = part[name]
    if value is ...:
        del part[place[-1]]
    else:
        part[place[-1]] = value
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(AdmissionError) as caught:
        load_profile(path)
    assert str(caught.value).startswith(f"profile {path} {problem}")
    assert str(caught.value).endswith("create one with `flyball pipeline profile SOURCE --out DIR`")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(AdmissionError, match=r"profile .*missing\.json does not exist: create one with"):
        load_profile(tmp_path / "missing.json")
    with pytest.raises(AdmissionError, match="Is a directory"):
        load_profile(tmp_path)
    (tmp_path / "text").write_bytes(b"\xff{")
    with pytest.raises(AdmissionError, match="is not valid JSON"):
        load_profile(tmp_path / "text")
    (tmp_path / "list").write_text("[]", encoding="utf-8")
    with pytest.raises(AdmissionError, match="is not a profile"):
        load_profile(tmp_path / "list")


def test_a_profile_of_costs_has_the_figures_of_each_key() -> None:
    found = profile_of([*[("form", 0.0)] * 20, *[("read", 1.0), ("read", 3.0)] * 20, *[("search", 900.0)] * 20], "ms")
    assert found.keys == {
        "form": KeyProfile(20, 0.0, 0.0, 0),
        "read": KeyProfile(40, 2.0, 1.0, 0),
        "search": KeyProfile(20, 900.0, 0.0, 1),
    }
    assert [each.mean for each in found.classes] == pytest.approx([80 / 60, 900])


def test_free_requests_are_no_class_of_their_own() -> None:
    random = Random(1)
    paid = [(key, cost * random.lognormvariate(0, 0.3)) for key, cost in [("read", 2.0), ("search", 60.0)] * 100]
    found = profile_of([*[("form", 0.0)] * 400, ("read", 0.002), *paid], "ms")
    assert {key: facts.class_number for key, facts in found.keys.items()} == {"form": 0, "read": 0, "search": 1}


def test_few_costs_are_one_class() -> None:
    assert len(profile_of([("a", 1.0), ("b", 100.0)], "ms").classes) == 1


def test_no_costs_are_an_error_that_says_so() -> None:
    with pytest.raises(AdmissionError, match="no requests: a profile needs at least one"):
        profile_of([], "ms")
