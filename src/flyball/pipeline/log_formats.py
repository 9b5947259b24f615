"""The formats of logs that can be ingested beside traces. Needs nothing, so that a command line can name them."""

from __future__ import annotations

import enum

TELESTO_HEADER = "time_ms,kind,parse_ns,database_ns,emit_ns,response_ns,downtime_ns"


class LogFormat(enum.StrEnum):
    """The formats that can be read."""

    THORBANG_SERVER = "thorbang-server"
    """ThorBangMQ, B.1: `ms,pushes,pops,answers,total_ns,worker_ns,persistence_ns`, a line for each interval."""
    THORBANG_CLIENT = "thorbang-client"
    """The ThorBangMQ report, B.2: `ms,duration`, a line for each request, the duration in milliseconds."""
    THORBANG_CLIENT_NS = "thorbang-client-ns"
    """The same with the duration in nanoseconds, as its distributed test writes it."""
    TELESTO = "telesto"
    """Telesto, the metrics of 5.3: a line for each request with the columns of `TELESTO_HEADER`, which is line 1."""
