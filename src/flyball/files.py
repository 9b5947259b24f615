"""Folders and files that only their owner can read, for data, logs and traces of a node."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def make_private_folder(folder: Path) -> None:
    """Create the folder, or remove access of other users to an existing one. Raises OSError."""
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True)
    except FileExistsError:
        if not folder.is_dir():
            raise
        close_to_others(folder)


def make_private_file(path: Path) -> None:
    """Create an empty file, or remove access of other users to an existing one. Raises OSError."""
    # Not truncated: other processes may be writing to it.
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    close_to_others(path)


def close_to_others(path: Path) -> None:
    """Remove access of group and others to a folder or file; warn where this process may not."""
    found = path.stat()
    if not found.st_mode & 0o077 or not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
        return
    # A folder with the sticky bit, like /tmp, is shared on purpose: closing it would break other programs.
    if found.st_uid == os.geteuid() and not found.st_mode & stat.S_ISVTX:
        try:
            path.chmod(stat.S_IMODE(found.st_mode) & 0o700)
        except OSError as error:
            log.warning("cannot restrict access to %s: %s", path, error.strerror)
    else:
        log.warning("%s is accessible to other users and not owned by this one: use a private folder", path)
