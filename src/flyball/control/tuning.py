"""The tuning of a loop, as its samples record it: mode, gains, limits, and the version of its model."""

from __future__ import annotations

import enum
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Mode(enum.StrEnum):
    """The origin of a sample's action."""

    # A signal for identification was applied; no law was involved.
    OPEN = "open"
    # The law computed an action, which was not applied.
    SHADOW = "shadow"
    ACTIVE = "active"
    # The law acts although no certificate proves it sound.
    FORCED = "forced"


@dataclass(frozen=True, slots=True)
class Tuning:
    """The settings of a loop, which seldom change. An empty text is unknown; an infinite limit does not limit."""

    # The law as JSON; see `law_to_json`.
    gains: str = ""
    # Hash of the gains, for comparing and grouping.
    fingerprint: str = ""
    # Version of the model that the gains were designed for.
    model_version: str = ""
    lowest: float = -math.inf
    highest: float = math.inf


UNTUNED = Tuning()

# Longer gains, such as those of a signal for identification, are recorded by their kind and fingerprint.
MAX_GAINS_LENGTH = 1000

_FINGERPRINT_LENGTH = 12


def tuning_of(
    law: Mapping[str, Any], *, lowest: float = -math.inf, highest: float = math.inf, model_version: str = ""
) -> Tuning:
    """Describe a law, given as a document, with its limits."""
    gains = json.dumps(law, sort_keys=True, separators=(",", ":"))
    fingerprint = hashlib.sha256(gains.encode()).hexdigest()[:_FINGERPRINT_LENGTH]
    if len(gains) > MAX_GAINS_LENGTH:
        gains = json.dumps({"kind": law.get("kind")})
    return Tuning(gains, fingerprint, model_version, lowest, highest)
