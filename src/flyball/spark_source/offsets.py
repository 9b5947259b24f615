"""The offset of a stream in Spark's checkpoint: the mode, and the last message id of each queue."""

from __future__ import annotations

from typing import Any

from flyball.spark_source.options import CONSUME, PEEK


def offset(mode: str, last_ids: dict[str, int]) -> dict[str, Any]:
    """Return an offset for Spark. It has the mode, so that a checkpoint shows which messages may be removed."""
    return {mode: last_ids}


def of(offset: dict[str, Any]) -> dict[str, int]:
    """Return the last message id of each queue."""
    found: dict[str, int] = offset.get(CONSUME) or offset.get(PEEK) or {}
    return found


def consumed(offset: Any) -> dict[str, int]:
    """Return the last message id of each queue in mode consume; empty for other offsets."""
    found = offset.get(CONSUME) if isinstance(offset, dict) else None
    return found if isinstance(found, dict) else {}
