"""What a node tells about itself and its queues: plain dictionaries, for the CLI, the tests and whoever asks."""

from __future__ import annotations

import os
import resource
import time
from typing import Any

import flyball
from flyball.broker.core.queue_report import queue_report
from flyball.broker.transport.connection import Hub
from flyball.model import Queue

LIST_LIMIT_S = 3.0
"""For so long other nodes are asked what their queues hold."""

_STARTED = time.monotonic()


def status_of(hub: Hub, vhost: str | None = None) -> dict[str, Any]:
    """Return the node's state as plain values that JSON can carry, with the queues of all virtual hosts or of one."""
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
        "queues": [queue_report(working) for working in engine.queues if vhost in (None, working.queue.vhost)],
    }


async def queues_of_all(hub: Hub) -> list[dict[str, Any]]:
    """Return the queues of all nodes. What those hold whose node does not answer is not known: None."""
    peering = hub.peering
    answers, _ = await peering.ask_owners("queue.list", {}, LIST_LIMIT_S)
    told = {report["id"]: report for reports in answers.values() for report in reports}
    here = [
        {**queue_report(working), "vhost": working.queue.vhost, "node": peering.name, "is_here": True}
        for working in hub.broker.engine.queues
    ]
    elsewhere = [
        {
            **(told.get(remote.queue.id) or _unknown_report(remote.queue)),
            "vhost": remote.queue.vhost,
            "node": peering.name_of(remote.owner),
            "is_here": False,
        }
        for remote in hub.directory.all()
    ]
    return sorted([*here, *elsewhere], key=lambda queue: queue["id"])


def _unknown_report(queue: Queue) -> dict[str, Any]:
    unknown = dict.fromkeys(("ready", "leased", "parked", "in_memory", "consumers"))
    return {"id": queue.id, "name": queue.name, **unknown}
