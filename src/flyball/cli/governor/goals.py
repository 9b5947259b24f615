"""From flags to the goal of a consumer."""

from __future__ import annotations

from flyball.cli.governor import requests
from flyball.cli.governor.display import Unit
from flyball.cli.governor.telling import WrongUse
from flyball.client.adaptive import Fast, Goal, Latency, Rate
from flyball.control.documents import Design


def goal_of(wanted: requests.Goal, design: Design | None) -> tuple[Goal, Unit]:
    """Return the one goal that was asked for, and how to show it; without any it is the rate of the design."""
    given = [wanted.rate_per_s is not None, wanted.latency_ms is not None, wanted.is_fast]
    if sum(given) > 1:
        raise WrongUse("give one of --rate, --latency-ms and --fast")
    if wanted.latency_ms is not None:
        return Latency(wanted.latency_ms / 1000), Unit("ms", 1000.0)
    if wanted.is_fast:
        return Fast(), Unit("messages waiting")
    rate_per_s = wanted.rate_per_s
    if rate_per_s is None and design is not None:
        rate_per_s = design.setpoint
    if rate_per_s is None:
        raise WrongUse("give one of --rate, --latency-ms and --fast, or a --design with a setpoint")
    return Rate(rate_per_s), Unit()
