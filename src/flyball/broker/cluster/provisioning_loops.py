"""Shows the loops that grow and shrink clustered queues in the registry of loops, on the leader."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from functools import partial

from flyball.broker.cluster.manager import Manager
from flyball.broker.cluster.names import split_key, title
from flyball.broker.cluster.options import ClusterOptions
from flyball.broker.core.loops import Bounds, LoopFacts, Loops, Quantity, Reading

# Largest number of clustered queues whose loops are shown.
MAX_LOOPS = 100

GOVERNS = "the domain's manager needs this loop; to keep the size, set min_members and max_members to the same value"


class ProvisioningLoops:
    """Keeps the registry of loops in step with the clustered queues of a manager."""

    def __init__(self, loops: Loops) -> None:
        self._loops = loops
        # Options of the clustered queues that are shown, by key.
        self._shown: dict[str, ClusterOptions] = {}

    def show(self, manager: Manager) -> None:
        """Show the loops of the clustered queues of a manager, and no others."""
        wanted = {key: found.options for key, found in itertools.islice(manager.clusters.items(), MAX_LOOPS)}
        self._hide(key for key in list(self._shown) if self._shown[key] != wanted.get(key))
        for key in wanted.keys() - self._shown.keys():
            facts = _facts_of(key, wanted[key])
            self._loops.add(_name_of(key), facts, partial(_read, manager, key), why_fixed=GOVERNS)
            self._shown[key] = wanted[key]

    def hide_all(self) -> None:
        """Remove all loops: this node does not lead."""
        self._hide(list(self._shown))

    def _hide(self, keys: Iterable[str]) -> None:
        for key in keys:
            del self._shown[key]
            self._loops.remove(_name_of(key))


def _name_of(key: str) -> str:
    vhost, name = split_key(key)
    return f"domain.{vhost}/{name}" if vhost != "/" else f"domain.{name}"


def _read(manager: Manager, key: str) -> Reading | None:
    found = manager.clusters.get(key)
    if found is None:
        return None
    table = found.table
    # Without a member that takes clients there is no capacity to relate the load to.
    load = table.usable_load if table.usable_count else math.nan
    return Reading(found.options.theta_up, load, table.usable_count)


def _facts_of(key: str, options: ClusterOptions) -> LoopFacts:
    return LoopFacts(
        title=f"provisioning of {title(key)}",
        about=(
            f"Adds a member when the load would exceed {options.theta_up:g} of the members' capacity; removes"
            f" one when the others would have been at {options.theta_down:g} or less for {options.dwell_s:g} s."
        ),
        measures=Quantity(what="load of the members", unit="of their capacity"),
        acts=Quantity(what="members that take clients", unit="members"),
        law="hysteresis",
        gains={
            "theta_up": options.theta_up,
            "theta_down": options.theta_down,
            "theta_hold": options.theta_hold,
            "dwell_s": options.dwell_s,
        },
        limits=Bounds(lowest=float(options.min_members), highest=float(options.max_members)),
        sample_time_s=1.0,
    )
