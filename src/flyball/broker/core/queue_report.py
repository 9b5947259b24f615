"""The state of a local queue as plain values, for the node's status and for its peers."""

from __future__ import annotations

from typing import Any

from flyball.broker.engine.queue import QueueState


def queue_report(state: QueueState) -> dict[str, Any]:
    """Return the state of a local queue."""
    return {
        "id": state.queue.id,
        "name": state.queue.name,
        "ready": len(state),
        "leased": state.unacked_count,
        "parked": len(state.parked),
        "in_memory": len(state) - state.absent,
        "consumers": len(state.consumers),
    }
