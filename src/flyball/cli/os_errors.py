"""Explains errors of the operating system: no error numbers, with the next step."""

from __future__ import annotations

import errno
import os
import re

_ADVICE = {
    errno.EADDRINUSE: "Stop the program that uses the address, or use another one.",
    errno.EADDRNOTAVAIL: "Use an address of this machine.",
    errno.EACCES: "Use a file, folder or address that this user has permission for.",
    errno.EPERM: "Use a file, folder or address that this user has permission for.",
    errno.EROFS: "Use a writable folder.",
    errno.EEXIST: "Remove the existing file, or use another folder.",
    errno.ENOTDIR: "Remove the existing file, or use another folder.",
    errno.EISDIR: "Use a file, not a folder.",
    errno.ENOENT: "Check the path.",
    errno.ENOSPC: "Free some disk space and run the command again.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
}


def explained(error: OSError) -> str:
    """Return the problem, the file or address, and the next step."""
    # asyncio and uvloop put the number into the text as well.
    problem = re.sub(r"\[errno -?\d+\] ?", "", error.strerror or str(error), flags=re.IGNORECASE)
    if error.filename is not None:
        problem = f"{os.fsdecode(error.filename)}: {problem}"
    advice = _ADVICE.get(error.errno or 0)
    return problem if advice is None else f"{problem}. {advice}"
