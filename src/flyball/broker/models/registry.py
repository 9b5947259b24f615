"""The models of a domain, stored as definitions that every node applies.

All versions of a model are one definition, so a change is atomic, even if a node crashes. Changes are made on one
node at a time, the leader of a domain (`cluster.models`); `changed` reports them on every node. Consumers read from
memory, so they continue with the last version while the store is unavailable.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError, validate_call

from flyball.broker.core.arguments import invalid_argument
from flyball.broker.core.definitions import Definitions
from flyball.broker.core.pending import outcome
from flyball.broker.models.history import (
    FIRST_STATES,
    REQUESTED_STATES,
    Cause,
    Entry,
    History,
    State,
    Version,
    history_from_json,
    history_to_json,
)
from flyball.broker.models.kinds import check_kind
from flyball.broker.models.scopes import Scope
from flyball.broker.models.texts import MAX_OUTCOME_BYTES, checked_reason, draft_of, json_text
from flyball.errors import InvalidArgument, ModelConflict, ModelNotFound
from flyball.events import Event
from flyball.model import Definition

log = logging.getLogger(__name__)

# The kind of a model's definition.
KIND = "model"

_checked = validate_call(config=ConfigDict(arbitrary_types_allowed=True, strict=True))
_Number = Annotated[int, Field(ge=1)]
_Object = dict[str, Any]
CatchUp = Callable[[], Coroutine[Any, Any, None]]
# What a change returns: the number of the version, whether it is new, and the revision of the model.
Changed = dict[str, Any]


async def _no_others() -> None:
    """Do nothing: this is a single node."""


class Models:
    """The registry as this node knows it."""

    def __init__(
        self,
        definitions: Definitions,
        charge: Callable[[int], None] = lambda size_bytes: None,
        catch_up: CatchUp = _no_others,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`charge` raises MemoryLimitReached if there is no memory for this number of bytes; `catch_up` applies the
        changes of other nodes.
        """
        self._definitions = definitions
        self._charge = charge
        self._catch_up = catch_up
        self._now = now
        self._histories: dict[str, History] = {}
        # Memory of all models.
        self.size_bytes = 0
        # Fires on every node, with kind and scope of a model that has changed.
        self.changed: Event[[str, Scope]] = Event()
        # Fires on the node that made a change, once for each entry of the model's log.
        self.decided: Event[[History, Entry]] = Event()
        definitions.on_changed[KIND] = self._follow
        for key in definitions.of(KIND):
            self._read(key)
        self.commands: Mapping[str, Callable[..., Coroutine[Any, Any, Changed]]] = {
            "publish": _checked(self.publish),
            "state": _checked(self.set_state),
            "pin": _checked(self.pin),
            "unpin": _checked(self.unpin),
            "rollback": _checked(self.roll_back),
            "delete": _checked(self.delete),
        }

    # Queries

    def all(self) -> list[History]:
        """Return all models, by kind and scope."""
        return [self._histories[key] for key in sorted(self._histories)]

    def find(self, kind: str, scope: Scope) -> History | None:
        return self._histories.get(_key(kind, scope))

    def get(self, kind: str, scope: Scope) -> History:
        """Return a model. Raises ModelNotFound, and InvalidArgument for an unknown kind."""
        check_kind(kind)
        found = self.find(kind, scope)
        if found is None:
            raise ModelNotFound(kind, str(scope))
        return found

    def in_force(self, kind: str, *scopes: Scope) -> Version | None:
        """Return the version in force for the first of these scopes that has one."""
        return self._first(State.IN_FORCE, kind, scopes)

    def in_shadow(self, kind: str, *scopes: Scope) -> Version | None:
        """Return the version in shadow for the first of these scopes that has one."""
        return self._first(State.SHADOW, kind, scopes)

    def _first(self, state: State, kind: str, scopes: tuple[Scope, ...]) -> Version | None:
        for scope in scopes:
            history = self.find(kind, scope)
            version = None if history is None else history.in_state(state)
            if version is not None:
                return version
        return None

    # Changes. Each is durable when it returns. Raises FlyballError.

    async def run(self, command: str, by: str, arguments: Mapping[str, Any]) -> Changed:
        """Run a command with unvalidated arguments. Raises InvalidArgument for invalid ones."""
        found = self.commands.get(command)
        if found is None:
            raise InvalidArgument(f"unknown command {command!r}: use {', '.join(self.commands)}")
        try:
            await self._catch_up()
            return await found(by=by, **arguments)
        except ValidationError as error:
            raise invalid_argument(f"model.{command}", error) from None

    async def publish(
        self,
        kind: str,
        scope: str,
        document: _Object,
        by: str,
        evidence: _Object | None = None,
        certificate: _Object | None = None,
        state: str = State.CANDIDATE,
        reason: str = "",
        force: bool = False,
    ) -> Changed:
        """Add a version; an existing one with the same document and evidence is unchanged."""
        place, cause, first = Scope.parse(scope), self._cause(by, reason), _state(state, FIRST_STATES)
        # In a thread: reading a large document takes many milliseconds.
        draft = await asyncio.to_thread(draft_of, kind, document, evidence or {}, certificate)
        before = self.find(kind, place) or History(kind, str(place))
        after, version, is_new = before.publish(draft, first, cause, force=force)
        if is_new:
            self._charge(max(0, after.size_bytes - before.size_bytes))
        await self._keep(before, after)
        return _result(after, version.number, is_new=is_new)

    async def set_state(
        self,
        kind: str,
        scope: str,
        version: _Number,
        state: str,
        by: str,
        reason: str = "",
        force: bool = False,
        expected: str | None = None,
        outcome: _Object | None = None,
    ) -> Changed:
        """Change the state of a version; with `expected`, only if that is its present state."""
        wanted = _state(state, REQUESTED_STATES)
        needed = None if expected is None else _state(expected, tuple(State))
        before, cause = self.get(kind, Scope.parse(scope)), self._cause(by, reason, outcome)
        after = before.request(version, wanted, cause, force=force, expected=needed)
        await self._keep(before, after)
        return _result(after, version)

    async def pin(
        self, kind: str, scope: str, version: _Number | None, by: str, reason: str = "", force: bool = False
    ) -> Changed:
        """Keep a version in force, by default the present one."""
        before, cause = self.get(kind, Scope.parse(scope)), self._cause(by, reason)
        number = version if version is not None else _in_force(before).number
        after = before.pin(number, cause, force=force)
        await self._keep(before, after)
        return _result(after, number)

    async def unpin(self, kind: str, scope: str, by: str, reason: str = "") -> Changed:
        before, cause = self.get(kind, Scope.parse(scope)), self._cause(by, reason)
        after = before.unpin(cause)
        await self._keep(before, after)
        return _result(after, before.pinned)

    async def roll_back(
        self,
        kind: str,
        scope: str,
        by: str,
        to: _Number | None = None,
        reason: str = "",
        expected: _Number | None = None,
        outcome: _Object | None = None,
    ) -> Changed:
        """Quarantine the version in force and return to an earlier one; with `expected` only if that one is in
        force.
        """
        before, cause = self.get(kind, Scope.parse(scope)), self._cause(by, reason, outcome)
        present = before.in_force
        if expected is not None and (present is None or present.number != expected):
            raise ModelConflict(f"version {expected} of {before.title} is not in force: read it again")
        after = before.roll_back(cause, to)
        await self._keep(before, after)
        return _result(after, None if after.in_force is None else after.in_force.number)

    async def delete(self, kind: str, scope: str, by: str, reason: str = "") -> Changed:
        """Delete all versions of a model; consumers use their defaults. Raises ModelConflict for a pinned one."""
        before, cause = self.get(kind, Scope.parse(scope)), self._cause(by, reason)
        if before.pinned is not None:
            raise ModelConflict(f"version {before.pinned} of {before.title} is pinned: unpin it first")
        await outcome(lambda done: self._definitions.delete(KIND, _key(before.kind, before.scope), done))
        self.decided(before, Entry(cause.at, by, before.next_number - 1, None, "deleted", cause.reason))
        return _result(before, None)

    # Internals

    def _cause(self, by: str, reason: str, outcome: _Object | None = None) -> Cause:
        observed = None if outcome is None else json_text("outcome", outcome, MAX_OUTCOME_BYTES)
        return Cause(self._now(), by, checked_reason(reason), observed)

    async def _keep(self, before: History, after: History) -> None:
        """Make a history durable. It is written even if unchanged: the change that it repeats may not be durable yet.

        Raises ModelConflict if another node has changed the model concurrently, such as a leader that does not know
        yet that another node leads: of two such changes the later one counts, on all nodes.
        """
        key = _key(after.kind, after.scope)
        definition = Definition(KIND, key, history_to_json(after))
        await outcome(lambda done: self._definitions.put(definition, done))
        if after is before:
            return
        await self._catch_up()
        present = self._histories.get(key)
        if present is None or after.entries[-1] not in present.entries:
            raise ModelConflict(f"{after.title} was changed by another node at the same time: read it again")
        for entry in after.entries_since(before):
            self.decided(after, entry)

    def _follow(self, key: str) -> None:
        """Read a model that this node or another one has changed."""
        self._read(key)
        kind, scope = json.loads(key)
        self.changed(kind, Scope.parse(scope))

    def _read(self, key: str) -> None:
        value = self._definitions.of(KIND).get(key)
        try:
            found = None if value is None else history_from_json(value)
        except ValueError as error:
            # A node of a newer version wrote it: this one keeps its present state.
            log.warning("model ignored key=%s: %s", key, error)
            return
        known = self._histories.pop(key, None)
        self.size_bytes -= 0 if known is None else known.size_bytes
        if found is not None:
            self._histories[key] = found
            self.size_bytes += found.size_bytes


def _key(kind: str, scope: Scope | str) -> str:
    return json.dumps([kind, str(scope)], ensure_ascii=False)


def _state(text: str, states: tuple[State, ...]) -> State:
    if text not in list(states):
        raise InvalidArgument(f"invalid state {text!r}: use {', '.join(states)}")
    return State(text)


def _in_force(history: History) -> Version:
    version = history.in_force
    if version is None:
        raise ModelConflict(f"no version of {history.title} is in force")
    return version


def _result(history: History, number: int | None, *, is_new: bool = False) -> Changed:
    return {
        "kind": history.kind,
        "scope": history.scope,
        "version": number,
        "is_new": is_new,
        "revision": history.revision,
    }
