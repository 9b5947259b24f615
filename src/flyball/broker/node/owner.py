"""The token of a node's owner, created at the first start and readable only by the owner.

Users who can read it can administer the node from its machine, as the user @owner with the token as password.
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
# Shorter tokens can be guessed.
MIN_LENGTH = 32


def owner_token(path: Path) -> bytes:
    """Return the token in the file; create it if missing. Raises SettingsError."""
    try:
        if not path.exists():
            _create(path)
        if path.stat().st_mode & 0o077:
            log.warning(
                "token was readable by other users: delete it and restart the node to replace it file=%s", path
            )
            path.chmod(0o600)
        token = path.read_bytes().strip()
    except OSError as error:
        raise SettingsError("--token-file", f"cannot use {path}: {error.strerror}") from error
    if len(token) < MIN_LENGTH:
        raise SettingsError(
            "--token-file", f"the token in {path} is shorter than {MIN_LENGTH} characters: delete the file"
        )
    return token


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Linked when complete: another node that shares the file never reads a partial or a different token.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(TOKEN_BYTES) + "\n")
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink()
