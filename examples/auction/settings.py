"""How an auction site is set up: how big it is, what stands between it and its visitors.

Only words and their limits: an experiment is checked with them, wherever the site itself will run.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flyball.lab.auction.sizes import RUBIS, SMALL, Sizes

Policy = Literal[
    "none",
    "integral",
    "classes",
    "round_robin",
    "static",
    "strict",
    "dps",
    "memoryless",
    "semaphore",
    "uvicorn",
    "gradient",
]
# Those that are admission control of ours.
CONTROLLED = ("integral", "classes", "round_robin", "static", "strict", "dps", "memoryless")

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Ratio = Annotated[float, Field(gt=0, le=1)]

_SIZES = {"small": SMALL, "rubis": RUBIS}


class SiteSettings(BaseModel):
    """All of it, with units in the names. Unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # What admits requests: nothing, our control in its variants, or what others would use.
    policy: Policy = "none"
    size: Literal["small", "rubis"] = "small"
    # Instead of what the size says; and so for the next two.
    users: Count | None = None
    items: Count | None = None
    old_items: Count | None = None
    data_seed: int = 1
    pool_size: Count = 20
    # Time that a request waits for a connection of the pool before it fails.
    pool_wait_s: Positive = 5.0
    # What costs are counted in.
    unit: Literal["ms", "connections"] = "ms"
    # The load that control holds, in cost per second; None: it is found by slow start.
    reference: Positive | None = None
    gain: Positive = 0.3
    period_s: Positive = 0.25
    # Time that a request waits for admission.
    deadline_s: Positive = 5.0
    queue_limit: Count = 1000
    full_ratio: Ratio = 0.75
    # Concurrent requests that semaphore and uvicorn admit; the first limit of gradient.
    limit: Count = 20
    # What requests cost, as in a profile.json; None: it is learned while the site runs.
    profile: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_rows(self) -> Self:
        if self.sizes.users < 20:
            raise ValueError("users: a site needs 20 at least")
        return self

    @property
    def sizes(self) -> Sizes:
        """How big the database is."""
        given = {name: getattr(self, name) for name in ("users", "items", "old_items")}
        return dataclasses.replace(_SIZES[self.size], **{name: value for name, value in given.items() if value})
