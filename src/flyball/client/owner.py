"""Finds the owner token of a local node, which grants administrative access."""

from __future__ import annotations

import os
from pathlib import Path

from flyball.model import TOKEN_FILE

# Environment variables and default of `flyball serve`: a command next to the node finds the same file.
FILE_VARIABLE = "FLYBALL_TOKEN_FILE"
FOLDER_VARIABLE = "FLYBALL_DATA"
DEFAULT_FOLDER = "./data"


def find_token(path: str | Path | None = None) -> bytes | None:
    """Return the token in the file, or at a local node's default path; None if it cannot be read."""
    if path is None:
        named = os.environ.get(FILE_VARIABLE)
        path = named or Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER) / TOKEN_FILE
    try:
        return Path(path).read_bytes().strip() or None
    except OSError:
        return None
