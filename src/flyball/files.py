"""Folders and files that only their owner can read: what a node keeps, logs and traces is nobody else's business."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def make_private_folder(folder: Path) -> None:
    """Make the folder, or close one that is there to other users. Raises OSError if it cannot be made."""
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True)
    except FileExistsError:
        if not folder.is_dir():
            raise
        close_to_others(folder)


def make_private_file(path: Path) -> None:
    """Make an empty file, or close one that is there to other users. Raises OSError if it cannot be made."""
    # Not emptied: others may be writing to it.
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    close_to_others(path)


def close_to_others(path: Path) -> None:
    """Take what group and others may do with a folder or file from them, and warn where that is not ours to do."""
    found = path.stat()
    if not found.st_mode & 0o077 or not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
        return
    # A folder with the sticky bit, like /tmp, is meant for all: closing it would break other programs.
    if found.st_uid == os.geteuid() and not found.st_mode & stat.S_ISVTX:
        try:
            path.chmod(stat.S_IMODE(found.st_mode) & 0o700)
        except OSError as error:
            log.warning("cannot close %s to other users: %s", path, error)
    else:
        log.warning("%s can be read by other users, and is not this user's to close: use a folder of its own", path)
