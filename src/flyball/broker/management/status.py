"""What a node tells about itself and its queues: plain dictionaries, for the CLI, the tests and whoever asks."""

from __future__ import annotations

import os
import resource
import time
from typing import Any

import flyball
from flyball.broker.core.queue_report import queue_report
from flyball.broker.transport.connection import Hub

_STARTED = time.monotonic()


def status_of(hub: Hub) -> dict[str, Any]:
    """Return the node's state as plain values that JSON can carry, with the queues of all virtual hosts."""
    broker = hub.broker
    engine = broker.engine
    recorder = hub.recorder
    return {
        "version": flyball.__version__,
        "pid": os.getpid(),
        "uptime_s": round(time.monotonic() - _STARTED, 3),
        "connections": len(hub.connections),
        "clients": len(engine.clients),
        "memory": {
            "resident_messages_bytes": engine.resident_bytes,
            "resident_limit_bytes": engine.resident_limit_bytes,
            "process_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        },
        "store": {
            "kind": type(broker.store).__name__,
            "problem": broker.store.problem,
            "commits": broker.journal.commits,
            "pending_count": broker.journal.pending_count,
            "pending_bytes": broker.journal.pending_bytes,
        },
        **{name: report() for name, report in hub.reports.items()},
        "trace": None if recorder is None else {"dropped": recorder.dropped, "failures": recorder.failures},
        "queues": [queue_report(working) for working in engine.queues],
    }
