"""A count of changes, for those who keep what they have derived."""

from __future__ import annotations


class Version:
    """Counts up with every change of anything that shares it. Whoever keeps an answer keeps the number with it."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def advance(self) -> None:
        """Something has changed: answers that were kept may be wrong."""
        self.number += 1
