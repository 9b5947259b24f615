"""A snapshot of an adaptive consumer."""

from __future__ import annotations

from dataclasses import dataclass

from flyball.control.loop import Sample


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A snapshot."""

    is_connected: bool
    # The latest requested prefetch.
    window: float
    # Rate at which handlers may start; None without a pacer.
    pace_per_s: float | None
    # Delivered messages without a handler.
    waiting: int
    # Running handlers.
    running: int
    # Messages that are unacked at the broker.
    unsettled: int
    arrived: int
    # Handlers that returned.
    handled: int
    # Handlers that raised.
    failed: int
    # Messages acked, requeued or rejected on a live channel.
    settled: int
    # Connections so far.
    sessions: int
    samples: int
    late_samples: int
    last_sample: Sample | None
