"""What a node tells about itself: one plain dictionary, for the CLI, the tests and whoever asks."""

from __future__ import annotations

import os
import resource
import time
from typing import Any

import flyball
from flyball.server.connection import Hub

_STARTED = time.monotonic()


def status_of(hub: Hub) -> dict[str, Any]:
    """Return the node's state as plain values that JSON can carry."""
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
            "commits": broker.journal.commits,
            "pending_count": broker.journal.pending_count,
            "pending_bytes": broker.journal.pending_bytes,
        },
        **{name: report() for name, report in hub.reports.items()},
        "trace": None if recorder is None else {"dropped": recorder.dropped, "failures": recorder.failures},
        "queues": [
            {
                "id": working.queue.id,
                "name": working.queue.name,
                "ready": len(working),
                "leased": len(working.out),
                "in_memory": len(working) - working.absent,
                "consumers": len(working.consumers),
            }
            for working in engine.queues
        ],
    }
