"""The token of a node's owner: made at the first start, readable by the owner alone.

Whoever can read it may administer the node from its own machine: as the user @owner with the token as password.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from pathlib import Path

from flyball.errors import SettingsError

log = logging.getLogger(__name__)

TOKEN_BYTES = 32
# Fewer characters would be guessed.
MIN_LENGTH = 32


def owner_token(path: Path) -> bytes:
    """Return the token in the file, which is made if it does not exist. Raises SettingsError."""
    try:
        if not path.exists():
            _create(path)
        if path.stat().st_mode & 0o077:
            log.warning("others could read the token in %s: delete it and restart the node if they may have", path)
            path.chmod(0o600)
        token = path.read_bytes().strip()
    except OSError as error:
        raise SettingsError("--token-file", f"{path} cannot be used: {error}") from error
    if len(token) < MIN_LENGTH:
        raise SettingsError("--token-file", f"{path} holds fewer than {MIN_LENGTH} characters: delete it")
    return token


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Linked when it is complete: another node that shares the file never reads half of it, nor another token.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(TOKEN_BYTES) + "\n")
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink()
