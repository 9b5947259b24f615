"""What can be seen of an adaptive consumer from outside, at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from flyball.control.loop import Sample


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A snapshot."""

    is_connected: bool
    window: float
    """The prefetch that was asked for last."""
    pace_per_s: float | None
    """How many handlers may begin in a second; None without a pacer."""
    waiting: int
    """Messages that were delivered and that no handler has begun with."""
    running: int
    """Handlers at work."""
    unsettled: int
    """Messages that the broker counts as being out."""
    arrived: int
    handled: int
    """Handlers that returned."""
    failed: int
    """Handlers that raised."""
    settled: int
    """Messages that were acknowledged, requeued or rejected, on a channel that lived."""
    sessions: int
    """So many times a connection was made: 1 until it is lost."""
    samples: int
    late_samples: int
    last_sample: Sample | None
