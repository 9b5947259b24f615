"""What all of the process shares: its log, its garbage collection, its limits."""

from __future__ import annotations

import gc
import logging
import os
import resource

from flyball.broker.node.logs import configure_logging
from flyball.broker.settings import ServeSettings

log = logging.getLogger(__name__)

# So many are served at a time: whoever opens more takes no files from those who send messages.
HTTP_CONNECTIONS = 1000

# Files that are open beside connections: the store's, the trace's, the log.
OTHER_FILES = 300

# So many new objects start a garbage collection. Requests make no cycles, and waiting messages are many: looking at
# all of them again and again would cost more than it finds.
YOUNG_OBJECTS = 50_000


def prepare_process(settings: ServeSettings) -> None:
    """Set up what all of the process shares: its log, its garbage collection, its limits."""
    # Whatever it writes is its owner's alone.
    os.umask(0o077)
    configure_logging(settings.log_level, settings.log_format, settings.log_file)
    # The second generation is looked at while it is small: what survives that costs the same, in shorter pauses.
    gc.set_threshold(YOUNG_OBJECTS, 4, 100)
    _allow_open_files(settings.max_connections + HTTP_CONNECTIONS + OTHER_FILES)


def _allow_open_files(wanted: int) -> None:
    """Raise the limit on open files as far as the system lets us: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("only %d files may be open: fewer than max_connections; raise ulimit -n", allowed)
