"""Shows the loops that grow and shrink clustered queues in the registry of loops, on the leader, and records them."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from flyball.broker.cluster.capacity_models import Trial
from flyball.broker.cluster.domain_samples import DomainSamples
from flyball.broker.cluster.manager import Manager
from flyball.broker.cluster.names import split_key, title
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.broker.core.loops import Bounds, LoopFacts, Loops, Quantity, Reading
from flyball.control.loop import Sample

# Largest number of clustered queues whose loops are shown.
MAX_LOOPS = 100

# Suffix of the loop of a model in shadow.
TRIAL = ".shadow"
TRIED = "it shows a capacity model in shadow; put the model in force with `flyball model activate`"
EMPTY: Mapping[str, Trial] = {}

GOVERNS = "the domain's manager needs this loop; to keep the size, set min_members and max_members to the same value"


class ProvisioningLoops:
    """Keeps the registry of loops in step with the clustered queues of a manager."""

    def __init__(self, loops: Loops, record: Callable[[Sample], None] | None = None) -> None:
        """`record` is called with each sample of the loops."""
        self._loops = loops
        self._samples = None if record is None else DomainSamples(record)
        # Options of the clustered queues that are shown, by key.
        self._shown: dict[str, ClusterOptions] = {}
        # Capacity models in shadow that are shown, by key of their clustered queue.
        self._trials: dict[str, Trial] = {}

    def show(self, manager: Manager, trials: Mapping[str, Trial] = EMPTY) -> None:
        """Show the loops of the clustered queues of a manager and of the models in shadow there, and no others."""
        self._show_provisioning(manager)
        wanted = {key: trials[key] for key in self._shown if key in trials}
        self._hide_trials(key for key in list(self._trials) if self._trials[key] != wanted.get(key))
        for key in wanted.keys() - self._trials.keys():
            trial = wanted[key]
            facts = _facts_of(key, trial.options, f"capacity model {trial.version} in shadow: ")
            read = partial(_read_trial, manager, key, trial.options)
            loop = self._loops.add(_name_of(key) + TRIAL, facts, read, why_fixed=TRIED)
            loop.is_shadow = True
            self._trials[key] = trial

    def _show_provisioning(self, manager: Manager) -> None:
        wanted = {key: found.options for key, found in itertools.islice(manager.clusters.items(), MAX_LOOPS)}
        self._hide(key for key in list(self._shown) if self._shown[key] != wanted.get(key))
        for key in wanted.keys() - self._shown.keys():
            facts = _facts_of(key, wanted[key])
            self._loops.add(_name_of(key), facts, partial(_read, manager, key), why_fixed=GOVERNS)
            self._shown[key] = wanted[key]
        if self._samples is not None:
            now_s = asyncio.get_running_loop().time()
            for key in self._shown:
                self._samples.note(_name_of(key), manager.clusters[key], now_s)
            self._samples.end_sample()

    def hide_all(self) -> None:
        """Remove all loops: this node does not lead."""
        self._hide(list(self._shown))
        self._hide_trials(list(self._trials))
        if self._samples is not None:
            self._samples.begin()

    def _hide_trials(self, keys: Iterable[str]) -> None:
        for key in keys:
            del self._trials[key]
            self._loops.remove(_name_of(key) + TRIAL)

    def _hide(self, keys: Iterable[str]) -> None:
        for key in keys:
            del self._shown[key]
            if self._samples is not None:
                self._samples.forget(key)
            self._loops.remove(_name_of(key))


def _name_of(key: str) -> str:
    vhost, name = split_key(key)
    return f"domain.{vhost}/{name}" if vhost != "/" else f"domain.{name}"


def _read(manager: Manager, key: str) -> Reading | None:
    found = manager.clusters.get(key)
    if found is None:
        return None
    table = found.table
    # Without a member that accepts clients there is no capacity to relate the load to.
    load = table.usable_load if table.usable_count else math.nan
    return Reading(found.options.theta_up, load, table.usable_count)


def _read_trial(manager: Manager, key: str, options: ClusterOptions) -> Reading | None:
    """Return the load by a model in shadow, and the members that it would need."""
    found = manager.clusters.get(key)
    if found is None:
        return None
    table = found.table
    load = sum(options.weight(role) * table.count(role) for role in Role)
    # Nodes differ in capacity, which is not part of a model: their relative capacities are kept.
    capacity = table.usable_capacity * options.capacity / found.options.capacity
    if not table.usable_count or capacity <= 0:
        return Reading(options.theta_up, math.nan, None)
    # A model may hold any finite numbers: the maximum is first, so that it also replaces infinity and NaN.
    needed = min(options.max_members, load * table.usable_count / (capacity * options.theta_up))
    return Reading(options.theta_up, load / capacity, max(options.min_members, math.ceil(needed)))


def _facts_of(key: str, options: ClusterOptions, prefix: str = "") -> LoopFacts:
    return LoopFacts(
        title=f"{prefix}provisioning of {title(key)}",
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
