"""The versions of one model: the transitions between states, and the effect of one version's change on the others.

Pure: a change takes a history and its cause, and returns the next history. Both refer to versions by their numbers,
which are never reused. At most one version is in force, at most one runs in shadow, and only the one in force can be
pinned.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flyball.errors import ModelConflict, ModelNotFound

# Limits of the versions kept of a model. The versions in force, in shadow and next for a rollback are always kept.
MAX_VERSIONS = 20
MAX_VERSIONS_BYTES = 2 * 1024 * 1024
MAX_ENTRIES = 60

# Estimated memory, without texts, of a history, a version and a log entry with the values that they were read from.
HISTORY_BYTES = 2048
VERSION_BYTES = 4096
ENTRY_BYTES = 1024


class State(enum.StrEnum):
    """The state of a version."""

    # Published, not used.
    CANDIDATE = "candidate"
    # Consumers compute their actions with it, but apply those of the version in force.
    SHADOW = "shadow"
    # Its consumers use it.
    IN_FORCE = "in_force"
    # Replaced by a later version, or by one that an operator chose.
    SUPERSEDED = "superseded"
    # It failed a test, or an operator rejected it.
    REJECTED = "rejected"
    # It caused harm, in force or in shadow, and was rolled back.
    QUARANTINED = "quarantined"


# Permitted transitions by present state. A version becomes SUPERSEDED only when another one replaces it.
TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.CANDIDATE: frozenset({State.SHADOW, State.IN_FORCE, State.REJECTED, State.SUPERSEDED}),
    State.SHADOW: frozenset({State.IN_FORCE, State.REJECTED, State.QUARANTINED, State.SUPERSEDED}),
    State.IN_FORCE: frozenset({State.SUPERSEDED, State.QUARANTINED}),
    State.SUPERSEDED: frozenset({State.SHADOW, State.IN_FORCE, State.REJECTED}),
    State.REJECTED: frozenset({State.SHADOW, State.IN_FORCE}),
    State.QUARANTINED: frozenset({State.SHADOW, State.IN_FORCE, State.REJECTED}),
}
# Versions in these states are used again only if an operator forces it.
NEEDS_FORCE = frozenset({State.REJECTED, State.QUARANTINED})
# The states that a version may be published in, and those that may be requested for it later.
FIRST_STATES = (State.CANDIDATE, State.SHADOW, State.IN_FORCE, State.REJECTED)
REQUESTED_STATES = (State.SHADOW, State.IN_FORCE, State.REJECTED, State.QUARANTINED)


@dataclass(frozen=True, slots=True)
class Cause:
    """Time, user and reason of a change, and what was observed (JSON text), if anything."""

    at: float
    by: str
    reason: str = ""
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """The content of a version. Texts are JSON; equal digests mean the same document and evidence."""

    digest: str
    document: str
    evidence: str
    certificate: str | None
    summary: str
    is_sound: bool | None
    objections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of a model and its state. Its document, evidence and certificate never change."""

    number: int
    state: State
    # When it entered this state, and why.
    since: float
    reason: str
    digest: str
    document: str
    evidence: str
    certificate: str | None
    summary: str
    # None without a certificate.
    is_sound: bool | None
    objections: tuple[str, ...] = ()
    published_at: float
    published_by: str
    # When it was last put in force, and when it was last taken out of force.
    valid_from: float | None = None
    valid_until: float | None = None
    # Number of activations of the model's versions up to this one's last; 0 if it was never in force.
    turn: int = 0
    # It was put in force although it is unsound, or had been rejected or quarantined.
    is_forced: bool = False
    # Observations at its last change of state, as JSON text.
    outcome: str | None = None

    @property
    def size_bytes(self) -> int:
        """Estimated memory."""
        texts = (self.document, self.evidence, self.certificate, self.outcome, self.reason, *self.objections)
        return VERSION_BYTES + sum(sys.getsizeof(text) for text in texts if text is not None)


@dataclass(frozen=True, slots=True)
class Entry:
    """A change of a version's state, or of its pin (`pinned`, `unpinned`)."""

    at: float
    by: str
    version: int
    # None for a new version.
    before: str | None
    after: str
    reason: str


