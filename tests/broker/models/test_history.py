"""The versions of a model: states, takeover, rollback, pins and limits, without I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flyball.broker.models import history as history_module
from flyball.broker.models.history import (
    FIRST_STATES,
    REQUESTED_STATES,
    TRANSITIONS,
    Cause,
    Draft,
    History,
    State,
    history_from_json,
    history_to_json,
)
from flyball.errors import ModelConflict, ModelNotFound

EMPTY = History("capacity", "domain")
CAUSE = Cause(1.0, "guest", "a test")


def draft(name: str = "a", *, is_sound: bool | None = True, size: int = 10) -> Draft:
    objections = ("its gain margin is 1.2",) if is_sound is False else ()
    return Draft(name, "x" * size, "{}", None, f"model {name}", is_sound, objections)


def in_force(*names: str) -> History:
    """Return a history in which these versions came into force, one after the other."""
    found = EMPTY
    for at, name in enumerate(names):
        found, _, _ = found.publish(draft(name), State.IN_FORCE, Cause(float(at), "guest", f"published {name}"))
    return found


def states(history: History) -> dict[int, str]:
    return {version.number: str(version.state) for version in history.versions}


def test_version_takes_over_from_the_one_in_force() -> None:
    history = in_force("a", "b")
    assert states(history) == {1: "superseded", 2: "in_force"}
    first, second = history.versions
    assert (first.valid_from, first.valid_until, first.reason) == (0.0, 1.0, "version 2 took over: published b")
    assert (second.valid_from, second.valid_until) == (1.0, None)
    assert [(entry.version, entry.before, entry.after) for entry in history.entries] == [
        (1, None, "in_force"),
        (1, "in_force", "superseded"),
        (2, None, "in_force"),
    ]


def test_same_document_and_evidence_are_the_same_version() -> None:
    history = in_force("a", "b")
    again, version, is_new = history.publish(draft("a"), State.IN_FORCE, CAUSE)
    assert (again, version.number, is_new) == (history, 1, False)


def test_candidate_waits_until_it_is_put_in_force() -> None:
    history, version, _ = in_force("a").publish(draft("b"), State.CANDIDATE, CAUSE)
    assert states(history) == {1: "in_force", 2: "candidate"}
    history = history.request(version.number, State.SHADOW, CAUSE, expected=State.CANDIDATE)
    assert states(history) == {1: "in_force", 2: "shadow"}
    history = history.request(version.number, State.IN_FORCE, CAUSE, expected=State.SHADOW)
    assert states(history) == {1: "superseded", 2: "in_force"}


def test_newer_shadow_replaces_the_present_one() -> None:
    history, _, _ = in_force("a").publish(draft("b"), State.SHADOW, CAUSE)
    history, _, _ = history.publish(draft("c"), State.SHADOW, CAUSE)
    assert states(history) == {1: "in_force", 2: "superseded", 3: "shadow"}
    # It never was in force: a rollback does not go there.
    history = history.request(3, State.IN_FORCE, CAUSE).roll_back(CAUSE)
    assert states(history) == {1: "in_force", 2: "superseded", 3: "quarantined"}


def test_takeover_leaves_newer_candidates_alone() -> None:
    history, _, _ = EMPTY.publish(draft("a"), State.CANDIDATE, CAUSE)
    history, _, _ = history.publish(draft("b"), State.SHADOW, CAUSE)
    history, _, _ = history.publish(draft("c"), State.CANDIDATE, CAUSE)
    history = history.request(2, State.IN_FORCE, CAUSE)
    assert states(history) == {1: "superseded", 2: "in_force", 3: "candidate"}


def test_request_that_expects_another_state_is_refused() -> None:
    history = in_force("a", "b")
    with pytest.raises(ModelConflict, match="is superseded, not shadow: read it again"):
        history.request(1, State.IN_FORCE, CAUSE, expected=State.SHADOW)


def test_rollback_quarantines_and_returns_to_the_last_good_version() -> None:
    history = in_force("a", "b", "c").roll_back(Cause(9.0, "guest", "oscillates", '{"rms": 2}'))
    assert states(history) == {1: "superseded", 2: "in_force", 3: "quarantined"}
    bad, good = history.get(3), history.get(2)
    assert (bad.reason, bad.outcome, bad.valid_until) == ("oscillates", '{"rms": 2}', 9.0)
    assert (good.reason, good.outcome) == ("version 3 was rolled back: oscillates", None)
    assert states(history.roll_back(CAUSE)) == {1: "in_force", 2: "quarantined", 3: "quarantined"}


def test_rollback_of_the_only_version_leaves_the_defaults() -> None:
    history = in_force("a").roll_back(CAUSE)
    assert (history.in_force, states(history)) == (None, {1: "quarantined"})
    with pytest.raises(ModelConflict, match=r"no version of .* is in force"):
        history.roll_back(CAUSE)


def test_rollback_goes_only_to_a_version_that_was_in_force() -> None:
    history, _, _ = in_force("a", "b").publish(draft("c"), State.CANDIDATE, CAUSE)
    with pytest.raises(ModelConflict, match=r"version 3 .* is candidate: a rollback needs"):
        history.roll_back(CAUSE, to=3)
    with pytest.raises(ModelNotFound):
        history.roll_back(CAUSE, to=7)
    assert states(history.roll_back(CAUSE, to=1))[1] == "in_force"


def test_quarantined_version_returns_only_by_force() -> None:
    history = in_force("a", "b").roll_back(CAUSE)
    with pytest.raises(ModelConflict, match="was quarantined: a test; use force"):
        history.request(2, State.IN_FORCE, CAUSE)
    forced = history.request(2, State.IN_FORCE, CAUSE, force=True)
    assert (states(forced), forced.get(2).is_forced) == ({1: "superseded", 2: "in_force"}, True)


def test_unsound_version_comes_into_force_only_by_force_and_says_so() -> None:
    with pytest.raises(ModelConflict, match=r"is not sound: its gain margin is 1.2; use force"):
        EMPTY.publish(draft(is_sound=False), State.IN_FORCE, CAUSE)
    history, _, _ = EMPTY.publish(draft(is_sound=False), State.SHADOW, CAUSE)
    with pytest.raises(ModelConflict, match="not sound"):
        history.request(1, State.IN_FORCE, CAUSE)
    history = history.request(1, State.IN_FORCE, CAUSE, force=True)
    assert history.get(1).is_forced
    history, _, _ = history.publish(draft("b"), State.IN_FORCE, CAUSE)
    # Accepted once, it may be what a rollback returns to, and still says that it was forced.
    assert history.roll_back(CAUSE).get(1).is_forced


def test_force_that_was_not_needed_leaves_no_mark() -> None:
    _, version, _ = EMPTY.publish(draft(), State.IN_FORCE, CAUSE, force=True)
    assert not version.is_forced


def test_pinned_version_keeps_others_from_taking_over() -> None:
    history = in_force("a", "b").pin(1, CAUSE)
    assert (history.pinned, states(history)) == (1, {1: "in_force", 2: "superseded"})
    for change in (
        lambda: history.publish(draft("c"), State.IN_FORCE, CAUSE),
        lambda: history.request(2, State.IN_FORCE, CAUSE),
        lambda: history.pin(2, CAUSE),
        lambda: history.roll_back(CAUSE),
    ):
        with pytest.raises(ModelConflict, match=r"version 1 of .* is pinned: unpin it first"):
            change()
    shadowed, _, _ = history.publish(draft("c"), State.SHADOW, CAUSE)
    assert states(shadowed.unpin(CAUSE).request(3, State.IN_FORCE, CAUSE))[3] == "in_force"
    with pytest.raises(ModelConflict, match=r"no version of .* is pinned"):
        history.unpin(CAUSE).unpin(CAUSE)


def test_version_in_force_is_rolled_back_not_quarantined() -> None:
    with pytest.raises(ModelConflict, match="is in force: roll it back"):
        in_force("a").request(1, State.QUARANTINED, CAUSE)
    with pytest.raises(ModelConflict, match="is in force and cannot become rejected"):
        in_force("a").request(1, State.REJECTED, CAUSE)


def test_nobody_requests_a_consequence() -> None:
    history, _, _ = EMPTY.publish(draft(), State.CANDIDATE, CAUSE)
    with pytest.raises(ModelConflict, match="cannot become superseded"):
        history.request(1, State.SUPERSEDED, CAUSE)
    with pytest.raises(ModelConflict, match="cannot be published as quarantined"):
        EMPTY.publish(draft(), State.QUARANTINED, CAUSE)


def test_old_versions_go_but_not_the_ones_in_use() -> None:
    history = in_force("a", "b").pin(1, CAUSE)
    for number in range(100):
        history, _, _ = history.publish(draft(f"c{number}"), State.CANDIDATE, CAUSE)
    assert len(history.versions) == history_module.MAX_VERSIONS
    # 2 is what a rollback would put in force if 1 were not pinned.
    assert [version.number for version in history.versions][:3] == [1, 2, 85]
    assert history.next_number == 103


def test_large_versions_are_limited_by_their_size() -> None:
    history = EMPTY
    for number in range(30):
        history, _, _ = history.publish(draft(str(number), size=256 * 1024), State.IN_FORCE, CAUSE)
        assert sum(version.size_bytes for version in history.versions) <= history_module.MAX_VERSIONS_BYTES
    assert len(history.versions) == 7


def test_history_is_stored_and_read_back() -> None:
    history = in_force("a", "b").pin(1, CAUSE)
    stored = history_to_json(history)
    assert history_from_json(stored) == history
    stored["versions"][0]["colour"] = "a field of a later version"
    assert history_from_json({**stored, "colour": "red"}) == history
    for broken in ({}, {**stored, "versions": [{"state": "in_force"}]}, {**stored, "versions": 7}):
        with pytest.raises(ValueError, match="not the history of a model"):
            history_from_json(broken)


class Registered(RuleBasedStateMachine):
    """Any requests in any order, refused or not."""

    def __init__(self) -> None:
        super().__init__()
        self.history = EMPTY
        self.numbers: list[int] = []
        self.at = 0.0

    def change(self, change: Callable[[Cause], History]) -> None:
        self.at += 1
        before = self.history
        try:
            self.history = change(Cause(self.at, "guest", f"change {self.at:g}"))
        except (ModelConflict, ModelNotFound):
            assert self.history is before
            return
        self.check_steps(before)

    def check_steps(self, before: History) -> None:
        """Every change of a state is one of the table, and in the log."""
        logged = {(entry.version, entry.before, entry.after) for entry in self.history.entries if entry.at == self.at}
        for version in self.history.versions:
            old = before.find(version.number)
            if old is None:
                assert (version.number, None, str(version.state)) in logged
            elif old.state is not version.state:
                assert version.state in TRANSITIONS[old.state]
                assert (version.number, str(old.state), str(version.state)) in logged
            if old is not None:
                assert (old.digest, old.document) == (version.digest, version.document)

    @rule(
        name=st.integers(0, 60),
        state=st.sampled_from(FIRST_STATES),
        is_sound=st.sampled_from([True, False, None]),
        force=st.booleans(),
        size=st.sampled_from([10, 250_000]),
    )
    def publish(self, name: int, state: State, is_sound: bool | None, force: bool, size: int) -> None:
        def change(cause: Cause) -> History:
            made = draft(str(name), is_sound=is_sound, size=size)
            found, version, is_new = self.history.publish(made, state, cause, force=force)
            if is_new:
                self.numbers.append(version.number)
                assert found.find(version.number) == version
            else:
                assert found is self.history
            return found

        self.change(change)

    @rule(
        number=st.integers(1, 30),
        state=st.sampled_from([*REQUESTED_STATES, State.SUPERSEDED, State.CANDIDATE]),
        force=st.booleans(),
    )
    def request(self, number: int, state: State, force: bool) -> None:
        self.change(lambda cause: self.history.request(number, state, cause, force=force))

    @rule(number=st.integers(1, 30), force=st.booleans())
    def pin(self, number: int, force: bool) -> None:
        self.change(lambda cause: self.history.pin(number, cause, force=force))

    @precondition(lambda self: self.history.pinned is not None)
    @rule()
    def unpin(self) -> None:
        self.change(self.history.unpin)

    @rule(to=st.none() | st.integers(1, 30))
    def roll_back(self, to: int | None) -> None:
        self.change(lambda cause: self.history.roll_back(cause, to))

    @invariant()
    def one_version_at_most_is_in_force_and_one_in_shadow(self) -> None:
        for state in (State.IN_FORCE, State.SHADOW):
            assert sum(version.state is state for version in self.history.versions) <= 1

    @invariant()
    def what_is_pinned_is_in_force(self) -> None:
        if self.history.pinned is not None:
            assert self.history.get(self.history.pinned).state is State.IN_FORCE

    @invariant()
    def unsound_version_in_force_was_forced(self) -> None:
        version = self.history.in_force
        assert version is None or version.is_sound is not False or version.is_forced

    @invariant()
    def numbers_are_never_reused(self) -> None:
        assert self.numbers == sorted({*self.numbers})

    @invariant()
    def memory_is_bounded(self) -> None:
        versions = self.history.versions
        assert len(versions) <= history_module.MAX_VERSIONS
        assert sum(version.size_bytes for version in versions) <= history_module.MAX_VERSIONS_BYTES
        assert len(self.history.entries) <= history_module.MAX_ENTRIES

    @invariant()
    def it_survives_storage(self) -> None:
        assert history_from_json(history_to_json(self.history)) == self.history

    @invariant()
    def rollback_returns_to_what_was_in_force(self) -> None:
        history = self.history
        if history.in_force is None or history.pinned is not None:
            return
        after = history.roll_back(CAUSE)
        assert after.in_force == (None if history.previous is None else after.get(history.previous.number))


TestRegistered = Registered.TestCase


def test_cause_is_not_shared_between_versions() -> None:
    """The outcome that was observed belongs to the version that it was observed of."""
    history = in_force("a", "b")
    taken = history.pin(1, replace(CAUSE, outcome='{"settling_samples": 5}'))
    assert (taken.get(1).outcome, taken.get(2).outcome) == ('{"settling_samples": 5}', None)
