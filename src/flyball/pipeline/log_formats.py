"""The formats of logs that can be ingested in addition to traces. Imports nothing: the CLI names them."""

from __future__ import annotations

import enum


class LogFormat(enum.StrEnum):
    """The formats that can be read."""

    # ThorBangMQ, appendix B.1: `ms,pushes,pops,answers,total_ns,worker_ns,persistence_ns`, a line per interval.
    # Early servers and the clients of its standard test stop after the pops.
    THORBANG_SERVER = "thorbang-server"
    # ThorBangMQ, appendix B.2: `ms,duration`, a line per request, the duration in milliseconds.
    THORBANG_CLIENT = "thorbang-client"
    # The same with the duration in nanoseconds, as its push-peek-pop and its distributed test write it.
    THORBANG_CLIENT_NS = "thorbang-client-ns"
    # Telesto: `ms, waiting, parsing, database, response` of middlewares and `ms, waiting, sent, database, received`
    # of clients, separated by tabs, a line per request; durations in nanoseconds.
    TELESTO = "telesto"
