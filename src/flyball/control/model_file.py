"""A model file: the plants of several loops, from which a reader selects one by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from flyball.control.plant import NoPlant, Plant
from flyball.errors import ControlError

VERSION = 1
KIND = "plant"
MODEL = "y(k+1) = a y(k) + b u(k - delay) + offset"


def model_to_json(plants: Iterable[Plant | NoPlant]) -> dict[str, Any]:
    """Return a model file's content."""
    return {"version": VERSION, "kind": KIND, "model": MODEL, "plants": [plant.to_json() for plant in plants]}


def read_model(text: str, loop: str | None = None, sample_time_s: float | None = None) -> Plant:
    """Return the plant of a model file's text; give the loop, or the sample time, if the file holds several.

    A loop that was identified in several experiments, or on several brokers, is named with as many of the words
    before it as make it unique: `rabbitmq/adaptive`, `prefetch/identification/rabbitmq/adaptive`. Loops in which no
    plant was found are ignored if others exist. Raises ControlError if the text is not a model, or does not have
    exactly one such plant; the error lists the names.
    """
    try:
        model = json.loads(text)
    except ValueError as error:
        raise ControlError(f"the model is not JSON: {error}") from None
    entries = _entries(model)
    fitting = [
        entry
        for entry in entries
        if (loop is None or f"/{_name(entry)}".endswith(f"/{loop}"))
        and sample_time_s in (None, entry.get("sample_time_s"))
    ]
    found = [entry for entry in fitting if not entry.get("reason")] or fitting
    if not found:
        raise ControlError(f"the model has no such plant; it has {_described(entries)}")
    if len(found) > 1:
        raise ControlError(
            f"the model has {len(found)} such plants, say which by its loop or its sample time: {_described(found)}"
        )
    return Plant.from_json(found[0])


def read_plants(model: object) -> list[Plant]:
    """Return all plants of a model file's content; loops without a plant are ignored.

    Raises ControlError if it is not a model of plants.
    """
    return [Plant.from_json(entry) for entry in _entries(model) if not entry.get("reason")]


def _entries(model: object) -> list[Mapping[str, Any]]:
    if not isinstance(model, dict) or model.get("kind") != KIND:
        raise ControlError(
            f'this is not a model of a plant: it must have "kind": "{KIND}"; make one with `flyball control identify`'
        )
    if model.get("version") != VERSION:
        raise ControlError(
            f"the model has version {model.get('version')!r}, only {VERSION} can be read: identify again"
        )
    entries = model.get("plants")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ControlError('the model has no list of "plants"')
    return entries


def _name(entry: Mapping[str, Any]) -> str:
    """Return the loop's name after the factors of its run: experiment, broker, further factors."""
    factors = entry.get("factors") or {}
    others = [f"{name.rpartition('.')[2]}={value}" for name, value in factors.items() if name != "target.kind"]
    parts = [entry.get("experiment"), entry.get("target"), *others, entry.get("loop")]
    return "/".join(str(part) for part in parts if part)


def _described(entries: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{_name(entry)!r} at {entry.get('sample_time_s')} s" for entry in entries) or "none"
