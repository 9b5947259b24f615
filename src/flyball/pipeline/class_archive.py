"""A class-data-sharing archive (CDS) of the Java classes that Spark loads: it halves the start time of a session.

Only a cache: without a matching one Spark starts more slowly. `warm_start` creates it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import pyspark

from flyball.pipeline.java import Java

# Maximum number of archives kept, about 180 MB each; older ones belong to versions no longer installed.
KEPT = 3


def archive_of(java: Java) -> Path:
    """Return the path of the archive for this build of Java and this installation of Spark; it may not exist."""
    identity = "\n".join(
        [str(java.program), java.version_text, pyspark.__version__, str(Path(pyspark.__file__).resolve())]
    )
    return _folder() / f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"


def keep(unfinished: Path, archive: Path) -> bool:
    """Move a new archive to its place, and remove the oldest; return False if it is missing or cannot be moved."""
    try:
        os.replace(unfinished, archive)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        archives = sorted(archive.parent.glob("spark-*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in archives[KEPT:]:
            old.unlink(missing_ok=True)
    return True


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "flyball")
