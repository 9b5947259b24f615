"""Settings of an auction site: its size, and the admission policy.

Definitions and limits only, with which an experiment can be validated on any host.
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
# The policies that use Flyball's admission control.
CONTROLLED = ("integral", "classes", "round_robin", "static", "strict", "dps", "memoryless")

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Ratio = Annotated[float, Field(gt=0, le=1)]

_SIZES = {"small": SMALL, "rubis": RUBIS}


class SiteSettings(BaseModel):
    """All settings, with units in the names. Unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Admission policy: none, a variant of Flyball's, or a common limit.
    policy: Policy = "none"
    size: Literal["small", "rubis"] = "small"
    # These three override the values of `size`.
    users: Count | None = None
    items: Count | None = None
    old_items: Count | None = None
    data_seed: int = 1
    pool_size: Count = 20
    # Time that a request waits for a connection of the pool before it fails.
    pool_wait_s: Positive = 5.0
    # Unit of costs.
    unit: Literal["ms", "connections"] = "ms"
    # Setpoint of the load, in cost per second; None: found by slow start.
    reference: Positive | None = None
    gain: Positive = 0.3
    period_s: Positive = 0.25
    # Time that a request waits for admission.
    deadline_s: Positive = 5.0
    queue_limit: Count = 1000
    full_ratio: Ratio = 0.75
    # Concurrent requests that semaphore and uvicorn admit; the first limit of gradient.
    limit: Count = 20
    # Costs of requests, as in a profile.json; None: learned while the site runs.
    profile: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_rows(self) -> Self:
        if self.sizes.users < 20:
            raise ValueError("users: a site needs 20 at least")
        return self

    @property
    def sizes(self) -> Sizes:
        """The size of the database."""
        given = {name: getattr(self, name) for name in ("users", "items", "old_items")}
        return dataclasses.replace(_SIZES[self.size], **{name: value for name, value in given.items() if value})
