"""The state of this node as JSON values."""

from __future__ import annotations

import os
import resource
import time
from typing import Any

from starlette.responses import Response

import flyball
from flyball.broker.core.queue_report import queue_report
from flyball.broker.management.api.answers import answer
from flyball.broker.management.api.context import Call, Right, Routes
from flyball.broker.transport.connection import Hub

_STARTED = time.monotonic()

routes = Routes()


@routes.get("/flyball/status", Right.MONITORING)
async def show_status(call: Call) -> Response:
    """Return the state of this node: version, memory, store, flow control, background tasks, queues."""
    return answer(status_of(call.node.hub))


def status_of(hub: Hub) -> dict[str, Any]:
    """Return the node's state, with the queues of all vhosts."""
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
        "queues": [queue_report(state) for state in engine.queues],
    }
