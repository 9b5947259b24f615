"""The loops that let clustered queues grow and shrink, as people see them: one for each, on the node that leads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from functools import partial

from flyball.broker.cluster.manager import Manager
from flyball.broker.cluster.names import split_key, title
from flyball.broker.cluster.options import ClusterOptions
from flyball.broker.core.loops import Bounds, LoopFacts, Loops, Quantity, Reading

# Of so many clustered queues the loops are shown.
MAX_LOOPS = 100

GOVERNS = "the manager of the domain needs it; give the clustered queue the same min_members and max_members instead"


class ProvisioningLoops:
    """Keeps the registry of loops like the clustered queues that a manager governs."""

    def __init__(self, loops: Loops) -> None:
        self._loops = loops
        # The options of those that are shown, by their keys.
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
        """This node does not lead."""
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
    # Without a member that takes clients there is nothing that a load could be a share of.
    load = table.usable_load if table.usable_count else math.nan
    return Reading(found.options.theta_up, load, table.usable_count)


def _facts_of(key: str, options: ClusterOptions) -> LoopFacts:
    return LoopFacts(
        title=f"provisioning of {title(key)}",
        about=(
            f"Adds a member when the load would exceed {options.theta_up:g} of what the members can bear, and removes"
            f" one when the others would bear at most {options.theta_down:g}, for {options.dwell_s:g} s."
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
