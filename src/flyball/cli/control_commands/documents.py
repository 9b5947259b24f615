"""Files passed from one command to the next: models and designs as JSON."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from flyball.control import documents
from flyball.control.documents import Design
from flyball.control.model_file import read_model
from flyball.control.plant import Plant
from flyball.errors import ControlError


def write_json(path: Path, document: Any) -> None:
    """Write a document atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(path)


def check_place(path: Path) -> None:
    """Create the folder of a file. Raises ControlError, or OSError, if it is not writable: checked before the
    work.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise ControlError(f"{path} is a folder, not a file")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ControlError(f"cannot write to {path.parent}: {error.strerror}") from error


def read_plant(path: Path, loop: str | None = None, sample_time_s: float | None = None) -> Plant:
    """Return the plant of a model file. Raises ControlError, or OSError."""
    try:
        return read_model(_text(path), loop, sample_time_s)
    except ControlError as error:
        raise ControlError(f"{path}: {error}") from error


def read_design(path: Path) -> Design:
    """Return the design of a file. Raises ControlError, or OSError."""
    try:
        return documents.read_design(_text(path))
    except ControlError as error:
        raise ControlError(f"{path}: {error}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ControlError("not valid JSON: not text") from error
