"""Capacity of members and weights of clients, read from a capacity model that the pipeline fitted to traces.

Pure: takes the text of `capacity.json`, returns options of a clustered queue.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from flyball.errors import ClusterError

VERSION = 1


def options_of_model(text: str, source: str, experiment: str = "") -> dict[str, object]:
    """Return capacity and weights for ClusterOptions. Raises ClusterError whose text starts with `source`.

    Weights are shares of a node's capacity, which is 1. A model without weights specifies the number of clients that
    a node can serve; each weighs 1. `experiment` selects one of several models.
    """
    targets = [
        target for target in _targets(text, source) if not experiment or target.get("experiment") == experiment
    ]
    if not targets:
        raise ClusterError(f"{source}: unknown experiment {experiment!r}: see `flyball pipeline capacity`")
    usable = [(target, found) for target in targets if (found := _options(target)) is not None]
    if not usable:
        reasons = sorted({str(target.get(key)) for target in targets for key in _REASONS if target.get(key)})
        raise ClusterError(
            f"{source}: the model has neither a knee nor weights ({'; '.join(reasons) or 'no reason given'}):"
            " run `flyball pipeline capacity` on runs with more clients, or set capacity and weights as numbers"
        )
    if len(usable) > 1 and any(options != usable[0][1] for _, options in usable):
        names = ", ".join(sorted({str(target.get("experiment")) for target, _ in usable}))
        raise ClusterError(f"{source}: several models: select one with FILE#EXPERIMENT; available: {names}")
    return usable[0][1]


def split_reference(reference: str) -> tuple[str, str]:
    """Split FILE or FILE#EXPERIMENT into the file and the experiment."""
    file, _, experiment = reference.partition("#")
    return file, experiment


_REASONS = ("reason", "weights_reason")


def _targets(text: str, source: str) -> list[Mapping[str, Any]]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ClusterError(f"{source}: not valid JSON: {error}; give the capacity.json of a pipeline run") from None
    if not isinstance(document, dict) or document.get("kind") != "capacity":
        raise ClusterError(f"{source}: not a capacity model: create one with `flyball pipeline capacity`")
    if document.get("version") != VERSION:
        raise ClusterError(
            f"{source}: unsupported version {document.get('version')} (supported: {VERSION}): create it again with"
            " `flyball pipeline capacity`"
        )
    targets = document.get("targets")
    if not isinstance(targets, list) or not all(isinstance(target, dict) for target in targets) or not targets:
        why = document.get("reason") or "no targets"
        raise ClusterError(
            f"{source}: no capacity in this model: {why}; fit it to runs with different numbers of clients"
        )
    return targets


def _options(target: Mapping[str, Any]) -> dict[str, object] | None:
    producer, consumer = target.get("producer_weight"), target.get("consumer_weight")
    if _is_positive(producer) and _is_positive(consumer):
        return {"capacity": 1.0, "producer_weight": producer, "consumer_weight": consumer}
    knee, nodes = target.get("clients_at_knee"), target.get("nodes", 1)
    if _is_positive(knee) and _is_positive(nodes) and _is_positive(knee / nodes):
        return {"capacity": knee / nodes, "producer_weight": 1.0, "consumer_weight": 1.0}
    return None


def _is_positive(value: Any) -> bool:
    # JSON has integers beyond the range of floats, and Python's reader takes NaN and infinities.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= sys.float_info.max
