"""What only looks on must not stop what it looks at."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

log = logging.getLogger(__name__)


@contextlib.contextmanager
def onlooking(what: str) -> Iterator[None]:
    """Log whatever goes wrong inside, and go on after it: the node has messages to serve."""
    try:
        yield
    except Exception:
        log.exception("%s failed; the node goes on", what)
