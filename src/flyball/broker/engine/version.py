"""A version number that invalidates caches."""

from __future__ import annotations


class Version:
    """Shared by all objects whose changes invalidate the same caches. A cached result is stored with its number."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def advance(self) -> None:
        """Invalidate cached results."""
        self.number += 1
