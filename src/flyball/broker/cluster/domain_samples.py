"""Samples of the loops of the manager, for the trace: provisioning and rebalancing of each clustered queue.

Both loops run once a second and seldom act. A sample is recorded when it differs from the previous one, and at least
once a minute; readers see omitted samples as gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flyball.broker.cluster.load_table import LoadTable
from flyball.broker.cluster.options import ClusterOptions
from flyball.broker.cluster.state import KnownCluster
from flyball.control.loop import Sample
from flyball.control.tuning import Mode, Tuning, tuning_of

# The leader's period.
SAMPLE_S = 1.0

# Samples after which one is recorded even if nothing has changed.
MAX_GAP = 60


@dataclass(slots=True)
class _Last:
    options: ClusterOptions
    provisioning: Tuning
    rebalancing: Tuning
    moves: int
    # Measurement and action of both loops, and the sample that recorded them.
    values: tuple[float, float, float, float] | None = None
    sequence: int = 0


class DomainSamples:
    """Records the samples of the clustered queues of a domain, on its leader."""

    def __init__(self, record: Callable[[Sample], None]) -> None:
        self._record = record
        self._last: dict[str, _Last] = {}
        self._sequence = 0

    def begin(self) -> None:
        """Start another term as leader: earlier samples are unknown."""
        self._last.clear()

    def end_sample(self) -> None:
        """Advance the sample number, after all clustered queues were noted for this second."""
        self._sequence += 1

    def forget(self, key: str) -> None:
        """Drop the state of a deleted clustered queue."""
        self._last.pop(key, None)

    def note(self, name: str, found: KnownCluster, now_s: float) -> None:
        """Record the current sample of a clustered queue, under the name of its loop; `now_s` is event-loop time."""
        table, options = found.table, found.options
        last = self._last.get(found.key)
        if last is None or last.options is not options:
            last = self._last[found.key] = _Last(options, *_tunings(options), found.table.moves)
        moves, last.moves = found.table.moves - last.moves, found.table.moves
        if not table.usable_count:
            # Without a member that accepts clients there is no capacity to relate the load to.
            return
        values = (float(table.usable_load), float(table.usable_count), potential(table), float(moves))
        if values == last.values and self._sequence - last.sequence < MAX_GAP:
            return
        last.values, last.sequence = values, self._sequence
        load, members, imbalance, moved = values
        for what, setpoint, measured, action, tuning in (
            ("", options.theta_up, load, members, last.provisioning),
            (".balance", 0.0, imbalance, moved, last.rebalancing),
        ):
            self._record(
                Sample(
                    name + what,
                    now_s,
                    SAMPLE_S,
                    setpoint,
                    measured,
                    action,
                    self._sequence,
                    mode=Mode.ACTIVE,
                    tuning=tuning,
                )
            )


def potential(table: LoadTable) -> float:
    """Return the potential Φ of the members that accept clients, in units of w²/C; see `placement`."""
    usable = table.is_usable()
    loads, capacities = table.loads[:, usable], table.capacities[usable]
    squares = (loads**2 / capacities).sum() - (loads.sum(axis=1) ** 2).sum() / capacities.sum()
    return max(0.0, float(np.float64(squares) / table.options.potential_unit))


def _tunings(options: ClusterOptions) -> tuple[Tuning, Tuning]:
    """Return the tuning of provisioning and of rebalancing."""
    thresholds = {name: getattr(options, name) for name in ("theta_up", "theta_down", "theta_hold", "dwell_s")}
    gains = {name: getattr(options, name) for name in ("epsilon", "move_cost", "cool_down_s", "period_s")}
    lowest, highest = float(options.min_members), float(options.max_members)
    return (
        tuning_of({"kind": "hysteresis", **thresholds}, lowest=lowest, highest=highest),
        tuning_of({"kind": "potential", **gains}, lowest=0.0, highest=float(options.most_moves)),
    )
