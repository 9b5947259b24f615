"""An archive of the Java classes that Spark loads: with it a session starts in half the time.

A cache and no more: without it, or with one that does not fit, everything works, only later. `warm_start` makes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import pyspark

from flyball.pipeline.java import Java

KEPT = 3
"""So many archives are kept, of some 180 MB each; older ones belong to versions that are gone."""


def archive_of(java: Java) -> Path:
    """Return where the archive lies, or would lie: it fits one build of Java and one installation of Spark."""
    identity = "\n".join([str(java.program), java.said, pyspark.__version__, str(Path(pyspark.__file__).resolve())])
    return _folder() / f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"


def keep(unfinished: Path, archive: Path) -> bool:
    """Move a new archive to its place, and remove the oldest; return False if there is none, or no place for it."""
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
