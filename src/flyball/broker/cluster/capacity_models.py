"""Capacity and weights of clustered queues from the registry of models. No I/O.

A model for the queue itself overrides the numbers in the queue's definition, since it was published for this queue; a
model for the domain only fills in numbers missing from the definition. Without a usable model the definition applies.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from flyball.broker.cluster.names import split_key, title
from flyball.broker.cluster.options import ClusterOptions, Loads
from flyball.broker.models.capacity import options_of_model
from flyball.broker.models.history import Version
from flyball.broker.models.registry import Models
from flyball.broker.models.scopes import DOMAIN, Scope
from flyball.errors import ClusterError

log = logging.getLogger(__name__)

KIND = "capacity"
# Options that a capacity model sets. They share one unit, so it sets all of them or none.
FITTED = ("capacity", "producer_weight", "consumer_weight")


class Trial(NamedTuple):
    """A version in shadow, and the options that a clustered queue would get from it."""

    version: int
    options: ClusterOptions


class CapacityModels:
    """Applies models to the options of clustered queues."""

    def __init__(self, models: Models) -> None:
        self._models = models
        # By clustered queue and use (in force or not), the digest of the last version applied, its input and its
        # result. Not the version: its document would stay in memory after the queue and the model were deleted.
        self._applied: dict[tuple[str, bool], tuple[str, ClusterOptions, ClusterOptions | None]] = {}

    def in_force(self, key: str, declared: ClusterOptions, stored: Mapping[str, Any]) -> ClusterOptions:
        """Return the options of a clustered queue: those declared, with the numbers of the model in force."""
        version = self._models.in_force(KIND, *_scopes(key, declared, stored))
        found = None if version is None else self._apply(key, version, declared, is_in_force=True)
        return declared if found is None else found

    def in_shadow(self, key: str, declared: ClusterOptions, stored: Mapping[str, Any]) -> Trial | None:
        """Return the version in shadow, if there is one that would apply to the clustered queue."""
        version = self._models.in_shadow(KIND, *_scopes(key, declared, stored))
        found = None if version is None else self._apply(key, version, declared, is_in_force=False)
        return None if version is None or found is None else Trial(version.number, found)

    def _apply(
        self, key: str, version: Version, declared: ClusterOptions, *, is_in_force: bool
    ) -> ClusterOptions | None:
        """Return the options with a version's numbers; None if the combination is invalid."""
        known = self._applied.get((key, is_in_force))
        # Called several times a second for each clustered queue: each document is parsed once.
        if known is not None and known[0] == version.digest and known[1] == declared:
            return known[2]
        found: ClusterOptions | None = None
        try:
            numbers = options_of_model(version.document, f"version {version.number}")
            found = replace(declared, **{name: numbers[name] for name in FITTED})  # type: ignore[arg-type]
        except (ClusterError, ValueError, OverflowError) as error:
            log.warning("capacity model not applied queue=%s version=%d: %s", title(key), version.number, error)
        self._applied[key, is_in_force] = version.digest, declared, found
        return found


def _scopes(key: str, declared: ClusterOptions, stored: Mapping[str, Any]) -> tuple[Scope, ...]:
    """Return the scopes whose models apply to a clustered queue, the most specific first."""
    if declared.loads != Loads.WEIGHTS:
        # Measured loads have the unit of message_cost, which capacity models do not set.
        return ()
    own = Scope.queue(*split_key(key))
    return (own,) if any(name in stored for name in FITTED) else (own, DOMAIN)
