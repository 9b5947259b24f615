"""Records requests of nodes: the timestamps of each, and the phases between them."""

from __future__ import annotations

import numpy as np

from flyball.trace.buffer import Columns, Layout
from flyball.trace.files import REQUESTS
from flyball.trace.schema import Kind, Protocol, Result, names_of


def phases_of(at: Columns) -> Columns:
    """Return the durations of the phases."""
    submitted = np.where(at["submitted_ns"] == 0, at["answered_ns"], at["submitted_ns"])
    return {
        "wait_ns": at["started_ns"] - at["received_ns"],
        "parse_ns": at["parsed_ns"] - at["started_ns"],
        "engine_ns": submitted - at["parsed_ns"],
        "store_ns": np.maximum(at["answered_ns"] - submitted, 0),
        "emit_ns": at["emitted_ns"] - at["answered_ns"],
    }


def _derived(at: Columns, epoch_ns: int) -> Columns:
    return {**phases_of(at), "received_us": (at["received_ns"] + epoch_ns) // 1000}


_POINTS = ("received_ns", "started_ns", "parsed_ns", "submitted_ns", "answered_ns", "emitted_ns")

REQUEST = Layout(
    REQUESTS,
    (
        ("b", ("kind", "protocol", "result")),
        ("q", ("client_id", "queue_id", "size_bytes", "message_count", *_POINTS, "weight")),
    ),
    "node",
    {"kind": names_of(Kind), "protocol": names_of(Protocol), "result": names_of(Result)},
    _derived,
)