@dataclass(frozen=True, slots=True)
class History:
    """The kept versions of a model, oldest first, and the log of their changes."""

    kind: str
    scope: str
    versions: tuple[Version, ...] = ()
    entries: tuple[Entry, ...] = ()
    # The version that must stay in force.
    pinned: int | None = None
    next_number: int = 1
    turns: int = 0
    # Number of changes so far, and of log entries, including dropped ones.
    revision: int = 0
    logged: int = 0

    # Queries

    def find(self, number: int) -> Version | None:
        return next((version for version in self.versions if version.number == number), None)

    def get(self, number: int) -> Version:
        """Return a version by its number. Raises ModelNotFound."""
        found = self.find(number)
        if found is None:
            raise ModelNotFound(self.kind, self.scope, number)
        return found

    def in_state(self, state: State) -> Version | None:
        """Return the newest version with the state."""
        return next((version for version in reversed(self.versions) if version.state is state), None)

    @property
    def in_force(self) -> Version | None:
        return self.in_state(State.IN_FORCE)

    @property
    def in_shadow(self) -> Version | None:
        return self.in_state(State.SHADOW)

    @property
    def previous(self) -> Version | None:
        """The version that a rollback puts in force: the last one that was superseded while in force."""
        was_in_force = [each for each in self.versions if each.state is State.SUPERSEDED and each.turn]
        return max(was_in_force, key=lambda version: version.turn, default=None)

    def entries_since(self, before: History) -> Sequence[Entry]:
        """Return the log entries added since an earlier history."""
        return self.entries[len(self.entries) - (self.logged - before.logged) :]

    @property
    def size_bytes(self) -> int:
        """Estimated memory."""
        entries_bytes = sum(ENTRY_BYTES + sys.getsizeof(entry.reason) for entry in self.entries)
        return HISTORY_BYTES + entries_bytes + sum(version.size_bytes for version in self.versions)

    # Changes

    def publish(
        self, draft: Draft, state: State, cause: Cause, *, force: bool = False
    ) -> tuple[History, Version, bool]:
        """Add a version; return the history, the version and whether it is new.

        An existing version with the same document and evidence is returned unchanged. Raises ModelConflict if a
        version may not be published in that state.
        """
        known = next((version for version in self.versions if version.digest == draft.digest), None)
        if known is not None:
            return self, known, False
        if state not in FIRST_STATES:
            raise ModelConflict(f"a version cannot be published as {shown(state)}: use {_list(FIRST_STATES)}")
        version = Version(
            number=self.next_number,
            state=State.CANDIDATE,
            since=cause.at,
            reason=cause.reason,
            published_at=cause.at,
            published_by=cause.by,
            **{field.name: getattr(draft, field.name) for field in dataclasses.fields(draft)},
        )
        added = replace(self, versions=(*self.versions, version), next_number=self.next_number + 1)
        if state is State.CANDIDATE:
            found = added._log(cause, version.number, None, state)
        else:
            added._check(version, state, force=force)
            found = added._enter(version, state, cause, is_new=True, force=force)
        # Keep the new version: as a mere candidate it could be dropped first.
        return found._finished(keep=version.number), found.get(version.number), True

    def request(
        self, number: int, state: State, cause: Cause, *, force: bool = False, expected: State | None = None
    ) -> History:
        """Change the state of a version; with `expected`, only if that is its present state. Raises ModelConflict."""
        version = self.get(number)
        if expected is not None and version.state is not expected:
            raise ModelConflict(
                f"version {number} of {self.title} is {shown(version.state)}, not {shown(expected)}: read it again"
            )
        if version.state is state:
            return self
        if state is State.QUARANTINED and version.state is State.IN_FORCE:
            raise ModelConflict(f"version {number} of {self.title} is in force: roll it back")
        if state not in REQUESTED_STATES or state not in TRANSITIONS[version.state]:
            raise ModelConflict(
                f"version {number} of {self.title} is {shown(version.state)} and cannot become {shown(state)}"
            )
        self._check(version, state, force=force)
        return self._enter(version, state, cause, force=force)._finished(keep=number)

    def pin(self, number: int, cause: Cause, *, force: bool = False) -> History:
        """Put a version in force and keep it there until `unpin`. Raises ModelConflict."""
        if self.pinned == number:
            return self
        placed = self.request(number, State.IN_FORCE, cause, force=force)
        logged = placed._log(cause, number, State.IN_FORCE, "pinned")
        return replace(logged, pinned=number)._finished(keep=number)

    def unpin(self, cause: Cause) -> History:
        """Let other versions take over again. Raises ModelConflict if none is pinned."""
        if self.pinned is None:
            raise ModelConflict(f"no version of {self.title} is pinned")
        logged = self._log(cause, self.pinned, State.IN_FORCE, "unpinned")
        return replace(logged, pinned=None)._finished()

    def roll_back(self, cause: Cause, to: int | None = None) -> History:
        """Quarantine the version in force, and put its predecessor, or version `to`, in force.

        Without an earlier version none is in force afterwards, and consumers use their defaults. A version that was
        in force before returns without `force`. Raises ModelConflict.
        """
        leaving = self.in_force
        if leaving is None:
            raise ModelConflict(f"no version of {self.title} is in force")
        self._check_pin(None)
        returning = self.previous if to is None else self.get(to)
        if returning is not None and (returning.state is not State.SUPERSEDED or not returning.turn):
            raise ModelConflict(
                f"version {returning.number} of {self.title} is {shown(returning.state)}: a rollback needs a version"
                " that was in force and was superseded"
            )
        found = self._with(leaving, State.QUARANTINED, cause)
        if returning is not None:
            because = replace(cause, reason=f"version {leaving.number} was rolled back: {cause.reason}", outcome=None)
            found = found._with(returning, State.IN_FORCE, because)
        return found._finished()

    # Internals

    @property
    def title(self) -> str:
        return f"the {self.kind} model for scope '{self.scope}'"

    def _check(self, version: Version, state: State, *, force: bool) -> None:
        """Raise ModelConflict if the version may not enter a state that its present state permits."""
        if state is State.IN_FORCE:
            self._check_pin(version.number)
        if force or state not in (State.SHADOW, State.IN_FORCE):
            return
        if version.state in NEEDS_FORCE:
            raise ModelConflict(
                f"version {version.number} of {self.title} was {version.state}:"
                f" {version.reason or 'no reason given'}; use force to overrule that"
            )
        if state is State.IN_FORCE and version.is_sound is False:
            reasons = "; ".join(version.objections) or "no reason given"
            raise ModelConflict(
                f"version {version.number} of {self.title} is not sound: {reasons}; use force to overrule that"
            )

    def _check_pin(self, number: int | None) -> None:
        if self.pinned is not None and self.pinned != number:
            raise ModelConflict(f"version {self.pinned} of {self.title} is pinned: unpin it first")

    def _enter(
        self, version: Version, state: State, cause: Cause, *, is_new: bool = False, force: bool = False
    ) -> History:
        """Change the state of a version, and supersede the versions that it replaces."""
        found = self
        for other in self.versions:
            if other.number != version.number and _gives_way(other, version, state):
                verb = "took over" if state is State.IN_FORCE else "runs in shadow instead"
                reason = f"version {version.number} {verb}" + (f": {cause.reason}" if cause.reason else "")
                found = found._with(other, State.SUPERSEDED, replace(cause, reason=reason, outcome=None))
        return found._with(version, state, cause, is_new=is_new, force=force)

    def _with(
        self, version: Version, state: State, cause: Cause, *, is_new: bool = False, force: bool = False
    ) -> History:
        assert state in TRANSITIONS[version.state], "checked by the caller"
        turns = self.turns
        changed = replace(version, state=state, since=cause.at, reason=cause.reason, outcome=cause.outcome)
        if state is State.IN_FORCE:
            turns += 1
            overrules = force and (version.is_sound is False or version.state in NEEDS_FORCE)
            # A version that returns by a rollback was accepted before.
            is_forced = overrules or (version.is_forced and version.is_sound is False)
            changed = replace(changed, turn=turns, valid_from=cause.at, valid_until=None, is_forced=is_forced)
        elif version.state is State.IN_FORCE:
            changed = replace(changed, valid_until=cause.at)
        versions = tuple(changed if one.number == version.number else one for one in self.versions)
        logged = self._log(cause, version.number, None if is_new else version.state, state)
        return replace(logged, versions=versions, turns=turns)

    def _log(self, cause: Cause, number: int, before: str | None, after: str) -> History:
        entry = Entry(cause.at, cause.by, number, None if before is None else str(before), str(after), cause.reason)
        return replace(self, entries=(*self.entries, entry)[-MAX_ENTRIES:], logged=self.logged + 1)

    def _finished(self, keep: int | None = None) -> History:
        """Drop the oldest versions beyond the limits, and count the change."""
        needed = {version.number for version in (self.in_force, self.in_shadow, self.previous) if version is not None}
        needed |= {number for number in (self.pinned, keep) if number is not None}
        versions = list(self.versions)
        total_bytes = sum(version.size_bytes for version in versions)
        for version in self.versions:
            if len(versions) <= MAX_VERSIONS and total_bytes <= MAX_VERSIONS_BYTES:
                break
            if version.number not in needed:
                versions.remove(version)
                total_bytes -= version.size_bytes
        return replace(self, versions=tuple(versions), revision=self.revision + 1)


