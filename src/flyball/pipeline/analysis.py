"""From traces to everything a report says: calls the stages in order and writes what they find.

The only place that knows all stages. Statistics and models are theirs; how it looks is the report's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from flyball.pipeline.manifest import Experiment, Run


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that was found out about one folder of traces; small enough for memory, whatever the traces are."""

    experiments: list[Experiment]
    runs: list[Run]
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    """By name, as `docs/pipeline.md` lists them; a table without rows has its columns all the same."""
    models: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """What the JSON files hold: `profile`, `model` and `capacity`, as far as the data allow."""
