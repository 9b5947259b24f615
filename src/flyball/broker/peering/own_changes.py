"""What this node has changed and not met yet among the changes of the domain, whose order is the same for all.

A node makes its own changes at once. What others have changed before them it hears later, and so has to make those
again that count by the order of all. What a definition says is not known here.
"""

from __future__ import annotations

from flyball.broker.store.changes import Change, DefinitionDeleted, DefinitionPut

Place = tuple[str, str]


class OwnChanges:
    """The definitions whose changes by this node are under way."""

    def __init__(self) -> None:
        # How many changes of each, and how many of other nodes were known when the last one was made.
        self._under_way: dict[Place, tuple[int, int]] = {}
        self._others = 0
        # How many changes there have ever been.
        self.count = 0

    def add(self, change: Change) -> None:
        """This node has made a change, which is not durable yet."""
        if isinstance(change, DefinitionPut | DefinitionDeleted):
            place = _place_of(change)
            before, _ = self._under_way.get(place, (0, 0))
            self._under_way[place] = (before + 1, self._others)
            self.count += 1

    def others_changed(self) -> None:
        """A change of another node was made, which may have undone what is under way, or what that hangs on."""
        self._others += 1

    def meet(self, change: Change) -> bool:
        """A change of this node has its place among all: return whether it has to be made again.

        One that was followed by another to the same definition has not: that one is still to come. One that nobody
        expects was told twice, and counts where it was told last.
        """
        if not isinstance(change, DefinitionPut | DefinitionDeleted):
            return False
        place = _place_of(change)
        if place not in self._under_way:
            return True
        left, others = self._under_way.pop(place)
        if left > 1:
            self._under_way[place] = (left - 1, others)
            return False
        return others != self._others

    def clear(self) -> None:
        """Nothing is under way any more: what was not met has failed."""
        self._under_way.clear()


def _place_of(change: DefinitionPut | DefinitionDeleted) -> Place:
    if isinstance(change, DefinitionPut):
        return change.definition.kind, change.definition.key
    return change.kind, change.key
