"""Shows the models that the pipeline has computed: first the main facts of each kind, then all of them, folded.

The main facts have their own labels; all others are shown unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flyball.pipeline.report.content import Facts, Mark, Passage, Table
from flyball.pipeline.report.formatting import NOTHING, capital, cell_name, factor_names, level

MOST_ROWS = 200
# Objects with more facts than these are lists of facts, not rows of a table.
MOST_COLUMNS = 8
_DEEPEST = 4

_TITLES = {"capacity": "Capacity", "model": "Plant", "plant": "Plant", "profile": "Profile of requests"}

# By kind: the main list, and the main facts of its objects, `a.b` inside `a`; empty for all.
_HEADLINES: dict[str, tuple[str, dict[str, str]]] = {
    "capacity": (
        "targets",
        {
            "experiment": "Experiment",
            "target": "Target",
            "protocol": "Protocol",
            "factors": "Further factors",
            "nodes": "Nodes",
            "clients_at_knee": "Clients at the knee",
            "max_throughput_per_s": "Most requests/s",
            "light_load_s": "Response of one client [s]",
            "reason": "Why not known",
        },
    ),
    "plant": (
        "plants",
        {
            "experiment": "Experiment",
            "factors": "Cell",
            "loop": "Loop",
            "sample_time_s": "Sample time [s]",
            "a": "a",
            "intervals.a": "90 % of a",
            "b": "b",
            "intervals.b": "90 % of b",
            "gain": "Gain b/(1−a)",
            "test.r2": "R² of the test",
            "linear_range": "Linear range",
            "warnings": "Warnings",
            "reason": "Why not known",
        },
    ),
    "profile": ("classes", {}),
}

# Facts that identify the object; they come first in a headline.
_NAMES = ("experiment", "target", "protocol", "factors", "loop")
_SENTENCES = ("warnings", "reason")

# Of an object in a headline only these facts are shown.
_BRIEF = {"linear_range": ("from", "until")}


def model_passage(name: str, model: Mapping[str, Any]) -> Passage:
    """Return one model with its heading."""
    headline, columns = _HEADLINES.get(str(model.get("kind")), ("", {}))
    objects = model.get(headline)
    title = _TITLES.get(name, capital(name))
    if isinstance(objects, list) and objects and all(isinstance(item, Mapping) for item in objects):
        known = [column for column in columns if any(_fact(item, column) not in (None, {}, []) for item in objects)]
        shown = _table(title, objects, {column: columns[column] for column in known} or _columns(objects))
        return Passage(title, [shown, facts(model, "All of it")])
    return Passage(title, [facts(model)])


def facts(value: Mapping[str, Any], summary: str = "", depth: int = 0, *, is_open: bool = False) -> Facts:
    """Return any JSON object in a readable form: numbers as lines, lists of objects as tables, objects folded."""
    lines: list[tuple[str, str]] = []
    below: list[Facts | Table] = []
    for name, part in value.items():
        title = _title(name)
        if isinstance(part, list) and part and all(isinstance(item, Mapping) for item in part):
            below += _objects(title, part, depth)
        elif isinstance(part, Mapping) and part and depth < _DEEPEST:
            below.append(facts(part, title, depth + 1, is_open=depth < 1))
        else:
            lines.append((title, _text(part)))
    return Facts(lines, below, summary, is_open)


def _objects(title: str, objects: Sequence[Mapping[str, Any]], depth: int) -> Sequence[Facts | Table]:
    columns = _columns(objects)
    if len(columns) <= MOST_COLUMNS or depth >= _DEEPEST:
        return [replace(_table(title, objects, columns), summary=title, is_open=len(objects) <= 10)]
    return [facts(item, f"{title} {number}", depth + 1) for number, item in enumerate(objects[:MOST_ROWS], start=1)]


def _table(title: str, objects: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> Table:
    body = [[_cell(name, _fact(item, name)) for name in columns] for item in objects[:MOST_ROWS]]
    names = sum(name in _NAMES for name in columns)
    return Table(title, list(columns.values()), body, numbers_from=max(names, 1))


def _cell(column: str, value: Any) -> str | Mark:
    if column == "factors" and value:
        return cell_name(value, factor_names(value))
    # Sentences may take several lines.
    return Mark(_text(value), "verdict") if column in _SENTENCES and value else _text(value)


def _fact(item: Mapping[str, Any], name: str) -> Any:
    """Return a fact by its name, which may be a path into objects; None if it is missing."""
    if name in item:
        found = item[name]
        return {key: found[key] for key in _BRIEF[name]} if name in _BRIEF and found else found
    outer, _, inner = name.partition(".")
    part = item.get(outer)
    return _fact(part, inner) if inner and isinstance(part, Mapping) else None


def _columns(objects: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {name: _title(name) for item in objects for name in item}


def _title(name: str) -> str:
    return capital(name.replace("_", " "))


def _text(value: object, most: int = 300) -> str:
    if isinstance(value, list) and value and all(isinstance(part, float) for part in value):
        text = " to ".join(map(_text, value)) if len(value) == 2 else ", ".join(map(_text, value))
    else:
        text = NOTHING if value is None else f"{value:,.4g}" if isinstance(value, float) else level(value)
    return text if len(text) <= most else f"{text[:most]}…"
