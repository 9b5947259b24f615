"""Compares two versions of a model's document: the parameters that differ, with their change in percent. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from flyball.errors import InvalidArgument

# Parameters of documents that are compared.
MAX_PARAMETERS = 20_000
# Characters of their paths. A long name that contains thousands of parameters is part of each of their paths.
MAX_PATHS_LENGTH = 4 * 1024 * 1024
# Fields that name the entries of a list: entries are compared by name, not by position.
NAMES = ("loop", "experiment", "name", "key", "class")


class Difference(TypedDict):
    """A parameter that was added, removed or changed."""

    path: str
    # None where the parameter is missing.
    before: Any
    after: Any
    # None unless both are numbers, the first one is not 0, and the change can be written in JSON.
    change_percent: float | None


def differences(before: Any, after: Any) -> list[Difference]:
    """Return the parameters that differ, in the order of the later document; removed ones last.

    Raises InvalidArgument if a document has more than MAX_PARAMETERS, or too long paths.
    """
    old, new = _by_path(before), _by_path(after)
    paths = [*new, *(path for path in old if path not in new)]
    found = [path for path in paths if path not in old or path not in new or _differ(old[path], new[path])]
    return [_difference(path, old.get(path), new.get(path)) for path in found]


def _by_path(document: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    length = 0
    for path, value in _parameters(document):
        length += len(path)
        if len(found) >= MAX_PARAMETERS:
            raise InvalidArgument(
                f"a document has more than {MAX_PARAMETERS} parameters: export both and compare the files"
            )
        if length > MAX_PATHS_LENGTH:
            raise InvalidArgument(
                "the paths of a document's parameters are too long: export both and compare the files"
            )
        found[path] = value
    return found


def _difference(path: str, before: Any, after: Any) -> Difference:
    change = _percent(before, after) if _is_number(before) and _is_number(after) else None
    return {"path": path, "before": before, "after": after, "change_percent": change}


def _percent(before: float, after: float) -> float | None:
    try:
        change = 100 * (after - before) / abs(before)
    except ArithmeticError:
        # Division by zero, or integers beyond the range of floats.
        return None
    return change if math.isfinite(change) else None


def _differ(before: Any, after: Any) -> bool:
    # In Python True equals 1.
    return bool(before != after) or isinstance(before, bool) != isinstance(after, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parameters(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, part in value.items():
            yield from _parameters(part, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and value:
        for label, part in zip(_labels(value), value, strict=True):
            yield from _parameters(part, f"{path}[{label}]")
    else:
        yield path, value


def _labels(entries: Sequence[Any]) -> list[str]:
    """Return a distinct label for each entry: its name, if all names differ, or its position."""
    for field in NAMES:
        if all(isinstance(entry, Mapping) and isinstance(entry.get(field), str | int) for entry in entries):
            labels = [str(entry[field]) for entry in entries]
            if len({*labels}) == len(labels):
                return labels
    return [str(place) for place in range(len(entries))]