def _gives_way(other: Version, version: Version, state: State) -> bool:
    """Whether `other` is superseded when `version` gets the state."""
    if state is State.IN_FORCE:
        # Older waiting versions are outdated; newer ones may still take over.
        is_older = other.number < version.number
        return other.state is State.IN_FORCE or (is_older and other.state in (State.CANDIDATE, State.SHADOW))
    return state is State.SHADOW and other.state is State.SHADOW


def shown(state: State | str) -> str:
    """Return a state in words."""
    return str(state).replace("_", " ")


def _list(states: Sequence[State]) -> str:
    return ", ".join(states)


def history_to_json(history: History) -> dict[str, Any]:
    """Return the history as it is stored."""
    found = dataclasses.asdict(history)
    for version in found["versions"]:
        version["state"] = str(version["state"])
        version["objections"] = list(version["objections"])
    return {**found, "versions": list(found["versions"]), "entries": list(found["entries"])}


def history_from_json(value: Mapping[str, Any]) -> History:
    """Return a stored history; fields of later versions of the program are ignored. Raises ValueError."""
    try:
        versions = tuple(
            Version(
                **{
                    **_known(Version, one),
                    "state": State(one["state"]),
                    "objections": tuple(one.get("objections", ())),
                }
            )
            for one in value["versions"]
        )
        entries = tuple(Entry(**_known(Entry, one)) for one in value["entries"])
        return History(**{**_known(History, value), "versions": versions, "entries": entries})
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not the history of a model: {error!r}") from error


def _known(kind: type, value: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: one for name, one in value.items() if name in names}
