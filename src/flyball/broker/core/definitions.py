"""Stored definitions of features such as clustered queues and topics. The features interpret the values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flyball.broker.core.pending import Done, PendingChange
from flyball.broker.store.changes import DefinitionDeleted, DefinitionPut
from flyball.broker.store.group_commit import GroupCommit
from flyball.model import Definition


class Definitions:
    """Definitions by kind and key. A change takes effect at once, and is undone if the store fails."""

    def __init__(self, journal: GroupCommit, kinds: Iterable[str], definitions: Iterable[Definition]) -> None:
        self._journal = journal
        self._kept: dict[str, dict[str, Mapping[str, Any]]] = {kind: {} for kind in kinds}
        # Callbacks by kind, called with the key of a definition that changed here or on another node.
        self.on_changed: dict[str, Callable[[str], None]] = {}
        for definition in definitions:
            if definition.kind in self._kept:
                self._kept[definition.kind][definition.key] = definition.value

    def of(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """Return the definitions of a kind, by key."""
        return self._kept[kind]

    def put(self, definition: Definition, done: Done) -> None:
        """Add the definition, or replace the definition of the same kind and key."""
        kept = self._kept[definition.kind]
        before = kept.get(definition.key)
        kept[definition.key] = definition.value
        self._notify(definition.kind, definition.key)

        def undo() -> None:
            if kept.get(definition.key) is definition.value:
                if before is None:
                    del kept[definition.key]
                else:
                    kept[definition.key] = before
                self._notify(definition.kind, definition.key)

        self._journal.change(DefinitionPut(definition), PendingChange(done, undo))

    def delete(self, kind: str, key: str, done: Done) -> None:
        """Delete the definition, if it exists."""
        kept = self._kept[kind]
        before = kept.pop(key, None)
        if before is not None:
            self._notify(kind, key)

        def undo() -> None:
            if before is not None and key not in kept:
                kept[key] = before
                self._notify(kind, key)

        self._journal.change(DefinitionDeleted(kind, key), PendingChange(done, undo))

    def knows(self, kind: str) -> bool:
        return kind in self._kept

    def apply(self, change: DefinitionPut | DefinitionDeleted) -> None:
        """Apply a change made by another node."""
        if isinstance(change, DefinitionPut):
            self._kept[change.definition.kind][change.definition.key] = change.definition.value
            self._notify(change.definition.kind, change.definition.key)
        elif self._kept[change.kind].pop(change.key, None) is not None:
            self._notify(change.kind, change.key)

    def _notify(self, kind: str, key: str) -> None:
        notify = self.on_changed.get(kind)
        if notify is not None:
            notify(key)
