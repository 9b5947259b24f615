"""Settings of the process: log, garbage collection, limits."""

from __future__ import annotations

import gc
import logging
import os
import resource

from flyball.broker.node.logs import configure_logging
from flyball.broker.settings import ServeSettings

log = logging.getLogger(__name__)

# Maximum number of HTTP connections: they must not use up the file descriptors of messaging clients.
HTTP_CONNECTIONS = 1000

# Open files other than connections: those of the store, the traces and the log.
OTHER_FILES = 300

# New objects per garbage collection. Requests create no cycles, and ready messages may be many: the cost of
# traversing them often exceeds the gain.
YOUNG_OBJECTS = 50_000


def prepare_process(settings: ServeSettings) -> None:
    """Configure the log, garbage collection and limits of the process."""
    # All created files are private to their owner.
    os.umask(0o077)
    configure_logging(settings.log_level, settings.log_format, settings.log_file)
    # The second generation is collected while it is small: the same total cost in shorter pauses.
    gc.set_threshold(YOUNG_OBJECTS, 4, 100)
    _allow_open_files(settings.max_connections + HTTP_CONNECTIONS + OTHER_FILES)


def _allow_open_files(wanted: int) -> None:
    """Raise the limit of open files as permitted: every connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("limit of open files (%d) is below max_connections: raise ulimit -n", allowed)
