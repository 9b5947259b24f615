"""Where a client finds the token of the node's owner, which administering a node needs."""

from __future__ import annotations

import os
from pathlib import Path

from flyball.model import TOKEN_FILE

# The variables and the default of `flyball serve`: a command beside the node finds what the node uses.
FILE_VARIABLE = "FLYBALL_TOKEN_FILE"
FOLDER_VARIABLE = "FLYBALL_DATA"
DEFAULT_FOLDER = "./data"


def find_token(path: str | Path | None = None) -> bytes | None:
    """Return the token in the file, or where a node on this machine would have it; None if it cannot be read."""
    if path is None:
        named = os.environ.get(FILE_VARIABLE)
        path = named or Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER) / TOKEN_FILE
    try:
        return Path(path).read_bytes().strip() or None
    except OSError:
        return None
