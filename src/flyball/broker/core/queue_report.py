"""What a queue of this node holds, as plain values: for the node's status and for its peers."""

from __future__ import annotations

from typing import Any

from flyball.broker.engine.queue import WorkingQueue


def queue_report(working: WorkingQueue) -> dict[str, Any]:
    """Return what a queue of this node holds."""
    return {
        "id": working.queue.id,
        "name": working.queue.name,
        "ready": len(working),
        "leased": working.unacked,
        "parked": len(working.parked),
        "in_memory": len(working) - working.absent,
        "consumers": len(working.consumers),
    }
