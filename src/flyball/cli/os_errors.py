"""What the operating system refused, in a sentence for people: no error numbers, and the next step."""

from __future__ import annotations

import errno
import os
import re

_ADVICE = {
    errno.EADDRINUSE: "Stop the program that uses the address, or give another one.",
    errno.EADDRNOTAVAIL: "Give an address of this machine.",
    errno.EACCES: "Give a file, folder or address that this user may use.",
    errno.EPERM: "Give a file, folder or address that this user may use.",
    errno.EROFS: "Give a folder that this user may write to.",
    errno.EEXIST: "Remove the file that is in the way, or give another folder.",
    errno.ENOTDIR: "Remove the file that is in the way, or give another folder.",
    errno.EISDIR: "Give a file, not a folder.",
    errno.ENOENT: "Check the path.",
    errno.ENOSPC: "Free some disk space and run the command again.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
}


def explained(error: OSError) -> str:
    """Return what happened, to which file or address, and what to do about it."""
    # asyncio and uvloop put the number into the text as well.
    problem = re.sub(r"\[errno -?\d+\] ?", "", error.strerror or str(error), flags=re.IGNORECASE)
    if error.filename is not None:
        problem = f"{os.fsdecode(error.filename)}: {problem}"
    advice = _ADVICE.get(error.errno or 0)
    return problem if advice is None else f"{problem}. {advice}"
