"""Changes of this node that have not yet appeared in the domain's log of changes, whose order all nodes share.

A node applies its own changes at once, and earlier changes of other nodes only later. It therefore applies its own
again when they appear later in the log, so that all nodes agree on the last change
(`test_nodes_that_change_the_same_at_the_same_time_agree_on_the_last_change`).
"""

from __future__ import annotations

from flyball.broker.store.changes import Change, DefinitionDeleted, DefinitionPut

Place = tuple[str, str]


class LocalChanges:
    """The definitions with pending changes made by this node."""

    def __init__(self) -> None:
        # By definition, the number of its pending changes, and the number of others' changes at the last of them.
        self._under_way: dict[Place, tuple[int, int]] = {}
        self._others = 0
        # Counts all changes of this node.
        self.count = 0

    def add(self, change: Change) -> None:
        """Record a change of this node that is not durable yet."""
        if isinstance(change, DefinitionPut | DefinitionDeleted):
            place = _place_of(change)
            before, _ = self._under_way.get(place, (0, 0))
            self._under_way[place] = (before + 1, self._others)
            self.count += 1

    def others_changed(self) -> None:
        """Record that a change of another node was applied, which may have undone a pending one."""
        self._others += 1

    def meet(self, change: Change) -> bool:
        """Return whether a change of this node that has appeared in the log must be applied again.

        It must not if a later change of the same definition is pending: that one is applied when it appears. An
        unexpected change appears a second time because its commit was repeated, and the last occurrence counts.
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
        """Forget pending changes: those that have not appeared failed."""
        self._under_way.clear()


def _place_of(change: DefinitionPut | DefinitionDeleted) -> Place:
    if isinstance(change, DefinitionPut):
        return change.definition.kind, change.definition.key
    return change.kind, change.key
