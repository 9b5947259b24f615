"""What can be seen of an adaptive consumer from outside, at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from flyball.control.loop import Sample


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A snapshot."""

    is_connected: bool
    # The prefetch that was asked for last.
    window: float
    # How many handlers may begin in a second; None without a pacer.
    pace_per_s: float | None
    # Messages that were delivered and that no handler has begun with.
    waiting: int
    # Handlers at work.
    running: int
    # Messages that the broker counts as being out.
    unsettled: int
    arrived: int
    # Handlers that returned.
    handled: int
    # Handlers that raised.
    failed: int
    # Messages that were acknowledged, requeued or rejected, on a channel that lived.
    settled: int
    # Connections made: 1 until the first is lost.
    sessions: int
    samples: int
    late_samples: int
    last_sample: Sample | None
